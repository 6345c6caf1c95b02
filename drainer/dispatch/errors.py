"""What dispatching may raise."""

from __future__ import annotations

from binlog.errors import BinlogError, ConfigError


class DispatchConfigError(ConfigError):
    """Rules that cannot be followed; the text names the rule."""


class DispatchError(BinlogError):
    """Rows that their rule cannot be applied to; the text names the table and the rule."""
