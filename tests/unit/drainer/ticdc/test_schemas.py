"""Simple's messages as DDL jobs, and rows that wait for a message with their schema."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster import tso
from binlog.errors import ConfigError, PumpUnavailable
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, ReadError, Record
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import MessageError
from drainer.protocol.json_read import Reader
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.simple.avro_schema import read_document, write_document
from drainer.protocol.simple.encoder import table_schema
from drainer.protocol.table import Table
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.state import Schema
from drainer.service.daemon import job_sources
from drainer.ticdc.partition import (
    Message,
    PartitionIndex,
    PartitionPump,
    RowHead,
    Rows,
    RowTable,
    SchemaHead,
    heads_of,
)
from drainer.ticdc.tables import MessageSchemas, TopicHistory, kind_of, table_info, unpacked
from tests.support.examples import FEW
from tests.support.memory_etcd import MemoryEtcd
from tests.support.memory_records import RecordsReader
from tests.unit.drainer.test_config import loaded

AT = KafkaPartition("t", 0)
SIMPLE = ProtocolOptions("simple", send_bootstrap_interval_in_sec=0)
TIMES = {Tp.DATETIME: 19, Tp.TIMESTAMP: 19, Tp.DURATION: 10}
TEXTS = (Tp.VARCHAR, Tp.STRING, Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB)
NUMBERS = (Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR, Tp.NEWDECIMAL, *sorted(FLOATS))
A = ActionType


@st.composite
def kinds(draw: st.DrawFn) -> FieldType:
    tp = draw(st.sampled_from([*NUMBERS, *TEXTS, *TIMES, Tp.DATE, Tp.BIT, Tp.JSON, Tp.ENUM, Tp.SET]))
    flag, flen, decimal = Flag.NOT_NULL * draw(st.booleans()), draw(st.integers(1, 64)), -(tp in FLOATS)
    if tp in NUMBERS:
        flag |= draw(st.sampled_from([0, Flag.UNSIGNED, Flag.UNSIGNED | Flag.ZEROFILL]))
    if tp is Tp.NEWDECIMAL:
        decimal = draw(st.integers(0, 30))
    if tp in TIMES:
        decimal = draw(st.integers(0, 6))
        flen = TIMES[tp] + (decimal + 1) * bool(decimal)
    charset = draw(st.sampled_from(["utf8mb4", "binary"])) if tp in TEXTS else "binary"
    elems = ("a", "b,c") if tp in (Tp.ENUM, Tp.SET) else ()
    return FieldType(tp, int(flag), flen, decimal, charset, f"{charset}_bin", elems)


def made(types: list[FieldType], default: str | None = None) -> TableInfo:
    """A table with a key that is the handle, and an index of each further column."""
    key = ColumnInfo(1, "Id", 0, FieldType(Tp.LONG, Flag.NOT_NULL | Flag.PRI_KEY, 11, 0))
    columns = [key]
    for at, kind in enumerate(types, 1):
        bits = b"\x00" * ((kind.flen + 7) // 8) if kind.tp is Tp.BIT and default is not None else None
        own = None if kind.tp is Tp.BIT else default
        columns.append(ColumnInfo(at + 1, f"c{at}", at, kind, default=own, default_bit=bits))
    indexes = [
        IndexInfo(at, f"k{at}", (IndexColumn(f"c{at}", at), IndexColumn("Id", 0)), unique=at % 2 == 0)
        for at in range(1, len(columns))
    ]
    return TableInfo(
        104, "t", tuple(columns), tuple(indexes), charset="", collate="", pk_is_handle=True,
        max_column_id=len(columns), max_index_id=len(indexes), update_timestamp=50,
    )  # fmt: skip


def table(info: TableInfo, schema: str = "d") -> Table:
    return Table(schema, info, (), 3, 3)


@given(st.lists(kinds(), max_size=4), st.sampled_from([None, "0", "CURRENT_TIMESTAMP"]), st.booleans())
@FEW
def test_every_type_comes_back_from_a_message(types: list[FieldType], default: str | None, is_avro: bool) -> None:
    info = made(types, default)
    document: dict[str, Any] = {"schema": table_schema(table(info), of_avro=is_avro)}
    if is_avro:
        boot = {"version": 1, "type": "BOOTSTRAP", "buildTs": 1, "tableSchema": document["schema"]}
        document["schema"] = read_document(write_document(boot))["tableSchema"]
    found = table_info(Reader(document, "message").needed("schema"))
    assert found == info
    assert table_info(Reader(document, "message").needed("schema"), info) == info


def broken(document: Any, part: Any) -> Iterator[Any]:
    """Copies of a document without one of its members, or with another value there."""
    for name in list(part) if isinstance(part, dict) else range(len(part)):
        value = part[name]
        for other in (None, {}, "x", [3], -1 << 70, 1.5, True):
            part[name] = other
            yield copy.deepcopy(document)
        part.pop(name)
        yield copy.deepcopy(document)
        part[name] = value
        if isinstance(value, dict | list):
            yield from broken(document, value)
        if isinstance(part, list):
            return


def test_a_corrupt_schema_is_a_message_error_or_a_schema() -> None:
    types = [FieldType(Tp.BIT, 0, 9, 0), FieldType(Tp.ENUM, 0, 1, 0, elems=("a",)), FieldType(Tp.NEWDECIMAL, 0, 9, 3)]
    document = table_schema(table(made(types, "5")), of_avro=False)
    refused = 0
    for one in broken(document, document):
        try:
            assert isinstance(table_info(Reader(one, "m")), TableInfo)
        except MessageError as error:
            refused += 1
            assert str(error).startswith("m")
    assert refused > 150
    heads = heads_of(SIMPLE)
    (message,) = make_encoder(SIMPLE).bootstrap(table(made(types)), 9)
    for end in range(len(message.value or b"")):
        with pytest.raises(MessageError):
            heads(None, (message.value or b"")[:end])


@pytest.mark.parametrize(
    ("of", "query", "kind"),
    [
        ("CREATE", "create table `table` (id int)", A.CREATE_TABLE),
        ("CINDEX", "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p (id)", A.ADD_FOREIGN_KEY),
        ("DINDEX", "ALTER TABLE t DROP PRIMARY KEY", A.DROP_PRIMARY_KEY),
        ("DINDEX", "DROP INDEX k ON t", A.DROP_INDEX),
        ("ALTER", "ALTER TABLE `d`.`t` ADD COLUMN `c` INT", A.ADD_COLUMN),
        ("ALTER", "/* why */ alter table t drop column c", A.DROP_COLUMN),
        ("ALTER", "ALTER TABLE t RENAME COLUMN a TO b", A.MODIFY_COLUMN),
        ("ALTER", "ALTER TABLE t DROP COLUMN a, DROP COLUMN b", A.MULTI_SCHEMA_CHANGE),
        ("ALTER", "ALTER TABLE t TRUNCATE PARTITION p0, p1", A.TRUNCATE_TABLE_PARTITION),
        ("ALTER", "ALTER TABLE t COMMENT = 'x'", A.MULTI_SCHEMA_CHANGE),
        ("ALTER", "ALTER TABLE", A.MULTI_SCHEMA_CHANGE),
        ("QUERY", "CREATE DATABASE IF NOT EXISTS `d`", A.CREATE_SCHEMA),
        ("QUERY", "alter schema d charset utf8mb4", A.MODIFY_SCHEMA_CHARSET_AND_COLLATE),
        ("QUERY", "CREATE DEFINER = `u`@`%` SQL SECURITY DEFINER VIEW v AS SELECT 1", A.CREATE_VIEW),
        ("QUERY", "FLASHBACK TABLE t TO u", A.RECOVER_TABLE),
        ("QUERY", "FLASHBACK DATABASE d", A.NONE),
        ("QUERY", "", A.NONE),
    ],
)
def test_kind_of_a_ddl(of: str, query: str, kind: ActionType) -> None:
    assert kind_of(of, query) is kind


class Topic:
    """Messages, and the jobs that are made of them."""

    def __init__(self) -> None:
        self.schemas = MessageSchemas()
        self._encoder = make_encoder(SIMPLE)
        self._heads = heads_of(SIMPLE)

    def boot(self, info: TableInfo) -> list[Job]:
        return self._learned([one.value for one in self._encoder.bootstrap(table(info), 9)])

    def ddl(self, ts: int, kind: A, query: str, after: TableInfo | None, before: TableInfo | None = None) -> list[Job]:
        of = [None if one is None else table(one) for one in (before, after)]
        found = Ddl(ts, ts, "d", "t" if after or before else "", query, int(kind), of[0], of[1])
        return self._learned([one.value for one in self._encoder.ddl(found)])

    def _learned(self, values: list[bytes | None]) -> list[Job]:
        known = self.schemas.size
        for value in values * 2:  # from two partitions
            for head in self._heads(None, value):
                if isinstance(head, SchemaHead):
                    self.schemas.learn(head.message)
        return asyncio.run(self.schemas.refresh())[known:]

    def version(self, info: TableInfo) -> int | None:
        return self.schemas.version_of(RowTable("d", info.name, info.update_timestamp))


def test_jobs_of_a_table_from_its_first_schema_on() -> None:
    topic = Topic()
    first = made([FieldType(Tp.LONG, 0, 11, 0)])
    (base,) = topic.boot(first)
    assert (base.type, base.finished_ts, base.table_info, topic.version(first)) == (A.CREATE_TABLE, 50, first, 50)
    assert base.by_text and not base.query and base.id > 1 << 60
    assert topic.boot(first) == topic.boot(replace(first, update_timestamp=49)) == []

    wide = replace(made([FieldType(Tp.LONG, 0, 11, 0)] * 2), update_timestamp=60)
    narrow = replace(
        wide, columns=(wide.columns[0], replace(wide.columns[2], offset=1)), indexes=(), update_timestamp=70
    )
    (add,) = topic.ddl(61, A.ADD_COLUMN, "ALTER TABLE t ADD COLUMN c2 INT", wide, first)
    assert (add.id, add.schema_version, add.finished_ts, add.start_ts) == (61, 61, 61, 61 - tso.compose(60_000))
    (drop,) = topic.ddl(71, A.DROP_COLUMN, "ALTER TABLE t DROP COLUMN c1", narrow, wide)
    assert drop.table_info is not None and [one.id for one in drop.table_info.columns] == [1, 3]
    assert drop.type is A.DROP_COLUMN
    (add,) = topic.ddl(81, A.ADD_COLUMN, "ALTER TABLE t ADD COLUMN c1 INT", replace(wide, update_timestamp=80), narrow)
    assert add.table_info is not None and [one.id for one in add.table_info.columns] == [1, 4, 3]
    assert topic.boot(replace(wide, update_timestamp=80)) == []

    other = replace(wide, name="u", update_timestamp=90)
    (rename,) = topic.ddl(91, A.RENAME_TABLE, "RENAME TABLE t TO u", other, replace(wide, update_timestamp=80))
    assert (rename.type, rename.table_id, rename.table_name) == (A.RENAME_TABLE, 104, "u")
    empty = replace(other, id=105, update_timestamp=100)
    (truncate,) = topic.ddl(101, A.TRUNCATE_TABLE, "TRUNCATE TABLE u", empty, other)
    assert truncate.table_info is not None
    assert (truncate.table_id, truncate.table_info.id) == (104, 105)
    (gone,) = topic.ddl(111, A.DROP_TABLE, "DROP TABLE u", None, empty)
    assert (gone.type, gone.table_id) == (A.DROP_TABLE, 105)
    assert topic.boot(empty) == []  # from a partition that is behind
    assert topic.version(empty) == 101
    assert [topic.version(one) for one in (first, wide, other)] == [50, 61, 91]


def test_a_schema_whose_ddl_is_in_no_message_replaces_the_table() -> None:
    topic = Topic()
    first = made([])
    topic.boot(first)
    (changed,) = topic.boot(replace(made([FieldType(Tp.LONG, 0, 11, 0)]), update_timestamp=60))
    assert (changed.type, changed.finished_ts) == (A.MULTI_SCHEMA_CHANGE, 60)
    (again,) = topic.boot(replace(first, id=105, update_timestamp=70))
    assert (again.type, again.table_id) == (A.TRUNCATE_TABLE, 104)
    base, alter = topic.ddl(90, A.ADD_COLUMN, "ALTER TABLE u ADD COLUMN c1 INT", replace(first, name="u", id=7),
                            replace(first, name="u", id=7))  # fmt: skip
    assert (base.type, base.table_id, alter.table_id) == (A.CREATE_TABLE, 7, 7)


def test_databases_and_two_messages_of_one_job() -> None:
    topic = Topic()
    (plain,) = topic.ddl(10, A.CREATE_SCHEMA, "CREATE DATABASE IF NOT EXISTS `d`", None)
    assert plain.db_info is not None
    assert (plain.db_info.name, plain.db_info.collate, plain.by_text) == ("d", "utf8mb4_bin", False)
    (said,) = topic.ddl(11, A.CREATE_SCHEMA, "CREATE DATABASE d COLLATE utf8mb4_general_ci", None)
    assert said.by_text and said.schema_id == plain.schema_id
    info = made([])
    jobs = [*topic.ddl(20, A.CREATE_TABLE, "CREATE TABLE t (id INT)", info)]
    jobs += topic.ddl(20, A.CREATE_TABLE, "CREATE TABLE u (id INT)", replace(info, id=9, name="u"))
    assert [job.id for job in jobs] == [20, 21]
    (gone,) = topic.ddl(60, A.DROP_SCHEMA, "DROP DATABASE d", None)
    assert (gone.type, topic.boot(info)) == (A.DROP_SCHEMA, [])
    with pytest.raises(MessageError, match=r"FLASHBACK DATABASE d\): its message does not say what .* history-url"):
        topic.ddl(40, A.RECOVER_SCHEMA, "FLASHBACK DATABASE d", None)


def columns_of(jobs: list[Job]) -> list[tuple[str, int]]:
    (job,) = jobs
    return [(one.name, one.id) for one in job.table_info.columns] if job.table_info is not None else []


def table_with(ts: int, *names: str, name: str = "t", table_id: int = 104) -> TableInfo:
    key, *others = made([FieldType(Tp.LONG, 0, 11, 0)] * len(names)).columns
    columns = (key, *(replace(one, name=name) for one, name in zip(others, names, strict=True)))
    return replace(made([]), id=table_id, name=name, columns=columns, update_timestamp=ts)


def test_ddls_that_another_partition_has_from_further_back_change_nothing_newer() -> None:
    topic, alter = Topic(), "ALTER TABLE t ADD COLUMN c INT"
    wide, later = table_with(70, "a", "b", "c"), table_with(76, "a", "c")
    topic.ddl(71, A.ADD_COLUMN, alter, wide, table_with(60, "a", "b"))
    topic.ddl(77, A.DROP_COLUMN, "ALTER TABLE t DROP COLUMN b", later, wide)
    (old,) = topic.ddl(
        61, A.ADD_COLUMN, "ALTER TABLE t ADD COLUMN b INT", table_with(60, "a", "b"), table_with(50, "a")
    )
    assert (old.id, old.schema_version, topic.version(table_with(60))) == (61, 61, 61)
    found = topic.ddl(81, A.ADD_COLUMN, "ALTER TABLE t ADD COLUMN d INT", table_with(80, "a", "c", "d"), later)
    assert columns_of(found) == [("Id", 1), ("a", 2), ("c", 4), ("d", 5)]

    topic.boot(table_with(85, "x", "y", name="u", table_id=8))
    passed = [
        topic.ddl(47, A.CREATE_TABLE, "CREATE TABLE t (Id INT)", table_with(46)),
        topic.ddl(49, A.DROP_TABLE, "DROP TABLE t", table_with(40, "x", table_id=9)),
        topic.ddl(48, A.RENAME_TABLE, "RENAME TABLE t TO u", table_with(47, "x", name="u", table_id=8),
                  table_with(39, "x", table_id=8)),
        topic.ddl(46, A.TRUNCATE_TABLE, "TRUNCATE TABLE t", table_with(45), table_with(38, table_id=7)),
        topic.ddl(45, A.DROP_SCHEMA, "DROP DATABASE d", None),
    ]  # fmt: skip
    assert [(job.type, job.finished_ts) for (job,) in passed] == [(A.LOCK_TABLE, ts) for ts in (47, 49, 48, 46, 45)]
    schema = Schema.open(JobHistory(), position_ts=1000, policy=Policy())  # where jobs take effect as they come
    for job in asyncio.run(topic.schemas.refresh()):
        schema.learn([job])
    assert {at: len(one.current.columns) for at, one in schema.catalog.tables.items()} == {104: 4, 8: 3}
    found = topic.ddl(91, A.DROP_COLUMN, "ALTER TABLE t DROP COLUMN c", table_with(90, "a", "d"),
                      table_with(80, "a", "c", "d"))  # fmt: skip
    assert (found[0].table_id, columns_of(found)) == (104, [("Id", 1), ("a", 2), ("d", 5)])


def test_tables_that_exchange_their_names_keep_their_columns() -> None:
    """TiCDC's messages have each table's name as it was before the whole statement."""
    topic = Topic()
    one, other = table_with(50, "a", "b", "c"), table_with(51, "x", "c", name="u", table_id=9)
    topic.boot(one)
    topic.boot(other)
    one = table_with(60, "a", "c")
    topic.ddl(61, A.DROP_COLUMN, "ALTER TABLE t DROP COLUMN b", one, table_with(50, "a", "b", "c"))
    renamed = [
        topic.ddl(71, A.RENAME_TABLE, f"RENAME TABLE `d`.`{old}` TO `d`.`{new}`", replace(info, name=new,
                  update_timestamp=70), info)
        for old, new, info in [("t", "tmp", one), ("u", "t", other), ("tmp", "u", one)]
    ]  # fmt: skip
    assert [jobs[0].table_id for jobs in renamed] == [104, 9, 104]
    assert columns_of(renamed[2]) == [("Id", 1), ("a", 2), ("c", 4)]
    found = topic.ddl(81, A.DROP_COLUMN, "ALTER TABLE t DROP COLUMN x", table_with(80, "c", table_id=9),
                      replace(other, name="t", update_timestamp=70))  # fmt: skip
    assert (found[0].table_id, columns_of(found)) == (9, [("Id", 1), ("c", 3)])
    (created,) = topic.ddl(91, A.CREATE_TABLE, "CREATE TABLE t (Id INT)", table_with(90, table_id=10))  # DROP left out
    assert created.table_id == 10


def row_of(offset: int, ts: int, version: int) -> Rows:
    found = Rows()
    found.add(offset, 8, ts, RowTable("d", "t", version))
    return found


def test_a_row_waits_for_its_schema_and_nothing_passes_it() -> None:
    known: dict[int, int] = {1: 5}
    index = PartitionIndex(0, lambda of, _: known.get(of.version))
    resolved = heads_of(SIMPLE)(None, make_encoder(SIMPLE).resolved(31)[0].value)
    for offset, (ts, version) in enumerate([(20, 2), (10, 1), (30, 1)]):
        assert not len(index.add(row_of(offset, ts, version)))
    assert index.add(Message(3, 8, resolved))["commit_ts"].tolist() == [10]
    assert (index.resolved_ts, index.due().tolist()) == (19, [])
    assert index.unread == (0, RowHead(20, RowTable("d", "t", 2)))
    assert not len(index.add(row_of(4, 30, 1)))  # once more
    known[2] = 6
    assert index.due()[["commit_ts", "schema_version"]].tolist() == [(20, 6), (30, 5)]
    assert index.resolved_ts == 30 and index.unread is None


def test_a_partition_is_read_on_while_a_schema_is_missing() -> None:
    """The bootstrap message comes behind the row, as after a DDL that the changefeed leaves out."""
    encoder, info = make_encoder(SIMPLE), made([])
    row = b'{"version":1,"database":"d","table":"t","type":"INSERT","commitTs":60,"schemaVersion":50,"data":{}}'
    parts = [row, encoder.resolved(70)[0].value, encoder.bootstrap(table(info), 70)[0].value]
    reader = RecordsReader([Record(AT, at, None, value) for at, value in enumerate(parts)])

    async def read(end: int) -> PartitionPump:
        history = TopicHistory([MessageSchemas()])
        address = KafkaAddress("t", SIMPLE, {})
        pump = PartitionPump(AT, address, history, open_reader=lambda *_: reader)  # type: ignore[arg-type, return-value]
        reader.end = end
        with suppress(ReadError):
            await pump._read()
        return pump

    pump = asyncio.run(read(2))
    assert (pump.resolved_ts, len(pump._binlogs)) == (59, 0)
    assert pump._error is not None
    pump = asyncio.run(read(3))
    assert (pump.resolved_ts, pump._binlogs.all()["schema_version"].tolist()) == (69, [50])
    found = unpacked(pump._history.packed()).at("d", "t", 60)
    assert found is not None and found.info == info
    assert pump._history.lacks(asyncio.run(pump._history.schemas.refresh())[0])  # type: ignore[union-attr]


def test_reading_begins_before_the_position_and_says_which_schema_is_missing() -> None:
    topic_history = TopicHistory([MessageSchemas()])
    row = b'{"version":1,"database":"d","table":"t","type":"INSERT","commitTs":%d,"schemaVersion":5,"data":{}}'
    ts = tso.compose(1_000_000)
    values = [row % (ts + 1), make_encoder(SIMPLE).resolved(ts + 2)[0].value]
    reader = RecordsReader([Record(AT, at, None, value) for at, value in enumerate([b"", b"", *values])])
    reader.times_ms = [800_000, 920_000, 990_000, 990_000]
    address = KafkaAddress("t", SIMPLE, {})
    pump = PartitionPump(AT, address, topic_history, open_reader=lambda *_: reader)  # type: ignore[arg-type, return-value]
    _, index, _ = pump._opened(ts)
    assert reader._next == 1  # 60 s for the clocks, and 30 s in which a schema may be late
    for at, value in enumerate(values, 2):
        index.add(Message(at, 8, heads_of(SIMPLE)(None, value)))
    pump._unread_s = -100.0
    pump._check_unread(index)
    assert isinstance(pump._error, PumpUnavailable)
    assert "offset 2: no message has the schema of `d`.`t`, version 5" in str(pump._error)
    assert "send-bootstrap-interval-in-sec is 0" in str(pump._error)
    pump._unread_s, index._unread = -100.0, {}
    pump._check_unread(index)  # the schema has just come


def test_what_needs_tidbs_history_is_refused(tmp_path: Path) -> None:
    text = 'source = "ticdc"\n[ticdc-source]\nuri = "kafka://k:9092/t?protocol=simple"\n'
    config, schemas = loaded(tmp_path, text), MessageSchemas()
    config.check()
    assert job_sources(config, MemoryEtcd(), schemas) == [schemas]
    with pytest.raises(ConfigError, match=r"history-url: without it, schemas come while topics are read"):
        job_sources(config, MemoryEtcd())
    with pytest.raises(ConfigError, match=r"first-load or check-interval needs \[schema\] history-url"):
        loaded(tmp_path, f'{text}[upstream]\nhost = "tidb"\nfirst-load = true\n').check()
