"""The exit codes of binlogctl, for scripts. The original's tool has only 0, 1 and 2."""

from __future__ import annotations

from binlog.cluster.pd import NotPD
from binlog.errors import (
    BinlogError,
    ConfigError,
    EtcdError,
    NodeNotFound,
    RegistryConflict,
    TimestampSourceMismatch,
    TimestampUnavailable,
)
from binlog.runtime.http import NoAnswer

from pumpclient.ctl.errors import Misused, NodeSilent, NotFound, Refused
from pumpclient.ctl.options import FAILED, NO_CLUSTER, NODE_SILENT, NOT_FOUND, REFUSED, USAGE, UsageError

# The first matching class decides.
_CODES: tuple[tuple[type[BinlogError], int], ...] = (
    (UsageError, USAGE),
    (Misused, USAGE),
    (NotFound, NOT_FOUND),
    (NodeNotFound, NOT_FOUND),
    (NodeSilent, NODE_SILENT),
    (NoAnswer, NODE_SILENT),
    (Refused, REFUSED),
    (RegistryConflict, REFUSED),
    (NotPD, NO_CLUSTER),
    (EtcdError, NO_CLUSTER),
    (TimestampUnavailable, NO_CLUSTER),
    (TimestampSourceMismatch, USAGE),
    (ConfigError, USAGE),
)


def code_of(error: BinlogError) -> int:
    """Return the exit code of a command that ended with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
