"""Hashes of whole columns are those of each row."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.dispatch.dispatcher import hashed_texts, row_hashes
from drainer.row.column_type import ColumnType, DecodedValue
from tests.support.dispatch_hash import hash_of
from tests.support.row_changes import make_changes, make_table

INT = FieldType(Tp.LONGLONG, flen=20, decimal=0)
UNSIGNED = FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0)
TEXT = FieldType(Tp.VARCHAR, flen=255, charset="utf8mb4", collate="utf8mb4_bin")
# 2024-02-29 13:14:15.5 as TiDB packs it.
NOON = ((2024 * 13 + 2) << 5 | 29) << 17 | 13 << 12 | 14 << 6 | 15
PACKED = NOON << 24 | 500_000


@pytest.mark.parametrize(
    ("kind", "decoded_value", "text"),
    [
        (INT, -(1 << 63), "-9223372036854775808"),
        (UNSIGNED, (1 << 64) - 1, "18446744073709551615"),
        (FieldType(Tp.FLOAT, flen=12), 0.10000000149011612, "0.1"),
        (FieldType(Tp.FLOAT, flen=12), 3.4028234663852886e38, "340282350000000000000000000000000000000"),
        (FieldType(Tp.DOUBLE, flen=22), 1e21, "1000000000000000000000"),
        (FieldType(Tp.DOUBLE, flen=22), 1e-7, "0.0000001"),
        (FieldType(Tp.DOUBLE, flen=22), 2.0, "2"),
        (FieldType(Tp.DOUBLE, flen=22), -0.0, "-0"),
        (FieldType(Tp.NEWDECIMAL, flen=10, decimal=2), "-1.50", "-1.50"),
        (TEXT, "ä\0".encode(), "ä\0"),
        (FieldType(Tp.DATE), PACKED >> 41 << 41, "2024-02-29"),
        (FieldType(Tp.DATETIME, decimal=3), PACKED, "2024-02-29 13:14:15.500"),
        (FieldType(Tp.DATETIME, decimal=0), 0, "0000-00-00 00:00:00"),
        (FieldType(Tp.TIMESTAMP, decimal=0), NOON << 24, "2024-02-29 21:14:15"),
        (FieldType(Tp.DURATION, decimal=0), -3_723_000_000_000, "-01:02:03"),
        (FieldType(Tp.ENUM, elems=("a", "b")), 2, "2"),
        (FieldType(Tp.SET, elems=("a", "b")), 3, "3"),
        (FieldType(Tp.BIT, flen=8), 200, "200"),
        (FieldType(Tp.YEAR, flen=4), 1999, "1999"),
    ],
)
def test_hash_text_of_each_type_equals_ticdcs(kind: FieldType, decoded_value: DecodedValue, text: str) -> None:
    column_type = ColumnType.of(kind)
    values = pa.array([decoded_value], column_type.decoded_type)
    assert hashed_texts(column_type, values, ZoneInfo("Asia/Shanghai")).to_pylist() == [text.encode()]


def test_hash_text_of_binary_strings_is_their_bytes() -> None:
    values = pa.array([b"\xff\0"], pa.binary())
    assert hashed_texts(ColumnType.of(FieldType(Tp.BLOB, charset="binary")), values, UTC).to_pylist() == [b"\xff\0"]


def test_invalid_value_is_refused_with_its_column() -> None:
    table = make_table("d", "t", [("doc", FieldType(Tp.JSON))])
    changes = make_changes(table, Kind.INSERT, new=[[b"\xff"]])
    with pytest.raises(DecodeError, match=r"column `d`\.`t`\.`doc`"):
        row_hashes(table, [0], changes.image, 1, UTC)


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1),
            st.none() | st.sampled_from([b"", b"a", b"null", b"\xff"]),
        ),
        min_size=1,
        max_size=20,
    ),
    column_indexes=st.sampled_from([(), (0,), (1,), (0, 1), (1, 0)]),
)
def test_hashes_of_columns_equal_those_of_each_row(
    rows: list[tuple[int | None, bytes | None]], column_indexes: tuple[int, ...]
) -> None:
    table = make_table("db", "täb", [("Id", INT), ("text", TEXT)])
    changes = make_changes(table, Kind.INSERT, new=rows)
    wanted = []
    for row in rows:
        texts = [b"null" if row[0] is None else str(row[0]).encode(), b"null" if row[1] is None else row[1]]
        wanted.append(hash_of([[b"db", "täb".encode()], *([[b"Id", b"text"][at], texts[at]] for at in column_indexes)]))
    assert row_hashes(table, column_indexes, changes.image, len(rows), UTC).tolist() == wanted
    shifted = changes.take(changes.order[1:])
    assert row_hashes(table, column_indexes, shifted.image, len(rows) - 1, UTC).tolist() == wanted[1:]
