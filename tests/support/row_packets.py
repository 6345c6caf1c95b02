"""Rows as a server sends them in its text protocol."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.tidb.types import Tp

from drainer.row.column_type import ColumnType, DecodedValue, TypeClass, shown_as

TEXTS_AS_THEY_ARE = (TypeClass.TEXT, TypeClass.BYTES)


def packet(texts: Sequence[bytes | None]) -> bytes:
    """One row."""
    return b"".join([b"\xfb" if text is None else _length(len(text)) + text for text in texts])


def _length(length: int) -> bytes:
    if length < 0xFB:
        return bytes((length,))
    first, size = (0xFC, 2) if length < 1 << 16 else (0xFD, 3) if length < 1 << 24 else (0xFE, 8)
    return bytes((first,)) + length.to_bytes(size, "little")


def shown(column_type: ColumnType, value: DecodedValue) -> bytes | None:
    """The text of a decoded value, as TiDB shows what `changes.texts.selected` selects."""
    if value is None or (isinstance(value, bytes) and column_type.type_class in TEXTS_AS_THEY_ARE):
        return value
    if column_type.type_class is TypeClass.FLOAT:
        return repr(value).encode()
    if column_type.kind.tp is Tp.YEAR:
        return b"%04d" % value
    text = shown_as(column_type)(value)
    return text if isinstance(text, bytes) else str(text).encode()
