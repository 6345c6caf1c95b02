"""The messages that docs/protocols.md shows for Canal-JSON, Debezium and Simple are what the encoders write."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

PAGE = Path(__file__).parents[4] / "docs" / "protocols.md"
COMMIT = 447984084414103554
ID = FieldType(Tp.LONG, Flag.NOT_NULL, 11, 0)
NAME = replace(text_type(Tp.VARCHAR, 32), decimal=0)
LEVEL = FieldType(Tp.TINY, Flag.UNSIGNED, 3, 0)
TABLE = make_table("shop", "staff", [("id", ID), ("name", NAME), ("level", LEVEL)], primary=["id"], table_id=104)
TABLE = replace(TABLE, info=replace(TABLE.info, update_timestamp=447984074911121426))
OPTIONS = {
    "Canal-JSON": ProtocolOptions("canal-json", enable_tidb_extension=True),
    "Debezium": ProtocolOptions("debezium", enable_tidb_extension=True, debezium_disable_schema=True),
    "Simple": ProtocolOptions("simple"),
}


def written(options: ProtocolOptions) -> list[object]:
    """A DDL, an insert, an update, a delete, a resolved timestamp, and what else the protocol has, values parsed."""
    encoder = make_encoder(options)
    rows = encoder.table(TABLE)
    query = "ALTER TABLE `staff` ADD COLUMN `level` TINYINT UNSIGNED"
    first, second = (7, b"Ann", 3), (7, b"Ann", 200)
    values = [message.value for message in encoder.ddl(ddl_of(query))]
    values += [row.value for row in encoded_rows(rows, make_changes(TABLE, Kind.INSERT, new=[first], commit_ts=COMMIT))]
    values += [
        row.value
        for row in encoded_rows(rows, make_changes(TABLE, Kind.UPDATE, old=[first], new=[second], commit_ts=COMMIT))
    ]
    values += [
        row.value for row in encoded_rows(rows, make_changes(TABLE, Kind.DELETE, old=[second], commit_ts=COMMIT))
    ]
    values += [message.value for message in encoder.resolved(COMMIT)]
    values += [message.value for message in encoder.bootstrap(TABLE, COMMIT)]
    return [json.loads(value or b"") for value in values]


def ddl_of(query: str) -> Ddl:
    return Ddl(COMMIT, COMMIT - 1, "shop", "staff", query, int(ActionType.ADD_COLUMN), None, TABLE)


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("title", OPTIONS)
def test_messages_in_protocols_page_equal_encoders(title: str) -> None:
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section(title), re.DOTALL)]
    assert shown == written(OPTIONS[title])
