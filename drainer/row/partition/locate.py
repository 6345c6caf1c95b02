"""Computes the partition of a row as TiDB does. Pure.

Rows of binlogs carry the table's id, never the partition's. For a row that arrives after a DDL dropped or moved its
partition, the partition must be computed from its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias
from zlib import crc32

from binlog.errors import BinlogError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten, missing_value, to_text
from binlog.tidb.row import sort_key
from binlog.tidb.table import ColumnInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.time import unpack
from binlog.tidb.types import TIMES, FieldType, Tp

from drainer.row.partition.expression import Duration, ExpressionUnreadable, Value, parse_expression

Values: TypeAlias = "Mapping[int, Datum]"
Locate: TypeAlias = "Callable[[Values], int | None]"

_INT64: Final = 1 << 63
# Ordered before and behind every value.
_LOWEST: Final = (0, 0)
_HIGHEST: Final = (2, 0)
_Sortable: TypeAlias = "tuple[int, int | bytes]"


class PartitionUnknown(BinlogError):
    """The partition of a row cannot be computed."""


def locator(table: TableInfo) -> Locate:
    """A function from a row's datums by column id to the physical id of its partition, None where no partition accepts
    the row; the table's own id for a table without partitions. Raises PartitionUnknown, also when called."""
    parts = table.partition
    if parts is None or not parts.definitions or not parts.enable:
        return lambda _: table.id
    try:
        locate = _LOCATORS[parts.type](table, parts)
    except (KeyError, ValueError, BinlogError) as error:
        raise PartitionUnknown(f"partitions of table {table.name}: {error}") from error

    def guarded(values: Values) -> int | None:
        try:
            number = locate(values)
        except (KeyError, ValueError, BinlogError) as error:
            raise PartitionUnknown(f"row of table {table.name}: {error}") from error
        return None if number is None else parts.definitions[number].id

    return guarded


def _columns(table: TableInfo, parts: PartitionInfo) -> list[ColumnInfo]:
    known = {column.name.lower(): column for column in table.columns}
    return [known[name.lower()] for name in parts.columns]


def _value(values: Values, column: ColumnInfo) -> Datum:
    if column.id in values:
        return values[column.id]
    if column.is_generated:
        raise PartitionUnknown(f"column {column.name} is generated and not in the row")
    return missing_value(column)


def _expression(table: TableInfo, text: str) -> Callable[[Values], int | None]:
    node = parse_expression(text)
    columns = {column.name.lower(): column for column in table.columns}

    def evaluate(values: Values) -> int | None:
        found = node(_Seen(values, columns))
        if found is not None and not isinstance(found, int):
            raise ExpressionUnreadable(f"{text!r} is not an integer")
        return found

    return evaluate


class _Seen(dict[str, Value]):
    """A row's columns by name, converted on access."""

    def __init__(self, values: Values, columns: Mapping[str, ColumnInfo]) -> None:
        super().__init__()
        self._values = values
        self._columns = columns

    def __missing__(self, name: str) -> Value:
        column = self._columns[name]
        return _seen(_value(self._values, column), column.type)


def _seen(value: Datum, kind: FieldType) -> Value:
    if value is None:
        return None
    if not isinstance(value, int):
        raise ExpressionUnreadable(f"a {kind.mysql_name} in an expression")
    if kind.tp in TIMES:
        return unpack(value)
    return Duration(value) if kind.tp == Tp.DURATION else int(value)


def _hash(table: TableInfo, parts: PartitionInfo) -> Locate:
    evaluate, count = _expression(table, parts.expr), len(parts.definitions)

    def locate(values: Values) -> int:
        found = evaluate(values) or 0
        signed = (found + _INT64) % (2 * _INT64) - _INT64  # an unsigned value is taken as it lies in memory
        return abs(signed) % count

    return locate


def _key(table: TableInfo, parts: PartitionInfo) -> Locate:
    columns, count = _columns(table, parts), len(parts.definitions)
    if not columns:
        primary = table.primary_index()
        columns = list(table.index_columns(primary)) if primary is not None else []

    def locate(values: Values) -> int:
        return crc32(b"".join(_hashed(_value(values, column), column.type) for column in columns)) % count

    return locate


