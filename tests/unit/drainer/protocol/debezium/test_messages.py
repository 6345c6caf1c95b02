"""Debezium JSON, message by message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl, DdlScope
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.event import Change, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.table import Table
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

COMMIT = 447984084414103554
COMMIT_MS = 1708923661858
INT = FieldType(Tp.LONG, Flag.NOT_NULL, 11)
STAFF = [("id", INT), ("name", text_type(Tp.VARCHAR, 32)), ("level", FieldType(Tp.TINY, Flag.UNSIGNED, 3))]
TABLE = make_table("shop", "staff", STAFF, primary=["id"])
OPTIONS = ProtocolOptions("debezium")
BARE = ProtocolOptions("debezium", debezium_disable_schema=True)
EXTENDED = ProtocolOptions("debezium", enable_tidb_extension=True)
SOURCE = {
    "version": "2.4.0.Final",
    "connector": "TiCDC",
    "name": "default",
    "ts_ms": COMMIT_MS,
    "snapshot": "false",
    "db": "shop",
    "table": "staff",
    "server_id": 0,
    "gtid": None,
    "file": "",
    "pos": 0,
    "row": 0,
    "thread": 0,
    "query": None,
    "commit_ts": COMMIT,
    "cluster_id": "default",
}


def sent(
    options: ProtocolOptions,
    kind: Kind,
    *,
    old: Sequence[tuple[DecodedValue, ...]] | None = None,
    new: Sequence[tuple[DecodedValue, ...]] | None = None,
    table: Table = TABLE,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of the first row."""
    changes = make_changes(table, kind, old=old, new=new, commit_ts=COMMIT)
    row = encoded_rows(make_encoder(options).table(table), changes)[0]
    assert row.commit_ts == COMMIT
    return json.loads(row.key or b""), json.loads(row.value or b"")


def test_insert_message_without_schema_is_exact() -> None:
    """The order of members is TiCDC's."""
    changes = make_changes(TABLE, Kind.INSERT, new=[(7, b"Ann<", 200)], commit_ts=COMMIT)
    (row,) = encoded_rows(make_encoder(BARE).table(TABLE), changes)
    assert row.key == b'{"payload":{"id":7}}'
    assert (row.value or b"").decode() == (
        '{"payload":{"source":{"version":"2.4.0.Final","connector":"TiCDC","name":"default",'
        f'"ts_ms":{COMMIT_MS},"snapshot":"false","db":"shop","table":"staff","server_id":0,"gtid":null,"file":"","pos":0,'
        f'"row":0,"thread":0,"query":null,"commit_ts":{COMMIT},"cluster_id":"default"}},"ts_ms":{COMMIT_MS},'
        '"transaction":null,"op":"c","before":null,"after":{"id":7,"name":"Ann\\u003c","level":200}}}'
    )


def test_update_and_delete_payloads_have_before_and_after() -> None:
    _, value = sent(BARE, Kind.UPDATE, old=[(7, None, 1)], new=[(7, b"B", 2)])
    assert value["payload"] == {
        "source": SOURCE,
        "ts_ms": COMMIT_MS,
        "transaction": None,
        "op": "u",
        "before": {"id": 7, "name": None, "level": 1},
        "after": {"id": 7, "name": "B", "level": 2},
    }
    key, value = sent(BARE, Kind.DELETE, old=[(7, b"B", None)])
    assert key == {"payload": {"id": 7}}
    assert (value["payload"]["op"], value["payload"]["after"]) == ("d", None)
    assert value["payload"]["before"] == {"id": 7, "name": "B", "level": None}


def test_row_of_a_first_load_is_a_read_of_a_snapshot() -> None:
    changes = make_changes(TABLE, Kind.INSERT, new=[(7, b"B", 1)], commit_ts=COMMIT)
    (row,) = encoded_rows(make_encoder(BARE).table(TABLE), replace(changes, start_ts=changes.commit_ts))
    payload = json.loads(row.value or b"")["payload"]
    assert (payload["op"], payload["before"], payload["after"]) == ("r", None, {"id": 7, "name": "B", "level": 1})
    assert payload["source"] == {**SOURCE, "snapshot": "true"}
    (event,) = make_decoder(BARE).decode(row.key, row.value)
    assert isinstance(event, RowEvent)
    assert event.change is Change.INSERT


