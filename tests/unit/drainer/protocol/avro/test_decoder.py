"""What others may send: torn and changed bytes, headers, checksums, schemas that are none."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock
from zlib import crc32

import pytest
from binlog.tidb.time import Civil, pack
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from drainer.batch.work import Kind
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.errors import MessageError
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions
from drainer.row.column_type import DecodedValue
from tests.support.avro_tables import TOPIC, ready
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.protocol.avro.cases import NAMES, TEXT

OPTIONS = ProtocolOptions("avro", enable_tidb_extension=True, avro_output_old_row=True)


def message() -> tuple[bytes, AvroDecoder]:
    """The value of an insert, and a decoder that knows its schemas."""
    table = make_table("s", "t", [("id", FieldType(Tp.LONG)), ("v", TEXT)], primary=["id"])
    encoder, schemas = ready(table, OPTIONS)
    (made,) = encoded_rows(encoder.table(table, TOPIC), make_changes(table, Kind.INSERT, new=[[1, b"x"]]))
    assert made.value is not None
    return made.value, AvroDecoder(encoder.options, schemas)


@given(st.binary(max_size=40) | st.none(), st.binary(max_size=40) | st.none())
def test_avro_decoder_of_any_bytes_raises_only_message_error(key: bytes | None, value: bytes | None) -> None:
    _, decoder = message()
    for lead in (b"", b"\0\0\0\0\1", b"\0\0\0\0\2", b"\1", b"\2", b"\3\0" + bytes(16)):
        try:
            decoder.decode(key, None if value is None else lead + value)
        except MessageError:
            continue


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\0", "a header has 5 bytes, and the message 4"),
        (b"\3\0" + bytes(16), "0x03"),
        (b"\4\0\0\0\1\2", "0x04"),
        (b"\0\0\0\0\7\2", "no schema has the id 7"),
    ],
)
def test_invalid_avro_header_is_refused(data: bytes, words: str) -> None:
    good, decoder = message()
    for key, value in ((None, data), (data, None), (data, good)):
        with pytest.raises(MessageError, match=words):
            decoder.decode(key, value)


def test_avro_message_without_key_and_value_is_refused() -> None:
    _, decoder = message()
    for key, value in ((None, None), (b"", b""), (None, b"")):
        with pytest.raises(MessageError, match="neither key nor value"):
            decoder.decode(key, value)


@pytest.mark.parametrize(
    "value",
    [
        b"\2",
        b"\2" + bytes(7),
        b"\2" + bytes(9),
        b"\1",
        b"\1{",
        b"\1[]",
        b"\1{}",
        b"\1\xff",
        b'\1{"query":"q","type":"3","schema":"s","table":"t","commitTs":1}',
        b'\1{"query":"q","type":3,"schema":"s","table":7,"commitTs":1}',
        b'\1{"query":"q","type":3,"schema":"s","table":"t","commitTs":-1}',
        b'\1{"query":"q","type":3,"schema":"s","table":"t","commitTs":true}',
    ],
)
def test_invalid_watermark_and_ddl_messages_are_refused(value: bytes) -> None:
    with pytest.raises(MessageError):
        AvroDecoder(OPTIONS).decode(None, value)


FIELD = {"name": "a", "type": "int"}
RECORD = {"type": "record", "name": "t", "namespace": "n.s", "fields": [FIELD]}


@pytest.mark.parametrize(
    ("schema", "record"),
    [
        ("", b"\2"),
        ("[]", b"\2"),
        ('"int"', b"\2"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, b"\2"),
        ({**RECORD, "fields": None}, b"\2"),
        ({**RECORD, "fields": [7]}, b"\2"),
        ({**RECORD, "fields": [{"name": "a"}]}, b"\2"),
        ({**RECORD, "fields": [{"name": {}, "type": "int"}]}, b"\2"),
        ({**RECORD, "fields": [{"name": "a", "type": "t"}]}, b""),
        ({**RECORD, "fields": [{"name": "a", "type": "array"}]}, b"\2"),
        ({**RECORD, "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}]}, b"\2"),
        ({**RECORD, "fields": [{"name": "a", "type": {"type": "int", "connect.parameters": 7}}]}, b"\2"),
        (
            {**RECORD, "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "scale": -1}}]},
            b"\0",
        ),
        ({**RECORD, "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal"}}]}, b"\0"),
        ({**RECORD, "name": 7}, b"\2"),
        ({**RECORD, "fields": [{"name": "_tidb_op", "type": "string"}]}, b"\2x"),
        ({**RECORD, "fields": [{"name": "_tidb_op", "type": "int"}]}, b"\2"),
        ({**RECORD, "fields": [{"name": "_tidb_commit_ts", "type": "string"}]}, b"\2x"),
        ({**RECORD, "fields": [FIELD, {"name": "_ticdc_before", "type": "int"}]}, b"\2\2"),
        ({**RECORD, "fields": [FIELD, {"name": "_ticdc_before", "type": {**RECORD, "fields": []}}]}, b"\2"),
        ({**RECORD, "fields": [{"name": "a", "type": ["null", "int"]}]}, b"\4\2"),
        ({**RECORD, "fields": [{"name": "a", "type": "long"}]}, b"\xff" * 10),
        ({**RECORD, "fields": [{"name": "a", "type": "bytes"}]}, b"\1"),
        ({**RECORD, "fields": [{"name": "a", "type": "string"}]}, b"\2\xff"),
    ],
)
def test_invalid_avro_schema_or_record_is_refused(schema: Any, record: bytes) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(MessageError, match="Avro"):
        AvroDecoder(OPTIONS, {1: text}.__getitem__).decode(None, b"\0\0\0\0\1" + record)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (RECORD, ("s", "t")),
        ({**RECORD, "namespace": "n.a.b"}, ("a.b", "t")),
        ({**RECORD, "namespace": "n"}, ("", "t")),
        ({"type": "record", "name": "n.s.t", "fields": [FIELD]}, ("s", "t")),
        ({"type": "record", "name": "t", "fields": [FIELD]}, ("", "t")),
    ],
)
def test_table_name_is_taken_from_namespace_and_record_name(schema: dict[str, Any], names: tuple[str, str]) -> None:
    (event,) = AvroDecoder(OPTIONS, {9: json.dumps(schema)}.__getitem__).decode(None, b"\0\0\0\0\x09\2")
    assert isinstance(event, RowEvent)
    assert (event.schema, event.table) == names


def test_each_schema_id_is_looked_up_once() -> None:
    schemas = Mock(return_value=json.dumps(RECORD))
    decoder = AvroDecoder(OPTIONS, schemas)
    for _ in range(5):
        decoder.decode(b"\0\0\0\0\1\2", b"\0\0\0\0\2\2")
    assert schemas.call_count == 2


# -- checksums: of rows that others wrote, with TiDB's checksum in them --

CHECKED = ProtocolOptions(
    "avro",
    enable_tidb_extension=True,
    avro_decimal_handling_mode="string",
    avro_bigint_unsigned_handling_mode="string",
    time_zone="Asia/Shanghai",
)
_STAMP = pack(Civil(2020, 1, 2, 3, 4, 5, 0))


def _le(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


COLUMNS: list[tuple[str, FieldType, DecodedValue, bytes]] = [
    ("i", FieldType(Tp.LONG), -1, b"\xff" * 8),
    ("u", FieldType(Tp.LONGLONG, Flag.UNSIGNED), (1 << 64) - 2, _le((1 << 64) - 2)),
    ("n", FieldType(Tp.LONG), None, b""),
    ("f", FieldType(Tp.FLOAT), 1.5, b"\0\0\0\0\0\0\xf8\x3f"),
    ("d", FieldType(Tp.NEWDECIMAL, flen=10, decimal=2), "1.50", _counted(b"1.50")),
    ("v", TEXT, "größe".encode(), _counted("größe".encode())),
    ("b", FieldType(Tp.BLOB), b"\xff", _counted(b"\xff")),
    ("t", FieldType(Tp.TIMESTAMP), _STAMP, _counted(b"2020-01-02 03:04:05")),
    ("z", FieldType(Tp.TIMESTAMP, decimal=2), 0, _counted(b"0000-00-00 00:00:00.00")),
    ("m", FieldType(Tp.DATETIME), _STAMP, _counted(b"2020-01-02 03:04:05")),
    ("e", FieldType(Tp.ENUM, elems=NAMES), 2, _le(2)),
    ("s", FieldType(Tp.SET, elems=("a", "b", "c")), 5, _le(5)),
    ("o", FieldType(Tp.SET, elems=("a", "b", "c")), 0, _le(0)),
    ("x", FieldType(Tp.BIT, flen=9), 257, _le(257)),
    ("y", FieldType(Tp.YEAR, Flag.UNSIGNED), 2020, _le(2020)),
]


def checked(checksum: str, *, corrupted: bool = False) -> tuple[bytes, Any]:
    """A message as a writer with checksums makes it: with three fields more than the encoder's."""
    table = make_table("s", "t", [(name, kind) for name, kind, _, _ in COLUMNS])
    encoder, schemas = ready(table, CHECKED)
    (row,) = encoded_rows(
        encoder.table(table, TOPIC), make_changes(table, Kind.INSERT, new=[[value for _, _, value, _ in COLUMNS]])
    )
    assert row.value is not None
    schema = json.loads(schemas(1))
    types = {"_tidb_row_level_checksum": "string", "_tidb_corrupted": "boolean", "_tidb_checksum_version": "int"}
    schema["fields"] += [{"name": name, "type": kind} for name, kind in types.items()]
    tail = bytes((len(checksum) * 2,)) + checksum.encode() + bytes((corrupted, 2))
    return row.value + tail, AvroDecoder(CHECKED, {1: json.dumps(schema)}.__getitem__)


