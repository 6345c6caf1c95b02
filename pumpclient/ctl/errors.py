"""How a command fails; exit_codes.py makes numbers of it."""

from __future__ import annotations

from binlog.errors import BinlogError


class CommandError(BinlogError):
    """A command failed; the text is shown to the operator."""


class NotFound(CommandError):
    """There is no such node, prewrite or binlog."""


class NodeSilent(CommandError):
    """A node does not answer."""


class Refused(CommandError):
    """A node refuses, a confirmation is missing, or something changed meanwhile: nothing was done."""


class Misused(CommandError):
    """Flags that a command needs are missing, or do not go together."""