def test_update_without_output_old_value_has_no_before() -> None:
    _, value = sent(replace(BARE, output_old_value=False), Kind.UPDATE, old=[(7, None, 1)], new=[(7, b"B", 2)])
    assert "before" not in value["payload"]
    _, value = sent(replace(BARE, output_old_value=False), Kind.DELETE, old=[(7, None, 1)])
    assert value["payload"]["before"] == {"id": 7, "name": None, "level": 1}


def test_row_message_schema_describes_key_and_envelope() -> None:
    key, value = sent(OPTIONS, Kind.INSERT, new=[(7, b"Ann", 3)])
    id_field = {"type": "int32", "optional": False, "field": "id"}
    assert key["schema"] == {
        "type": "struct",
        "name": "default.shop.staff.Key",
        "optional": False,
        "fields": [id_field],
    }
    schema = value["schema"]
    assert (schema["type"], schema["optional"], schema["name"], schema["version"]) == (
        "struct",
        False,
        "default.shop.staff.Envelope",
        1,
    )
    assert [field["field"] for field in schema["fields"]] == ["before", "after", "source", "op", "ts_ms", "transaction"]
    for image in schema["fields"][:2]:
        assert (image["name"], image["optional"]) == ("default.shop.staff.Value", True)
        assert image["fields"] == [
            id_field,
            {"type": "string", "optional": True, "field": "name"},
            {"type": "int16", "optional": True, "field": "level"},
        ]
    assert schema["fields"][2]["name"] == "io.debezium.connector.mysql.Source"


def test_schema_names_replace_invalid_characters() -> None:
    table = make_table("1-db", "a.b-ü", STAFF, primary=["id"])
    key, value = sent(replace(OPTIONS, namespace="c 1"), Kind.INSERT, new=[(7, b"Ann", 3)], table=table)
    assert key["schema"]["name"] == "c_1._1_db.a.b__.Key"
    assert value["payload"]["source"]["db"] == "1-db"


def test_table_without_handle_key_has_empty_key() -> None:
    table = make_table("shop", "log", [("a", FieldType(Tp.LONG))])
    key, _ = sent(BARE, Kind.INSERT, new=[(7,)], table=table)
    assert key == {"payload": {}}
    key, _ = sent(OPTIONS, Kind.INSERT, new=[(7,)], table=table)
    assert key["schema"]["fields"] == []


@pytest.mark.parametrize(("number", "shown"), [(0, "AA=="), (128, "AIA="), ((1 << 64) - 1, "AP//////////")])
def test_unsigned_bigint_in_precise_mode_is_connect_decimal(number: int, shown: str) -> None:
    """As row, key and default; a signed BIGINT stays int64. The decoder restores the number without TiDB's type."""
    options = replace(OPTIONS, debezium_bigint_unsigned_handling_mode="precise")
    unsigned = FieldType(Tp.LONGLONG, Flag.UNSIGNED | Flag.NOT_NULL)
    table = make_table("shop", "t", [("id", unsigned), ("v", FieldType(Tp.LONGLONG))], primary=["id"])
    column = replace(table.columns[0], info=replace(table.columns[0].info, default=str(number)))
    table = replace(table, columns=(column, *table.columns[1:]))
    key, value = sent(options, Kind.INSERT, new=[(number, -1)], table=table)
    assert key["payload"] == {"id": shown}
    assert value["payload"]["after"] == {"id": shown, "v": -1}
    wanted = {"type": "bytes", "optional": False, "name": "org.apache.kafka.connect.data.Decimal", "version": 1}
    wanted |= {"parameters": {"scale": "0"}, "field": "id", "default": shown}
    assert key["schema"]["fields"] == [wanted]
    assert value["schema"]["fields"][1]["fields"] == [wanted, {"type": "int64", "optional": True, "field": "v"}]
    (event,) = make_decoder(options).decode(json.dumps(key).encode(), json.dumps(value).encode())
    assert isinstance(event, RowEvent) and event.new and event.new["id"].value == number


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (INT, "12", 12),
        (INT, "oops", "none"),
        (FieldType(Tp.LONGLONG), "9007199254740993", 9007199254740993),
        (FieldType(Tp.YEAR), "99", 1999),
        (FieldType(Tp.YEAR), "1", 2001),
        (FieldType(Tp.NEWDECIMAL, 0, 5, 2), "3.10", 3.1),
        (text_type(Tp.VARCHAR, 8), "null", "null"),
        (FieldType(Tp.ENUM, elems=("a",)), "a", "a"),
        (FieldType(Tp.DATE), "2023-11-30", 19691),
        (FieldType(Tp.DATE), "0000-00-00", "none"),
        (FieldType(Tp.DATE, Flag.NOT_NULL), "0000-00-00", 0),
        (FieldType(Tp.DATETIME, 0, 19, 0), "CURRENT_TIMESTAMP", 0),
        (FieldType(Tp.DATETIME, 0, 26, 6), "2023-11-30 12:34:56.123456", 1701347696123456),
        (FieldType(Tp.TIMESTAMP), "CURRENT_TIMESTAMP", "none"),
        (FieldType(Tp.TIMESTAMP, Flag.NOT_NULL), "CURRENT_TIMESTAMP(3)", "1970-01-01T00:00:00Z"),
        (FieldType(Tp.TIMESTAMP), "2023-11-30 12:34:56", "2023-11-30T12:34:56Z"),
        (FieldType(Tp.DURATION), "-01:00:00", -3600000000),
    ],
)
def test_column_default_in_schema_has_form_of_its_type(kind: FieldType, default: str, shown: object) -> None:
    table = make_table("shop", "t", [("v", kind)])
    column = replace(table.columns[0], info=replace(table.columns[0].info, default=default))
    _, value = sent(OPTIONS, Kind.INSERT, new=[(None,)], table=replace(table, columns=(column,)))
    field = value["schema"]["fields"][0]["fields"][0]
    assert field.get("default", "none") == shown
    assert value["payload"]["after"] == {"v": None}


