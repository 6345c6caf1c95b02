"""The tree of errors that all programs share. Raised low, translated once at each edge.

Messages name the thing and the place. Nobody reads `str(error)` to decide: decisions hang on the class.
"""

from __future__ import annotations


class BinlogError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigError(BinlogError):
    """A flag, an environment variable or a key of a TOML file is wrong; the message names which and where."""


class DecodeError(BinlogError):
    """Bytes that are not what they should be. `offset`: byte position in what was decoded."""

    def __init__(self, what: str, *, offset: int, detail: str) -> None:
        super().__init__(f"{what}: {detail} (at byte {offset})")
        self.what = what
        self.offset = offset
        self.detail = detail


class ClusterMismatch(BinlogError):
    """A request for another cluster (P-RPC-01)."""

    def __init__(self, request: int, own: int) -> None:
        super().__init__(f"cluster ID are mismatch, {request} vs {own}")


class NotOnline(BinlogError):
    """A prewrite for a pump that is not online (P-RPC-03)."""

    def __init__(self, state: str) -> None:
        super().__init__(f"no online: {state}")
        self.state = state


class NoSpace(BinlogError):
    """The disk is as full as the configuration lets it be (P-RPC-06)."""


class LogBroken(BinlogError):
    """A write or sync of the value log failed; nothing more is written until a restart."""


class PurgedPosition(BinlogError):
    """A pull from a position whose binlogs may have been removed."""

    def __init__(self, after_ts: int, purged_ts: int) -> None:
        super().__init__(f"binlogs after {after_ts} are asked for, but those up to {purged_ts} may have been purged")
        self.after_ts = after_ts
        self.purged_ts = purged_ts


class EtcdError(BinlogError):
    """etcd did not answer, or broke off a watch; the message names the endpoints."""


class RegistryConflict(BinlogError):
    """A registry record is not the one this program wrote last (correctness rule 2)."""


class NodeNotFound(BinlogError):
    """No such node in the registry (R-05)."""


class TimestampUnavailable(BinlogError):
    """No timestamp within the deadline: neither PD nor an elected pump answered."""


class PumpUnavailable(BinlogError):
    """No pump could take the binlog."""
