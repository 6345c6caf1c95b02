"""The errors of commands. exit_codes.py maps them to exit codes."""

from __future__ import annotations

from binlog.errors import BinlogError


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