def test_bit_default_is_shown_and_expression_default_left_out() -> None:
    table = make_table("shop", "t", [("b", FieldType(Tp.BIT, 0, 1)), ("c", FieldType(Tp.BIT, 0, 9))])
    first, second = table.columns
    columns = (
        replace(first, info=replace(first.info, default="\x01", default_bit=b"\x01")),
        replace(second, info=replace(second.info, default="\x01\x02", default_bit=b"\x01\x02")),
    )
    _, value = sent(OPTIONS, Kind.INSERT, new=[(None, None)], table=replace(table, columns=columns))
    assert [field["default"] for field in value["schema"]["fields"][0]["fields"]] == [True, "AgE="]
    named = make_table("shop", "t", [("v", text_type(Tp.VARCHAR, 36))])
    column = named.columns[0]
    for is_expression in (False, True):
        info = replace(column.info, default="uuid()", default_is_expr=is_expression)
        made = replace(named, columns=(replace(column, info=info),))
        _, value = sent(OPTIONS, Kind.INSERT, new=[(None,)], table=made)
        assert ("default" in value["schema"]["fields"][0]["fields"][0]) is not is_expression


def a_ddl(action: ActionType, *, table: str = "staff", before: Table | None = None, after: Table | None = None) -> Ddl:
    return Ddl(COMMIT, COMMIT - 1, "shop", table, "SOME `ddl` '<'", int(action), before, after)


def ddl_value(options: ProtocolOptions, ddl: Ddl) -> dict[str, Any]:
    (message,) = make_encoder(options).ddl(ddl)
    assert (message.rows, message.commit_ts) == (0, COMMIT)
    found: dict[str, Any] = json.loads(message.value or b"")
    return found


def test_create_table_message_describes_table() -> None:
    ddl = a_ddl(ActionType.CREATE_TABLE, after=TABLE)
    value = ddl_value(OPTIONS, ddl)
    payload = value["payload"]
    assert payload["source"] == SOURCE
    assert (payload["ts_ms"], payload["databaseName"], payload["schemaName"]) == (COMMIT_MS, "shop", None)
    assert payload["ddl"] == "SOME `ddl` '<'"
    (change,) = payload["tableChanges"]
    assert (change["type"], change["id"]) == ("CREATE", '"shop"."staff"')
    assert change["table"]["primaryKeyColumnNames"] == ["id"]
    assert change["table"]["defaultCharsetName"] == "utf8mb4"
    assert change["table"]["columns"][2] == {
        "name": "level",
        "jdbcType": 5,
        "nativeType": None,
        "comment": None,
        "defaultValueExpression": None,
        "enumValues": None,
        "typeName": "TINYINT UNSIGNED",
        "typeExpression": "TINYINT UNSIGNED",
        "charsetName": None,
        "length": None,
        "scale": None,
        "position": 3,
        "optional": True,
        "autoIncremented": False,
        "generated": False,
    }
    name = change["table"]["columns"][1]
    assert (name["jdbcType"], name["typeName"], name["charsetName"], name["length"]) == (12, "VARCHAR", "utf8mb4", 32)
    assert value["schema"]["name"] == "io.debezium.connector.mysql.SchemaChangeValue"
    (message,) = make_encoder(OPTIONS).ddl(ddl)
    key = json.loads(message.key or b"")
    assert (key["payload"], key["schema"]["name"]) == (
        {"databaseName": "shop"},
        "io.debezium.connector.mysql.SchemaChangeKey",
    )


