"""The gRPC services: methods, limits, and a status for each error. Handlers receive and return bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from binlog import errors
from binlog.errors import BinlogError, PumpError
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Streaming, Unary
from binlog.rpc.session import Settings
from binlog.rpc.status import RpcError, Status
from binlog.runtime import listener
from binlog.runtime.security import Security

from pump import errors as own
from pump import metrics
from pump.rpc import messages
from pump.rpc.admission import InFlight

# The first matching class decides.
CODES: tuple[tuple[type[BinlogError], Status], ...] = (
    (errors.ClusterMismatch, Status.FAILED_PRECONDITION),
    (errors.NotOnline, Status.FAILED_PRECONDITION),
    (own.NotResolved, Status.FAILED_PRECONDITION),
    (own.NotLeader, Status.FAILED_PRECONDITION),
    (own.NoSuchBinlog, Status.NOT_FOUND),
    (own.NotDamaged, Status.FAILED_PRECONDITION),
    (own.TooLarge, Status.RESOURCE_EXHAUSTED),
    (own.MessageTooLarge, Status.RESOURCE_EXHAUSTED),
    (own.TooManyItems, Status.RESOURCE_EXHAUSTED),
    (own.Overloaded, Status.RESOURCE_EXHAUSTED),
    (errors.NoSpace, Status.RESOURCE_EXHAUSTED),
    (errors.LogBroken, Status.INTERNAL),
    (errors.PurgedPosition, Status.OUT_OF_RANGE),
    (own.DamagedRecord, Status.DATA_LOSS),
    (errors.DecodeError, Status.INVALID_ARGUMENT),
    (own.InvalidBinlog, Status.INVALID_ARGUMENT),
    (own.RolledBack, Status.ABORTED),
    (own.Conflict, Status.ALREADY_EXISTS),
    (own.Stopping, Status.UNAVAILABLE),
    (errors.TimestampUnavailable, Status.UNAVAILABLE),
    (errors.EtcdError, Status.UNAVAILABLE),
)
# The errors by whose kind callers decide.
KINDS: tuple[tuple[type[BinlogError], PumpError], ...] = (
    (errors.ClusterMismatch, PumpError.CLUSTER_MISMATCH),
    (errors.NotOnline, PumpError.NOT_ONLINE),
    (errors.NoSpace, PumpError.NO_SPACE),
    (own.TooFarAhead, PumpError.TOO_FAR_AHEAD),
    (own.Overloaded, PumpError.OVERLOADED),
)
# The codes that upstream's service may return. For all other errors its clients expect UNKNOWN and a text (P-RPC-04).
UPSTREAM_CODES = frozenset({Status.OUT_OF_RANGE, Status.DATA_LOSS, Status.UNAVAILABLE})


# TiDB's client does not repeat a request that was answered with ResourceExhausted (C-10), which is right for these
# errors. A full disk and too many bytes in flight are returned as UNKNOWN, so that the client repeats the request:
# another pump may have memory for it, or this one a little later.
UPSTREAM_FINAL: tuple[type[BinlogError], ...] = (own.TooLarge, own.MessageTooLarge)

TRANSACTION_BYTES_MAX = 1 << 30
BATCH_BYTES_MIN = 64 << 20  # a message of many binlogs may have at least this size, whatever transaction-bytes-max is
WRITE_EXTRA_BYTES = 64  # allowed for the bytes of a WriteBinlogReq in addition to its payload


def code_of(error: BinlogError) -> Status:
    """Return the status of an error; UNKNOWN if it is not in the table."""
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    return Status.UNKNOWN


def kind_of(error: BinlogError) -> str:
    """Return the kind of an error; "" if it is not in the table."""
    return next((kind for one, kind in KINDS if isinstance(error, one)), "")


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service. Of its methods, the *counted* ones have messages that hold binlogs: these count as in flight and
    may be large.

    `upstream`: errors are returned as UNKNOWN with a text, as upstream's clients expect.

    Calls and pulls are timed here under their names. A bidi handler measures each message itself, and a method with a
    batched handler measures each call."""

    name: str
    methods: Mapping[str, Method]
    upstream: bool = False


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits of received messages, in bytes. `message_bytes_max`: for any message that holds binlogs; 0: no limit of
    its own."""

    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    message_bytes_max: int = 0

    @property
    def single(self) -> int:
        """The limit of a message with one binlog."""
        found = self.transaction_bytes_max + WRITE_EXTRA_BYTES
        return min(found, self.message_bytes_max or found)

    @property
    def batch(self) -> int:
        """The limit of a message with many binlogs."""
        found = max(self.transaction_bytes_max, BATCH_BYTES_MIN) + WRITE_EXTRA_BYTES
        return min(found, self.message_bytes_max or found)

    def too_long(self, size: int, head: bytes, limit: int) -> Exception:
        """Return the error for a message above its limit, of which only the head was read."""
        metrics.LOSS.inc()
        if limit != self.message_bytes_max:
            found = messages.head_of_write(head)
            if found is not None and found[1] > self.transaction_bytes_max:
                return own.TooLarge(*found, self.transaction_bytes_max)
        return own.MessageTooLarge(size, limit)


class PumpListener(listener.Listener):
    """The server at the pump's gRPC address."""

    def __init__(
        self,
        services: Sequence[Service],
        security: Security | None = None,
        in_flight: InFlight | None = None,
        limits: MessageLimits | None = None,
    ) -> None:
        methods = {
            f"/{service.name}/{name}".encode(): _served(service, name, method, limits or MessageLimits())
            for service in services
            for name, method in service.methods.items()
        }
        super().__init__(Settings(methods, in_flight or InFlight()), security)


def _served(service: Service, name: str, method: Method, limits: MessageLimits) -> Method:
    if method.unary is not None:
        method = replace(method, unary=_timed_unary(name, method.unary))
    if method.streaming is not None:
        method = replace(method, streaming=_timed(name, method.streaming))
    if method.counted:
        limit = limits.single if method.bidi is None else limits.batch
        method = replace(method, request_bytes_max=limit, too_long=limits.too_long)
    return replace(method, translate=_translate_for_upstream if service.upstream else _translate)


def _timed_unary(name: str, handler: Unary) -> Unary:
    async def timed(request: Buffer) -> bytes:
        with metrics.timed(name):
            return await handler(request)

    return timed


def _timed(name: str, handler: Streaming) -> Streaming:
    async def timed(request: Buffer) -> AsyncIterator[bytes | Sequence[bytes]]:
        with metrics.timed(name):
            async for message in handler(request):
                yield message

    return timed


def _translate(error: Exception) -> RpcError | None:
    return RpcError(code_of(error), str(error), kind_of(error)) if isinstance(error, BinlogError) else None


def _translate_for_upstream(error: Exception) -> RpcError | None:
    found = _translate(error)
    if found is None or found.status in UPSTREAM_CODES or isinstance(error, UPSTREAM_FINAL):
        return found
    return RpcError(Status.UNKNOWN, found.text, found.kind)
