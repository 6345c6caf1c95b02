"""A real schema registry: tables' schemas are registered, changed by DDL, looked up and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO

import fastavro
import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.errors import MessageError, SchemaIdMissing
from drainer.protocol.event import Change, RowEvent
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Table
from drainer.sink.kafka.schema_registry import SchemaRefused, SchemaRegistry
from tests.support.encoded import encoded_rows
from tests.support.registry import SchemaRegistryServer
from tests.support.row_changes import make_changes, make_table

pytestmark = [pytest.mark.slow, pytest.mark.integration]

INT = FieldType(Tp.LONG)
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
PRICE = FieldType(Tp.NEWDECIMAL, flen=12, decimal=2)
OPTIONS = ProtocolOptions("avro", enable_tidb_extension=True)


def table_with(*more: tuple[str, FieldType], version: int = 1) -> Table:
    return make_table("shop", "orders", [("id", INT), ("note", TEXT), *more], primary=["id"], version=version)


def client(server: SchemaRegistryServer) -> SchemaRegistry:
    return SchemaRegistry(server.url)


def not_null(kind: FieldType) -> FieldType:
    return replace(kind, flag=kind.flag | Flag.NOT_NULL)


def encoder_for(registry: SchemaRegistry, topic: str, table: Table) -> AvroEncoder:
    encoder = AvroEncoder(OPTIONS)
    return encoder.with_ids(registry.register_all(encoder.required_schemas(topic, table)))


def test_schema_is_registered_once_by_any_client(schema_registry: SchemaRegistryServer) -> None:
    table, topic = table_with(("price", PRICE)), schema_registry.topic()
    subjects = [f"{topic.replace('.', '_')}-{which}" for which in ("key", "value")]
    encoder = AvroEncoder(OPTIONS)
    required = encoder.required_schemas(topic, table)
    assert [one.subject for one in required] == subjects
    with pytest.raises(SchemaIdMissing, match=" and ".join(subjects)):
        encoded_rows(encoder.table(table, topic), make_changes(table, Kind.INSERT, new=[[1, b"a", "2.50"]]))

    first = client(schema_registry)
    first.check()
    ids = first.register_all(required)
    assert [client(schema_registry).register_all(required) for _ in range(3)] == [ids] * 3
    assert [schema_registry.versions(subject) for subject in subjects] == [[1], [1]]
    for one in required:
        assert first.schema(ids[one.subject][one.fingerprint]) == one.schema

    (row,) = encoded_rows(
        encoder.with_ids(ids).table(table, topic), make_changes(table, Kind.INSERT, new=[[1, b"a", "2.50"]])
    )
    (event,) = AvroDecoder(OPTIONS, client(schema_registry).schema).decode(row.key, row.value)
    assert isinstance(event, RowEvent)
    assert event.change is Change.INSERT
    assert event.new is not None
    assert {name: column.value for name, column in event.new.items()} == {"id": 1, "note": "a", "price": "2.50"}


def test_compatible_column_changes_are_registered_and_read_by_newest_schema(
    schema_registry: SchemaRegistryServer,
) -> None:
    """A nullable column, one with a default, a dropped one and a wider type: each is compatible backward, so what reads
    by the newest schema reads the oldest message."""
    registry, topic = client(schema_registry), schema_registry.topic()
    plain = table_with(("n", INT))
    added = table_with(("n", INT), ("price", PRICE), version=2)
    info = added.info.columns[3]
    with_default = table_with(("n", INT), ("price", PRICE), ("state", not_null(TEXT)), version=3)
    column = with_default.columns[4]
    info = replace(column.info, default="new")
    with_default = replace(with_default, columns=(*with_default.columns[:4], replace(column, info=info)))
    dropped = replace(with_default, columns=tuple(c for c in with_default.columns if c.name != "price"), version=4)
    wider = table_with(("n", FieldType(Tp.LONGLONG)), version=5)
    wider = replace(wider, columns=(*wider.columns, dropped.columns[-1]))
    oldest = encoder_for(registry, topic, plain).table(plain, topic)
    (row,) = encoded_rows(oldest, make_changes(plain, Kind.UPDATE, old=[[7, b"x", None]], new=[[7, b"y", 41]]))
    assert row.value is not None
    written = fastavro.parse_schema(json.loads(registry.schema(int.from_bytes(row.value[1:5], "big"))))
    for table, more in (
        (added, {"price": None}),
        (with_default, {"price": None, "state": "new"}),
        (dropped, {"state": "new"}),
        (wider, {"state": "new"}),
    ):
        required = AvroEncoder(OPTIONS).required_schemas(topic, table)
        registry.register_all(required)
        newest = fastavro.parse_schema(json.loads(required[-1].schema))
        found = fastavro.schemaless_reader(BytesIO(row.value[5:]), written, newest)
        assert isinstance(found, dict)
        found = {name: value for name, value in found.items() if not name.startswith("_tidb")}
        assert found == {"id": 7, "note": "y", "n": 41, **more}
    assert schema_registry.versions(f"{topic.replace('.', '_')}-value") == [1, 2, 3, 4, 5]
    assert schema_registry.versions(f"{topic.replace('.', '_')}-key") == [1]


def test_incompatible_column_is_refused_with_registrys_message(schema_registry: SchemaRegistryServer) -> None:
    """A NOT NULL column without a default: seed 001's own example. Nothing is changed by asking again."""
    registry, topic = client(schema_registry), schema_registry.topic()
    registry.register_all(AvroEncoder(OPTIONS).required_schemas(topic, table_with()))
    *_, required = AvroEncoder(OPTIONS).required_schemas(topic, table_with(("must", not_null(INT)), version=2))
    for _ in range(2):
        with pytest.raises(SchemaRefused) as caught:
            registry.register(required.subject, required.schema)
        for part in ("HTTP 409", required.subject, required.schema, "Incompatible", "must"):
            assert part in str(caught.value)
    assert schema_registry.versions(required.subject) == [1]


def test_invalid_schema_text_is_refused_by_registry(schema_registry: SchemaRegistryServer) -> None:
    with pytest.raises(SchemaRefused, match=r"\(HTTP 422\): \w"):
        client(schema_registry).register(schema_registry.topic(), '{"type":"recor')


def test_unknown_schema_id_raises_lookup_error(schema_registry: SchemaRegistryServer) -> None:
    registry = client(schema_registry)
    with pytest.raises(LookupError):
        registry.schema(0x7FFFFFFF)
    with pytest.raises(MessageError, match="no schema has the id 2147483647"):
        AvroDecoder(OPTIONS, registry.schema).decode(None, b"\0\x7f\xff\xff\xff\x02")
