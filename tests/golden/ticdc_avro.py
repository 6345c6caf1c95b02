"""What the vectors of TiCDC's Avro say, kind by kind, in both directions.

A vector of a row gives the schema's text and the record's bytes. So a table and a row are made from what our decoder
reads in them, and our encoder has to give the same text and the same bytes again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC
from decimal import Decimal
from io import BytesIO
from typing import Any, Final
from zlib import crc32

import fastavro
import pyarrow as pa
import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.blocks import joined, pieces_of
from drainer.protocol.avro.decoder import AvroDecoder, Record, read_record, readable
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.avro.schema import (
    CHECKSUM,
    CHECKSUM_VERSION,
    CORRUPTED,
    allowed_names,
    allowed_text,
    avro_name,
    record_namespace,
    subjects,
    table_schemas,
)
from drainer.protocol.encoder import Ddl, SchemaIds, header_of, merged, read_header
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Table
from drainer.row.column_type import ColumnType
from drainer.sink.kafka.schema_registry import SchemaRegistry
from tests.golden.vector_files import Vector, only
from tests.support.avro_tables import changes_of, load, options_of, table_of_schema
from tests.support.encoded import encoded_rows
from tests.support.http_registry import Registry, serving
from tests.support.row_changes import make_changes, make_table

_TOPIC = "t"
_CHECKSUM_FIELDS = (
    ',{"default":"","name":"_tidb_row_level_checksum","type":"string"}'
    ',{"default":false,"name":"_tidb_corrupted","type":"boolean"}'
    ',{"default":0,"name":"_tidb_checksum_version","type":"int"}'
)
_SCHEMA = '{"type":"record","name":"t{}","fields":[]}'


def ids_for(encoder: AvroEncoder, table: Table, schema_id: int) -> SchemaIds:
    """One id for all of its schemas."""
    return merged({}, [(one, schema_id) for one in encoder.required_schemas(_TOPIC, table)])


def check_encode(vector: Vector) -> None:
    if "op" in vector["input"]:
        check_delete(vector)
        return
    _, suffix, schema_id = only(vector["input"], "description subject_suffix schema_id")
    text, body, record_hex, framed_hex = only(vector["expected"], "schema_text register_body record_hex framed_hex")
    record, framed = bytes.fromhex(record_hex), bytes.fromhex(framed_hex)
    assert framed == header_of(schema_id) + record
    assert json.loads(body) == {"schema": text}
    assert suffix in ("-key", "-value")
    is_key = suffix == "-key"
    schema = load(text)
    reader = Record(text)
    found = reader.read(framed, 5)
    image = {name: column.value for name, column in reader.image(found).items()}
    plain = fastavro.schemaless_reader(BytesIO(record), fastavro.parse_schema(schema), None)
    assert plain.keys() == found.keys()

    table = table_of_schema(schema, is_key=is_key, values=image)
    options = options_of(schema)
    schemas = table_schemas(table, options)
    assert (schemas.key if is_key else schemas.value) == text.replace(_CHECKSUM_FIELDS, "")

    encoder = AvroEncoder(options)
    encoder = encoder.with_ids(ids_for(encoder, table, schema_id))
    kind = Kind.UPDATE if found.get("_tidb_op") == "u" else Kind.INSERT
    commit_ts = found.get("_tidb_commit_ts", 1)
    changes = changes_of(table, kind, image, commit_ts)
    (row,) = encoded_rows(encoder.table(table, _TOPIC), changes)
    ours = row.key if is_key else row.value
    assert ours is not None
    if CHECKSUM in found:  # binlogs have none, so it is put in here
        ours += _checksum_bytes(found)
    assert ours == framed
    if not is_key:
        if found.get(CHECKSUM):
            framed = with_true_checksum(text, schema_id, framed, found, options)
        check_event(text, schema_id, framed, kind, commit_ts, options)


def with_true_checksum(
    text: str, schema_id: int, framed: bytes, found: Mapping[str, Any], options: ProtocolOptions
) -> bytes:
    """The message as it is where its checksum is that of its row. Vectors have numbers that are not: those a decoder
    refuses, naming both."""
    record = Record(text)
    parts = [field.checksum_part(record.image(found)[field.name].value, UTC) for field in record.fields]
    true = str(crc32(b"".join(parts)))
    if found[CHECKSUM] == true:
        return framed
    with pytest.raises(MessageError, match=f"{true}, not {found[CHECKSUM]}"):
        AvroDecoder(options, {schema_id: text}.__getitem__).decode(None, framed)
    length = len(_checksum_bytes(found))
    return framed[:-length] + _checksum_bytes({**found, CHECKSUM: true})


def _checksum_bytes(found: Mapping[str, Any]) -> bytes:
    out = BytesIO()
    fields = [{"name": CHECKSUM, "type": "string"}, {"name": CORRUPTED, "type": "boolean"}]
    fields.append({"name": CHECKSUM_VERSION, "type": "int"})
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    fastavro.schemaless_writer(out, schema, {name: found[name] for name in (CHECKSUM, CORRUPTED, CHECKSUM_VERSION)})
    return out.getvalue()


def check_event(text: str, schema_id: int, framed: bytes, kind: Kind, commit_ts: int, options: ProtocolOptions) -> None:
    (event,) = AvroDecoder(options, {schema_id: text}.__getitem__).decode(None, framed)
    assert isinstance(event, RowEvent)
    changes = {Kind.INSERT: Change.INSERT, Kind.UPDATE: Change.UPDATE}
    extended = options.enable_tidb_extension
    assert event.change == (changes[kind] if extended else Change.UPSERT)
    assert event.commit_ts == (commit_ts if extended else 0)


def check_delete(vector: Vector) -> None:
    operation, key_record, schema_id = only(vector["input"], "op key_record key_schema_id")
    key_hex, value = only(vector["expected"], "kafka_key_hex kafka_value")
    assert operation == "delete"
    assert value is None
    names = list(key_record)
    text = FieldType(Tp.VARCHAR, Flag.NOT_NULL, charset="utf8mb4", collate="utf8mb4_bin")
    kinds = [text if isinstance(value, str) else FieldType(Tp.LONG, Flag.NOT_NULL) for value in key_record.values()]
    columns = [*zip(names, kinds, strict=True), ("v", FieldType(Tp.LONG))]
    table = make_table("test", "t1", columns, primary=names)
    row = [*(value.encode() if isinstance(value, str) else value for value in key_record.values()), None]
    encoder = AvroEncoder(ProtocolOptions("avro"))
    encoder = encoder.with_ids(ids_for(encoder, table, schema_id))
    (made,) = encoded_rows(encoder.table(table, _TOPIC), make_changes(table, Kind.DELETE, old=[row]))
    assert made.key == bytes.fromhex(key_hex)
    assert made.value is None
    key_schema = table_schemas(table, encoder.options).key
    assert key_schema is not None
    decoder = AvroDecoder(encoder.options, {schema_id: key_schema}.__getitem__)
    (event,) = decoder.decode(made.key, None)
    assert isinstance(event, RowEvent)
    assert event.change is Change.DELETE
    assert event.old is not None
    assert {name: column.value for name, column in event.old.items()} == key_record


def _column(kind: FieldType, value: Any) -> tuple[bytes, dict[str, Any]]:
    """One value's bytes, and the schema of its table."""
    column_type = ColumnType.of(kind)
    table = make_table("test", "t", [("c", kind)])
    schemas = table_schemas(table, ProtocolOptions("avro"))
    column = pa.array([value], column_type.decoded_type)
    (found,) = joined(pieces_of(schemas.fields[0], column_type, column, UTC), 1).to_pylist()
    return found, load(schemas.value)


