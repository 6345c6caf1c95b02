"""Secondary binlogs against the protobuf library, and back; bytes that are none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

import numpy as np
import pytest
from binlog.pb import secondary_binlog_pb2 as pb
from binlog.tidb.json import decode_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl, DdlScope, Message
from drainer.protocol.errors import EncodeError, MessageError
from drainer.protocol.event import ColumnValue, DdlEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.table import Column, RowChanges
from drainer.row.column_type import TypeClass
from tests.support.any_changes import BIG, changes
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.shown_text import shown_text

OPTIONS = ProtocolOptions("secondary-binlog")
TS = 400_000_000_000_000_000


def messages(*all_changes: RowChanges) -> list[Message]:
    encoder = make_encoder(OPTIONS)
    rows = [row for one in all_changes for row in encoded_rows(encoder.table(one.table), one)]
    return list(framed_rows(encoder, sorted(rows, key=lambda row: row.commit_ts)))


def decoded(message: Message) -> list[Any]:
    return make_decoder(OPTIONS).decode(message.key, message.value)


def set_value(found: pb.Column, column: Column, value: Any) -> None:
    """As upstream's DatumToColumn has it."""
    name, column_type = column.column_type.kind.mysql_name, column.column_type
    if value is None:
        found.is_null = True
    elif name in ("date", "datetime", "time", "timestamp", "decimal"):
        found.string_value = shown_text(column_type, value, UTC)
    elif name == "year":
        found.string_value = str(value)
    elif name in ("tinyint", "smallint", "mediumint", "int", "bigint"):
        if column_type.kind.is_unsigned:
            found.uint64_value = value
        else:
            found.int64_value = value
    elif name in ("float", "double"):
        found.double_value = value
    elif name == "bit":
        found.bytes_value = value.to_bytes((column_type.kind.flen + 7) // 8, "big")
    elif name in ("enum", "set"):
        found.uint64_value = value
    elif name == "json":
        found.bytes_value = decode_text(value)[0].encode()
    elif column_type.type_class is TypeClass.BYTES:
        found.bytes_value = value
    else:
        found.string_value = value.decode()


def by_library(one: RowChanges) -> list[bytes]:
    """The same transactions, built with the library."""
    table, found = one.table, []
    for ts in dict.fromkeys(one.commit_ts.tolist()):
        binlog = pb.Binlog(type=pb.DML, commit_ts=ts)
        made = binlog.dml_data.tables.add(schema_name=table.schema, table_name=table.name)
        for column in table.columns:
            kind = column.column_type.kind
            made.column_info.add(
                name=column.name,
                mysql_type=kind.mysql_name,
                is_primary_key=bool(column.info.type.flag & Flag.PRI_KEY),
                flen=kind.flen,
                decimal=kind.decimal,
            )
        for index in table.info.unique_indexes():
            made.unique_keys.add(name=index.name, column_names=[part.name for part in index.columns])
        for at in range(len(one)):
            if one.commit_ts[at] != ts:
                continue
            mutation = made.mutations.add(type=int(one.kind))
            for place, column in enumerate(table.columns):
                set_value(mutation.row.columns.add(), column, one.image[place][at].as_py())
                if one.kind is Kind.UPDATE:
                    assert one.old is not None
                    set_value(mutation.change_row.columns.add(), column, one.old[place][at].as_py())
        found.append(binlog.SerializeToString(deterministic=True))
    return found


@given(changes())
def test_encoded_messages_equal_bytes_of_protobuf_library(one: RowChanges) -> None:
    assert [int(kind) for kind in (Kind.INSERT, Kind.UPDATE, Kind.DELETE)] == [pb.Insert, pb.Update, pb.Delete]
    found = messages(one)
    assert [message.value for message in found] == by_library(one)
    assert sum(message.rows for message in found) == len(one)
    assert all(message.key is None for message in found)


def test_transaction_is_one_message_with_its_tables_in_order() -> None:
    a, b = (make_table("s", name, [("id", BIG)], primary=["id"], table_id=n) for n, name in enumerate("ab"))
    encoder = make_encoder(OPTIONS)
    rows = [
        *encoded_rows(encoder.table(a), make_changes(a, Kind.INSERT, new=[(1,), (2,)], commit_ts=TS)),
        *encoded_rows(encoder.table(b), make_changes(b, Kind.DELETE, old=[(3,)], commit_ts=TS)),
        *encoded_rows(encoder.table(a), make_changes(a, Kind.UPDATE, old=[(1,)], new=[(4,)], commit_ts=TS)),
        *encoded_rows(encoder.table(a), make_changes(a, Kind.INSERT, new=[(5,)], commit_ts=TS + 1)),
    ]
    first, second = framed_rows(encoder, rows)
    assert [(m.rows, m.commit_ts) for m in (first, second)] == [(4, TS), (1, TS + 1)]
    events = decoded(first)
    assert [(event.table, event.change) for event in events] == [
        ("a", "insert"),
        ("a", "insert"),
        ("b", "delete"),
        ("a", "update"),
    ]
    assert (events[3].old["id"].value, events[3].new["id"].value) == (1, 4)
    assert len(pb.Binlog.FromString(first.value or b"").dml_data.tables) == 3


@given(changes())
def test_rows_of_several_transactions_are_columns_of_whole_messages(one: RowChanges) -> None:
    apart = replace(one, commit_ts=one.commit_ts + np.arange(len(one), dtype=np.uint64) * 5)
    (columns,) = make_encoder(OPTIONS).table(one.table).encode_columns(apart)
    assert columns.values.to_pylist() == by_library(apart)
    assert columns.keys.null_count == len(one)


def test_transactions_with_equal_commit_ts_are_separate_messages() -> None:
    table = make_table("s", "t", [("id", BIG)], primary=["id"])
    one = make_changes(table, Kind.INSERT, new=[(1,), (2,)], commit_ts=TS)
    one.start_ts[1] -= 5
    assert [message.rows for message in messages(one)] == [1, 1]


def test_ddl_message_has_schema_table_and_query() -> None:
    encoder = make_encoder(OPTIONS)
    (message,) = encoder.ddl(Ddl(TS, TS - 1, "shöp", "t", "create table t(id int)", 3))
    wanted = pb.Binlog(type=pb.DDL, commit_ts=TS)
    wanted.ddl_data.schema_name, wanted.ddl_data.table_name = "shöp", "t"
    wanted.ddl_data.ddl_query = b"create table t(id int)"
    assert message.value == wanted.SerializeToString(deterministic=True)
    assert decoded(message) == [DdlEvent(TS, "shöp", "t", "create table t(id int)")]
    assert encoder.ddl_scope is DdlScope.FIRST_PARTITION
    assert not encoder.resolved(TS)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.mutations[0].row.columns.add(is_null=True),
        lambda table: table.mutations[0].row.columns[0].Clear(),
        lambda table: table.mutations[0].change_row.columns.add(is_null=True),
        lambda table: setattr(table.mutations[0].row.columns[0], "is_null", True),
        lambda table: table.column_info.add(name="id"),
    ],
)
def test_rows_that_contradict_their_table_are_refused(change: Any) -> None:
    table = make_table("s", "t", [("id", BIG)], primary=["id"])
    (message,) = messages(make_changes(table, Kind.INSERT, new=[(1,)], commit_ts=TS))
    binlog = pb.Binlog.FromString(message.value or b"")
    change(binlog.dml_data.tables[0])
    with pytest.raises(MessageError):
        decoded(Message(None, binlog.SerializeToString(), 0, 0))


def test_decoded_columns_have_upstreams_type_names_and_key_flags() -> None:
    table = make_table("s", "t", [("id", BIG), ("v", FieldType(Tp.BLOB, charset="binary"))], primary=["id"])
    (event,) = decoded(messages(make_changes(table, Kind.INSERT, new=[(1, b"\xff")], commit_ts=TS))[0])
    assert event.new == {
        "id": ColumnValue(1, flags=8, type_name="bigint"),
        "v": ColumnValue(b"\xff", type_name="blob"),
    }


def test_float_is_double_of_its_four_bytes_and_refused_beyond_them() -> None:
    table = make_table("s", "t", [("f", FieldType(Tp.FLOAT))])
    (message,) = messages(make_changes(table, Kind.INSERT, new=[[0.1]]))
    binlog = pb.Binlog.FromString(message.value or b"")
    assert binlog.dml_data.tables[0].mutations[0].row.columns[0].double_value == float(np.float32(0.1))
    with pytest.raises(EncodeError, match="does not fit 4 bytes"):
        messages(make_changes(table, Kind.INSERT, new=[[3.5e38]]))
