"""What Open Protocol's encoder writes of every type, its decoder reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import EncodeError
from drainer.protocol.event import AdminEvent, Change, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.table import RowChanges
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.examples import FEW
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import typed_row, typed_rows, typed_table

OPTIONS = ProtocolOptions("open-protocol")
ID = FieldType(Tp.LONG, Flag.NOT_NULL)
TEXT = FieldType(Tp.VARCHAR, 0, 16, charset="utf8mb4", collate="utf8mb4_bin")
TABLE = typed_table()
SMALL = make_table("test", "t1", [("id", ID), ("val", TEXT)], primary=["id"])
KEYLESS = make_table("test", "t2", [("a", TEXT)], table_id=101)


def events(changes: RowChanges, options: ProtocolOptions = OPTIONS) -> list[Event]:
    encoder, decoder = make_encoder(options), make_decoder(options)
    rows = encoded_rows(encoder.table(changes.table), changes)
    return [event for message in framed_rows(encoder, rows) for event in decoder.decode(message.key, message.value)]


def values(image: object) -> object:
    assert isinstance(image, dict)
    return {name: column.value for name, column in image.items()}


def test_row_has_columns_in_name_order_with_types_and_flags() -> None:
    (event,) = events(make_changes(TABLE, Kind.INSERT, new=[typed_row(7)], commit_ts=2**63 + 5))
    assert isinstance(event, RowEvent) and event.new is not None
    assert (event.commit_ts, event.row_id, list(event.new)) == (2**63 + 5, 7, sorted(event.new))
    assert {name: (column.type_code, column.flags) for name, column in event.new.items()} == {
        column.name: (int(column.column_type.kind.tp), int(column.flags)) for column in TABLE.columns
    }


@FEW
@given(st.lists(typed_rows(), min_size=1, max_size=3))
def test_row_text_equals_gos_json_of_document(rows: list[tuple[DecodedValue, ...]]) -> None:
    """json.dumps of the parsed document is the same text again, but for what Go alone escapes."""
    for row in encoded_rows(make_encoder(OPTIONS).table(TABLE), make_changes(TABLE, Kind.INSERT, new=rows)):
        assert row.value is not None
        text = row.value.decode()
        for code in (0x3C, 0x3E, 0x26, 0x2028, 0x2029):
            assert chr(code) not in text
        parsed = json.loads(text, parse_float=str, parse_int=str)
        again = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        for code in (0x3C, 0x3E, 0x26, 0x2028, 0x2029):
            again = again.replace(chr(code), f"\\u{code:04x}")
        assert again.replace('"', "") == text.replace('"', "")


@pytest.mark.parametrize(
    "char", ['"', "\\", "<", ">", "&", "\u2028", "\u2029", "\0", "\x1f", "\n", "\ufdd0", "'", "\x7f"]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_single_escaped_character_in_column_is_written_right(char: str, rows: int) -> None:
    """Alone in its column, which is written as it is where it has none of them."""
    notes = [f"a{char}b", "plain", None][:rows]
    found = make_changes(SMALL, Kind.INSERT, new=[(n, t and t.encode()) for n, t in enumerate(notes)])
    texts = [row.value or b"" for row in encoded_rows(make_encoder(OPTIONS).table(SMALL), found)]
    plain = json.dumps(f"a{char}b", ensure_ascii=char < "\u3000").replace("\\u007f", "\x7f")
    for one in "<>&":
        plain = plain.replace(one, f"\\u{ord(one):04x}")
    assert f'"f":64,"v":{plain}}}'.encode() in texts[0]
    assert [values(e.new)["val"] for e in events(found) if isinstance(e, RowEvent)] == notes  # type: ignore[index]


def test_float_is_written_with_the_shortest_digits_of_single() -> None:
    """Its decoded value is a double: 3.14 in four bytes is 3.1400001049041748."""
    columns = [("id", ID), ("f", FieldType(Tp.FLOAT)), ("d", FieldType(Tp.DOUBLE))]
    table = make_table("test", "f", columns, primary=["id"])
    singles = [3.1400001049041748, 1.401298464324817e-45, 16777216.0, 1.0000000150474662e30, -0.0, float("nan")]
    changes = make_changes(table, Kind.INSERT, new=[(n, value, value) for n, value in enumerate(singles)])
    found = [
        json.loads(row.value or b"", parse_float=str, parse_int=str)["u"]
        for row in encoded_rows(make_encoder(OPTIONS).table(table), changes)
    ]
    assert [row["f"]["v"] for row in found] == ["3.14", "1e-45", "16777216", "1e+30", "-0", "0"]
    assert [row["d"]["v"] for row in found[:2]] == ["3.140000104904175", "1.401298464324817e-45"]


def test_only_updated_columns_option_leaves_changed_columns_in_old_row() -> None:
    options = replace(OPTIONS, only_output_updated_columns=True)
    old, new = [(1, b"a"), (2, None), (3, b"x"), (4, None)], [(1, b"a"), (2, b"z"), (5, None), (4, None)]
    found = events(make_changes(SMALL, Kind.UPDATE, old=old, new=new), options)
    assert [None if e.old is None else values(e.old) for e in found if isinstance(e, RowEvent)] == [
        None,
        {"val": None},
        {"id": 3, "val": "x"},
        None,
    ]
    assert [e.change for e in found if isinstance(e, RowEvent)] == ["upsert", "update", "update", "upsert"]


def test_update_without_changes_has_no_old_row() -> None:
    options = replace(OPTIONS, only_output_updated_columns=True)
    (row,) = encoded_rows(
        make_encoder(options).table(SMALL), make_changes(SMALL, Kind.UPDATE, old=[(1, b"")], new=[(1, b"")])
    )
    assert row.value == b'{"u":{"id":{"t":3,"h":true,"f":11,"v":1},"val":{"t":15,"f":64,"v":""}}}'


def test_update_without_output_old_value_reads_back_as_upsert() -> None:
    options = replace(OPTIONS, output_old_value=False)
    (event,) = events(make_changes(SMALL, Kind.UPDATE, old=[(1, b"a")], new=[(1, b"b")]), options)
    assert isinstance(event, RowEvent)
    assert (event.change, event.old, values(event.new)) == (Change.UPSERT, None, {"id": 1, "val": "b"})


def test_delete_with_handle_key_option_has_only_handle_key_columns() -> None:
    options = replace(OPTIONS, delete_only_output_handle_key_columns=True)
    (event,) = events(make_changes(SMALL, Kind.DELETE, old=[(1, b"a")]), options)
    assert isinstance(event, RowEvent)
    assert (values(event.old), event.handle_only) == ({"id": 1}, False)
    with pytest.raises(EncodeError, match=r"`test`.`t2` has no handle key, so the delete at commit_ts 7"):
        events(make_changes(KEYLESS, Kind.DELETE, old=[(b"a",)], commit_ts=7), options)


def test_ddl_resolved_and_partition_change_events_read_back_equal() -> None:
    encoder, decoder = make_encoder(OPTIONS), make_decoder(OPTIONS)
    for messages, wanted in (
        (
            encoder.ddl(Ddl(7, 6, "s", "", "CREATE DATABASE `s` /* <é> */", 1)),
            DdlEvent(7, "s", "", "CREATE DATABASE `s` /* <é> */", 1),
        ),
        (encoder.resolved(2**64 - 1), ResolvedEvent(2**64 - 1)),
        (encoder.partitions_changed(12, 9), AdminEvent(12, 9)),
    ):
        (message,) = messages
        assert decoder.decode(message.key, message.value) == [wanted]
        assert message.rows == 0
    assert encoder.bootstrap(SMALL, 1) == []
    with pytest.raises(EncodeError, match=r"the DDL of `s`.`t` at commit_ts 7 is not UTF-8"):
        encoder.ddl(Ddl(7, 6, "s", "t", "drop \udcff", 1))


def test_large_batch_encoded_in_pieces_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = make_changes(
        SMALL, Kind.UPDATE, old=[(n, b"%d" % n) for n in range(100)], new=[(n, None) for n in range(100)]
    )
    whole = encoded_rows(make_encoder(OPTIONS).table(SMALL), changes)
    monkeypatch.setattr("drainer.protocol.open.encoder.PIECE_BYTES", 500)
    assert encoded_rows(make_encoder(OPTIONS).table(SMALL), changes) == whole
    assert len(whole) == 100
