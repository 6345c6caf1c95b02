"""Messages against the envelope of Debezium's MySQL connector: a JSON schema of the members that its documentation
names, and not of what our encoder writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import jsonschema
import pytest
from binlog.tidb.job import ActionType
from hypothesis import given

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_encoder
from drainer.row.column_type import DecodedValue
from tests.support.examples import FEW
from tests.support.row_changes import make_changes
from tests.support.typed_columns import typed_rows, typed_table

TABLE = typed_table()
OPTIONS = ProtocolOptions("debezium", enable_tidb_extension=True)
Schema = Mapping[str, object]
TEXT: Schema = {"type": "string"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
WHOLE: Schema = {"type": "integer"}

# A schema of Kafka Connect, as its JSON converter writes it.
CONNECT: Schema = {
    "$defs": {
        "schema": {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {
                    "enum": [
                        "struct", "array", "map", "string", "bytes", "boolean",
                        "int8", "int16", "int32", "int64", "float", "double",
                    ]
                },
                "optional": {"type": "boolean"},
                "name": TEXT,
                "version": WHOLE,
                "field": TEXT,
                "parameters": {"type": "object", "additionalProperties": TEXT},
                "fields": {
                    "type": "array",
                    "items": {"allOf": [{"$ref": "#/$defs/schema"}, {"required": ["field"]}]},
                },
                "items": {"$ref": "#/$defs/schema"},
            },
            "allOf": [
                {"if": {"properties": {"type": {"const": "struct"}}}, "then": {"required": ["fields"]}},
                {"if": {"properties": {"type": {"const": "array"}}}, "then": {"required": ["items"]}},
            ],
        }
    }
}  # fmt: skip
SOURCE: Schema = {
    "type": "object",
    "required": ["version", "connector", "name", "ts_ms", "snapshot", "db", "server_id", "file", "pos", "row"],
    "properties": {
        "version": TEXT,
        "connector": TEXT,
        "name": TEXT,
        "ts_ms": WHOLE,
        "snapshot": {"enum": ["true", "first", "last", "false", "incremental"]},
        "db": TEXT,
        "table": MAYBE_TEXT,
        "server_id": WHOLE,
        "gtid": MAYBE_TEXT,
        "file": TEXT,
        "pos": WHOLE,
        "row": WHOLE,
        "thread": {"type": ["integer", "null"]},
        "query": MAYBE_TEXT,
    },
}
IMAGE: Schema = {"type": "object", "minProperties": 1}
NOTHING: Schema = {"type": "null"}


def with_operation(operation: str, **images: Schema) -> Schema:
    return {
        "if": {"properties": {"op": {"const": operation}}},
        "then": {"properties": images, "required": [name for name, image in images.items() if image is IMAGE]},
    }


ROW: Schema = {
    "type": "object",
    "required": ["source", "op", "ts_ms"],
    "properties": {
        "op": {"enum": ["c", "u", "d", "r"]},
        "source": SOURCE,
        "ts_ms": WHOLE,
        "transaction": {"type": ["object", "null"]},
    },
    "allOf": [
        with_operation("c", before=NOTHING, after=IMAGE),
        with_operation("u", before=IMAGE, after=IMAGE),
        with_operation("d", before=IMAGE, after=NOTHING),
    ],
}
CHANGE: Schema = {
    "type": "object",
    "required": ["source", "databaseName", "ddl", "tableChanges"],
    "properties": {
        "source": SOURCE,
        "ts_ms": WHOLE,
        "databaseName": TEXT,
        "schemaName": MAYBE_TEXT,
        "ddl": TEXT,
        "tableChanges": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "id"],
                "properties": {
                    "type": {"enum": ["CREATE", "ALTER", "DROP"]},
                    "id": {"type": "string", "pattern": '^"[^"]+"\\."[^"]+"(,"[^"]+"\\."[^"]+")?$'},
                    "table": {
                        "type": ["object", "null"],
                        "required": ["defaultCharsetName", "primaryKeyColumnNames", "columns"],
                        "properties": {
                            "primaryKeyColumnNames": {"type": "array", "items": TEXT},
                            "columns": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "object",
                                    "required": ["name", "jdbcType", "typeName", "position"],
                                    "properties": {
                                        "jdbcType": WHOLE,
                                        "typeName": TEXT,
                                        "typeExpression": TEXT,
                                        "charsetName": MAYBE_TEXT,
                                        "length": {"type": ["integer", "null"]},
                                        "scale": {"type": ["integer", "null"]},
                                        "position": {"type": "integer", "minimum": 1},
                                        "optional": {"type": "boolean"},
                                        "autoIncremented": {"type": "boolean"},
                                        "generated": {"type": "boolean"},
                                        "enumValues": {"type": ["array", "null"], "items": TEXT},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def validate(message: bytes | None, payload: Schema, *, schema: bool = True) -> None:
    properties = {"payload": payload} | ({"schema": {"$ref": "#/$defs/schema"}} if schema else {})
    whole = {
        **CONNECT,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    jsonschema.validate(json.loads(message or b""), whole)


@FEW
@given(typed_rows(), typed_rows())
def test_row_messages_are_valid_by_debeziums_envelope(
    was: tuple[DecodedValue, ...], now: tuple[DecodedValue, ...]
) -> None:
    for options in (OPTIONS, replace(OPTIONS, debezium_disable_schema=True)):
        encoder = make_encoder(options).table(TABLE)
        for kind in Kind:
            old = None if kind is Kind.INSERT else [was]
            new = None if kind is Kind.DELETE else [now]
            (row,) = encoder.encode(make_changes(TABLE, kind, old=old, new=new))
            validate(row.value, ROW, schema=not options.debezium_disable_schema)
            validate(row.key, {"type": "object", "required": ["id"]}, schema=not options.debezium_disable_schema)


@pytest.mark.parametrize(
    "ddl",
    [
        Ddl(1, 0, "typed", "everything", "CREATE TABLE", ActionType.CREATE_TABLE, None, TABLE),
        Ddl(1, 0, "typed", "everything", "DROP TABLE", ActionType.DROP_TABLE, TABLE, None),
        Ddl(1, 0, "typed", "everything", "RENAME", ActionType.RENAME_TABLE, TABLE, typed_table(name="other")),
        Ddl(1, 0, "typed", "", "DROP DATABASE", ActionType.DROP_SCHEMA),
    ],
)
def test_schema_change_messages_are_valid_by_debeziums_envelope(ddl: Ddl) -> None:
    (message,) = make_encoder(OPTIONS).ddl(ddl)
    validate(message.value, CHANGE)
    validate(message.key, {"type": "object", "required": ["databaseName"]})


def test_envelope_validation_refuses_invalid_messages() -> None:
    (row,) = (
        make_encoder(OPTIONS)
        .table(TABLE)
        .encode(make_changes(TABLE, Kind.INSERT, new=[tuple(1 if n == 0 else None for n in range(len(TABLE.columns)))]))
    )
    good = json.loads(row.value or b"")
    changes: list[Schema] = [{"op": "x"}, {"op": "d"}, {"op": "u"}, {"source": {}}, {"ts_ms": "1"}, {"after": None}]
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            validate(json.dumps(good | {"payload": {**good["payload"], **change}}).encode(), ROW)
    with pytest.raises(jsonschema.ValidationError):
        validate(json.dumps(good | {"schema": {"type": "struct"}}).encode(), ROW)
