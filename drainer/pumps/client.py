"""gRPC client of a pump's extension service. A Go pump answers UNIMPLEMENTED, which raises NoExtension.

And binlogs as the messages of a pull: small ones together, a large one in parts of a few MiB, which are joined again.
No value in the JVM may exceed a few MiB, so a pull yields parts, whether the pump served parts (see PullRangeResp in
pump_ext.proto) or sent the binlog complete, as Go pumps do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import grpc
import grpc.aio
from binlog import envelope
from binlog.errors import (
    BinlogError,
    ClusterMismatch,
    DecodeError,
    PumpError,
    PumpUnavailable,
    PurgedPosition,
    name_in,
    pump_error,
)
from binlog.pb import parsed
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.channel import keepalive, open_channel, stub_of
from binlog.runtime.security import Security
from binlog.tidb.varint import decode_uvarint

from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, RangeDiffers, Stop, check

MESSAGE_BYTES_MAX = 1 << 20  # of a message with several binlogs
PART_BYTES_MAX = 4 << 20

_START_TS = 2
_VALUE_TAG, _QUERY_TAG = 5 << 3 | 2, 6 << 3 | 2  # of a Binlog: prewrite_value, ddl_query
_VERSION_TAG = 1 << 3  # of a PrewriteValue
_BYTES = 2


def cut_into_parts(
    payload: bytes | memoryview, commit_ts: int, part_bytes_max: int = PART_BYTES_MAX
) -> Iterator[ext.PullRangeResp]:
    """Yield the PullRangeResp messages of a binlog, with at most `part_bytes_max` payload bytes each."""
    view = memoryview(payload)
    for at in range(0, len(view), part_bytes_max):
        part = bytes(view[at : at + part_bytes_max])
        yield ext.PullRangeResp(payloads=[part], last_ts=commit_ts, whole_bytes=len(view), part_offset=at)


def messages_of(binlogs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield serialized PullRangeResp with these binlogs, each with its commit_ts before it, ascending."""
    message, size = ext.PullRangeResp(), 0
    for commit_ts, payload in binlogs:
        is_large = len(payload) > PART_BYTES_MAX
        if not is_large:
            message.payloads.append(payload)
            message.last_ts = commit_ts
            size += len(payload)
        if message.payloads and (is_large or size >= MESSAGE_BYTES_MAX):
            yield message.SerializeToString()
            message, size = ext.PullRangeResp(), 0
        if is_large:
            for part in cut_into_parts(payload, commit_ts):
                yield part.SerializeToString()
    if message.payloads:
        yield message.SerializeToString()


