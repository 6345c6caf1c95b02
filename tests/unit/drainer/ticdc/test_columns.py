"""Rows that become columns directly are those that they become over binlogs, and what is invalid is an error."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from binlog.errors import BinlogError
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.segment import SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.errors import MessageError
from drainer.protocol.json_read import parse
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.schema.filter import OWN_SCHEMA
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.ticdc.pull import PartitionRange, _Translation
from drainer.ticdc.tables import NamedTable, NamedTables, _Change, packed
from tests.support.memory_records import message
from tests.support.row_case import view_of
from tests.support.ticdc_topic import BinlogsOnly, CountsColumns

KINDS = {
    "id": FieldType(Tp.LONGLONG, flag=int(Flag.PRI_KEY | Flag.NOT_NULL)),
    "i": FieldType(Tp.LONG),
    "f": FieldType(Tp.DOUBLE),
    "s": FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin"),
    "d": FieldType(Tp.NEWDECIMAL, flen=20, decimal=10),
    "t": FieldType(Tp.TIMESTAMP, decimal=0),
}
CODES = {"id": 8, "i": 3, "f": 5, "s": 15, "d": 246, "t": 7}


def info_of(names: Any, *, keyed: bool = True) -> TableInfo:
    columns = tuple(
        ColumnInfo(id=at, name=name, offset=at - 1, type=KINDS[name], state=SchemaState.PUBLIC)
        for at, name in enumerate(names, 1)
    )
    return TableInfo(id=7 + keyed, name="t" if keyed else "k", columns=columns, pk_is_handle=keyed)


def fold(
    of: Any,
    options: ProtocolOptions,
    info: TableInfo,
    messages: Any,
    other: TableInfo | None = None,
    after_ts: int = 0,
    **more: int,
) -> Any:
    """The net rows, and what was added as columns."""
    at, infos = KafkaPartition("t", 0), [one for one in (info, other) if one is not None]
    tables = NamedTables({("d", one.name): (_Change(0, NamedTable(one.id, 1, one)),) for one in infos}, {})
    wanted = PartitionRange(at, KafkaAddress("t", options, {}), 0, len(messages), 0, 1 << 62, packed(tables))
    view = view_of(info, schema="d", settled=1 << 62)
    for one in infos:
        view.tables.update(view_of(one, schema="d", settled=1 << 62).tables)  # type: ignore[attr-defined]
    cutter = of(SegmentDecoder(view, SQL_TEXT))
    records = [Record(at, offset, *pair) for offset, pair in enumerate(messages)]
    found = _Translation(wanted, after_ts, 98, **more).fold(cutter, cutter.add_in_order, records)
    cutter.counted = sum(one.count for one in found)
    work = merge_slot([*cutter.cut(1).values()], SQL_TEXT)
    return [repr(list(map(tuple, one.rows))) for one in work.folded], len(work.ordered.changes), cutter


def both(options: ProtocolOptions, info: TableInfo, messages: Any, other: TableInfo | None = None, **more: int) -> Any:
    """The same of both ways: net rows, or the error's text. The cutter of columns comes with it."""
    found = []
    for of in (BinlogsOnly, CountsColumns):
        try:
            found.append(fold(of, options, info, messages, other, **more))
        except BinlogError as error:
            found.append((str(error), 0, None))
    assert found[0][:2] == found[1][:2]
    return found[1]


def opened(ts: int, name: str = "t", **cells: Any) -> Any:
    """A message of open-protocol, one row: a cell is a value or (value, flags)."""
    new: dict[str, Any] = {}
    for column, cell in cells.items():
        value, flags = cell if isinstance(cell, tuple) else (cell, 0)
        new[column] = {"t": CODES[column], "f": flags, "v": value}
    new["id"] = {"t": 8, "f": 2 if name == "t" else 0, "v": cells["id"]}
    return message([({"ts": ts, "scm": "d", "tbl": name, "t": 1}, {"u": new})])


def resolved(ts: int) -> Any:
    return message([({"ts": ts, "t": 3}, None)])


OPEN = ProtocolOptions("open-protocol")
END = resolved(99)


