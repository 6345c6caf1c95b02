"""Flags and handle keys of tables, as TiCDC has them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from binlog.tidb.time import parse_datetime
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol import encoder
from drainer.protocol.encoder import CompiledTables
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.table import ColumnFlag, column_flags, handle_index
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table

INT = FieldType(Tp.LONG, Flag.NOT_NULL)
TEXT = FieldType(Tp.VARCHAR, 0, 16, charset="utf8mb4", collate="utf8mb4_bin")
SEVEN = ColumnFlag.BINARY | ColumnFlag.HANDLE_KEY | ColumnFlag.PRIMARY_KEY


def test_column_flags_of_integer_primary_key_are_11_and_of_nullable_text_64() -> None:
    table = make_table("test", "t", [("id", INT), ("val", TEXT)], primary=["id"])
    assert [int(column.flags) for column in table.columns] == [11, 64]
    assert table.handle == (0,)


def test_every_column_of_multi_column_key_has_its_flags() -> None:
    kinds = [("a", INT), ("b", INT), ("c", INT)]
    table = make_table("test", "t", kinds, primary=["a", "b"], unique=[["c"]])
    assert table.columns[0].flags == table.columns[1].flags == SEVEN | ColumnFlag.MULTIPLE_KEY
    assert table.columns[2].flags == ColumnFlag.BINARY | ColumnFlag.UNIQUE_KEY


def test_year_and_bit_columns_have_unsigned_flag() -> None:
    table = make_table("test", "t", [("y", FieldType(Tp.YEAR)), ("b", FieldType(Tp.BIT, flen=9))])
    assert [int(column.flags) for column in table.columns] == [193, 193]
    assert table.handle == ()


def test_handle_key_is_unique_key_with_fewest_columns_then_lowest_id() -> None:
    """TestHandleKeyPriority: a pair, a single column twice, a nullable one."""
    kinds = [("a", INT), ("b", INT), ("c", INT), ("d", replace(INT, flag=0))]
    unique = [["d"], ["a", "b"], ["b"], ["c"]]
    info = make_table("test", "t", kinds, unique=unique).info
    chosen = handle_index(info)
    assert chosen is not None and [part.name for part in chosen.columns] == ["b"]
    assert column_flags(info)[2] & ColumnFlag.HANDLE_KEY
    assert not column_flags(info)[3] & ColumnFlag.HANDLE_KEY


# What encoders keep of tables.


TABLE = make_table("test", "t", [("id", FieldType(Tp.LONG)), ("at", FieldType(Tp.TIMESTAMP))], primary=["id"])


def test_compiled_tables_are_made_once_and_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "TABLES_MAX", 2)
    made: list[int] = []
    tables = CompiledTables[int]()
    for key in (1, 1, 2, 1, 3, 3, 1):
        assert tables.get(key, lambda key=key: made.append(key) or key) == key  # type: ignore[misc]
    assert made == [1, 2, 3, 1]


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "debezium", "simple", "secondary-binlog"])
def test_compiled_table_is_reused_and_not_pickled(protocol: str) -> None:
    encoder = make_encoder(ProtocolOptions(protocol, time_zone="Asia/Tokyo"))
    assert encoder.table(TABLE) is encoder.table(TABLE)
    later = make_table("test", "t", [("id", FieldType(Tp.LONG))], primary=["id"], version=2)
    assert encoder.table(later) is not encoder.table(TABLE)
    compiled = type(encoder.table(TABLE)).__name__.encode()
    assert compiled not in pickle.dumps(encoder)
    again = pickle.loads(pickle.dumps(encoder))
    changes = make_changes(TABLE, Kind.INSERT, new=[(1, parse_datetime("2024-07-01 12:00:00"))])
    assert again.table(TABLE) is not encoder.table(TABLE)
    assert encoded_rows(again.table(TABLE), changes) == encoded_rows(encoder.table(TABLE), changes)
