"""Rows of messages as binlogs, names of tables, and what is refused with words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from binlog import envelope
from binlog.errors import ConfigError
from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexColumn, IndexInfo
from binlog.tidb.job import ActionType
from binlog.tidb.mutation import parse_prewrite
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from binlog.tidb.unflatten import to_text

from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import ColumnFlag
from drainer.schema.history.base import JobHistory
from drainer.spark.source.options import SourceOptions
from drainer.ticdc.binlogs import RowEncoder
from drainer.ticdc.partition import RowHead, heads_of
from drainer.ticdc.pull import PartitionRange, _Translation
from drainer.ticdc.tables import NamedTable, job_of, named_tables, packed
from tests.support.memory_records import message
from tests.support.schema_case import job, table
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


def test_every_cut_of_a_message_is_refused() -> None:
    column = {"u": {"id": {"t": 8, "f": 2, "v": 1}}}
    key, value = message([({"ts": 5, "t": 3}, None), ({"ts": 9, "scm": "d", "tbl": "t", "t": 1}, column)])
    heads = heads_of(ProtocolOptions("open-protocol"))
    assert heads(key, value) == [ResolvedEvent(5), RowHead(9, "d", "t")]
    canal = heads_of(ProtocolOptions("canal-json", enable_tidb_extension=True))
    text = b'{"type":"INSERT","isDdl":false,"database":"d","table":"t","_tidb":{"commitTs":7}}'
    ddl = b'{"type":"INSERT","isDdl":true,"database":"d","table":"t","sql":"q","_tidb":{"commitTs":7}}'
    assert (canal(None, text), canal(None, ddl)) == ([RowHead(7, "d", "t")], [DdlEvent(7, "d", "t", "q")])
    for at in range(len(key) + len(value)):
        with pytest.raises(MessageError):
            heads(key[:at], value[: max(at - len(key), 0)] if at >= len(key) else value)
        with pytest.raises(MessageError):
            canal(None, text[: at % len(text)])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", r'source: "ticdc" needs \[ticdc-source\] uri = "kafka://host:9092/topic'),
        ("?protocol=simple", r"needs \[schema\] history-url, the status port of a TiDB server, or history-file"),
        (
            "?protocol=avro&schema-registry=http://r",
            "of avro cannot be a drainer's source: .* open-protocol, canal-json",
        ),
        ("?protocol=debezium", "messages of debezium cannot be .* open-protocol, canal-json or simple"),
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
