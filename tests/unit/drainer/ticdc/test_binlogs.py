"""Rows of messages as binlogs, names of tables, and what is refused with words."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from binlog import envelope
from binlog.errors import ConfigError
from binlog.tidb.flatten import to_text
from binlog.tidb.job import ActionType
from binlog.tidb.mutation import parse_prewrite
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, ResolvedEvent, RowEvent, key_of
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.protocol.table import ColumnFlag
from drainer.ranges.upstream import Upstream
from drainer.schema.history.base import JobHistory
from drainer.sink.mysql.connection import ServerError
from drainer.spark.source.data_source import SourceOptions
from drainer.ticdc.binlogs import RowEncoder
from drainer.ticdc.partition import RowHead, RowTable, heads_of
from drainer.ticdc.pull import PartitionRange, _Translation, whole_row
from drainer.ticdc.tables import NamedTable, job_of, named_tables, packed
from tests.support.memory_records import message
from tests.support.schema_case import job, table
from tests.support.upstream_case import Answer, FakeSession, snapshot_of
from tests.unit.drainer.test_config import loaded

TEXT = {"elems": ("a", "b"), "charset": "utf8mb4", "collate": "utf8mb4_bin"}
KINDS = {
    "id": FieldType(Tp.LONGLONG, Flag.UNSIGNED | Flag.NOT_NULL),
    "at": FieldType(Tp.TIMESTAMP, decimal=0),
    "day": FieldType(Tp.DATETIME, decimal=0),
    "e": FieldType(Tp.ENUM, **TEXT),  # type: ignore[arg-type]
    "s": FieldType(Tp.SET, **TEXT),  # type: ignore[arg-type]
    "bits": FieldType(Tp.BIT, flen=64),
    "bytes": FieldType(Tp.BLOB),
}
STORED = {"generated_expr": "1", "generated_stored": True}
MORE: dict[str, Any] = {"stored": STORED, "virtual": {"generated_expr": "1"}, "_h": {"hidden": True}}
COLUMNS = [ColumnInfo(at, name, at - 1, kind) for at, (name, kind) in enumerate(KINDS.items(), 1)]
COLUMNS += [ColumnInfo(at, name, at - 1, FieldType(Tp.LONG), **of) for at, (name, of) in enumerate(MORE.items(), 8)]
INFO = TableInfo(id=7, name="t", columns=tuple(COLUMNS))
ZERO = "0000-00-00 00:00:00"
WHOLE = dict(zip(KINDS, (1, ZERO, ZERO, 1, 3, 5, b"\xff"), strict=True))


def row(change: Change, old: dict[str, Any] | None = None, new: dict[str, Any] | None = None) -> RowEvent:
    flags = {"id": ColumnFlag.HANDLE_KEY}
    images = [
        of and {name: ColumnValue(one, flags=flags.get(name, 0)) for name, one in of.items()} for of in (old, new)
    ]
    return RowEvent(change, 50, "d", "t", *images, row_id=9)


def encoded(event: RowEvent) -> bytes:
    start_ts, payload = RowEncoder(NamedTable(7, 3, INFO), ZoneInfo("Asia/Tokyo")).binlog(event)
    found = envelope.scan(payload)
    assert (found.start_ts, found.commit_ts, found.schema_version) == (start_ts, 50, 3)
    ((_, _, one),) = parse_prewrite(payload[found.value_at : found.value_end]).rows()
    return one


def shown(values: Any) -> dict[str, Any]:
    return {one.name: to_text(values[one.id], one.type) for one in COLUMNS if values.get(one.id) is not None}


def test_values_of_a_row() -> None:
    """In a time zone of the address; ENUM and SET by number and by name; zero dates; generated and hidden columns."""
    new = {
        **WHOLE,
        "id": (1 << 64) - 1,
        "at": "2026-01-01 00:00:00",
        "day": "2026-01-01 00:00:00",
        "bits": (1 << 64) - 1,
    }
    handle, values = decode_insert(INFO, encoded(row(Change.INSERT, new=new)))
    found = {"id": str(new["id"]), "at": "2025-12-31 15:00:00", "day": new["day"], "e": "a", "s": "a,b"}
    found |= {"bits": b"\xff" * 8, "bytes": b"\xff"}
    assert (handle, shown(values)) == ((9,), found)
    named = {**WHOLE, "e": "b", "s": "b", "bits": None, "stored": 1}
    old, values = decode_update(encoded(row(Change.UPDATE, {"e": 1}, named)))
    zero = {"id": "1", "at": ZERO, "day": ZERO, "bytes": b"\xff", "stored": "1"}
    assert (shown(old), shown(values)) == ({**zero, "e": "a", "s": "b"}, {**zero, "e": "b", "s": "b"})
    assert shown(decode_delete(INFO, encoded(row(Change.DELETE, named)))) == {**zero, "e": "b", "s": "b"}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (row(Change.INSERT, new={**WHOLE, "x": 1}), "insert column x is not in the table as the DDL history has it"),
        (row(Change.INSERT, new={"id": 1}), "insert column at is not in the message: column-selectors"),
        (row(Change.UPDATE, WHOLE, {"id": 1}), "update column at is not in the message"),
        (row(Change.DELETE, {"id": 1}), "delete column at is not .* delete-only-output-handle-key-columns"),
        (row(Change.DELETE, {**WHOLE, "at": "noon"}), "delete column at: 'noon' is no TIMESTAMP"),
        *[
            (row(Change.INSERT, new={**WHOLE, name: value}), f"insert column {name}: ")
            for name, value in {"id": -1, "day": 5, "e": 3, "s": "a,x", "bits": 1 << 64, "bytes": 5}.items()
        ],
    ],
)
def test_errors_name_table_and_column(event: RowEvent, words: str) -> None:
    with pytest.raises(MessageError, match=words.replace(" ", r" of `d`\.`t` at commit_ts 50:.* ", 1)):
        encoded(event)


def start_ts_of(event: RowEvent, place: tuple[int, int] | None = None, table_id: int = 7) -> int:
    return RowEncoder(NamedTable(table_id, 3, INFO), ZoneInfo("UTC")).binlog(event, place)[0]


@pytest.mark.parametrize(
    ("key", "options", "answer", "words"),
    [
        ({"id": 1}, {}, [], r"\(id = 1\) alone, .*: 0 rows have this key as of 50; or let TiCDC use claim-check"),
        ({"id": 1}, {}, [[b"1"], [b"1"]], "2 rows have this key as of 50; or let TiCDC use claim-check"),
        ({"id": 1}, {}, [ServerError(9006, "early", "t:4000")], "as of 50, .* raise tidb_gc_life_time: .* claim-check"),
        (
            {"id": 1},
            {},
            [ServerError(1054, "unknown", "t:4000")],
            "upstream's table at 50 is not the one .* claim-check",
        ),
        ({"id": 1}, {"only_output_updated_columns": True}, [], "must not set only-output-updated-columns"),
        ({"id": 1, "x": 2}, {}, [], "the table as the DDL history has it lacks x"),
        ({}, {}, [], "there is no key"),
    ],
)
def test_a_row_that_cannot_be_read_upstream_is_named(
    key: dict[str, Any], options: dict[str, Any], answer: Answer, words: str
) -> None:
    upstream = Upstream(lambda ts: snapshot_of(FakeSession(answer), ts))
    with pytest.raises(MessageError, match=rf"^the insert of `d`\.`t` at commit_ts 50 was too large for .* {words}"):
        whole_row(row(Change.INSERT, new=key), INFO, upstream, ProtocolOptions("open-protocol", **options))


def test_the_old_row_is_read_by_its_own_key_before_the_transaction() -> None:
    session = FakeSession([])
    upstream = Upstream(lambda ts: snapshot_of(session, ts))
    with pytest.raises(MessageError, match="0 rows have this key as of 49"):
        whole_row(row(Change.UPDATE, {"id": 1}, {"id": 2}), INFO, upstream, ProtocolOptions("canal-json"))
    assert session.said[-2:-1] == ["SET SESSION tidb_snapshot='49'"]
    assert session.said[-1].endswith("FROM `d`.`t` WHERE `id` = 1")


def test_start_ts_orders_a_transaction_and_tells_rows_apart() -> None:
    rows = [row(Change.DELETE, WHOLE), row(Change.UPDATE, WHOLE, WHOLE), row(Change.INSERT, new=WHOLE)]
    assert [start_ts_of(one) >> 60 for one in rows] == [0, 1, 2]
    sorted_names = row(Change.INSERT, new=dict(sorted(WHOLE.items())))  # other versions of TiCDC have another order
    assert start_ts_of(rows[2]) == start_ts_of(sorted_names)
    others = [start_ts_of(row(Change.INSERT, new={**WHOLE, "s": 1})), start_ts_of(rows[2], table_id=8)]
    assert len({*map(start_ts_of, rows), *others}) == 5
    assert len({start_ts_of(rows[2], place) for place in ((0, 0), (0, 1), (1, 0))}) == 3


def test_names_through_ddls() -> None:
    create, rename, drop = ActionType.CREATE_TABLE, ActionType.RENAME_TABLE, ActionType.DROP_TABLE
    steps = [(create, 15, 20, 10, "a"), (rename, 25, 30, 10, "b"), (create, 35, 40, 11, "a"), (drop, 35, 50, 10, "b")]
    steps += [(ActionType.RECOVER_TABLE, 55, 60, 10, "b"), (ActionType.DROP_SCHEMA, 65, 70, 0, "")]
    jobs = [job(1, ActionType.CREATE_SCHEMA, 1, finished_ts=10, schema=(1, "d"))]
    for number, (kind, start_ts, finished_ts, table_id, name) in enumerate(steps, 2):
        of: dict[str, Any] = {"schema_id": 1, "schema_name": "d", "table_id": table_id, "table_name": name}
        info = table(table_id, name)
        jobs.append(job(number, kind, number, finished_ts=finished_ts, start_ts=start_ts, table_info=info, **of))

    def at(name: str, ts: int, read_at: dict[tuple[int, str], int] | None = None) -> tuple[int, int] | None:
        found = named_tables(JobHistory(jobs), read_at or {}).at("D", name, ts)
        return found and found[:2]

    a, other_a, b, again = (10, 2), (11, 4), (10, 3), (10, 6)
    assert [at("A", ts) for ts in (19, 21, 30, 31, 40, 41, 70, 71)] == [a, a, a, None, None, other_a, other_a, None]
    assert [at("b", ts) for ts in (5, 31, 50, 51, 60, 61, 71)] == [b, b, b, None, None, again, None]
    # A drainer's DDL has the commit_ts of its binlog, which is below FinishedTS.
    assert [at("b", ts, {(46, "drop"): 5}) for ts in (46, 47)] == [b, None]
    assert [at("b", ts, {(28, "r"): 3, (99, "late"): 5}) for ts in (29, 98, 100)] == [b, b, None]
    twice = named_tables(JobHistory(jobs), {(30, "r 1"): 3, (30, "r 2"): 3, (40, "c"): 4}).ddls
    assert twice == {(30, "r 1"): (3, ""), (30, "r 2"): (3, ""), (40, "c"): (4, "c")}

    def job_at(ts: int, name: str, read_at: dict[tuple[int, str], int]) -> int | None:
        found = job_of(DdlEvent(ts, "d", name, "q"), jobs, read_at)
        return found and found.id

    assert [job_at(ts, "b", {}) for ts in (40, 38, 35, 50, 51)] == [4, 5, None, 5, None]
    assert [job_at(38, name, {}) for name in ("a", "B", "x")] == [4, 5, 4]
    assert job_at(38, "b", {(39, "other"): 5}) == 4


def test_a_nullable_unique_key_identifies_no_row_of_simple() -> None:
    """Rows of one transaction may be equal, whose key is NULL; their schema is before the range."""
    index = IndexInfo(1, "u", (IndexColumn("id", 0),), unique=True)
    for flag, handle in ((Flag(0), 0), (Flag.NOT_NULL, ColumnFlag.HANDLE_KEY)):
        column = ColumnInfo(1, "id", 0, FieldType(Tp.LONGLONG, flag))
        info = replace(table(10, "t"), indexes=(index,), columns=(column,))
        made = job(2, ActionType.CREATE_TABLE, 2, finished_ts=2, schema_id=9, schema_name="d", table_info=info)
        address, tables = KafkaAddress("t", ProtocolOptions("simple"), {}), packed(named_tables(JobHistory([made]), {}))
        known = _Translation(PartitionRange(KafkaPartition("t", 0), address, 0, 1, 0, 9, tables), 0, 9)._known_columns
        assert known("d", "t", 5) == {"id": ("bigint", handle)}
        assert known("d", "other", 5) is None


PLAIN = Flag(0)
DEBEZIUM = ProtocolOptions("debezium", enable_tidb_extension=True, time_zone="Asia/Tokyo")


def debezium(after: Any = None, op: str | None = "c", **more: Any) -> Record:
    """As TiCDC writes it. `op`: None: a DDL."""
    payload = {"source": {"db": "d", "table": "t", "commit_ts": 5}, **({} if op is None else {"op": op}), **more}
    return Record(KafkaPartition("t", 0), 0, None, json.dumps({"payload": {**payload, "after": after}}).encode())


def read_debezium(kind: FieldType, *records: Record, **column: Any) -> list[dict[str, Any]]:
    """The values of inserts into a table with a column `c` of this type."""
    columns = (ColumnInfo(1, "id", 0, FieldType(Tp.LONGLONG, Flag.NOT_NULL)), ColumnInfo(2, "c", 1, kind, **column))
    info = replace(table(10, "t"), columns=columns)
    made = job(2, ActionType.CREATE_TABLE, 2, finished_ts=2, schema_id=9, schema_name="d", table_info=info)
    address, tables = KafkaAddress("t", DEBEZIUM, {}), packed(named_tables(JobHistory([made]), {}))
    found = []
    wanted = PartitionRange(KafkaPartition("t", 0), address, 0, 1, 0, 9, tables)
    for payload in {payload for *_, payload in _Translation(wanted, 0, 9).binlogs(records)}:  # equal ones count once
        one = envelope.scan(payload)
        ((_, _, of),) = parse_prewrite(payload[one.value_at : one.value_end]).rows()
        values = decode_insert(info, of)[1]
        found.append({one.name: to_text(values[one.id], one.type) for one in columns if values.get(one.id) is not None})
    return sorted(found, key=lambda one: one["id"])


def typed(tp: Tp, flag: Flag = PLAIN, flen: int = -1, decimal: int = -1, **of: Any) -> FieldType:
    return FieldType(tp, flag, flen, decimal, **of)


def encoded64(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (typed(Tp.TINY), -128, "-128"),
        (typed(Tp.SHORT, Flag.UNSIGNED), 65535, "65535"),
        (typed(Tp.INT24), -8388608, "-8388608"),
        (typed(Tp.LONG, Flag.UNSIGNED), 4294967295, "4294967295"),
        (typed(Tp.LONGLONG), -(1 << 63), str(-(1 << 63))),
        (typed(Tp.LONGLONG, Flag.UNSIGNED), -1, str((1 << 64) - 1)),
        (typed(Tp.LONGLONG, Flag.UNSIGNED), -(1 << 63), str(1 << 63)),
        (typed(Tp.YEAR), 2155, "2155"),
        (typed(Tp.FLOAT), 3.4028235e38, "3.4028235e38"),
        (typed(Tp.FLOAT, flen=7, decimal=3), 9999.999, "9999.999"),
        (typed(Tp.DOUBLE), 5, "5"),
        (typed(Tp.DOUBLE), 5e-324, "5e-324"),
        (typed(Tp.NEWDECIMAL, flen=15, decimal=2), -9999999999999.99, "-9999999999999.99"),
        (typed(Tp.NEWDECIMAL, flen=15, decimal=15), 1e-15, "0.000000000000001"),
        (typed(Tp.NEWDECIMAL, flen=15, decimal=0), 999999999999999, "999999999999999"),
        (typed(Tp.BIT, flen=1), True, b"\1"),
        (typed(Tp.BIT, flen=12), encoded64(b"\x02\x01"), b"\x01\x02"),
        (typed(Tp.BIT, flen=64), encoded64(b"\xff" * 8), b"\xff" * 8),
        (typed(Tp.VARCHAR, flen=9, charset="utf8mb4"), "é\0", "é\0"),
        (typed(Tp.BLOB, charset="utf8mb4"), "", ""),
        (typed(Tp.VARCHAR, Flag.BINARY, 9, charset="binary"), encoded64(b"\0\xff"), b"\0\xff"),
        (typed(Tp.STRING, Flag.BINARY, 3, charset="binary"), encoded64(b"\xff"), b"\xff\0\0"),
        (typed(Tp.LONG_BLOB, Flag.BINARY, charset="binary"), "", b""),
        (typed(Tp.ENUM, **TEXT), "b", "b"),
        (typed(Tp.ENUM, **TEXT), "", ""),
        (typed(Tp.SET, **TEXT), "a,b", "a,b"),
        (typed(Tp.JSON), '{"a": -0.0}', '{"a": -0}'),
        (typed(Tp.DATE), -719162, "0001-01-01"),
        (typed(Tp.DATE), 0, "1970-01-01"),
        (typed(Tp.DATETIME, decimal=3), -1, "1969-12-31 23:59:59.999"),
        (typed(Tp.DATETIME, decimal=6), 253402300799999999, "9999-12-31 23:59:59.999999"),
        (typed(Tp.TIMESTAMP, decimal=6), "2038-01-19T03:14:07.999999Z", "2038-01-19 03:14:07.999999"),
        (typed(Tp.TIMESTAMP, decimal=0), "1970-01-01T00:00:00Z", ZERO),
        (typed(Tp.DURATION, decimal=6), -3020398999999, "-838:59:58.999999"),
    ],
)
def test_values_of_debezium_are_those_of_the_column(kind: FieldType, value: object, shown: object) -> None:
    row, null = debezium({"id": 1, "c": value}), debezium({"id": 2, "c": None})
    assert read_debezium(kind, row, null) == [{"id": "1", "c": shown}, {"id": "2"}]


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(0, 15))
def test_decimals_of_15_digits_are_their_doubles(digits: int, scale: int) -> None:
    number = Decimal(digits).scaleb(-scale)
    kind = FieldType(Tp.NEWDECIMAL, PLAIN, 15, scale)
    (found,) = read_debezium(kind, debezium({"id": 1, "c": float(number)}))
    assert Decimal(found["c"]) == number


NOW = {"default": "CURRENT_TIMESTAMP"}


@pytest.mark.parametrize(
    ("kind", "column", "value", "words"),
    [
        (
            typed(Tp.NEWDECIMAL, flen=16, decimal=2),
            {},
            1,
            "`d`.`t` .*: column c: DECIMAL\\(16\\) is .* open-protocol",
        ),
        (typed(Tp.LONG), {"default": "0"}, 1, "`d`.`t` .*: column c: TiCDC writes its default '0' for NULL; let TiCDC"),
        (typed(Tp.BIT, flen=1), {"default": "\1", "default_bit": b"\1"}, True, "column c: TiCDC writes its default"),
        (typed(Tp.DATE), {"default": "2020-01-01"}, 1, "column c: TiCDC writes its default"),
        (typed(Tp.DATETIME), NOW, 0, "c is 0, which TiCDC also writes for a day"),
        (typed(Tp.DATE, Flag.NOT_NULL), {}, 0, "c is 0, which TiCDC also writes for a day"),
        (typed(Tp.SET, elems=("", "a")), {}, "", "c is '', which TiCDC also writes for .* a number without a name"),
        (typed(Tp.TINY), {}, 128, "column c: 128 does not fit a tinyint"),
        (typed(Tp.LONG), {}, 1.5, "c is 1.5, a value of type int32 is expected"),
        (typed(Tp.LONG), {}, "1", "c is '1', a value of type int32"),
        (typed(Tp.NEWDECIMAL, flen=5, decimal=2), {}, "1", "c is '1', a value of type decimal"),
        (typed(Tp.NEWDECIMAL, flen=5, decimal=2), {}, 1000, "column c: '1000' does not fit a decimal"),
        (typed(Tp.BIT, flen=9), {}, encoded64(b"\0\2"), "column c: 512 does not fit a bit"),
        (typed(Tp.BLOB, charset="binary"), {}, "%", "c is '%', a value of type string"),
        (typed(Tp.VARCHAR, charset="utf8mb4"), {}, 5, "c is 5, a value of type string"),
        (typed(Tp.ENUM, **TEXT), {}, "x", "column c: 'x' does not fit an? enum"),
        (typed(Tp.TIMESTAMP), {}, "2026-01-01T00:00:00", "c is .*, a value of type io.debezium.time.ZonedTimestamp"),
        (typed(Tp.TIMESTAMP), {}, "noonZ", "column c: 'noon' is not"),
        (typed(Tp.DATE), {}, 10**9, "c is 1000000000, a value of type io.debezium.time.Date"),
        (typed(Tp.DURATION), {}, 10**15, "c is 1000000000000000, a value of type io.debezium.time.MicroTime"),
        (typed(Tp.JSON), {}, "{", "column c: "),
    ],
)
def test_values_that_debezium_does_not_have_are_refused(
    kind: FieldType, column: dict[str, Any], value: object, words: str
) -> None:
    with pytest.raises(MessageError, match=r"^t\[0\] offset 0: .*" + words):
        read_debezium(kind, debezium({"id": 1, "c": value}), **column)


def test_rows_of_debezium() -> None:
    """A NULL TIMESTAMP stays one whose default is the present. Equal rows without a key are rows of their own."""
    stamp, row = FieldType(Tp.TIMESTAMP), debezium({"id": 1, "c": None})
    keyless = row._replace(key=b'{"payload":{}}')
    assert key_of(cast("RowEvent", make_decoder(DEBEZIUM).decode(keyless.key, keyless.value)[0])) is None
    assert read_debezium(stamp, row, row, **NOW) == [{"id": "1"}]
    assert read_debezium(stamp, keyless, keyless._replace(offset=1), **NOW) == [{"id": "1"}] * 2
    with pytest.raises(MessageError, match="an update without before; the changefeed needs output-old-value=true"):
        read_debezium(stamp, debezium({"id": 1, "c": None}, "u"))
    with pytest.raises(MessageError, match="x is not in the schema"):
        read_debezium(stamp, debezium({"id": 1, "x": 1}))
    with pytest.raises(MessageError, match="column c is not in the message"):
        read_debezium(stamp, debezium({"id": 1}))
    heads = heads_of(DEBEZIUM)
    assert heads(None, row.value) == [RowHead(5, RowTable("d", "t"))]
    assert heads(None, debezium(op="m").value) == [ResolvedEvent(5)]
    assert heads(None, debezium(op=None, ddl="q").value) == [DdlEvent(5, "d", "t", "q")]
    for schema, words in (({"tidb_type": "int"}, None), ({}, "neither DDLs nor resolved events; it needs enable-tidb")):
        fields = [{"field": "before", "fields": [schema]}]
        value = json.dumps({**json.loads(row.value or b""), "schema": {"fields": fields}}).encode()
        with pytest.raises(MessageError, match=words) if words else nullcontext():
            assert heads(None, value) == [RowHead(5, RowTable("d", "t"))]
    for op in ("c", "m", None):
        with pytest.raises(MessageError, match="source: no member 'commit_ts'"):
            heads(None, debezium(op=op, ddl="q", source={"db": "d", "table": "t"}).value)


def test_every_cut_of_a_message_is_refused() -> None:
    column = {"u": {"id": {"t": 8, "f": 2, "v": 1}}}
    key, value = message([({"ts": 5, "t": 3}, None), ({"ts": 9, "scm": "d", "tbl": "t", "t": 1}, column)])
    heads = heads_of(ProtocolOptions("open-protocol"))
    assert heads(key, value) == [ResolvedEvent(5), RowHead(9, RowTable("d", "t"))]
    canal = heads_of(ProtocolOptions("canal-json", enable_tidb_extension=True))
    text = b'{"type":"INSERT","isDdl":false,"database":"d","table":"t","_tidb":{"commitTs":7}}'
    ddl = b'{"type":"INSERT","isDdl":true,"database":"d","table":"t","sql":"q","_tidb":{"commitTs":7}}'
    assert (canal(None, text), canal(None, ddl)) == ([RowHead(7, RowTable("d", "t"))], [DdlEvent(7, "d", "t", "q")])
    for at in range(len(key) + len(value)):
        with pytest.raises(MessageError):
            heads(key[:at], value[: max(at - len(key), 0)] if at >= len(key) else value)
        with pytest.raises(MessageError):
            canal(None, text[: at % len(text)])
    whole = debezium({"id": 1}).value or b""
    for at in range(len(whole)):
        with pytest.raises(MessageError):
            heads_of(DEBEZIUM)(None, whole[:at])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", r'source: "ticdc" needs \[ticdc-source\] uri = "kafka://host:9092/topic'),
        ("?protocol=open-protocol", r"needs \[schema\] history-url, the status port of a TiDB server, or history-file"),
        (
            "?protocol=avro&schema-registry=http://r",
            "of avro cannot be a drainer's source: .* open-protocol, canal-json",
        ),
        ("?protocol=debezium", "debezium .* no resolved events, .* add enable-tidb-extension=true"),
        (
            "?protocol=debezium&enable-tidb-extension=true&output-old-value=false",
            "messages of debezium need output-old-value=true",
        ),
        ("?protocol=canal-json", "canal-json .* no resolved events, .* add enable-tidb-extension=true"),
        ("?protocol=csv", "protocol"),
    ],
)
def test_a_source_that_lacks_something_is_refused(lines: str, words: str, tmp_path: Any) -> None:
    history = "" if "history" in words else '[schema]\nhistory-file = "h"\n'
    uri = "kafka://k:9092/t" + lines if lines else ""
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, f'source = "ticdc"\n{history}[ticdc-source]\nuri = "{uri}"\n').check()
    with pytest.raises(ConfigError, match=r"the option source needs history-url or history-file"):
        SourceOptions.parse({"source": "kafka://k:9092/t"})
