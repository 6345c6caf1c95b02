"""The schema in TiKV's meta data, and what it is used for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from binlog.cluster import tso
from binlog.tidb.datum import encode_int
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.key import META_LIST, META_STRING, meta_hash_key, meta_prefix, record_key
from binlog.tidb.table import DBInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp

from drainer.config import Config
from drainer.schema.history.base import JobHistory
from drainer.schema.history.snapshot import SETTLED_MS, SchemaSnapshot, SnapshotUnusable, read_snapshot
from drainer.schema.history.sources import UrlSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.service.daemon import snapshot_reader
from tests.support.schema_case import job, table
from tests.support.stub_tikv import ScannedTiKV

GC_TS = 100_000_000 << 18
POSITION_TS = GC_TS + tso.compose(SETTLED_MS)
VERSION = 300
JOB_TABLE_ID = (1 << 48) - 2


def text(document: Any) -> bytes:
    return json.dumps(document.to_json()).encode()


def running(kind: ActionType, state: JobState = JobState.RUNNING, job_id: int = 40) -> Job:
    return replace(
        job(job_id, kind, 0, table_id=10, table_info=None), state=state, finished_ts=0, start_ts=GC_TS - 1, schema_id=2
    )


def job_table() -> TableInfo:
    made = table(JOB_TABLE_ID, "tidb_ddl_job", ["job_id", "job_meta#5"])
    blob = replace(made.columns[1], type=FieldType(tp=Tp.LONG_BLOB))
    return replace(made, columns=(made.columns[0], blob))


def row_of(document: bytes) -> bytes:
    """Row format 2 with the one column 5."""
    return b"\x80\x01" + b"\x01\0\0\0" + (5).to_bytes(4, "little") + len(document).to_bytes(4, "little") + document


def diff_key(version: int) -> bytes:
    return meta_prefix(b"Diff:%d" % version, META_STRING)


@pytest.fixture
async def tikv() -> AsyncIterator[ScannedTiKV]:
    stub = await ScannedTiKV.start()
    stub.safepoints = [GC_TS]
    stub.data = {meta_prefix(b"SchemaVersionKey", META_STRING): str(VERSION).encode()}
    stub.data[diff_key(VERSION)] = b"{}"
    stub.data |= {meta_hash_key(b"DBs", b"DB:%d" % d.id): text(d) for d in (DBInfo(1, "mysql"), DBInfo(2, "d"))}
    for schema_id, info in ((1, job_table()), (2, table(10, "t", ["a", "b"])), (2, table(11, "u"))):
        stub.data[meta_hash_key(b"DB:%d" % schema_id, b"Table:%d" % info.id)] = text(info)
        stub.data[meta_hash_key(b"DB:%d" % schema_id, b"TID:%d" % info.id)] = b"30000"
    yield stub
    await stub.close()


def queue(tikv: ScannedTiKV, *jobs: Job, listed: bytes = b"") -> None:
    for each in jobs:
        at = meta_prefix(listed, META_LIST) + encode_int(each.id) if listed else record_key(JOB_TABLE_ID, each.id)
        tikv.data[at] = text(each) if listed else row_of(text(each))


async def test_snapshot_has_databases_tables_and_version_at_the_gc_safepoint(tikv: ScannedTiKV) -> None:
    found = await read_snapshot([tikv.addr])
    assert (found.ts, found.version, found.running) == (GC_TS, VERSION, ())
    assert {ts for ts, _ in tikv.scanned} == {GC_TS}
    catalog = found.catalog()
    assert {i: found.name for i, found in catalog.schemas.items()} == {1: "mysql", 2: "d"}
    shown = {i: (t.schema, t.name, t.versions) for i, t in catalog.tables.items()}
    names = {10: ("d", "t"), 11: ("d", "u"), JOB_TABLE_ID: ("mysql", "tidb_ddl_job")}
    assert shown == {i: (*name, (VERSION,)) for i, name in names.items()}


async def test_version_whose_job_was_not_committed_is_not_in_the_snapshot(tikv: ScannedTiKV) -> None:
    del tikv.data[diff_key(VERSION)]
    found = await read_snapshot([tikv.addr])
    assert [found.has(job(1, ActionType.CREATE_TABLE, version)) for version in (VERSION - 1, VERSION)] == [True, False]


@pytest.mark.parametrize("listed", [b"", b"DDLJobList", b"DDLJobAddIdxList"])
async def test_running_jobs_are_read_from_the_table_or_the_lists(tikv: ScannedTiKV, listed: bytes) -> None:
    queue(tikv, running(ActionType.ADD_COLUMN), running(ActionType.DROP_TABLE, job_id=41), listed=listed)
    found = await read_snapshot([tikv.addr])
    assert [(j.id, j.type) for j in found.running] == [(40, ActionType.ADD_COLUMN), (41, ActionType.DROP_TABLE)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.safepoints.__setitem__(0, 0), "no GC safepoint"),
        (lambda t: t.safepoints.append(GC_TS + 1), "GC began"),
        (lambda t: t.data.__setitem__(meta_prefix(b"SchemaVersionKey", META_STRING), b"x"), "schema version"),
        (lambda t: t.data.pop(meta_prefix(b"SchemaVersionKey", META_STRING)), "schema version"),
        (lambda t: t.data.__setitem__(meta_hash_key(b"DBs", b"DB:2"), b"{"), "DBInfo"),
        (lambda t: t.data.__setitem__(meta_hash_key(b"DB:2", b"Table:10"), b"[]"), "TableInfo"),
        (lambda t: t.data.__setitem__(meta_hash_key(b"DB:2", b"Table:10") + b"?", b"{}"), "bytes after the key"),
        (lambda t: t.data.__setitem__(record_key(JOB_TABLE_ID, 1), b"\x80\0\0\0\0\0"), "without job_meta"),
        (lambda t: t.data.__setitem__(record_key(JOB_TABLE_ID, 1), row_of(b"{")), "Job"),
    ],
)
async def test_unreadable_schema_is_unusable_with_the_reason(
    tikv: ScannedTiKV, change: Callable[[ScannedTiKV], object], why: str
) -> None:
    change(tikv)
    with pytest.raises(SnapshotUnusable, match=why):
        await read_snapshot([tikv.addr])


async def test_server_that_is_no_pd_has_no_snapshot() -> None:
    with pytest.raises(SnapshotUnusable, match=r"127\.0\.0\.1:1"):
        await read_snapshot(["127.0.0.1:1"])


def snapshot(*jobs: Job, info: TableInfo | None = None) -> SchemaSnapshot:
    return SchemaSnapshot(GC_TS, VERSION, (DBInfo(2, "d"),), ((2, info or table(10, "t", ["a", "b"])),), jobs)


def test_snapshot_serves_for_positions_well_after_it() -> None:
    assert snapshot().catalog_for(POSITION_TS, JobHistory()).schema_name(2) == "d"
    with pytest.raises(SnapshotUnusable, match="no longer has the schema"):
        snapshot().catalog_for(POSITION_TS - 1, JobHistory())


def test_jobs_that_began_shortly_before_the_snapshot_are_read_too() -> None:
    """Such a job may have been queued after it."""
    assert not snapshot().is_after(GC_TS - tso.compose(SETTLED_MS))
    assert snapshot().is_after(GC_TS - tso.compose(SETTLED_MS + 1))


def test_history_begins_with_the_version_of_the_snapshot() -> None:
    history = JobHistory()
    history.begins_after = VERSION
    assert history.greatest_version == VERSION
    (first,) = history.add([job(1, ActionType.DROP_TABLE_PARTITION, VERSION + 2)])
    assert (history.version_before(first), history.greatest_version) == (VERSION, VERSION + 2)


async def test_tables_known_before_the_snapshot_are_those_not_changed_since() -> None:
    provider = await opened(Port(), POSITION_TS, snapshot(info=replace(table(10, "t"), update_timestamp=GC_TS - 5)))
    assert [(await provider.known(GC_TS - ago)).tables for ago in (6, 5)] == [(), (("d", "t"),)]


def test_snapshot_does_not_serve_if_a_database_was_recovered_after_it() -> None:
    """The tables that were dropped before are in no job after it."""
    recovered = job(50, ActionType.RECOVER_SCHEMA, VERSION + 1, schema=(3, "back"))
    with pytest.raises(SnapshotUnusable, match="FLASHBACK DATABASE"):
        snapshot().catalog_for(POSITION_TS, JobHistory([recovered]))


def test_index_that_is_being_added_is_not_in_the_catalog() -> None:
    info = table(10, "t", ["a", "b", "_V$_late_0!3"])
    late = IndexInfo(id=2, name="late", columns=(IndexColumn("b", 1),), unique=True, state=SchemaState.WRITE_ONLY)
    there = IndexInfo(id=1, name="there", columns=(IndexColumn("a", 0),), unique=True)
    found = snapshot(running(ActionType.ADD_INDEX), info=replace(info, indexes=(there, late)))
    at = found.catalog_for(POSITION_TS, JobHistory()).tables[10].current
    assert ([c.name for c in at.columns], [i.name for i in at.indexes]) == (["a", "b"], ["there"])


@pytest.mark.parametrize(
    ("each", "ended_ts", "usable"),
    [
        (running(ActionType.DROP_COLUMN), 0, False),
        (running(ActionType.DROP_COLUMN), GC_TS + 5, True),
        (running(ActionType.DROP_COLUMN), GC_TS + 6, False),
        (running(ActionType.DROP_COLUMN, JobState.QUEUEING), 0, True),
        (running(ActionType.DROP_COLUMN, JobState.NONE), 0, True),
        (running(ActionType.ADD_INDEX, JobState.ROLLINGBACK), 0, False),
        (running(ActionType.ADD_INDEX, JobState.DONE), 0, False),
    ],
)
def test_job_that_had_begun_must_have_ended_before_the_position(each: Job, ended_ts: int, usable: bool) -> None:
    history = JobHistory([replace(each, finished_ts=ended_ts, state=JobState.SYNCED)] if ended_ts else [])
    position_ts = POSITION_TS + 5
    if usable:
        assert snapshot(each).catalog_for(position_ts, history).tables
    else:
        with pytest.raises(SnapshotUnusable, match="DDL job 40"):
            snapshot(each).catalog_for(position_ts, history)


def test_what_a_job_that_failed_left_at_the_snapshot_is_not_in_the_catalog() -> None:
    info = table(10, "t", ["a", "b", "_V$_late_0!3"])
    for kind in (ActionType.ADD_INDEX, ActionType.ADD_COLUMN):
        each = running(kind)
        history = JobHistory([replace(each, finished_ts=GC_TS + 5, state=JobState.ROLLBACK_DONE)])
        with nullcontext() if kind == ActionType.ADD_INDEX else pytest.raises(SnapshotUnusable, match="DDL job 40"):
            found = snapshot(each, info=info).catalog_for(POSITION_TS + 5, history)
            assert [column.name for column in found.tables[10].current.columns] == ["a", "b"]


AT_SNAPSHOT = table(10, "t", ["a", "b", f"c{VERSION}#{VERSION + 2}"])


class Port:
    """A status port with the jobs 1, 2, …, each a schema version and started a minute after the one before, and the
    long running job 40 that ended last."""

    def __init__(self) -> None:
        infos = {i: table(10, "t", ["a", "b", f"c{i}#{i + 2}"]) for i in range(1, 602)}
        self.jobs = {
            i: replace(
                job(i, ActionType.ADD_COLUMN, i, schema_id=2, table_id=10, table_info=info),
                start_ts=GC_TS + tso.compose(SETTLED_MS) * (i - VERSION),
                finished_ts=GC_TS + tso.compose(SETTLED_MS) * (i - VERSION),
            )
            for i, info in list(infos.items())[:600]
        }
        first = job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=1)
        self.jobs[1], self.jobs[2] = first, replace(self.jobs[2], type=ActionType.CREATE_TABLE)
        self.jobs[40] = replace(self.jobs[40], schema_version=601, table_info=infos[601], finished_ts=POSITION_TS << 1)
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        query = url.partition("?")[2]
        self.asked.append(query)
        given = dict(part.split("=") for part in query.split("&") if part)
        ids = sorted((i for i in self.jobs if i <= int(given.get("start_job_id", 10**6))), reverse=True)
        return json.dumps([self.jobs[i].to_json() for i in ids[: int(given.get("limit", 10**6))]]).encode()


async def opened(port: Port, position_ts: int, found: SchemaSnapshot | None) -> SchemaProvider:
    async def read() -> SchemaSnapshot:
        if found is None:
            raise SnapshotUnusable("none")
        return found

    provider = SchemaProvider([UrlSource("http://tidb", fetch=port.fetch, interval_s=0)], Policy(), read)
    await provider.known(position_ts)
    await provider.open(position_ts=position_ts, job_done=lambda _: False)
    return provider


@pytest.mark.parametrize("later", [1, 2, 300, 10_000])
async def test_jobs_after_the_snapshot_give_the_schema_of_the_whole_history(later: int) -> None:
    position_ts = GC_TS + tso.compose(SETTLED_MS) * later
    port = Port()
    short = await opened(port, position_ts, snapshot(running(ActionType.ADD_INDEX), info=AT_SNAPSHOT))
    asked, port.asked = port.asked, []
    whole = await opened(port, position_ts, None)
    assert "" not in asked and "start_job_id=40&limit=1" in asked and port.asked[0] == ""
    one, other = short.schema, whole.schema
    assert one._pending == other._pending and one.settled_version == other.settled_version == 601
    assert one.catalog.schemas == other.catalog.schemas
    assert one.catalog.tables[10].current == other.catalog.tables[10].current
    assert short._history.get(VERSION) is None and len(short._history) == 600 - VERSION + 1


async def test_position_older_than_the_snapshot_reads_the_whole_history() -> None:
    port = Port()
    provider = await opened(port, GC_TS, snapshot())
    assert port.asked[0] == "limit=200" and port.asked[-1] == "" and len(provider._history) == 600
    assert provider.schema.catalog.tables[10].versions[-1] == VERSION


@pytest.mark.parametrize(
    ("schema", "reads"),
    [({}, False), ({"history-url": "http://tidb"}, True), ({"history-url": "http://tidb", "history-file": "f"}, False)],
)
async def test_drainer_reads_snapshot_if_status_port_is_the_only_source(
    tikv: ScannedTiKV, schema: dict[str, str], reads: bool
) -> None:
    read = snapshot_reader(Config.model_validate({"pd-urls": f"http://{tikv.addr}", "schema": schema}))
    assert (read is not None) == reads
    assert read is None or (await read()).version == VERSION
