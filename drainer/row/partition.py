"""Computes the partition of a row as TiDB does. Pure.

Rows of binlogs carry the table's id, never the partition's. For a row that arrives after a DDL dropped or moved its
partition, the partition must be computed from its columns.

Of TiDB's partition expressions it parses and evaluates what TiDB allows there: columns, whole numbers, + - * DIV % and
functions of times and numbers. NULL gives NULL.
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
from binlog.tidb.time import Civil, parse_datetime, unpack
from binlog.tidb.types import TIMES, FieldType, Tp

from drainer.ddl.lexer import Token, tokens

# A column's value as an expression sees it: a whole number, a point in time, or a duration's nanoseconds.
Value: TypeAlias = "int | Civil | Duration | None"
Columns: TypeAlias = "Mapping[str, Value]"
Node: TypeAlias = "Callable[[Columns], Value]"

_DAY_S: Final = 86_400
_EPOCH_DAYS: Final = 719_528  # TO_DAYS('1970-01-01')


class ExpressionUnreadable(BinlogError):
    """A partition expression that is not supported."""


class Duration(int):
    """Nanoseconds of a TIME."""


def day_number(when: Civil) -> int | None:
    """TO_DAYS: NULL for a date with a zero in it."""
    if not when.month or not when.day:
        return None
    year, month = when.year, when.month
    days = 365 * year + 31 * (month - 1) + when.day
    if month <= 2:
        year -= 1
    else:
        days -= (month * 4 + 23) // 10
    return days + year // 4 - (year // 100 + 1) * 3 // 4


def _seconds(when: Civil) -> int:
    return when.hour * 3600 + when.minute * 60 + when.second


def _unix_timestamp(when: Civil) -> int:
    days = day_number(when)
    return 0 if days is None else max((days - _EPOCH_DAYS) * _DAY_S + _seconds(when), 0)


def _of_day(operation: Callable[[int, Civil], int]) -> Callable[[Civil], int | None]:
    """`operation`: of the day's number and the time. NULL for a date with a zero in it."""

    def of(when: Civil) -> int | None:
        days = day_number(when)
        return None if days is None else operation(days, when)

    return of


_OF_TIME: Final[dict[str, Callable[[Civil], int | None]]] = {
    "year": lambda t: t.year,
    "month": lambda t: t.month,
    "day": lambda t: t.day,
    "dayofmonth": lambda t: t.day,
    "quarter": lambda t: (t.month + 2) // 3,
    "hour": lambda t: t.hour,
    "minute": lambda t: t.minute,
    "second": lambda t: t.second,
    "microsecond": lambda t: t.microsecond,
    "to_days": day_number,
    "to_seconds": _of_day(lambda days, t: days * _DAY_S + _seconds(t)),
    "unix_timestamp": _unix_timestamp,
    "dayofyear": _of_day(lambda days, t: days - (day_number(Civil(t.year, 1, 1)) or 0) + 1),
    "dayofweek": _of_day(lambda days, _: (days - 1) % 7 + 1),
    "weekday": _of_day(lambda days, _: (days + 5) % 7),
    "time_to_sec": _seconds,
}
_OF_NUMBER: Final[dict[str, Callable[[int], int]]] = {"abs": abs, "ceiling": int, "ceil": int, "floor": int}
_UNITS: Final[dict[str, Callable[[Civil], int | None]]] = {
    **{unit: _OF_TIME[unit] for unit in ("year", "quarter", "month", "day", "hour", "minute", "second", "microsecond")},
    "year_month": lambda t: t.year * 100 + t.month,
    "day_hour": lambda t: t.day * 100 + t.hour,
    "day_minute": lambda t: (t.day * 100 + t.hour) * 100 + t.minute,
    "day_second": lambda t: ((t.day * 100 + t.hour) * 100 + t.minute) * 100 + t.second,
    "hour_minute": lambda t: t.hour * 100 + t.minute,
    "hour_second": lambda t: (t.hour * 100 + t.minute) * 100 + t.second,
    "minute_second": lambda t: t.minute * 100 + t.second,
}


def _truncated_division(a: int, b: int) -> int | None:
    return None if not b else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    return None if not b else abs(a) % abs(b) * (-1 if a < 0 else 1)