@pytest.mark.parametrize(
    ("column", "cells", "error"),
    [
        ("f", [0, -0.0, 1.5, 0.0], ""),  # equal numbers that are not the same
        ("f", [-0.0, 0], ""),
        ("i", [1, 2**31 - 1, -(2**31), None], ""),
        ("i", ["1", "0x1F"], "does not fit"),
        ("i", ["1", "007"], ""),
        ("i", [1, 1.5], "no integer"),
        ("i", [1.5], "no integer"),
        ("i", [1, True], "neither number nor string"),
        ("i", [2**31], "does not fit"),
        ("i", [1 << 64], "no integer"),
        ("s", ["a", ("\\x41\\x42", 1)], ""),
        ("s", [("\\x41\\x42", 1)], ""),
        ("s", ["a\0b", "\U0001f600", None, ""], ""),
        ("d", ["0.0000000001", "-0.0000000000", "0.0000000000", "9999999999.9999999999", "1", None], ""),
        ("d", ["0.0000000001", "0.0000000000", "-0.0000000010"], ""),
        ("t", ["1969-12-31 23:59:59", "9999-12-31 23:59:59", "0001-01-01 00:00:00", "2024-02-29 12:34:56"], ""),
        ("t", ["0000-00-00 00:00:00", "2024-02-29 12:34:56.5", "2024-02-29 23:59:59.999999", None], ""),
    ],
)
def test_values_are_those_of_binlogs_or_an_error(column: str, cells: list[Any], error: str) -> None:
    rows = [opened(5 + at, id=at, **{column: cell}) for at, cell in enumerate(cells)]
    found = both(OPEN, info_of(["id", column]), [*rows, END])
    if error:
        assert error in found[0]
    else:
        assert found[2].added or any(isinstance(cell, tuple) for cell in cells)


@pytest.mark.parametrize("images", [["u", "d"], ["p"], ["p", "d"], ["u", "p", "d"]], ids=lambda images: "".join(images))
def test_images_that_do_not_go_together_are_an_error(images: list[str]) -> None:
    image = {"id": {"t": 8, "f": 2, "v": 1}}
    body = dict.fromkeys(images, image)
    found = both(OPEN, info_of(["id"]), [message([({"ts": 5, "scm": "d", "tbl": "t", "t": 1}, body)]), END])
    assert "not u, u and p, or d" in found[0]


def test_an_update_whose_old_image_is_empty_is_an_update() -> None:
    body = {"u": {"id": {"t": 8, "f": 2, "v": 1}}, "p": {}}
    both(OPEN, info_of(["id"]), [message([({"ts": 5, "scm": "d", "tbl": "t", "t": 1}, body)]), END])


@pytest.mark.parametrize("cell", [{"value": None}, 0, {}, {"value": 5}, "2024-01-01 00:00:00"], ids=repr)
def test_a_timestamp_of_simple_that_is_no_record_is_an_error(cell: Any) -> None:
    row = {"version": 1, "type": "INSERT", "database": "d", "table": "t", "commitTs": 5, "schemaVersion": 1}
    end = {"version": 1, "type": "WATERMARK", "commitTs": 99}
    rows = [(None, json.dumps(one).encode()) for one in ({**row, "data": {"id": "1", "t": cell}}, end)]
    assert "a value of type timestamp is expected" in both(ProtocolOptions("simple"), info_of(["id", "t"]), rows)[0]


CANAL = {
    "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT", "es": 1, "ts": 1,
    "sql": "", "sqlType": {"id": -5}, "mysqlType": {"id": "bigint"}, "old": None, "data": [{"id": "1"}],
    "_tidb": {"commitTs": 5},
}  # fmt: skip
SIMPLE = {"version": 1, "database": "d", "table": "t", "type": "INSERT", "commitTs": 5, "schemaVersion": 1,
          "data": {"id": "1"}}  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "document", "changed", "error"),
    [
        ("canal-json", CANAL, {}, None),
        ("canal-json", CANAL, {"_tidb": {"commitTs": 5, "onlyHandleKey": True}}, "upstream"),
        ("canal-json", CANAL, {"_tidb": {"commitTs": 5, "claimCheckLocation": "x"}}, "claim-check-storage-uri"),
        ("canal-json", CANAL, {"_tidb": {"commitTs": "5"}}, "commitTs"),
        ("canal-json", CANAL, {"isDdl": True, "sql": "q"}, "had not been read"),
        ("canal-json", CANAL, {"data": [{"id": "1"}, {"id": "2"}]}, ""),
        ("simple", SIMPLE, {}, None),
        ("simple", SIMPLE, {"handleKeyOnly": True}, "upstream"),
        ("simple", SIMPLE, {"claimCheckLocation": "x", "handleKeyOnly": True}, "claim-check-storage-uri"),
        ("simple", SIMPLE, {"version": 2}, "version"),
        ("simple", SIMPLE, {"commitTs": 5.0}, "commitTs"),
    ],
)
def test_rows_are_plain_only_if_their_message_has_their_values(
    protocol: str, document: dict[str, Any], changed: dict[str, Any], error: str | None
) -> None:
    options = ProtocolOptions(protocol, enable_tidb_extension=protocol == "canal-json")
    (end,) = make_encoder(options).resolved(99)
    found = both(options, info_of(["id"]), [(None, json.dumps(document | changed).encode()), (end.key, end.value)])
    assert error in found[0] if error else found[2].added == (error is None)