def test_row_with_wrong_checksum_is_refused() -> None:
    true = str(crc32(b"".join(part for *_, part in COLUMNS)))
    value, decoder = checked(true)
    (event,) = decoder.decode(None, value)
    assert isinstance(event, RowEvent)
    assert event.new is not None
    assert event.new["t"].value == "2020-01-02 11:04:05"
    for wrong in ("1", true + "0", "x"):
        value, decoder = checked(wrong)
        with pytest.raises(MessageError, match=f"`s`.`t` has checksum {true}, not {wrong}"):
            decoder.decode(None, value)
    value, decoder = checked("")
    decoder.decode(None, value)


def test_row_marked_corrupted_upstream_is_logged() -> None:
    value, decoder = checked("", corrupted=True)
    with capture_logs() as logs:
        decoder.decode(None, value)
    (line,) = logs
    assert (line["log_level"], line["schema"], line["table"]) == ("warning", "s", "t")


def test_checksum_of_vector_column_is_compared() -> None:
    field = {"name": "v", "type": {"type": "string", "connect.parameters": {"tidb_type": "TiDBVECTORFloat32"}}}
    fields = [field, {"name": "_tidb_row_level_checksum", "type": "string"}]
    decoder = AvroDecoder(OPTIONS, {1: json.dumps({**RECORD, "fields": fields})}.__getitem__)
    true = str(crc32(b"\2\0\0\0\0\0\x80\x3f\0\0\x20\x40")).encode()
    head = b"\0\0\0\0\1\x0e[1,2.5]"
    decoder.decode(None, head + bytes((len(true) * 2,)) + true)
    with pytest.raises(MessageError, match="checksum"):
        decoder.decode(None, head + b"\2" + b"1")
    with pytest.raises(MessageError, match="checksum cannot be computed"):
        decoder.decode(None, b"\0\0\0\0\1\x06abc\2" + b"1")