_BINARY: Final[dict[str, tuple[int, Callable[[int, int], int | None]]]] = {
    "+": (1, lambda a, b: a + b),
    "-": (1, lambda a, b: a - b),
    "*": (2, lambda a, b: a * b),
    "div": (2, _truncated_division),
    "%": (2, _remainder),
    "mod": (2, _remainder),
}


def parse_expression(text: str) -> Node:
    """A function of the columns' values, by their names in lower case. Raises ExpressionUnreadable."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*tokens(text), Token("end", "", len(text), len(text))]
        self._at = 0

    def _unreadable(self, what: str) -> ExpressionUnreadable:
        return ExpressionUnreadable(f"partition expression {self._text!r}: {what!r} is not supported")

    def whole(self) -> Node:
        node = self._binary(1)
        if self._token.kind != "end":
            raise self._unreadable(self._token.value)
        return node

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, word: str) -> bool:
        if self._token.kind == "name" or self._token.value.lower() != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._unreadable(self._token.value)

    def _binary(self, level: int) -> Node:
        left = self._unary()
        while (rule := _BINARY.get(self._token.value.lower())) is not None and rule[0] >= level:
            self._at += 1
            left = _joined(rule[1], left, self._binary(rule[0] + 1))
        return left

    def _unary(self) -> Node:
        if self._skip("-"):
            inner = self._unary()
            return _joined(lambda a, b: a - b, lambda _: 0, inner)
        if self._skip("+"):
            return self._unary()
        return self._primary()

    def _primary(self) -> Node:
        token = self._next()
        word = token.value
        if token.kind == "word" and word.isdecimal():
            number = int(word)
            return lambda _: number
        if token.kind == "text":
            when = unpack(parse_datetime(word[1:-1]))
            return lambda _: when
        if token.kind == "mark" and word == "(":
            node = self._binary(1)
            self._expect(")")
            return node
        if not token.is_name:
            raise self._unreadable(word)
        if token.kind == "word" and self._skip("("):
            return self._call(word.lower())
        while self._skip("."):  # a qualified name
            word = self._next().value
        name = word.lower()
        return lambda columns: columns[name]

    def _call(self, name: str) -> Node:
        if name == "extract":
            unit = _UNITS.get(self._next().value.lower())
            self._expect("from")
            node = self._binary(1)
            self._expect(")")
            if unit is None:
                raise self._unreadable(self._text)
            return _of_time(unit, node)
        arguments = [self._binary(1)]
        while self._skip(","):
            arguments.append(self._binary(1))
        self._expect(")")
        if name in _OF_TIME and len(arguments) == 1:
            return _of_time(_OF_TIME[name], arguments[0])
        if name in _OF_NUMBER and len(arguments) == 1:
            return _of_number(_OF_NUMBER[name], arguments[0])
        if name == "mod" and len(arguments) == 2:
            return _joined(_remainder, *arguments)
        if name == "datediff" and len(arguments) == 2:
            days = [_of_time(day_number, argument) for argument in arguments]
            return _joined(lambda a, b: a - b, *days)
        raise self._unreadable(name)


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise ExpressionUnreadable(f"a whole number was expected, not {value!r}")
    return value


def _joined(operation: Callable[[int, int], int | None], left: Node, right: Node) -> Node:
    def node(columns: Columns) -> Value:
        a, b = left(columns), right(columns)
        return None if a is None or b is None else operation(_number(a), _number(b))

    return node


def _of_number(operation: Callable[[int], int], inner: Node) -> Node:
    def node(columns: Columns) -> Value:
        value = inner(columns)
        return None if value is None else operation(_number(value))

    return node


def _of_time(operation: Callable[[Civil], int | None], inner: Node) -> Node:
    def node(columns: Columns) -> Value:
        value = inner(columns)
        if value is None:
            return None
        if isinstance(value, Duration):
            seconds, rest = divmod(abs(value), 1_000_000_000)
            sign = -1 if value < 0 and operation is _seconds else 1
            shown = Civil(0, 0, 0, seconds // 3600, seconds // 60 % 60, seconds % 60, rest // 1000)
            found = operation(shown)
            return None if found is None else sign * found
        if not isinstance(value, Civil):
            raise ExpressionUnreadable(f"a time was expected, not {value!r}")
        return operation(value)

    return node


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
