"""Debezium JSON: valid by its own schema, without it, and refused where a value or member is wrong."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.time import Civil, pack, unpack
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.debezium.schema import value_of
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import MessageError
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows
from tests.support.examples import FEW
from tests.support.protocol_cases import values
from tests.support.row_changes import make_changes
from tests.support.typed_columns import typed_rows, typed_table

OPTIONS = ProtocolOptions("debezium", enable_tidb_extension=True, time_zone="Asia/Tokyo")
ENCODER = make_encoder(OPTIONS)
TABLE = typed_table()
Row = tuple[DecodedValue, ...]


def check(value: Any, schema: dict[str, Any], where: str = "payload") -> None:
    """As Kafka Connect's JsonConverter checks a payload by the schema beside it."""
    if value is None:
        assert schema["optional"], where
        return
    match schema["type"]:
        case "struct":
            for field in schema["fields"]:
                check(value.get(field["field"]), field, f"{where}.{field['field']}")
        case "array":
            for n, item in enumerate(value):
                check(item, schema["items"], f"{where}[{n}]")
        case "int16" | "int32" | "int64" as kind:
            bits = int(kind[3:])
            assert type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1, where
        case "float" | "double":
            assert type(value) in (int, float), where
        case "boolean":
            assert type(value) is bool, where
        case "bytes":
            base64.b64decode(value, validate=True)
        case "string":
            assert type(value) is str, where
        case other:
            raise AssertionError(f"{where}: type {other}")


@FEW
@given(typed_rows(), typed_rows())
def test_rows_of_every_type_are_valid_by_their_schema(old: Row, new: Row) -> None:
    for kind in Kind:
        before, after = None if kind is Kind.INSERT else [old], None if kind is Kind.DELETE else [new]
        (row,) = encoded_rows(ENCODER.table(TABLE), make_changes(TABLE, kind, old=before, new=after))
        for part in (row.key, row.value):
            message = json.loads(part or b"")
            check(message["payload"], message["schema"])
        (event,) = make_decoder(OPTIONS).decode(row.key, row.value)
        assert isinstance(event, RowEvent) and values(event.key) == {"id": (old if kind is Kind.DELETE else new)[0]}


@FEW
@given(typed_rows())
def test_message_without_schema_reads_back_raw_values(row: Row) -> None:
    options = replace(OPTIONS, debezium_disable_schema=True)
    (sent,) = encoded_rows(make_encoder(options).table(TABLE), make_changes(TABLE, Kind.INSERT, new=[row]))
    (event,) = make_decoder(options).decode(sent.key, sent.value)
    assert isinstance(event, RowEvent)
    written = json.loads(sent.value or b"")["payload"]["after"]
    assert values(event.new) == written
    assert all(column.type_name == "" for column in (event.new or {}).values())


def test_watermark_and_ddl_messages_are_valid_by_their_schemas() -> None:
    other = typed_table(name="other")
    ddls = [
        Ddl(5, 4, "typed", "everything", "CREATE TABLE", ActionType.CREATE_TABLE, None, TABLE),
        Ddl(5, 4, "typed", "everything", "DROP TABLE", ActionType.DROP_TABLE, TABLE, None),
        Ddl(5, 4, "typed", "everything", "RENAME", ActionType.RENAME_TABLE, TABLE, other),
        Ddl(5, 4, "typed", "", "DROP DATABASE", ActionType.DROP_SCHEMA),
    ]
    for message in [*ENCODER.resolved(5), *(message for ddl in ddls for message in ENCODER.ddl(ddl))]:
        for part in (message.key, message.value):
            document = json.loads(part or b"")
            check(document["payload"], document["schema"])


@given(st.integers(100, 9999), st.integers(0, 12), st.integers(0, 31))
def test_date_value_equals_pythons_days_since_1970(year: int, month: int, day: int) -> None:
    packed = pack(Civil(year, month, day))
    assert unpack(packed).year == year
    column_type = next(column.column_type for column in TABLE.columns if column.name == "day")
    (found,) = value_of(column_type, OPTIONS).fragment(pa.array([packed], pa.uint64())).to_pylist()
    try:
        expected = str((date(year, month, day) - date(1970, 1, 1)).days).encode()
    except ValueError:
        expected = None
    assert found == expected


def document(field: dict[str, object], value: object) -> bytes:
    payload = {"op": "c", "source": {"db": "d", "table": "t"}, "before": None, "after": {"a": value}}
    fields = [{"type": "struct", "field": "after", "fields": [{"field": "a", "optional": True} | field]}]
    return json.dumps({"payload": payload, "schema": {"type": "struct", "fields": fields}}).encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "int32", "name": "io.debezium.time.Date"}, 10**12),
        ({"type": "int32", "name": "io.debezium.time.Date"}, "x"),
        ({"type": "int64", "name": "io.debezium.time.Timestamp"}, 10**30),
        ({"type": "int64", "name": "io.debezium.time.MicroTime"}, 10**15),
        ({"type": "bytes", "name": "io.debezium.data.Bits"}, "%"),
        ({"type": "string", "tidb_type": "blob"}, "%"),
        ({"type": "string"}, 5),
        ({"type": "int64"}, 1.5),
        ({"type": "string"}, []),
        ({"type": "string"}, {}),
    ],
)
def test_value_invalid_for_its_schema_type_is_refused(field: dict[str, object], value: object) -> None:
    with pytest.raises(MessageError, match=r"payload\.after: a is .* is expected"):
        make_decoder(OPTIONS).decode(None, document(field, value))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({}, "payload"),
        ({"payload": {}}, r"payload.*'source'"),
        ({"payload": {"op": "x", "source": {}}}, "op 'x'"),
        ({"payload": {"op": "m", "source": {}}}, "commit_ts"),
        ({"payload": {"op": "c", "source": {"db": "d", "table": "t"}}}, "after"),
        ({"payload": {"op": "d", "source": {"db": "d", "table": "t"}, "after": {}}}, "before"),
        ({"payload": {"op": "c", "source": {"db": "d"}, "after": {}}}, "source.*table"),
        ({"payload": {"op": "c", "source": {"db": "d", "table": "t"}, "after": []}}, r"after is \[\]"),
        ({"payload": {"source": {"db": "d"}}}, "ddl"),
        (
            {"payload": {"op": "c", "source": {"db": "d", "table": "t"}, "after": {}}, "schema": {"fields": []}},
            "'after'",
        ),
    ],
)
def test_wrong_message_member_is_named_in_error(value: dict[str, object], place: str) -> None:
    with pytest.raises(MessageError, match=place):
        make_decoder(OPTIONS).decode(None, json.dumps(value).encode())


def test_column_missing_in_schema_is_refused() -> None:
    value = json.loads(document({"type": "string"}, "x"))
    value["payload"]["after"]["b"] = "y"
    with pytest.raises(MessageError, match="b is not in the schema"):
        make_decoder(OPTIONS).decode(None, json.dumps(value).encode())
