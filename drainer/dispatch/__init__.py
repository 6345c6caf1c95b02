"""Converts changes into events, and chooses the topic and partition of each event. Pure."""

from __future__ import annotations

from binlog.errors import BinlogError, ConfigError


class DispatchConfigError(ConfigError):
    """A dispatch rule is invalid. The text names the rule."""


class DispatchError(BinlogError):
    """A rule cannot be applied to rows of a table. The text names the table and the rule."""
