"""Rows as SQL: few at a time over lists and many over arrays give the same bytes, and each literal says its value."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.row.codec import Format
from drainer.row.column_type import ColumnType
from drainer.sink.mysql.rows.format import SQL_TEXT, string_literal
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.unit.drainer.changes.cases import KINDS, datums

FORMATS = [SQL_TEXT, SQLITE_VALUES]
TEXT = ColumnType.of(FieldType(Tp.VARCHAR, 0, 20, 0, "utf8mb4", "utf8mb4_bin"))
NUMBER = ColumnType.of(FieldType(Tp.LONG, 0, 11, 0))


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        (b"it's", rb"'it\'s'"),
        (b"a\\", rb"'a\\'"),
        (b"\0\n", b"'\0\n'"),
        (b"\xc3", b"x'c3'"),
        (b"\xed\xa0\x80", b"x'eda080'"),
    ],
)
def test_string_literal_escapes_quotes_backslashes_and_invalid_utf8(text: bytes, literal: bytes) -> None:
    assert string_literal(text) == literal
    for beside in (b"plain", b"\xa9", None):
        assert SQL_TEXT.literals(TEXT, [text, beside])[0] == literal


@st.composite
def columns(draw: st.DrawFn) -> list[tuple[ColumnType, list[Any]]]:
    count = draw(st.integers(1, 5))
    found = []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)):
        column_type = ColumnType.of(kind)
        values: st.SearchStrategy[Datum] = datums(kind) | st.none() if draw(st.booleans()) else datums(kind)
        found.append((column_type, [column_type.decoded_value(draw(values)) for _ in range(count)]))
    return found


@pytest.mark.parametrize("format_", FORMATS)
@given(given=columns())
def test_rows_from_lists_and_from_arrays_are_equal(format_: Format, given: list[tuple[ColumnType, list[Any]]]) -> None:
    """Rows, each of them alone, their literals and keys, packed and not."""
    column_types, lists = [column_type for column_type, _ in given], [values for _, values in given]
    arrays = [pa.array(values, column_type.decoded_type) for column_type, values in given]
    rows = list(format_.rows(column_types, lists))
    assert [format_.unpack(one) for one in format_.packed_rows(column_types, arrays).to_pylist()] == rows
    assert [format_.pack(row) for row in rows] == format_.packed_rows(column_types, arrays).to_pylist()
    alone = [format_.rows(column_types, [[value] for value in row])[0] for row in zip(*lists, strict=True)]
    assert alone == rows
    literals = list(zip(*[format_.literals(column_type, values) for column_type, values in given], strict=True))
    assert [_joined(format_, row) for row in literals] == rows
    if not any(None in values for values in lists):
        write = format_.key_writer(column_types)
        keys = [write(row) for row in zip(*lists, strict=True)]
        assert keys == rows


def _joined(format_: Format, literals: tuple[Any, ...]) -> object:
    return b"(" + b",".join(literals) + b")" if format_ is SQL_TEXT else literals


@pytest.mark.parametrize("format_", FORMATS)
def test_format_survives_pickling(format_: Format) -> None:
    assert pickle.loads(pickle.dumps(format_)) == format_


def test_row_with_split_utf8_letter_is_written_in_hex_beside_others() -> None:
    """One look at a whole column must not take two halves of a letter for one."""
    halves = [b"\xc3", b"\xa9"]
    assert SQL_TEXT.rows([NUMBER, TEXT], [[1, 2], halves]) == [b"(1,x'c3')", b"(2,x'a9')"]
    assert SQL_TEXT.rows([TEXT, TEXT], [[b"a'", b"b"], [b"c", None]]) == [rb"('a\'','c')", b"('b',NULL)"]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (FieldType(Tp.DATETIME, 128, 19, 0), (1 << 64) - 1),
        (FieldType(Tp.DATE, 128, 10, 0), (1 << 64) - 1),
        (FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y")), 4),
        (FieldType(Tp.BIT, 32, 3, 0), 8),
        (FieldType(Tp.DOUBLE), float("nan")),
        (FieldType(Tp.DURATION, 128, 10, 0), 1 << 62),
        (FieldType(Tp.JSON), b"\x01\x09"),
    ],
)
def test_value_invalid_for_its_column_type_is_refused_by_every_format_method(
    format_: Format, kind: FieldType, bad: object
) -> None:
    column_type = ColumnType.of(kind)
    for attempt in (
        lambda: format_.rows([column_type], [[bad]]),
        lambda: format_.rows([column_type], [[None, bad]]),
        lambda: format_.literals(column_type, [bad]),
        lambda: format_.key_writer([column_type])([bad]),  # type: ignore[list-item]
        lambda: format_.packed_rows([column_type], [pa.array([None, bad], column_type.decoded_type)]),
    ):
        with pytest.raises(DecodeError):
            attempt()
