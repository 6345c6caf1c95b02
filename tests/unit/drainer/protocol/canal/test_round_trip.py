"""Canal-JSON: partial old rows, messages of Canal itself, and members that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.errors import MessageError
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows
from tests.support.examples import FEW
from tests.support.protocol_cases import values
from tests.support.row_changes import make_changes
from tests.support.typed_columns import read_row, typed_rows, typed_table

TABLE = typed_table()
ZONE = ZoneInfo("Asia/Tokyo")
OPTIONS = ProtocolOptions("canal-json", enable_tidb_extension=True, time_zone="Asia/Tokyo")


@FEW
@given(typed_rows(), st.data())
def test_old_row_with_only_updated_columns_reads_back_changed_ones(
    row: tuple[DecodedValue, ...], data: st.DataObject
) -> None:
    """The old image is partial: exactly the columns whose values differ."""
    other = data.draw(typed_rows())
    chosen = data.draw(st.sets(st.integers(0, len(row) - 1)))
    was = tuple(other[n] if n in chosen else value for n, value in enumerate(row))
    options = replace(OPTIONS, only_output_updated_columns=True)
    (sent,) = encoded_rows(make_encoder(options).table(TABLE), make_changes(TABLE, Kind.UPDATE, old=[was], new=[row]))
    (event,) = make_decoder(options).decode(None, sent.value)
    assert isinstance(event, RowEvent)
    before, after = read_row(TABLE.columns, was, ZONE), read_row(TABLE.columns, row, ZONE)
    # By what is shown: -0.0 equals 0.0 and is another value.
    changed = {name: value for name, value in before.items() if repr(value) != repr(after[name])}
    assert values(event.old) == changed
    assert values(event.new) == after


GOOD: dict[str, object] = {
    "database": "d",
    "table": "t",
    "isDdl": False,
    "type": "INSERT",
    "mysqlType": {"a": "int"},
    "data": [{"a": "1"}],
}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"isDdl": None}, "isDdl"),
        ({"type": "SELECT"}, "type 'SELECT'"),
        ({"type": 3}, "type is 3"),
        ({"database": None}, "database"),
        ({"data": []}, "data"),
        ({"data": [[]]}, r"data\[0\]"),
        ({"data": [{"a": 1}]}, r"data\[0\]: a is 1"),
        ({"data": [{"a": "1 "}]}, r"data\[0\]: a is '1 '.*int"),
        ({"data": [{"a": "١"}]}, r"data\[0\]: a"),
        ({"data": [{"b": "1"}]}, r"data\[0\]: b is not in mysqlType"),
        ({"mysqlType": {"a": "float"}, "data": [{"a": "nan"}]}, r"data\[0\]: a is 'nan'"),
        ({"mysqlType": {"a": "blob"}, "data": [{"a": "Ā"}]}, r"data\[0\]: a"),
        ({"mysqlType": [1]}, "mysqlType"),
        ({"type": "UPDATE"}, "1 new rows and 0 old"),
        ({"type": "TIDB_WATERMARK"}, "_tidb"),
        ({"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": -1}}, "watermarkTs is -1"),
        ({"_tidb": {"commitTs": "x"}}, "_tidb: commitTs"),
        ({"_tidb": 7}, "_tidb is 7"),
    ],
)
def test_wrong_message_member_is_named_in_error(change: dict[str, object], place: str) -> None:
    assert make_decoder(OPTIONS).decode(None, json.dumps(GOOD).encode())
    with pytest.raises(MessageError, match=place):
        make_decoder(OPTIONS).decode(None, json.dumps(GOOD | change).encode())


def test_message_of_canal_gives_one_event_for_each_row() -> None:
    message = GOOD | {
        "type": "UPDATE",
        "data": [{"a": "1"}, {"a": None}],
        "old": [{"a": "0"}, {}],
        "mysqlType": {"a": "int(11)"},
        "pkNames": None,
    }
    first, second = make_decoder(OPTIONS).decode(None, json.dumps(message).encode())
    assert isinstance(first, RowEvent) and isinstance(second, RowEvent)
    assert (values(first.old), values(first.new), first.commit_ts) == ({"a": 0}, {"a": 1}, 0)
    assert (values(second.old), values(second.new)) == ({}, {"a": None})
