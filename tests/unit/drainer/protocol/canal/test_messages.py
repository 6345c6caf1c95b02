"""Canal-JSON, message by message: the texts are the format, so they stand here as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl, DdlScope
from drainer.protocol.errors import EncodeError
from drainer.protocol.event import Change, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows, handle_only_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

COMMIT = 447984084414103554
COMMIT_MS = 1708923661858
INT = FieldType(Tp.LONG, Flag.NOT_NULL, 11)
STAFF = [("id", INT), ("name", text_type(Tp.VARCHAR, 32)), ("level", FieldType(Tp.TINY, Flag.UNSIGNED, 3))]
TABLE = make_table("shop", "staff", STAFF, primary=["id"])
PLAIN = ProtocolOptions("canal-json")
EXTENDED = ProtocolOptions("canal-json", enable_tidb_extension=True)


def sent(
    options: ProtocolOptions,
    kind: Kind,
    *,
    old: Sequence[tuple[DecodedValue, ...]] | None = None,
    new: Sequence[tuple[DecodedValue, ...]] | None = None,
) -> list[str]:
    rows = encoded_rows(
        make_encoder(options).table(TABLE), make_changes(TABLE, kind, old=old, new=new, commit_ts=COMMIT)
    )
    assert all(row.key is None and row.commit_ts == COMMIT for row in rows)
    return [(row.value or b"").decode() for row in rows]


def test_insert_message_text_is_exact() -> None:
    assert sent(PLAIN, Kind.INSERT, new=[(7, b"Ann", 3)]) == [
        '{"id":0,"database":"shop","table":"staff","pkNames":["id"],"isDdl":false,"type":"INSERT",'
        f'"es":{COMMIT_MS},"ts":{COMMIT_MS},"sql":"",'
        '"sqlType":{"id":4,"name":12,"level":-6},'
        '"mysqlType":{"id":"int","name":"varchar","level":"tinyint unsigned"},'
        '"old":null,"data":[{"id":"7","name":"Ann","level":"3"}]}'
    ]


def test_update_message_with_tidb_extension_has_old_row_and_commit_ts() -> None:
    """An unsigned number above the signed maximum has the next larger Java type, row by row."""
    old, new = [(7, b"Ann", 3), (8, b"Bo", 1)], [(7, b"Ann", 200), (8, None, 127)]
    first, second = (json.loads(text) for text in sent(EXTENDED, Kind.UPDATE, old=old, new=new))
    assert first["old"] == [{"id": "7", "name": "Ann", "level": "3"}]
    assert first["data"] == [{"id": "7", "name": "Ann", "level": "200"}]
    assert first["sqlType"] == {"id": 4, "name": 12, "level": 5}
    assert second["sqlType"]["level"] == -6
    assert second["data"][0]["name"] is None
    assert first["_tidb"] == {"commitTs": COMMIT}
    assert list(first)[-3:] == ["old", "data", "_tidb"]


def test_delete_message_has_old_row_as_data() -> None:
    (text,) = sent(EXTENDED, Kind.DELETE, old=[(7, None, 3)])
    message = json.loads(text)
    assert (message["type"], message["old"]) == ("DELETE", None)
    assert message["data"] == [{"id": "7", "name": None, "level": "3"}]


def test_delete_with_handle_key_option_has_only_handle_key_columns() -> None:
    options = ProtocolOptions("canal-json", delete_only_output_handle_key_columns=True)
    message = json.loads(sent(options, Kind.DELETE, old=[(7, b"Ann", 3)])[0])
    assert message["data"] == [{"id": "7"}]
    assert message["sqlType"] == {"id": 4}
    assert message["mysqlType"] == {"id": "int"}
    insert = json.loads(sent(options, Kind.INSERT, new=[(7, b"Ann", 3)])[0])
    assert len(insert["data"][0]) == 3


@pytest.mark.parametrize(
    "options", [replace(PLAIN, only_output_updated_columns=True), replace(PLAIN, content_compatible=True)]
)
def test_update_old_row_has_only_changed_columns(options: ProtocolOptions) -> None:
    """A NULL is another value than the text "null", and than an empty one."""
    old = [(7, b"Ann", 3), (8, None, 1), (9, b"x", 1), (10, b"", 1)]
    new = [(7, b"Ann", 4), (8, b"null", 1), (9, b"x", 1), (10, None, 1)]
    found = [json.loads(text)["old"] for text in sent(options, Kind.UPDATE, old=old, new=new)]
    assert found == [[{"level": "3"}], [{"name": None}], [{}], [{"name": ""}]]
    events = [
        make_decoder(options).decode(None, text.encode())[0] for text in sent(options, Kind.UPDATE, old=old, new=new)
    ]
    olds = [event.old for event in events if isinstance(event, RowEvent)]
    assert [{name: column.value for name, column in (image or {}).items()} for image in olds] == [
        {"level": 3},
        {"name": None},
        {},
        {"name": ""},
    ]


def test_mysql_types_with_content_compatible_have_lengths() -> None:
    (text,) = sent(ProtocolOptions("canal-json", content_compatible=True), Kind.INSERT, new=[(7, b"Ann", 3)])
    assert json.loads(text)["mysqlType"] == {"id": "int(11)", "name": "varchar(32)", "level": "tinyint(3) unsigned"}


def test_names_and_values_are_escaped_as_json() -> None:
    """A percent sign is text like any other, in values and in names."""
    table = make_table("a%sb", 't"%d', [("i%%d", INT), ("v", text_type(Tp.VARCHAR, 32))], primary=["i%%d"])
    rows = encoded_rows(
        make_encoder(PLAIN).table(table), make_changes(table, Kind.INSERT, new=[(1, '%s"\\<&>\u2028ü\n\x00'.encode())])
    )
    value = rows[0].value or b""
    assert b"\\u003c\\u0026\\u003e\\u2028\xc3\xbc\\n\\u0000" in value
    message = json.loads(value)
    assert (message["database"], message["table"], message["pkNames"]) == ("a%sb", 't"%d', ["i%%d"])
    assert message["data"] == [{"i%%d": "1", "v": '%s"\\<&>\u2028ü\n\x00'}]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (ActionType.CREATE_TABLE, "CREATE"),
        (ActionType.DROP_TABLE, "ERASE"),
        (ActionType.TRUNCATE_TABLE, "TRUNCATE"),
        (ActionType.RENAME_TABLES, "RENAME"),
        (ActionType.ADD_INDEX, "CINDEX"),
        (ActionType.DROP_PRIMARY_KEY, "DINDEX"),
        (ActionType.MODIFY_COLUMN, "ALTER"),
        (ActionType.CREATE_SCHEMA, "QUERY"),
        (ActionType.LOCK_TABLE, "QUERY"),
    ],
)
def test_ddl_message_of_each_kind_is_exact(action: ActionType, kind: str) -> None:
    query = "ALTER TABLE `staff` ADD COLUMN `x` INT DEFAULT '<'"
    ddl = Ddl(COMMIT, COMMIT - 1, "shop", "staff", query, int(action))
    (message,) = make_encoder(EXTENDED).ddl(ddl)
    assert json.loads(message.value or b"") == {
        "id": 0,
        "database": "shop",
        "table": "staff",
        "pkNames": None,
        "isDdl": True,
        "type": kind,
        "es": COMMIT_MS,
        "ts": COMMIT_MS,
        "sql": query,
        "sqlType": None,
        "mysqlType": None,
        "data": None,
        "old": None,
        "_tidb": {"commitTs": COMMIT},
    }
    assert (message.key, message.rows, message.commit_ts) == (None, 0, COMMIT)
    event = DdlEvent(COMMIT, "shop", "staff", query)
    assert make_decoder(EXTENDED).decode(None, message.value) == [event]


def test_ddl_message_goes_to_first_partition() -> None:
    assert make_encoder(PLAIN).ddl_scope is DdlScope.FIRST_PARTITION
    (message,) = make_encoder(PLAIN).ddl(Ddl(COMMIT, 0, "shop", "", "CREATE DATABASE `shop`", 1))
    assert "_tidb" not in json.loads(message.value or b"")


def test_watermark_is_sent_only_with_tidb_extension() -> None:
    assert make_encoder(PLAIN).resolved(COMMIT) == []
    (message,) = make_encoder(EXTENDED).resolved(COMMIT)
    text = (message.value or b"").decode()
    assert '"isDdl":false,"type":"TIDB_WATERMARK"' in text
    assert text.endswith(f'"_tidb":{{"watermarkTs":{COMMIT}}}}}')
    assert make_decoder(EXTENDED).decode(None, message.value) == [ResolvedEvent(COMMIT)]


def test_oversized_row_becomes_handle_key_only_or_claim_check_message() -> None:
    table = make_encoder(EXTENDED).table(TABLE)
    changes = make_changes(TABLE, Kind.UPDATE, old=[(7, b"Ann", 3)], new=[(7, b"B", 4)], commit_ts=COMMIT)
    (short,) = handle_only_rows(table, changes)
    message = json.loads(short.value or b"")
    assert (message["old"], message["data"], message["mysqlType"]) == ([{"id": "7"}], [{"id": "7"}], {"id": "int"})
    assert message["_tidb"] == {"commitTs": COMMIT, "onlyHandleKey": True}
    (claimed,) = handle_only_rows(table, changes, ["s3://b/x.json"])
    assert json.loads(claimed.value or b"")["_tidb"] == {"commitTs": COMMIT, "claimCheckLocation": "s3://b/x.json"}
    (event,) = make_decoder(EXTENDED).decode(None, short.value)
    assert isinstance(event, RowEvent) and event.handle_only and event.change is Change.UPDATE
    (event,) = make_decoder(EXTENDED).decode(None, claimed.value)
    assert isinstance(event, RowEvent) and event.claim == "s3://b/x.json" and event.handle_only


def test_handle_key_only_is_refused_without_handle_key() -> None:
    bare = make_table("shop", "log", [("a", FieldType(Tp.LONG))])
    deletes = make_changes(bare, Kind.DELETE, old=[(1,)], commit_ts=COMMIT)
    with pytest.raises(EncodeError, match=f"`shop`.`log` has no handle key.*{COMMIT}"):
        handle_only_rows(make_encoder(EXTENDED).table(bare), deletes)
    options = ProtocolOptions("canal-json", delete_only_output_handle_key_columns=True)
    with pytest.raises(EncodeError, match=r"`shop`.`log` has no handle key"):
        encoded_rows(make_encoder(options).table(bare), deletes)
