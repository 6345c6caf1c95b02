"""Columns of every type, and what fastavro reads of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Context, Decimal
from typing import Any

from binlog.tidb.time import Civil, pack
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.row.column_type import ColumnType, DecodedValue
from tests.support.typed_columns import decoded_values_of, read_value

TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
NAMES = ("a", "b,c", "d'e", "größe")


@dataclass(frozen=True)
class Case:
    """`plain`: from a decoded value to what fastavro reads; None: what decoders of other protocols give."""

    kind: FieldType
    decoded_values: st.SearchStrategy[DecodedValue]
    plain: Callable[[Any], Any] | None = None
    options: tuple[tuple[str, str], ...] = ()

    def not_null(self) -> Case:
        return replace(self, kind=replace(self.kind, flag=self.kind.flag | Flag.NOT_NULL))

    def shown(self, value: DecodedValue) -> Any:
        if value is None or self.plain is None:
            return read_value(ColumnType.of(self.kind), value, UTC)
        return self.plain(value)


def _case(kind: FieldType, plain: Callable[[Any], Any] | None = None, **options: str) -> Case:
    return Case(kind, decoded_values_of(kind), plain, tuple(options.items()))


def _unsigned(kind: Tp) -> FieldType:
    return FieldType(kind, Flag.UNSIGNED)


def _decimal(precision: int, scale: int, plain: Callable[[Any], Any] = Decimal, **options: str) -> Case:
    most = 10**precision - 1
    edges = [sign * (1 << 8 * n - 1) + more for n in range(1, 27) for sign in (1, -1) for more in (-1, 0, 1)]
    numbers = st.integers(-most, most) | st.sampled_from([n for n in edges if abs(n) <= most])
    values = numbers.map(lambda number: format(Decimal(number).scaleb(-scale, Context(prec=80)), "f"))
    return Case(FieldType(Tp.NEWDECIMAL, flen=precision, decimal=scale), values, plain, tuple(options.items()))


def _trimmed(number: int) -> bytes:
    return number.to_bytes(max(1, -(-number.bit_length() // 8)), "big")


def _wrapped(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _set_text(number: int) -> str:
    return ",".join(name for n, name in enumerate(NAMES) if number >> n & 1)


def _enum_text(number: int) -> str:
    return NAMES[number - 1] if number else ""


_FIELDS = (st.integers(0, 9999), st.integers(0, 12), st.integers(0, 28), st.integers(0, 23))
_MINUTES = (st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
MOMENTS = st.one_of(st.just(0), st.tuples(*_FIELDS, *_MINUTES).map(lambda parts: pack(Civil(*parts))))
_INSTANT = (st.integers(1971, 2037), st.integers(1, 12), st.integers(1, 28), _FIELDS[3], *_MINUTES)
INSTANTS = st.tuples(*_INSTANT).map(lambda parts: pack(Civil(*parts)))
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=70).map(str.encode)


CASES: dict[str, Case] = {
    "tinyint": _case(FieldType(Tp.TINY)),
    "smallint": _case(FieldType(Tp.SHORT)),
    "mediumint unsigned": _case(_unsigned(Tp.INT24)),
    "int": _case(FieldType(Tp.LONG)),
    "int unsigned": _case(_unsigned(Tp.LONG)),
    "bigint": _case(FieldType(Tp.LONGLONG)),
    "bigint unsigned": _case(_unsigned(Tp.LONGLONG), _wrapped),
    "bigint unsigned string": _case(_unsigned(Tp.LONGLONG), str, avro_bigint_unsigned_handling_mode="string"),
    "year": _case(_unsigned(Tp.YEAR)),
    "float": _case(FieldType(Tp.FLOAT), float),
    "double": _case(FieldType(Tp.DOUBLE)),
    "decimal(10,4)": _decimal(10, 4),
    "decimal(18,0)": _decimal(18, 0),
    "decimal(19,18)": _decimal(19, 18),
    "decimal(38,0)": _decimal(38, 0),
    "decimal(65,30)": _decimal(65, 30),
    "decimal string": _decimal(20, 5, str, avro_decimal_handling_mode="string"),
    "varchar": Case(TEXT, STRINGS),
    "blob": Case(FieldType(Tp.BLOB), st.binary(max_size=150)),
    "date": _case(FieldType(Tp.DATE)),
    "datetime(3)": Case(FieldType(Tp.DATETIME, decimal=3), MOMENTS),
    "timestamp(6)": _case(FieldType(Tp.TIMESTAMP, decimal=6)),
    "time(6)": _case(FieldType(Tp.DURATION, decimal=6)),
    "enum": _case(FieldType(Tp.ENUM, elems=NAMES), _enum_text),
    "set": _case(FieldType(Tp.SET, elems=NAMES), _set_text),
    "bit(1)": _case(FieldType(Tp.BIT, flen=1), _trimmed),
    "bit(64)": _case(FieldType(Tp.BIT, flen=64), _trimmed),
    "json": _case(FieldType(Tp.JSON)),
}


def rows_of(draw: st.DrawFn, cases: Sequence[Case], count: int) -> list[list[DecodedValue]]:
    """NULL now and then, where it may be."""
    columns = [
        case.decoded_values if case.kind.is_not_null else st.one_of(case.decoded_values, st.none()) for case in cases
    ]
    return [[draw(column) for column in columns] for _ in range(count)]