class PartJoiner:
    """Joins the messages of a pull into binlogs, in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> list[bytes]:
        """Add a message; return the binlogs that it completes. Raises DecodeError if a part is out of sequence."""
        found = parsed(ext.PullRangeResp, message)
        return self.join(found, list(found.payloads))

    def join(self, found: ext.PullRangeResp, payloads: list[bytes]) -> list[bytes]:
        """Do the same as `add`, for a message that was parsed, and its payloads."""
        check_continues(found, self._size)
        if not found.whole_bytes:
            return payloads
        (part,) = payloads
        self._parts.append(part)
        self._size += len(part)
        if self._size < found.whole_bytes:
            return []
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [whole]

    def end(self) -> None:
        """End the pull. Raises DecodeError if a binlog is incomplete."""
        if self._size:
            raise _incomplete(self._size)


def _incomplete(size: int) -> DecodeError:
    return DecodeError("parts of a binlog", offset=size, detail="the remaining parts are missing")


def check_continues(found: ext.PullRangeResp, offset: int) -> None:
    """Raise DecodeError unless this message of a pull continues the `offset` bytes of an incomplete binlog that were
    received before."""
    if found.whole_bytes:
        check_part(found, offset)
    elif offset:
        raise _incomplete(offset)


def check_part(found: ext.PullRangeResp, offset: int) -> None:
    """Raise DecodeError unless this part continues the `offset` bytes of its binlog that were received."""
    size = sum(map(len, found.payloads))
    if len(found.payloads) != 1 or found.part_offset != offset or not 0 < size <= found.whole_bytes - offset:
        raise DecodeError(
            f"parts of the binlog of commit_ts {found.last_ts}",
            offset=offset,
            detail=f"a part of {size} bytes at {found.part_offset} of {found.whole_bytes} is out of sequence",
        )


def leading_schema_version(first_part: bytes) -> int | None:
    """Return the schema_version from the first part of a binlog with rows; None for a DDL."""
    at = 0
    while at < len(first_part):
        tag, at = decode_uvarint(first_part, at)
        size, at = decode_uvarint(first_part, at)
        if tag == _QUERY_TAG:
            return None
        if tag == _VALUE_TAG:
            tag, at = decode_uvarint(first_part, at)
            return decode_uvarint(first_part, at)[0] if tag == _VERSION_TAG else 0
        if tag & 7 == _BYTES:
            at += size
    return None


def leading_start_ts(first_part: bytes) -> int:
    """Return the start_ts from the first part of a binlog; 0 if it is not among the leading fields."""
    at = 0
    try:
        for _ in range(3):
            tag, at = decode_uvarint(first_part, at)
            if tag & 7:
                break
            value, at = decode_uvarint(first_part, at)
            if tag >> 3 == _START_TS:
                return value
    except DecodeError:
        pass
    return 0


CALL_TIMEOUT_S = 10.0
MISSED_TIMEOUT_S = 60.0
SILENCE_MAX_S = 15.0  # five times the default interval of fake binlogs
PENDING_SHOWN_MAX = 20
MISSED_MAX = 10_000  # more are not counted
MISSED_SHOWN = 20

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),  # one binlog alone may be larger than any fixed bound
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    *keepalive(),
)


class NoExtension(BinlogError):
    """The pump has no extension service: it is a Go pump."""


@dataclass(slots=True)
class Missed:
    """Counts binlogs of a rejoined pump at or below the position, without fakes: how many (MISSED_MAX: or more), and
    (start_ts, commit_ts) of the first MISSED_SHOWN."""

    count: int = 0
    shown: tuple[tuple[int, int], ...] = ()

    @property
    def full(self) -> bool:
        return self.count >= MISSED_MAX

    def add(self, found: envelope.Envelope) -> None:
        if not found.is_fake:
            self._add(found.start_ts, found.commit_ts)

    def add_message(self, found: ext.PullRangeResp) -> None:
        """Count the binlogs of a message of a pull; one that arrives in parts counts with its first part."""
        if not found.whole_bytes:
            for payload in found.payloads:
                self.add(envelope.scan(payload))
        elif not found.part_offset:
            self._add(leading_start_ts(found.payloads[0]), found.last_ts)

    def _add(self, start_ts: int, commit_ts: int) -> None:
        self.count += 1
        if self.count <= MISSED_SHOWN:
            self.shown = (*self.shown, (start_ts, commit_ts))


class PumpClient(Protocol):
    """Client of one pump. `interrupted`: the connection was lost since this was last cleared, so another program may
    run at the address now."""

    extension: bool
    interrupted: bool

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark: ...

    async def inspect(self) -> ext.InspectResp | None: ...

    async def count(self, *, after_ts: int, until_ts: int) -> Counted | None:
        """Return number and bytes of the binlogs in (after_ts, until_ts], None if unknown. Raises as `mark` does."""
        ...

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        """Return the binlogs that the pump holds in (after_ts, until_ts], up to which it must be resolved. Raises as
        `mark` does.
        """
        ...

    async def close(self) -> None: ...


class Received:
    """Counts what one PullRange received, and compares it with the counts with which the pump ends it."""

    def __init__(self) -> None:
        self._end: ext.PullEnd | None = None
        self.found = Counted()

    def add(self, message: ext.PullRangeResp) -> list[bytes]:
        """Count a message; return its payloads. The last message has none."""
        payloads = list(message.payloads)
        found = Counted.of(payloads)
        if message.whole_bytes and message.part_offset + (found.size or 0) < message.whole_bytes:
            found = Counted(0, found.size)  # a binlog in parts is counted with its last part
        self.found += found
        if message.HasField("end"):
            self._end = message.end
        return payloads

    def check(self, pump_name: str, *, after_ts: int, until_ts: int) -> None:
        """Check after the last message. RangeDiffers where the stream was incomplete."""
        if self._end is None:
            raise RangeDiffers(
                f"{pump_name}: the stream of the range ({after_ts}, {until_ts}] ended after {self.found} without its "
                "final message; nothing of the batch was applied, it is planned again"
            )
        check(
            Counted(self._end.count, self._end.bytes),
            self.found,
            pump_name=pump_name,
            after_ts=after_ts,
            until_ts=until_ts,
            where="of what it says it has sent",
        )


def aio_channel(host: str, security: Security, *more: tuple[str, int]) -> grpc.aio.Channel:
    """Return a channel to host:port. `more`: options that override the defaults."""
    return open_channel(host, security, tuple({**dict(CHANNEL_OPTIONS), **dict(more)}.items()))


class ExtensionPump:
    """Client of PumpExt at one address; connects at the first call."""

    extension = True
    interrupted = False  # not needed: NoExtension shows that another program runs there

    def __init__(self, node_id: str, host: str, *, cluster_id: int, security: Security) -> None:
        self._node_id = node_id
        self._host = host
        self._name = f"pump {node_id} ({host})"
        self._cluster_id = cluster_id
        self._channel = aio_channel(host, security)
        self._stub = stub_of(self._channel, ext.DESCRIPTOR, "PumpExt")

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark:
        """Return the pump's mark. Raises NoExtension, ClusterMismatch, PurgedPosition, PumpUnavailable."""
        request = ext.WatermarkReq(cluster_id=self._cluster_id, after_ts=after_ts, **asdict(limits))
        answer: ext.WatermarkResp = await self._answer(self._stub.Watermark, request, after_ts)
        if 0 < after_ts < answer.purged_ts:
            raise PurgedPosition.of(after_ts, answer.purged_ts)
        return PumpMark(
            node_id=self._node_id,
            host=self._host,
            extension=True,
            resolved_ts=answer.resolved_ts,
            end_ts=answer.batch_end_ts,
            batch_bytes=answer.batch_bytes,
            batch_count=answer.batch_count,
            stop=Stop(answer.stop),
            stop_ts=answer.stop_ts,
            split_ts=tuple(answer.split_ts),
            purged_ts=answer.purged_ts,
            last_ts=answer.last_ts,
            splits=tuple(map(Counted, answer.split_count, answer.split_bytes)),
            bytes_exact=answer.bytes_exact,
            stop_bytes=answer.stop_bytes,
            holding=answer.oldest_pending if answer.HasField("oldest_pending") else None,
        )

    async def count(self, *, after_ts: int, until_ts: int) -> Counted | None:
        request = ext.CountReq(cluster_id=self._cluster_id, after_ts=after_ts, until_ts=until_ts)
        answer: ext.CountResp = await self._answer(self._stub.Count, request, after_ts)
        return Counted(answer.count, answer.bytes if answer.bytes_exact else None)

    async def inspect(self) -> ext.InspectResp | None:
        request = ext.InspectReq(cluster_id=self._cluster_id, pending_max=PENDING_SHOWN_MAX)
        return await self._answer(self._stub.Inspect, request)  # type: ignore[no-any-return]

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        request = ext.PullRangeReq(
            cluster_id=self._cluster_id, after_ts=after_ts, until_ts=until_ts, part_bytes_max=PART_BYTES_MAX
        )
        missed, received = Missed(), Received()
        stream = self._stub.PullRange(request, timeout=MISSED_TIMEOUT_S)
        try:
            async for answer in stream:
                received.add(answer)
                missed.add_message(answer)
                if missed.full:
                    break
            else:
                received.check(self._name, after_ts=after_ts, until_ts=until_ts)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._name, after_ts=after_ts) from error
        finally:
            stream.cancel()
        return missed

    async def _answer(self, method: Any, request: object, after_ts: int = 0) -> Any:
        """Call a method. Raises what `translate` returns."""
        try:
            return await method(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._name, after_ts=after_ts) from error

    async def close(self) -> None:
        await self._channel.close()


def ended_early(pump_name: str, at_ts: int, until_ts: int) -> PumpUnavailable:
    """Return the error of a Go pump that stopped: it ends its streams without an error status."""
    return PumpUnavailable(f"{pump_name}: the stream ended at ts {at_ts}, before ts {until_ts}")


def translate(error: grpc.RpcError, pump_name: str, *, after_ts: int = 0) -> BinlogError:
    """Translate a gRPC error into NoExtension, ClusterMismatch, PurgedPosition or PumpUnavailable."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        details = details.rpartition("Failed to connect to remote host: ")[2]  # without a list of every address tried
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NoExtension(f"{pump_name} has no extension service")
    trailers = cast("Iterable[tuple[str, str | bytes]] | None", error.trailing_metadata())
    if pump_error(name_in(trailers), code=code.value[0], text=details) is PumpError.CLUSTER_MISMATCH:
        return ClusterMismatch(f"{pump_name}: {details}")
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return PurgedPosition(f"{pump_name}: binlogs after ts {after_ts} may be gone: {details}")
    return PumpUnavailable(f"{pump_name}: {code.name}: {details}")
