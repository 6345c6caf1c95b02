"""Binlogs of files against the protobuf library, and back; payloads that are none."""

from __future__ import annotations

from datetime import UTC

import pytest
from binlog.pb import pb_binlog_pb2 as pb
from binlog.tidb.datum import Datum, Uint, encode_value
from hypothesis import given

from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file import EventEncoder, ddl_binlog, ddl_text, decode, dml_head
from drainer.protocol.table import Column, RowChanges
from drainer.row.column_type import DecodedValue, TypeClass
from tests.support.any_changes import changes
from tests.support.shown_text import shown_text

TS = 400_000_000_000_000_000


def encoded(one: RowChanges, commit_ts: int = TS) -> bytes:
    """All of it as one transaction."""
    columns = [(column.name, column.column_type) for column in one.table.columns]
    encoder = EventEncoder(one.table.schema, one.table.name, columns, UTC)
    events = b"".join(encoder.encode(one.kind, one.commit_ts, one.old, one.new))
    return dml_head(commit_ts, len(events)) + events


def datum(column: Column, value: DecodedValue) -> Datum:
    """As upstream's formatData has it."""
    type_class = column.column_type.type_class
    if value is None or type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return value
    if type_class in (TypeClass.ENUM, TypeClass.SET, TypeClass.BIT):
        return Uint(value)
    if type_class is TypeClass.INT:
        unsigned = column.column_type.kind.is_unsigned and column.name != "year"
        return Uint(value) if unsigned else value
    return value if type_class is TypeClass.FLOAT else shown_text(column.column_type, value, UTC).encode()


def by_library(one: RowChanges) -> bytes:
    binlog = pb.Binlog(tp=pb.DML, commit_ts=TS)
    for at in range(len(one)):
        event = binlog.dml_data.events.add(
            schema_name=one.table.schema, table_name=one.table.name, tp=pb.EventType.Value(one.kind.name.title())
        )
        for place, column in enumerate(one.table.columns):
            made = pb.Column(
                name=column.name, tp=bytes([column.column_type.kind.tp]), mysql_type=column.column_type.kind.mysql_name
            )
            images = [image[place][at].as_py() for image in (one.old, one.new) if image is not None]
            made.value = encode_value(datum(column, images[0]))
            if len(images) == 2:
                made.changed_value = encode_value(datum(column, images[1]))
            event.row.append(made.SerializeToString())
    return binlog.SerializeToString()


@given(changes())
def test_encoded_binlog_equals_bytes_of_protobuf_library(one: RowChanges) -> None:
    assert encoded(one) == by_library(one)


def test_ddl_text_begins_with_use_database() -> None:
    assert ddl_text("sh`op", "create table t (id int);", 3) == "use `sh``op`; create table t (id int);"
    assert ddl_text("shop", "create database shop", 1) == "create database shop;"
    assert ddl_text("", "flush tables", 0) == "flush tables"
    payload = ddl_binlog(TS, "use `s`; drop table t;")
    assert payload == pb.Binlog(tp=pb.DDL, commit_ts=TS, ddl_query=b"use `s`; drop table t;").SerializeToString()
    found = decode(payload)
    assert (found.commit_ts, found.query, list(found.events())) == (TS, "use `s`; drop table t;", [])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pb.Column(name="id", tp=b"", value=b"\x00"), "type is b''"),
        (pb.Column(name="", tp=b"\x03", value=b"\x00"), "no name"),
        (pb.Column(name="id", tp=b"\x03"), "invalid encoded key"),
        (pb.Column(name="id", tp=b"\x03", value=b"\x00\x00"), "1 bytes after its value"),
        (pb.Column(name="id", tp=b"\x03", value=b"\x02\x09a"), "insufficient bytes"),
    ],
)
def test_invalid_column_is_refused_with_its_table(column: pb.Column, message: str) -> None:
    binlog = pb.Binlog(tp=pb.DML, commit_ts=TS)
    binlog.dml_data.events.add(schema_name="s", table_name="t", tp=pb.Insert).row.append(column.SerializeToString())
    with pytest.raises(MessageError, match=rf"a row of `s`.`t`: .*{message}"):
        list(decode(binlog.SerializeToString()).events())


@pytest.mark.parametrize(
    "payload", [b"", b"\x08\x00", b"\x10\x01", b"\xff", pb.Binlog(tp=0, commit_ts=-1).SerializeToString()]
)
def test_payload_without_type_or_commit_ts_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageError):
        decode(payload)