def check_decimal(vector: Vector) -> None:
    precision, scale, value = only(vector["input"], "precision scale value")
    record_hex, other_hex = only(vector["expected"], "record_hex", "fastavro_1_13_1_record_hex")
    made, schema = _column(FieldType(Tp.NEWDECIMAL, Flag.NOT_NULL, precision, scale), value)
    assert made == bytes.fromhex(record_hex)
    record = Record(json.dumps(schema))
    assert Decimal(str(record.image(record.read(made, 0))["c"].value)) == Decimal(value)
    parsed = fastavro.parse_schema(schema)
    theirs = fastavro.schemaless_reader(BytesIO(made), parsed, None)
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed, theirs)
    assert out.getvalue().hex() == (other_hex or record_hex)


def check_bit(vector: Vector) -> None:
    (number,), (bytes_hex,) = only(vector["input"], "value"), only(vector["expected"], "bytes_hex")
    data = bytes.fromhex(bytes_hex)
    made, schema = _column(FieldType(Tp.BIT, Flag.NOT_NULL, 64), number)
    assert made == bytes((2 * len(data),)) + data
    record = Record(json.dumps(schema))
    assert record.image(record.read(made, 0))["c"].value == number


def check_sanitize(vector: Vector) -> None:
    assert [avro_name(name) for name in only(vector["input"], "name")] == only(vector["expected"], "name")


