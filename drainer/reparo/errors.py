"""What may stop reparo. Every message names file and offset where there is one."""

from __future__ import annotations

from binlog.errors import BinlogError


class ReparoError(BinlogError):
    """Files that cannot be read on, or a record that cannot be applied."""
