"""The root of all errors of this project, and the errors that several packages share. Each package adds its own.

An error is raised where the fact is known and carries the fact, as attributes if code uses them. It is translated only
once, at the program's edge (to a gRPC code or an exit code). No code reads `str(error)` to make a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Self, TypeVar

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Remove the tracebacks of an error and of the errors that led to it, and return it.

    An error that is stored needs this. Its traceback refers to frames and to their callers' frames. If a local variable
    there refers to the error again, everything that the frames hold, such as messages, stays in memory until the
    garbage collector runs.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return error


class BinlogError(Exception):
    """Base class of all errors of this project. The text names what failed and where."""


class DecodeError(BinlogError):
    """Bytes could not be decoded.

    `what`: the thing that was being decoded. `offset`: the byte at which decoding stopped. `detail`: the reason.
    """

    def __init__(self, what: str, *, offset: int, detail: str) -> None:
        super().__init__(what, offset, detail)
        self.what = what
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.what}: {self.detail} at byte {self.offset}"

    def within(self, where: str) -> DecodeError:
        """Return the error as one of something in `where`."""
        return DecodeError(f"{where}: {self.what}", offset=self.offset, detail=self.detail)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark's workers pickle errors; pickling keyword-only arguments needs this.
        return (_decode_error, (self.what, self.offset, self.detail))


def _decode_error(what: str, offset: int, detail: str) -> DecodeError:
    return DecodeError(what, offset=offset, detail=detail)


class ConfigError(BinlogError):
    """A setting is invalid. The text names its source (flag, variable, or file and key) and the reason."""


class ClusterMismatch(BinlogError):
    """A request or an answer belongs to another cluster."""

    @classmethod
    def of(cls, theirs: int, ours: int) -> Self:
        """Return the error with the original's text (`P-RPC-01`)."""
        return cls(f"cluster ID are mismatch, {theirs} vs {ours}")


class NotOnline(BinlogError):
    """A prewrite was sent to a pump that accepts none (`P-RPC-03`, the original's text)."""

    def __init__(self, state: str) -> None:
        super().__init__(f"no online: {state}")


class NoSpace(BinlogError):
    """The disk is at its limit (`P-RPC-06`, the original's text). Both numbers are bytes."""

    def __init__(self, available: int, limit: int) -> None:
        super().__init__(f"no available space, available: {available}, StopWriteAtAvailableSpace: {limit}")


class LogBroken(BinlogError):
    """A write or sync of the value log failed. The log accepts no more writes until the process is restarted."""


class PurgedPosition(BinlogError):
    """A pull requests binlogs that may have been purged."""

    @classmethod
    def of(cls, after_ts: int, purged_ts: int) -> Self:
        """Return the error of a pull after `after_ts`. Both numbers are TSOs."""
        return cls(f"binlogs after ts {after_ts} may be gone: everything up to ts {purged_ts} was purged")


class PumpUnavailable(BinlogError):
    """No pump could be reached, or none accepted the binlog in time."""


class TimestampUnavailable(BinlogError):
    """No timestamp was available in time, or the source returned an unusable answer."""


class TimestampSourceMismatch(BinlogError):
    """The cluster uses another timestamp source than the configuration or the environment says."""


class EtcdError(BinlogError):
    """A request to etcd failed. A failed write may nevertheless have taken place."""


class WatchBroken(EtcdError):
    """A watch ended. The caller must list the keys again to see what changed since."""


class LeaseExpired(EtcdError):
    """The lease has ended; etcd has removed every key attached to it."""


class RegistryConflict(BinlogError):
    """Another process wrote this node's record since it was last read (correctness rule 2: pumps that return)."""


class NodeNotFound(BinlogError):
    """The registry has no such key (`R-05`, the original's text)."""


ERROR_TRAILER: Final = "binlog-error"
_UNKNOWN: Final = 2  # gRPC's status code


class PumpError(StrEnum):
    """Why a pump refused a request, where its caller decides by that; nothing was stored. The text of an error is for
    people.

    Our pumps name the kind in the trailer ERROR_TRAILER of a call, or in WriteError.kind inside a message. A Go pump
    answers every error with UNKNOWN and a text. So its texts are matched, here and nowhere else.
    """

    CLUSTER_MISMATCH = "cluster-mismatch"
    NOT_ONLINE = "not-online"
    NO_SPACE = "no-space"
    TOO_FAR_AHEAD = "too-far-ahead"
    OVERLOADED = "overloaded"


# In the original's spelling (`P-RPC-01`, `P-RPC-03`, `P-RPC-06`).
_ORIGINAL_TEXTS: Final = (
    ("cluster ID are mismatch", PumpError.CLUSTER_MISMATCH),
    ("no online:", PumpError.NOT_ONLINE),
    ("not online", PumpError.NOT_ONLINE),
    ("no available space", PumpError.NO_SPACE),
)


def pump_error(name: str, *, code: int, text: str) -> PumpError | None:
    """Return the kind of an error; None for one that callers know by its status alone. `name`: the kind as the pump
    sent it, "" for none; `code` and `text`: gRPC's."""
    if name:
        return PumpError(name) if name in frozenset(PumpError) else None
    if code != _UNKNOWN:
        return None
    return next((kind for begin, kind in _ORIGINAL_TEXTS if begin in text), None)


def name_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return what the trailers of a call name; "" if they name nothing."""
    found = next((value for name, value in trailers or () if name == ERROR_TRAILER), "")
    return found if isinstance(found, str) else ""
