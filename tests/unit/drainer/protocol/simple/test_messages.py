"""Simple, message by message."""

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
from drainer.protocol.errors import EncodeError, MessageError, ProtocolConfigError
from drainer.protocol.event import BootstrapEvent, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.simple.decoder import SchemaUnknown
from drainer.protocol.table import Table
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows, handle_only_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type, typed_row, typed_table

COMMIT = 447984084414103554
COMMIT_MS = 1708923661858
VERSION = 447984074911121426
INT = FieldType(Tp.LONG, Flag.NOT_NULL, 11, 0)
STAFF = [
    ("id", INT),
    ("name", text_type(Tp.VARCHAR, 32)),
    ("level", FieldType(Tp.TINY, Flag.UNSIGNED, 3, 0)),
    ("at", FieldType(Tp.TIMESTAMP, 0, 19, 0)),
]
MADE = make_table("shop", "staff", STAFF, primary=["id"], unique=[["name"]])
TABLE = replace(MADE, info=replace(MADE.info, update_timestamp=VERSION))
OPTIONS = ProtocolOptions("simple")
SCHEMA = {
    "schema": "shop",
    "table": "staff",
    "tableID": 100,
    "version": VERSION,
    "columns": [
        {
            "name": "id",
            "dataType": {"mysqlType": "int", "charset": "binary", "collate": "binary", "length": 11},
            "nullable": False,
            "default": None,
        },
        {
            "name": "name",
            "dataType": {
                "mysqlType": "varchar",
                "charset": "utf8mb4",
                "collate": "utf8mb4_bin",
                "length": 32,
                "decimal": -1,
            },
            "nullable": True,
            "default": None,
        },
        {
            "name": "level",
            "dataType": {
                "mysqlType": "tinyint",
                "charset": "binary",
                "collate": "binary",
                "length": 3,
                "unsigned": True,
            },
            "nullable": True,
            "default": None,
        },
        {
            "name": "at",
            "dataType": {"mysqlType": "timestamp", "charset": "binary", "collate": "binary", "length": 19},
            "nullable": True,
            "default": None,
        },
    ],
    "indexes": [
        {"name": "uk0", "unique": True, "primary": False, "nullable": True, "columns": ["name"]},
        {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": ["id"]},
    ],
}
HEAD = (
    '{"version":1,"database":"shop","table":"staff","tableID":100,"type":"%s",'
    f'"commitTs":{COMMIT},"buildTs":{COMMIT_MS},"schemaVersion":{VERSION}'
)


def sent(
    kind: Kind,
    *,
    old: Sequence[tuple[DecodedValue, ...]] | None = None,
    new: Sequence[tuple[DecodedValue, ...]] | None = None,
    table: Table = TABLE,
    options: ProtocolOptions = OPTIONS,
) -> str:
    (row,) = encoded_rows(
        make_encoder(options).table(table), make_changes(table, kind, old=old, new=new, commit_ts=COMMIT)
    )
    assert (row.key, row.commit_ts) == (None, COMMIT)
    return (row.value or b"").decode()


def test_insert_message_has_columns_in_name_order() -> None:
    assert sent(Kind.INSERT, new=[(7, b"Ann<", 200, 0)]) == HEAD % "INSERT" + (
        ',"data":{"at":{"location":"UTC","value":"0000-00-00 00:00:00"},"id":"7","level":"200","name":"Ann\\u003c"}}'
    )


def test_update_message_text_is_exact() -> None:
    assert sent(Kind.UPDATE, old=[(7, b"A", None, None)], new=[(7, None, 2, None)]) == HEAD % "UPDATE" + (
        ',"data":{"at":null,"id":"7","level":"2","name":null},"old":{"at":null,"id":"7","level":null,"name":"A"}}'
    )


def test_delete_message_text_is_exact() -> None:
    assert sent(Kind.DELETE, old=[(7, b"A", None, None)]) == HEAD % "DELETE" + (
        ',"old":{"at":null,"id":"7","level":null,"name":"A"}}'
    )


def test_timestamp_value_has_its_time_zone() -> None:
    packed = (2024 * 13 + 3 << 5 | 9) << 41 | (7 << 12 | 5 << 6 | 1) << 24
    text = sent(Kind.INSERT, new=[(7, None, None, packed)], options=replace(OPTIONS, time_zone="Asia/Tokyo"))
    assert json.loads(text)["data"]["at"] == {"location": "Asia/Tokyo", "value": "2024-03-09 16:05:01"}


def test_table_without_update_timestamp_has_its_schema_version() -> None:
    table = make_table("shop", "staff", STAFF, primary=["id"], version=81)
    assert json.loads(sent(Kind.INSERT, new=[(7, None, None, None)], table=table))["schemaVersion"] == 81
    (message,) = make_encoder(OPTIONS).bootstrap(table, COMMIT)
    assert json.loads(message.value or b"")["tableSchema"]["version"] == 81


def test_bootstrap_message_describes_table_schema() -> None:
    (message,) = make_encoder(OPTIONS).bootstrap(TABLE, COMMIT)
    assert json.loads(message.value or b"") == {
        "version": 1,
        "type": "BOOTSTRAP",
        "commitTs": 0,
        "buildTs": COMMIT_MS,
        "tableSchema": SCHEMA,
    }
    assert (message.key, message.rows, message.commit_ts) == (None, 0, COMMIT)
    assert make_decoder(OPTIONS).decode(None, message.value) == [BootstrapEvent("shop", "staff", 0)]


def test_table_schema_has_types_elements_and_defaults() -> None:
    kinds = [
        ("e", FieldType(Tp.ENUM, charset="utf8mb4", collate="utf8mb4_bin", elems=("a", "b"))),
        ("f", FieldType(Tp.FLOAT, Flag.UNSIGNED | Flag.ZEROFILL, 12, -1)),
        ("b", FieldType(Tp.BIT, 0, 9, 0)),
        ("d", FieldType(Tp.NEWDECIMAL, 0, 10, 2)),
    ]
    table = make_table("shop", "t", kinds, unique=[["e", "d"]])
    columns = (
        replace(table.info.columns[0], default="a"),
        table.info.columns[1],
        replace(table.info.columns[2], default="\x01\x02", default_bit=b"\x01\x02"),
        replace(table.info.columns[3], default="1.50"),
    )
    (message,) = make_encoder(OPTIONS).bootstrap(replace(table, info=replace(table.info, columns=columns)), COMMIT)
    schema = json.loads(message.value or b"")["tableSchema"]
    assert [column["default"] for column in schema["columns"]] == ["a", None, 0x102, "1.50"]
    enum, single, _, decimal = (column["dataType"] for column in schema["columns"])
    assert enum["elements"] == ["a", "b"] and "unsigned" not in enum
    assert single["unsigned"] is True and single["zerofill"] is True and "decimal" not in single
    assert (decimal["length"], decimal["decimal"]) == (10, 2)
    assert schema["indexes"] == [
        {"name": "uk0", "unique": True, "primary": False, "nullable": True, "columns": ["e", "d"]}
    ]


def ddl_of(action: ActionType, *, before: Table | None = None, after: Table | None = None, table: str = "staff") -> Ddl:
    return Ddl(COMMIT, COMMIT - 1, "shop", table, "SOME `ddl` '<'", int(action), before, after)


def ddl_value(ddl: Ddl) -> dict[str, Any]:
    assert make_encoder(OPTIONS).ddl_scope is DdlScope.ALL_PARTITIONS
    (message,) = make_encoder(OPTIONS).ddl(ddl)
    found: dict[str, Any] = json.loads(message.value or b"")
    return found


def test_ddl_message_has_table_schema_before_and_after() -> None:
    """The table as it is behind the DDL, and as it was."""
    before = make_table("shop", "staff", STAFF[:2], primary=["id"])
    value = ddl_value(ddl_of(ActionType.ADD_COLUMN, before=before, after=TABLE))
    assert list(value) == ["version", "type", "sql", "commitTs", "buildTs", "tableSchema", "preTableSchema"]
    assert (value["type"], value["sql"], value["commitTs"]) == ("ALTER", "SOME `ddl` '<'", COMMIT)
    assert value["tableSchema"] == SCHEMA
    assert [column["name"] for column in value["preTableSchema"]["columns"]] == ["id", "name"]
    created = ddl_value(ddl_of(ActionType.CREATE_TABLE, after=TABLE))
    assert (created["type"], created["tableSchema"], "preTableSchema" in created) == ("CREATE", SCHEMA, False)
    dropped = ddl_value(ddl_of(ActionType.DROP_TABLE, before=TABLE))
    assert (dropped["type"], dropped["tableSchema"], dropped["preTableSchema"]) == ("ERASE", SCHEMA, SCHEMA)
    database = ddl_value(ddl_of(ActionType.DROP_SCHEMA, table=""))
    assert database == {
        "version": 1,
        "database": "shop",
        "type": "QUERY",
        "sql": "SOME `ddl` '<'",
        "commitTs": COMMIT,
        "buildTs": COMMIT_MS,
    }


def test_ddl_messages_read_back_equal() -> None:
    for ddl in (ddl_of(ActionType.CREATE_TABLE, after=TABLE), ddl_of(ActionType.CREATE_SCHEMA, table="")):
        (message,) = make_encoder(OPTIONS).ddl(ddl)
        assert make_decoder(OPTIONS).decode(None, message.value) == [
            DdlEvent(COMMIT, "shop", ddl.table, "SOME `ddl` '<'")
        ]


def test_watermark_message_reads_back_equal() -> None:
    (message,) = make_encoder(OPTIONS).resolved(COMMIT)
    expected = f'{{"version":1,"type":"WATERMARK","commitTs":{COMMIT},"buildTs":{COMMIT_MS}}}'
    assert message.value == expected.encode()
    assert make_decoder(OPTIONS).decode(None, message.value) == [ResolvedEvent(COMMIT)]


def test_oversized_row_becomes_handle_key_only_or_claim_check_message() -> None:
    """TiCDC marks both kinds with handleKeyOnly."""
    changes = make_changes(TABLE, Kind.UPDATE, old=[(7, b"A", 1, 0)], new=[(7, b"B", 2, 0)], commit_ts=COMMIT)
    (short,) = handle_only_rows(make_encoder(OPTIONS).table(TABLE), changes)
    assert (short.value or b"").decode() == HEAD % "UPDATE" + (
        ',"handleKeyOnly":true,"data":{"id":"7"},"old":{"id":"7"}}'
    )
    (claimed,) = handle_only_rows(make_encoder(OPTIONS).table(TABLE), changes, ["s3://b/x.json"])
    assert (claimed.value or b"").decode() == HEAD % "UPDATE" + (
        ',"claimCheckLocation":"s3://b/x.json","handleKeyOnly":true,"data":{"id":"7"},"old":{"id":"7"}}'
    )
    decoder = make_decoder(OPTIONS)
    decoder.decode(None, make_encoder(OPTIONS).bootstrap(TABLE, COMMIT)[0].value)
    (event,) = decoder.decode(None, claimed.value)
    assert isinstance(event, RowEvent) and event.handle_only and event.claim == "s3://b/x.json"
    bare = make_table("shop", "log", [("a", INT)])
    deletes = make_changes(bare, Kind.DELETE, old=[(1,)], commit_ts=COMMIT)
    with pytest.raises(EncodeError, match=rf"`shop`.`log` has no handle key.*{COMMIT}"):
        handle_only_rows(make_encoder(OPTIONS).table(bare), deletes)


def test_row_with_unknown_schema_version_is_refused() -> None:
    row = sent(Kind.INSERT, new=[(7, b"Ann", 3, None)]).encode()
    decoder = make_decoder(OPTIONS)
    with pytest.raises(SchemaUnknown, match=rf"insert with commit_ts {COMMIT}.*`shop`.`staff`.*version {VERSION}"):
        decoder.decode(None, row)
    assert issubclass(SchemaUnknown, MessageError)
    other = replace(TABLE, info=replace(TABLE.info, update_timestamp=VERSION + 1))
    decoder.decode(None, make_encoder(OPTIONS).bootstrap(other, COMMIT)[0].value)
    with pytest.raises(SchemaUnknown):
        decoder.decode(None, row)
    decoder.decode(None, make_encoder(OPTIONS).bootstrap(TABLE, COMMIT)[0].value)
    assert len(decoder.decode(None, row)) == 1


def test_decoder_keeps_both_schemas_of_ddl() -> None:
    """A row written under the old one may come behind the DDL of another partition's clock."""
    before = make_table("shop", "staff", STAFF, primary=["id"], version=80)
    decoder = make_decoder(OPTIONS)
    (message,) = make_encoder(OPTIONS).ddl(ddl_of(ActionType.ADD_COLUMN, before=before, after=TABLE))
    decoder.decode(None, message.value)
    for table in (before, TABLE):
        assert decoder.decode(None, sent(Kind.INSERT, new=[(7, b"Ann", 3, None)], table=table).encode())


def test_options_unsupported_by_simple_are_refused() -> None:
    for options in (
        replace(OPTIONS, only_output_updated_columns=True),
        replace(OPTIONS, delete_only_output_handle_key_columns=True),
    ):
        with pytest.raises(ProtocolConfigError, match="'simple' has no"):
            make_encoder(options)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 2}, "version is 2"),
        ({"version": None}, "version is None"),
        ({"type": "SELECT"}, "type 'SELECT'"),
        ({"type": 7}, "type is 7"),
        ({"commitTs": -1}, "commitTs is -1"),
        ({"data": None}, "data"),
        ({"data": {"id": 1}}, r"data: id is 1"),
        ({"data": {"id": "x"}}, r"data: id is 'x'.*bigint"),
        ({"data": {"none": "1"}}, r"data: none is not in the table's schema"),
        ({"data": {"blob": "%"}}, r"data: blob is '%'"),
        ({"data": {"stamp": "2024-01-01 00:00:00"}}, r"data: stamp is"),
        ({"data": {"stamp": {"location": "UTC"}}}, r"data: stamp is .'location': 'UTC'., a value of type timestamp"),
        ({"type": "BOOTSTRAP"}, "tableSchema"),
        ({"type": "CREATE"}, "sql"),
        ({"type": "CREATE", "sql": "x", "tableSchema": {"columns": [{"name": "a"}]}}, r"columns\[0\].*dataType"),
        ({"type": "CREATE", "sql": "x", "tableSchema": {"columns": [1]}}, r"columns\[0\]: not an object"),
        ({"type": "UPDATE"}, "old"),
    ],
)
def test_wrong_message_member_is_named_in_error(change: dict[str, object], place: str) -> None:
    table, encoder, decoder = typed_table(), make_encoder(OPTIONS), make_decoder(OPTIONS)
    decoder.decode(None, encoder.bootstrap(table, 5)[0].value)
    (row,) = encoded_rows(encoder.table(table), make_changes(table, Kind.INSERT, new=[typed_row(1)]))
    good = json.loads(row.value or b"")
    assert decoder.decode(None, json.dumps(good).encode())
    with pytest.raises(MessageError, match=place):
        decoder.decode(None, json.dumps(good | change).encode())