@pytest.mark.parametrize("other", [{"ohk": True}, {"ccl": "x"}], ids=str)
def test_rows_of_open_protocol_are_plain_only_if_their_message_has_their_values(other: dict[str, Any]) -> None:
    image = {"u": {"id": {"t": 8, "f": 2, "v": 1}}}
    rows = [message([({"ts": 5, "scm": "d", "tbl": "t", "t": 1, **other}, image)]), END]
    assert isinstance(both(OPEN, info_of(["id"]), rows)[0], str)


def test_json_that_is_too_deep_is_an_error_of_the_message() -> None:
    with pytest.raises(MessageError, match="no JSON at character 0: too many arrays"):
        parse(b"[" * 1020 + b"-0 " + b"]" * 1020, "message")


def test_a_ddl_that_is_not_known_is_named_with_its_place() -> None:
    ddl = message([({"ts": 6, "scm": "d", "tbl": "t", "t": 2}, {"q": "alter", "t": 7})])
    found = both(OPEN, info_of(["id"]), [opened(5, id=1), ddl, END])
    assert found[0].startswith("t[0] offset 1: the DDL at commit_ts 6 had not been read")


def test_rows_without_a_key_that_come_again_after_columns_were_added() -> None:
    """The row in between shows that the second one at 10 is a repeat, also when it needs not be added any more."""
    keyed, keyless = opened(4, id=1), opened(10, "k", id=5)
    again = [resolved(5), keyless, opened(3, "k", id=4), keyless, resolved(6), END]
    found = both(OPEN, info_of(["id"]), [keyed, *again], info_of(["id"], keyed=False), together_bytes=1)
    assert found[1] == 1
    assert found[2].added == 1


@pytest.mark.parametrize("together_bytes", [1, 1 << 20])
@pytest.mark.parametrize("after_ts", [0, 4])
def test_only_rows_of_the_range_are_added_and_none_again(together_bytes: int, after_ts: int) -> None:
    """Resolved events go back, and the last one is above the range."""
    four, six, seven = (opened(ts, id=ts) for ts in (4, 6, 7))
    messages = [four, resolved(5), four, seven, six, resolved(3), four, resolved(7), six, opened(99, id=9)]
    found = both(OPEN, info_of(["id"]), [*messages, resolved(300)], together_bytes=together_bytes, after_ts=after_ts)
    assert found[2].added == (2 if after_ts else 3)


@pytest.mark.parametrize("together_bytes", [1, 1 << 20])
def test_a_range_ends_with_its_last_message_or_with_the_event_that_completes_it(together_bytes: int) -> None:
    rows = [opened(5, id=1), resolved(6), opened(7, id=2)]
    for end in ([], [END, (b"", b"")]):  # what is behind is not decoded
        assert both(OPEN, info_of(["id"]), [*rows, *end], together_bytes=together_bytes)[2].added == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_messages_of_several_rows_that_are_not_whole_are_errors(count: int) -> None:
    rows = [({"ts": 5 + at, "scm": "d", "tbl": "t", "t": 1}, {"u": _image({"id": at})}) for at in range(count)]
    key, value = message(rows)
    pair = key + (9).to_bytes(8, "big")
    wrong = [(key, value[:at]) for at in range(len(value))] + [(key[:at], value) for at in range(len(key))]
    wrong += [(key, value + b"\0"), (key, value + bytes(8)), (key + b"\0", value), (pair, value)]
    wrong += [(key[:at] + b"\x09" + key[at + 1 :], value) for at in (7, 15)] + [(key, value[:7] + b"\xff" + value[8:])]
    for one in wrong:
        assert both(OPEN, info_of(["id"]), [opened(4, id=1), one, END])[0].startswith("t[0] offset 1: open-protocol")
    assert both(OPEN, info_of(["id"]), [(key, value), END])[2].counted == count


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ts":5', b'"ts":05'),
        (b'"tbl"', b'"tbl":"t\n","tbl"'),
        (b'"t":1}', b'"rid":07,"t":1}'),
        (b'"t":1}', b'"ptn":-0,"t":1}'),
        (b'"t":1}', b'"rid":99999999999999999999,"t":1}'),
        (b'"t":1}', b'"t":1}}'),
    ],
)
def test_keys_that_are_no_json_are_errors(old: bytes, new: bytes) -> None:
    """Also those of rows that are not wanted."""
    for ts, after_ts in ((5, 0), (5, 6), (500, 0)):
        key, value = opened(ts, id=1)
        changed = key[16:].replace(old, new)
        messages = [(key[:8] + len(changed).to_bytes(8, "big") + changed, value), END]
        assert both(OPEN, info_of(["id"]), messages, after_ts=after_ts)[0].startswith("t[0] offset 0: open-protocol")


