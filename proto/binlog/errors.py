"""The tree of errors every program here may raise; each package adds its own leaves.

Errors are raised where the fact is known, carry it as attributes, and are translated once at the edge (gRPC codes,
exit codes). Nobody reads `str(error)` to decide anything.
"""

from __future__ import annotations


class BinlogError(Exception):
    """Root of all errors of this project. Its text names the thing and the place."""


class DecodeError(BinlogError):
    """Bytes that are not what they should be.

    `what` names the thing that was being decoded, `offset` is the byte in it where decoding stopped,
    `detail` says what was wrong there.
    """

    def __init__(self, what: str, *, offset: int, detail: str) -> None:
        super().__init__(what, offset, detail)
        self.what = what
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.what}: {self.detail} at byte {self.offset}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark's workers pickle errors; keyword-only arguments need this.
        return (_decode_error, (self.what, self.offset, self.detail))


def _decode_error(what: str, offset: int, detail: str) -> DecodeError:
    return DecodeError(what, offset=offset, detail=detail)


class ConfigError(BinlogError):
    """A setting cannot be used; the text names its source (flag, variable, file and key) and why."""


class ClusterMismatch(BinlogError):
    """A request or an answer is about another cluster (`P-RPC-01`, upstream's text)."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(theirs, ours)
        self.theirs = theirs
        self.ours = ours

    def __str__(self) -> str:
        return f"cluster ID are mismatch, {self.theirs} vs {self.ours}"


class NotOnline(BinlogError):
    """A prewrite was sent to a pump that does not take any (`P-RPC-03`, upstream's text)."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state

    def __str__(self) -> str:
        return f"no online: {self.state}"


class NoSpace(BinlogError):
    """The disk is at its limit (`P-RPC-06`, upstream's text). Both numbers are bytes."""

    def __init__(self, available_bytes: int, limit_bytes: int) -> None:
        super().__init__(available_bytes, limit_bytes)
        self.available_bytes = available_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"no available space, available: {self.available_bytes}, StopWriteAtAvailableSpace: {self.limit_bytes}"


class LogBroken(BinlogError):
    """A write or sync of the value log failed: the log takes nothing more until the process starts anew."""


class PurgedPosition(BinlogError):
    """A pull asks for binlogs that may be gone. Both numbers are TSOs."""

    def __init__(self, after_ts: int, purged_ts: int) -> None:
        super().__init__(after_ts, purged_ts)
        self.after_ts = after_ts
        self.purged_ts = purged_ts

    def __str__(self) -> str:
        return f"binlogs after ts {self.after_ts} may be gone: everything up to ts {self.purged_ts} was purged"


class PumpUnavailable(BinlogError):
    """No pump could be reached, or none took the binlog, within the time allowed."""


class TimestampUnavailable(BinlogError):
    """No timestamp within the time allowed, or the source answered with something unusable."""


class TimestampSourceMismatch(BinlogError):
    """This cluster takes its timestamps elsewhere than the configuration or the environment says."""


class EtcdError(BinlogError):
    """A request to etcd failed. From a write it does not say whether the write took place."""


class WatchBroken(EtcdError):
    """A watch ended; what changed since must be listed again."""


class WatchCompacted(WatchBroken):
    """The history a watch asked for was compacted away; list again and watch from there."""

    def __init__(self, prefix: str, revision: int, compacted_revision: int) -> None:
        super().__init__(prefix, revision, compacted_revision)
        self.prefix = prefix
        self.revision = revision
        self.compacted_revision = compacted_revision

    def __str__(self) -> str:
        return (
            f"watch of {self.prefix} after revision {self.revision}: "
            f"history up to revision {self.compacted_revision} is compacted"
        )


class LeaseExpired(EtcdError):
    """The lease is gone, and with it every key attached to it."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"etcd lease {self.lease_id:x} has expired"


class RegistryConflict(BinlogError):
    """Somebody else wrote this node's record since it was last read (correctness rule 2)."""


class NodeNotFound(BinlogError):
    """No such key in the registry (`R-05`, upstream's text)."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"key {self.key} in etcd not found"


class LifecycleError(BinlogError):
    """An event that a node in this state does not know."""