def test_rename_drop_truncate_and_database_ddl_have_their_table_changes() -> None:
    renamed = make_table("shop", "people", STAFF, primary=["id"])
    changes = {
        name: ddl_value(BARE, ddl)["payload"]
        for name, ddl in {
            "rename": a_ddl(ActionType.RENAME_TABLE, before=TABLE, after=renamed),
            "drop": a_ddl(ActionType.DROP_TABLE, before=TABLE),
            "truncate": a_ddl(ActionType.TRUNCATE_TABLE, before=TABLE, after=TABLE),
            "database": a_ddl(ActionType.CREATE_SCHEMA, table=""),
            "index": a_ddl(ActionType.DROP_INDEX, before=TABLE, after=TABLE),
            "unknown": a_ddl(ActionType.LOCK_TABLE),
        }.items()
    }
    (rename,) = changes["rename"]["tableChanges"]
    assert (rename["type"], rename["id"]) == ("ALTER", '"shop"."staff","shop"."people"')
    assert changes["rename"]["source"]["table"] == "people"
    assert changes["drop"]["tableChanges"] == [{"type": "DROP", "id": '"shop"."staff"', "table": None}]
    assert changes["truncate"]["tableChanges"] == []
    assert (changes["database"]["tableChanges"], changes["database"]["source"]["table"]) == ([], "")
    # TiCDC says DROP, which tells a reader that the table is gone.
    assert changes["index"]["tableChanges"][0]["type"] == "ALTER"
    assert changes["unknown"]["tableChanges"] == []


def test_ddl_message_reads_back_equal() -> None:
    assert make_encoder(OPTIONS).ddl_scope is DdlScope.ALL_PARTITIONS
    for options in (OPTIONS, BARE):
        (message,) = make_encoder(options).ddl(a_ddl(ActionType.DROP_TABLE, before=TABLE))
        expected = DdlEvent(COMMIT, "shop", "staff", "SOME `ddl` '<'")
        assert make_decoder(options).decode(message.key, message.value) == [expected]


def test_watermark_is_sent_only_with_tidb_extension() -> None:
    assert make_encoder(OPTIONS).resolved(COMMIT) == []
    (message,) = make_encoder(EXTENDED).resolved(COMMIT)
    key, value = json.loads(message.key or b""), json.loads(message.value or b"")
    assert (key["payload"], key["schema"]["name"]) == ({}, "default.watermark.Key")
    assert value["payload"] == {
        "source": SOURCE | {"db": "", "table": ""},
        "ts_ms": COMMIT_MS,
        "transaction": None,
        "op": "m",
    }
    assert value["schema"]["name"] == "default.watermark.Envelope"
    assert [field["field"] for field in value["schema"]["fields"]] == ["source", "op", "ts_ms", "transaction"]
    assert make_decoder(EXTENDED).decode(message.key, message.value) == [ResolvedEvent(COMMIT)]


def test_options_unsupported_by_debezium_are_refused() -> None:
    for option in (
        replace(OPTIONS, only_output_updated_columns=True),
        replace(OPTIONS, delete_only_output_handle_key_columns=True),
    ):
        with pytest.raises(ProtocolConfigError, match="'debezium' has no"):
            make_encoder(option)


def test_snapshot_message_of_another_connector_is_read() -> None:
    """Debezium's own messages have no commit_ts, and reads of a snapshot."""
    payload = {"op": "r", "source": {"db": "d", "table": "t"}, "before": None, "after": {"a": 1.5, "b": False}}
    (event,) = make_decoder(BARE).decode(None, json.dumps({"payload": payload}).encode())
    assert isinstance(event, RowEvent) and event.commit_ts == 0 and event.key is None
    assert {name: column.value for name, column in (event.new or {}).items()} == {"a": 1.5, "b": 0}