def test_bytes_of_rows_count_once() -> None:
    rows = [opened(4, id=1), opened(20, id=2)]
    found = both(OPEN, info_of(["id"]), [*rows, resolved(6), resolved(8), END], together_bytes=1)
    assert found[2].size == sum(len(value) for _, value in rows)


def _image(row: dict[str, Any]) -> dict[str, Any]:
    return {name: {"t": CODES[name], "f": 2 * (name == "id"), "v": value} for name, value in row.items()}


def history(chance: random.Random) -> Iterator[tuple[int, Any]]:
    """(commit_ts, message) of changes of five rows, one change of a row at a commit_ts; some above the range."""
    rows: dict[int, dict[str, Any]] = {}
    keyless = chance.choice([0, 0, 0.1])  # after such a row there are no more columns
    for ts in sorted(chance.sample(range(3, 110), 15)):
        for key in chance.sample(range(5), chance.randint(1, 3)):
            old, new = rows.pop(key, None), {"id": key, "i": chance.choice([None, 1, 2]), "s": chance.choice("ab")}
            if old is None or chance.random() < 0.7:
                rows[key] = new
            if old and key in rows and chance.random() < 0.5:  # as with only-output-updated-columns
                old = {name: value for name, value in old.items() if value != new[name]}
            body = {"p": old, "u": rows.get(key)} if key in rows else {"d": old}
            body = {name: _image(row) for name, row in body.items() if row is not None}
            yield ts, message([({"ts": ts, "scm": "d", "tbl": "t", "t": 1}, body)])
        if chance.random() < keyless:
            yield ts, opened(ts, "k", id=1)
        if chance.random() < 0.1:
            yield ts, message([({"ts": ts, "scm": OWN_SCHEMA, "tbl": "checkpoint", "t": 1}, {"u": _image({"id": 1})})])


@given(st.integers(0, 1 << 30))
def test_histories_of_rows_are_those_of_binlogs(seed: int) -> None:
    """Rows come before the resolved event of their ts, in any order; some come again, also behind it."""
    chance = random.Random(seed)
    changes, sent, messages = [*history(chance)], list[Any](), list[Any]()
    for resolved_ts in [*sorted(chance.sample(range(5, 99), 4)), 99]:
        due = [one for one in changes if one[0] < resolved_ts or chance.random() < 0.2]
        changes = [one for one in changes if one not in due]
        again = [one for one in sent if "k" not in str(one[1]) and chance.random() < 0.1]
        messages += chance.sample([*due, *again], len(due) + len(again))
        messages.append((0, resolved(resolved_ts)))
        sent += due
    infos = info_of(["id", "i", "s"]), info_of(["id"], keyed=False)
    both(OPEN, infos[0], [one for _, one in messages], infos[1], together_bytes=chance.choice([1, 300, 1 << 20]))


def test_a_row_that_is_inserted_before_it_is_deleted_at_one_commit_ts() -> None:
    """Rows whose keys change are a delete and an insert, perhaps of two partitions."""
    gone = message([({"ts": 5, "scm": "d", "tbl": "t", "t": 1}, {"d": _image({"id": 1, "i": 1})})])
    found = both(OPEN, info_of(["id", "i"]), [opened(5, id=1, i=2), gone, END])
    assert found[2].added == 2 and "b'(1,2)'" in found[0][0]


def test_rows_of_our_own_tables_are_passed_over() -> None:
    own = message([({"ts": 6, "scm": OWN_SCHEMA, "tbl": "checkpoint", "t": 1}, {"u": _image({"id": 1})})])
    assert both(OPEN, info_of(["id"]), [opened(5, id=1), own, END])[2].added == 1