def _hashed(value: Datum, kind: FieldType) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(value, bytes) and kind.is_string:
        return _comparable(value, kind)
    text = to_text(value, kind)
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")


def _comparable(text: bytes, kind: FieldType) -> bytes:
    """Bytes that compare as the collation does; implemented for `_bin` collations, and for ASCII letters of `_ci`."""
    if kind.charset == "binary" or kind.collate == "binary":
        return text
    if kind.collate.endswith("_bin"):
        return sort_key(text, kind.collate)
    if not text.isascii():
        raise PartitionUnknown(f"text under {kind.collate}")
    if kind.collate.endswith("_general_ci"):
        return sort_key(text, kind.collate)
    if not text.isalnum():
        raise PartitionUnknown(f"text under {kind.collate}")
    return text.lower()


def _range(table: TableInfo, parts: PartitionInfo) -> Locate:
    columns, sortables_of = _sortables(table, parts)
    bounds = [_bound(definition.less_than, columns) for definition in parts.definitions]

    def locate(values: Values) -> int | None:
        sortables = sortables_of(values)
        return next((number for number, bound in enumerate(bounds) if sortables < bound), None)

    return locate


def _sortables(
    table: TableInfo, parts: PartitionInfo
) -> tuple[Sequence[ColumnInfo | None], Callable[[Values], tuple[_Sortable, ...]]]:
    """Return what decides of a row, its columns or None for the number of an expression, and the function from a row's
    datums to what is compared of them."""
    if parts.columns:
        columns = _columns(table, parts)
        return columns, lambda values: tuple(_sortable(_value(values, column), column.type) for column in columns)
    evaluate = _expression(table, parts.expr)

    def of_number(values: Values) -> tuple[_Sortable, ...]:
        found = evaluate(values)
        return (_LOWEST if found is None else (1, found),)

    return (None,), of_number


def _bound(texts: Sequence[str], columns: Sequence[ColumnInfo | None]) -> tuple[_Sortable, ...]:
    """The literals of a definition as what is compared."""
    return tuple(_of_literal(text, column) for text, column in zip(texts, columns, strict=True))


def _of_literal(text: str, column: ColumnInfo | None) -> _Sortable:
    if text.upper() in ("MAXVALUE", "NULL"):
        return _HIGHEST if text.upper() == "MAXVALUE" else _LOWEST
    return (1, int(text)) if column is None else _sortable(_literal(text, column.type), column.type)


def _sortable(value: Datum, kind: FieldType) -> _Sortable:
    if value is None:
        return _LOWEST
    if isinstance(value, bytes) and kind.is_string:
        return 1, _comparable(value, kind)
    if not isinstance(value, int):
        raise PartitionUnknown(f"a {kind.mysql_name} as a partition's bound")
    return 1, int(value)


def _literal(text: str, kind: FieldType) -> Datum:
    """Return the value of a literal of a partition definition: `100`, `'2024-04-01'`, `x'41'`."""
    if text[:2].lower() in ("x'", "0x"):
        return flatten(bytes.fromhex(text[2:].rstrip("'")), kind)
    inner = text
    if "'" in text and text.endswith("'"):  # perhaps behind a _charset
        inner = text[text.index("'") + 1 : -1].replace("''", "'").replace("\\'", "'").replace("\\\\", "\\")
    elif text.startswith('"') and text.endswith('"'):
        inner = text[1:-1]
    return flatten(int(inner) if inner is text and not kind.is_string and inner.lstrip("-").isdigit() else inner, kind)


def _list(table: TableInfo, parts: PartitionInfo) -> Locate:
    columns, sortables_of = _sortables(table, parts)
    numbers: dict[tuple[_Sortable, ...], int] = {}
    otherwise = None
    for number, definition in enumerate(parts.definitions):
        for row in definition.in_values:
            if len(row) == 1 and row[0].upper() == "DEFAULT":
                otherwise = number
            else:
                numbers[_bound(row, columns)] = number
    return lambda values: numbers.get(sortables_of(values), otherwise)


_LOCATORS: Final[dict[PartitionType, Callable[[TableInfo, PartitionInfo], Locate]]] = {
    PartitionType.RANGE: _range,
    PartitionType.HASH: _hash,
    PartitionType.LIST: _list,
    PartitionType.KEY: _key,
}