def check_namespace(vector: Vector) -> None:
    assert [record_namespace(*only(vector["input"], "namespace schema"))] == only(vector["expected"], "namespace")


def check_subject(vector: Vector) -> None:
    (topic,) = only(vector["input"], "topic")
    assert [list(subjects(ProtocolOptions("avro"), topic))] == only(vector["expected"], "subjects")


def check_envelope(vector: Vector) -> None:
    schema, native, number, version, given_hex = only(
        vector["input"], "", "schema native schema_id schema_version_id record_hex"
    )
    header_hex, framed_hex, header_len, expected_hex = only(
        vector["expected"], "header_hex framed_hex", "header_len record_hex"
    )
    if version is not None:  # of AWS Glue
        with pytest.raises(MessageError, match="no header begins with the byte 0x03"):
            read_header(bytes.fromhex(framed_hex))
        return
    header = header_of(number)
    assert header.hex() == header_hex
    assert len(header) == (header_len or 5)
    message = header + bytes.fromhex(expected_hex or given_hex)
    assert message.hex() == framed_hex
    assert read_header(message) == number
    assert (schema is None) == (native is None)
    if schema is not None:
        assert read_record(readable(schema), message, len(header), "Avro") == native


def check_ddl(vector: Vector) -> None:
    commit_ts, schema, table, query, kind, config = only(
        vector["input"], "commit_ts schema table query ddl_type config"
    )
    key, value_hex = only(vector["expected"], "kafka_key kafka_value_hex")
    encoder = AvroEncoder(ProtocolOptions("avro", **config))
    (message,) = encoder.ddl(Ddl(commit_ts, 0, schema, table, query, kind))
    assert message.key is key is None
    assert message.value == bytes.fromhex(value_hex)
    read = AvroDecoder(encoder.options).decode(None, message.value)
    assert read == [DdlEvent(commit_ts, schema, table, query, kind)]


def check_resolved(vector: Vector) -> None:
    config, commit_ts = only(vector["input"], "config", "ts")
    encoder = AvroEncoder(ProtocolOptions("avro", **config))
    if "message" in vector["expected"]:
        assert only(vector["expected"], "message") == [None]
        assert encoder.resolved(commit_ts or 1) == []
        return
    key, value_hex = only(vector["expected"], "kafka_key kafka_value_hex")
    (message,) = encoder.resolved(commit_ts)
    assert message.key is key is None
    assert message.value == bytes.fromhex(value_hex)
    assert AvroDecoder(encoder.options).decode(None, message.value) == [ResolvedEvent(commit_ts)]


def check_allowed(vector: Vector) -> None:
    (names,), (allowed,) = only(vector["input"], "options"), only(vector["expected"], "allowed")
    assert allowed_text(tuple(names)) == allowed
    # What was unescaped on the way out stays so: only commas come back.
    back = tuple(name.replace("\\'", "'").replace("''", "'") for name in names)
    assert allowed_names(allowed) == back


def check_registry(vector: Vector) -> None:
    subject, times, calls, responses = only(vector["input"], "", "subject register_same_schema_times calls responses")
    with serving(Registry(deque((status, "later") for status in responses or () if status != 200))) as served:
        if times is not None:
            ids = {SchemaRegistry(served.url).register(subject, _SCHEMA) for _ in range(times)}
            assert [len(ids) == 1] == only(vector["expected"], "all_ids_equal")
            assert len(served.requests) == times
        elif calls is not None:
            counts, same = only(vector["expected"], "schema_generated_count_after_each same_codec_object_for_first_two")
            client = SchemaRegistry(served.url)
            texts = [_SCHEMA.replace("{}", str(*only(call, "version"))) for call in calls]
            found = [(client.register(subject, text), len(served.requests)) for text in texts]
            assert [count for _, count in found] == counts
            assert (found[0][0] == found[1][0]) is same
        else:
            assert only(vector["expected"], "final_status") == [200]
            assert SchemaRegistry(served.url).register("s", _SCHEMA) == 1
            assert len(served.requests) == len(responses)


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {
    "encode": check_encode,
    "decimal_bytes": check_decimal,
    "bit_bytes": check_bit,
    "sanitize_name": check_sanitize,
    "namespace": check_namespace,
    "subject": check_subject,
    "envelope": check_envelope,
    "encode_ddl": check_ddl,
    "encode_resolved": check_resolved,
    "enum_allowed": check_allowed,
    "registry": check_registry,
}
