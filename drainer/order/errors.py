"""Errors between decoding and applying."""

from __future__ import annotations

from binlog.errors import BinlogError


class BlobError(BinlogError):
    """A slot's blob is of another version or damaged."""
