"""The errors of commands, and the exit codes for scripts. The original's tool has only 0, 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping

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


class CommandError(BinlogError):
    """A command failed; the text is shown to the operator."""


class NotFound(CommandError):
    """No such node, prewrite or binlog exists."""


class NodeSilent(CommandError):
    """A node does not answer."""


class Refused(CommandError):
    """A node refused, a confirmation is missing, or something changed meanwhile. Nothing was done."""


class Misused(CommandError):
    """The command does not exist, or flags that it needs are missing or contradict each other."""


DONE, FAILED, USAGE, NO_CLUSTER, NOT_FOUND, NODE_SILENT, REFUSED = range(7)
EXIT_CODES: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed for another reason, for example because a pump did only a part",
    USAGE: "the command line is invalid: the command or a flag is unknown, or a flag is missing or wrong, also "
    "-pd-urls or a TLS file",
    NO_CLUSTER: "etcd or PD does not answer, or not with TLS as configured",
    NOT_FOUND: "the node, prewrite or binlog does not exist",
    NODE_SILENT: "the node does not answer",
    REFUSED: "refused, and nothing was done: the node refused, a confirmation is missing, or the state changed "
    "meanwhile",
}

_CODES: Mapping[int, tuple[type[BinlogError], ...]] = {
    USAGE: (Misused, TimestampSourceMismatch, ConfigError),
    NO_CLUSTER: (NotPD, EtcdError, TimestampUnavailable),
    NOT_FOUND: (NotFound, NodeNotFound),
    NODE_SILENT: (NodeSilent, NoAnswer),
    REFUSED: (Refused, RegistryConflict),
}


def code_of(error: BinlogError) -> int:
    """Return the exit code of a command that ended with this error."""
    return next((code for code, kinds in _CODES.items() if isinstance(error, kinds)), FAILED)
