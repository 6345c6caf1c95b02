"""Keys of events: integer handles and physical partitions, where binlogs let them be known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType
from binlog.tidb.time import parse_datetime
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.table import RowChanges, Table, table_of
from drainer.row.column_type import ColumnType, DecodedValue
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table

OPTIONS = ProtocolOptions("open-protocol")
INT = FieldType(Tp.LONG, Flag.NOT_NULL)
TEXT = FieldType(Tp.VARCHAR, 0, 16, charset="utf8mb4", collate="utf8mb4_bin")


def keys(changes: RowChanges) -> list[str]:
    return [(row.key or b"").decode() for row in encoded_rows(make_encoder(OPTIONS).table(changes.table), changes)]


def partitioned(columns: list[tuple[str, FieldType]], parts: PartitionInfo, primary: str = "id") -> Table:
    info = replace(make_table("a", "c", columns, primary=[primary]).info, partition=parts)
    return table_of("a", info, [(column.id, ColumnType.of(column.type)) for column in info.columns], 1, 1)


def named(*ids: int, less_than: tuple[str, ...] = ()) -> tuple[PartitionDefinition, ...]:
    bounds = less_than or ("",) * len(ids)
    return tuple(PartitionDefinition(n, f"p{n}", (b,) if b else ()) for n, b in zip(ids, bounds, strict=True))


def test_row_id_is_signed_64_bit_integer() -> None:
    """A BIGINT UNSIGNED above 2^63 is a negative handle upstream; 0 is not written."""
    table = make_table("s", "t", [("id", FieldType(Tp.LONGLONG, Flag.UNSIGNED | Flag.NOT_NULL))], primary=["id"])
    assert keys(make_changes(table, Kind.INSERT, new=[[5], [2**64 - 1], [0]], commit_ts=1)) == [
        '{"ts":1,"scm":"s","tbl":"t","rid":5,"t":1}',
        '{"ts":1,"scm":"s","tbl":"t","rid":-1,"t":1}',
        '{"ts":1,"scm":"s","tbl":"t","t":1}',
    ]


def test_row_id_is_left_out_without_single_integer_key() -> None:
    for columns, primary in (([("a", TEXT)], ["a"]), ([("a", INT), ("b", INT)], ["a", "b"]), ([("a", INT)], [])):
        table = make_table("s", "t", columns, primary=primary)
        row = [b"1" if kind is TEXT else 1 for _, kind in columns]
        assert keys(make_changes(table, Kind.DELETE, old=[row], commit_ts=1)) == ['{"ts":1,"scm":"s","tbl":"t","t":1}']


def test_update_key_has_new_row_id() -> None:
    table = make_table("s", "t", [("id", INT)], primary=["id"])
    assert '"rid":2,' in keys(make_changes(table, Kind.UPDATE, old=[[1]], new=[[2]]))[0]


def test_key_names_are_escaped_as_go_does() -> None:
    table = make_table('s"<', "t\u2028é", [("a", INT)])
    expected = '{"ts":1,"scm":"s\\"\\u003c","tbl":"t\\u2028é","t":1}'
    assert keys(make_changes(table, Kind.INSERT, new=[[1]], commit_ts=1)) == [expected]


def test_partition_id_by_hash_and_range_is_in_key() -> None:
    hashed = partitioned([("id", INT)], PartitionInfo(PartitionType.HASH, "`id`", definitions=named(11, 12)))
    assert [key[27:35] for key in keys(make_changes(hashed, Kind.INSERT, new=[[4], [5]], commit_ts=1))] == [
        ',"rid":4',
        ',"rid":5',
    ]
    assert [key.partition('"ptn":')[2] for key in keys(make_changes(hashed, Kind.INSERT, new=[[4], [5]]))] == [
        '11,"t":1}',
        '12,"t":1}',
    ]
    days = PartitionInfo(
        PartitionType.RANGE, columns=("d",), definitions=named(7, 8, less_than=("'2024-01-01'", "MAXVALUE"))
    )
    table = partitioned([("id", INT), ("d", FieldType(Tp.DATE))], days)
    rows: list[list[DecodedValue]] = [
        [1, parse_datetime("2023-12-31 00:00:00")],
        [2, parse_datetime("2024-01-01 00:00:00")],
        [3, None],
    ]
    assert [key.partition('"ptn":')[2][:2] for key in keys(make_changes(table, Kind.INSERT, new=rows))] == [
        "7,",
        "8,",
        "7,",
    ]


def test_partition_id_by_key_of_decimal_is_in_key() -> None:
    """The decoded value is text, and the partition's hash goes over the text with the column's digits."""
    parts = PartitionInfo(PartitionType.KEY, columns=("d",), definitions=named(3, 4, 5))
    table = partitioned([("id", INT), ("d", FieldType(Tp.NEWDECIMAL, 0, 10, 2))], parts)
    found = keys(make_changes(table, Kind.INSERT, new=[[n, f"{n}.50"] for n in range(1, 20)]))
    assert {key.partition('"ptn":')[2][:2] for key in found} == {"3,", "4,", "5,"}


@pytest.mark.parametrize("expr", ["no such function(`id`)", "`gone`"])
def test_partition_id_is_left_out_where_it_cannot_be_computed(expr: str) -> None:
    table = partitioned([("id", INT)], PartitionInfo(PartitionType.HASH, expr, definitions=named(11, 12)))
    (key,) = keys(make_changes(table, Kind.INSERT, new=[[4]], commit_ts=1))
    assert key == '{"ts":1,"scm":"a","tbl":"c","rid":4,"t":1}'


def test_partition_id_is_left_out_for_row_outside_all_partitions() -> None:
    parts = PartitionInfo(PartitionType.RANGE, "`id`", definitions=named(7, less_than=("10",)))
    found = keys(make_changes(partitioned([("id", INT)], parts), Kind.INSERT, new=[[9], [10]], commit_ts=1))
    assert ['"ptn":7' in key for key in found] == [True, False]
