"""Texts of a server to decoded values: what a row of a binlog gives, and nothing else for any bytes."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.texts import decoded, selected, texts_of
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from tests.support.examples import FEW
from tests.support.row_packets import packet, shown
from tests.support.type_case import field_type
from tests.support.typed_columns import COLUMNS, typed_rows

TYPES = [ColumnType.of(kind) for _, kind in COLUMNS]
_texts = st.none() | st.binary(max_size=12) | st.sampled_from([b"x" * n for n in (250, 251, 65_535, 65_536)])


def as_text(column_type: ColumnType, value: DecodedValue) -> object:
    """A JSON document is equal as text; -0.0 is not 0.0."""
    if column_type.type_class is TypeClass.JSON and isinstance(value, bytes):
        return decode_text(value)[0]
    return repr(value)


@FEW
@given(st.lists(typed_rows(), max_size=8))
def test_texts_of_every_type_give_the_decoded_values_of_a_binlog(rows: list[tuple[DecodedValue, ...]]) -> None:
    packets = [packet([shown(of, value) for of, value in zip(TYPES, row, strict=True)]) for row in rows]
    columns = decoded(TYPES, packets)
    assert [column.type for column in columns] == [of.decoded_type for of in TYPES]
    for of, column, name in zip(TYPES, columns, [name for name, _ in COLUMNS], strict=True):
        wanted = [as_text(of, row[TYPES.index(of)]) for row in rows]
        assert [as_text(of, value) for value in column.to_pylist()] == wanted, name


@given(st.lists(st.tuples(_texts, _texts, _texts), max_size=6))
def test_fields_of_any_length_are_found(rows: list[tuple[bytes | None, ...]]) -> None:
    columns = texts_of([packet(row) for row in rows], 3)
    assert [tuple(column[n].as_py() for column in columns) for n in range(len(rows))] == rows


@FEW
@given(typed_rows(), st.integers(0, 1 << 20), st.binary(max_size=3))
def test_damaged_packets_raise_decode_errors_alone(row: tuple[DecodedValue, ...], at: int, put: bytes) -> None:
    whole = packet([shown(of, value) for of, value in zip(TYPES, row, strict=True)])
    at %= len(whole)
    for damaged in (whole[:at], whole[:at] + put + whole[at + len(put) :], whole + put):
        try:
            columns = decoded(TYPES, [whole, damaged])
        except DecodeError:
            continue
        assert {len(column) for column in columns} == {2}


@pytest.mark.parametrize("columns", [1, 3])
def test_packet_with_another_number_of_columns_is_refused(columns: int) -> None:
    with pytest.raises(DecodeError, match=f"{columns} columns"):
        texts_of([packet([b"1", b"2"])], columns)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("date", b"0000-00-00", 0),
        ("datetime(2)", b"2020-02-30 00:00:00.50", ((2020 * 13 + 2) << 5 | 30) << 41 | 500_000),
        ("year", b"0000", 0),
        ("int unsigned", b"0000000042", 42),  # ZEROFILL
        ("float", b"1.100000023841858", 1.100000023841858),
        ("double", b"-0", "-0.0"),
        ("time(3)", b"-838:59:59.000", -3020399 * 10**9),
        ("decimal(5,2)", b"-0.50", "-0.50"),
    ],
)
def test_text_gives_value(type_: str, text: bytes, value: object) -> None:
    (column,) = decoded([ColumnType.of(field_type(type_))], [packet([text])])
    assert str(column[0].as_py()) == str(value)


@pytest.mark.parametrize("text", ["-0", "[1, -0, 0.5]", "18446744073709551616", '{"a": "\\u003c"}', "1e+21"])
def test_json_is_the_same_text(text: str) -> None:
    (column,) = decoded([ColumnType(FieldType(Tp.JSON), TypeClass.JSON)], [packet([text.encode()])])
    again = decode_text(column[0].as_py())[0]
    (twice,) = decoded([ColumnType(FieldType(Tp.JSON), TypeClass.JSON)], [packet([again.encode()])])
    assert decode_text(twice[0].as_py())[0] == again
    assert again == {"18446744073709551616": "18446744073709552000", '{"a": "\\u003c"}': '{"a": "<"}'}.get(text, text)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", b"1.5"),
        ("tinyint", b"9223372036854775808"),
        ("date", b"2020-01-0"),
        ("date", b"2020-01-0x"),
        ("datetime", b"2020-01-01T00:00:00"),
        ("time", b"00:60:00"),
        ("json", b"{"),
        ("json", b"[" * 200 + b"]" * 200),
        ("double", b"1,5"),
        ("decimal(5,2)", b"abc"),
        ("bit(8)", b"\x07"),
    ],
)
def test_text_of_another_type_is_refused(type_: str, text: bytes) -> None:
    with pytest.raises(DecodeError, match="column"):
        decoded([ColumnType.of(field_type(type_))], [packet([text])])


def test_set_of_many_names_is_read_as_names() -> None:
    many = ColumnType.of(FieldType(Tp.SET, elems=tuple(f"m{n}" for n in range(64))))
    few = ColumnType.of(FieldType(Tp.SET, elems=tuple(f"m{n}" for n in range(53))))
    assert (selected("s", many), selected("s", few)) == ("`s`", "CAST(`s` AS UNSIGNED)")
    (column,) = decoded([many], [packet([text]) for text in (b"", b"m0,m63", b"m1", None)])
    assert column.to_pylist() == [0, 1 << 63 | 1, 2, None]
    with pytest.raises(DecodeError, match="m64"):
        decoded([many], [packet([b"m1,m64"])])


def test_enum_without_a_name_is_zero() -> None:
    kind = FieldType(Tp.ENUM, Flag.NOT_NULL, elems=("", "a"))
    (column,) = decoded([ColumnType.of(kind)], [packet([b"0"]), packet([b"1"])])
    assert column.to_pylist() == [0, 1]
