"""The error that stops reparo. Its message names file and offset, if there are any."""

from __future__ import annotations

from binlog.errors import BinlogError


class ReparoError(BinlogError):
    """Files that cannot be read on, or a record that cannot be applied."""
