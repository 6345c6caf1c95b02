"""The provider asks its sources again when a batch needs more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import pytest
from binlog.errors import EtcdError
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp

from drainer.batch.served import read_batch
from drainer.schema.errors import (
    HistoryBroken,
    HistoryUnavailable,
    JobMissing,
    JobUnknown,
    TableUnverified,
    UnknownColumn,
)
from drainer.schema.history.base import JobSource
from drainer.schema.history.sources import PublishedSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider, is_current
from drainer.schema.segmenter import walk
from drainer.schema.steps import Ddl, Rows, Step
from tests.support.schema_case import BEGIN_TS, belongs, ddl, row, table, ts
from tests.unit.drainer.schema.test_segmenter import ADD_B, DONE


class StubSource(JobSource):
    """Gives `first`, then one list of `later` at each further refresh."""

    def __init__(self, first: list[Job], *later: list[Job], complete: bool = True) -> None:
        self.complete = complete
        self.answers = [first, *later]
        self.asked: list[int | None] = []
        self.shown: TableInfo | None = None

    def describe(self) -> str:
        return "a stub"

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        self.asked.append(wanted)
        return self.answers.pop(0) if self.answers else []

    async def table(self, table_id: int) -> TableInfo | None:
        return self.shown


async def provider_of(*sources: StubSource) -> SchemaProvider:
    provider = SchemaProvider(sources, Policy())
    await provider.open(position_ts=BEGIN_TS, job_done=lambda _: False)
    return provider


async def test_batch_of_known_schema_versions_asks_no_source() -> None:
    source = StubSource(DONE)
    provider = await provider_of(source)
    await provider.prepare(read_batch([row(ts(1), 2, 10)], after_ts=BEGIN_TS, until_ts=ts(9)))
    assert source.asked == [None]


async def test_source_that_got_jobs_by_itself_is_asked_whatever_the_version() -> None:
    source = StubSource(DONE, [], [ADD_B])
    provider = await provider_of(source)
    batch = read_batch([row(ts(1), 2, 10)], after_ts=BEGIN_TS, until_ts=ts(9))
    for size in (0, 1, 1, 3):
        source.size = size
        await provider.prepare(batch)
    assert len(source.asked) == 3
    assert provider.schema.job(ADD_B.id) is not None


async def test_new_schema_version_is_asked_for_once_and_its_job_learned() -> None:
    """The published job of an early DDL (X-08): the row comes first."""
    source = StubSource(DONE, [ADD_B])
    provider = await provider_of(source)
    batch = read_batch([row(ts(1), 9, 10)], after_ts=BEGIN_TS, until_ts=ts(9))
    await provider.prepare(batch)
    await provider.prepare(batch)
    assert len(source.asked) == 2
    kinds = [type(step) for step in walk(batch, provider.schema)]
    assert kinds == [Ddl, Rows]


async def test_version_of_running_job_is_settled_without_ddl() -> None:
    source = StubSource(DONE)
    provider = await provider_of(source)
    batch = read_batch([row(ts(1), 7, 10)], after_ts=BEGIN_TS, until_ts=ts(9))
    await provider.prepare(batch)
    assert [type(step) for step in walk(batch, provider.schema)] == [Rows]
    await provider.prepare(batch)
    assert len(source.asked) == 2
    assert belongs(provider.schema.view(), 7)


async def test_ddl_job_that_appears_late_is_asked_for_by_id() -> None:
    source = StubSource(DONE, [], [], [ADD_B], complete=False)
    provider = await provider_of(source)
    batch = read_batch([row(ts(1), 2, 10), ddl(ts(2), 9, "x")], after_ts=BEGIN_TS, until_ts=ts(9))
    await provider.prepare(batch)
    assert source.asked == [None, None, 9]
    with pytest.raises(JobUnknown) as caught:
        list(walk(batch, provider.schema))
    assert await provider.missing(caught.value)
    first = next(iter(walk(batch.after(caught.value.final_ts), provider.schema)))
    assert isinstance(first, Ddl)


async def test_job_in_no_source_is_error_if_sources_are_complete() -> None:
    error = JobUnknown(job_id=9, version=None, commit_ts=5, final_ts=4)
    assert not await (await provider_of(StubSource(DONE, complete=False))).missing(error)
    with pytest.raises(
        JobMissing, match=r"DDL job 9 \(binlog of commit_ts 5\) is in none of the DDL history sources: a stub"
    ):
        await (await provider_of(StubSource(DONE))).missing(error)
    with pytest.raises(JobMissing, match="no source is configured"):
        await (await provider_of()).missing(error)


async def test_provider_is_incomplete_with_one_incomplete_source() -> None:
    assert (await provider_of(StubSource(DONE))).complete
    assert not (await provider_of(StubSource(DONE), StubSource([], complete=False))).complete


UNKNOWN_B = UnknownColumn(table_id=10, column_id=2, schema_version=8, commit_ts=5)


@pytest.mark.parametrize(
    ("shown", "decided"),
    [
        (table(10, "t", ["a", "b!3"]), True),
        (table(10, "t", ["a"]), True),
        (None, True),
        (table(10, "t", ["a", "b"]), False),
    ],
    ids=["running", "rolled back", "table gone", "just finished"],
)
async def test_unknown_column_is_skipped_unless_its_job_has_just_finished(
    shown: TableInfo | None, decided: bool
) -> None:
    source = StubSource(DONE, complete=False)
    source.shown = shown
    provider = await provider_of(source)
    assert not provider.schema.view().skips_column(10, 2, 8)
    assert await provider.resolve_column(UNKNOWN_B) is decided
    assert provider.schema.view().skips_column(10, 2, 8) is decided
    assert not provider.schema.view().skips_column(10, 2, 9)


async def test_unknown_column_is_resolved_by_its_job() -> None:
    source = StubSource(DONE, [ADD_B], complete=False)
    source.shown = table(10, "t", ["a", "b"])
    provider = await provider_of(source)
    assert await provider.resolve_column(UNKNOWN_B)
    assert provider.schema.job(9) is ADD_B


class AwaySource(StubSource):
    """Answers once, then is away until `back` is set."""

    back = False

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        if self.asked and not self.back:
            raise HistoryUnavailable("http://tidb", "no answer")
        return await super().refresh(wanted)


async def test_unavailable_source_makes_batch_wait() -> None:
    source = AwaySource(DONE, [ADD_B], complete=False)
    provider = await provider_of(source)
    batch = read_batch([row(ts(1), 9, 10)], after_ts=BEGIN_TS, until_ts=ts(9))
    await provider.prepare(batch)
    with pytest.raises(JobUnknown) as caught:
        list(walk(batch, provider.schema))
    assert not await provider.missing(caught.value)
    assert not await provider.resolve_column(UNKNOWN_B)
    source.back = True
    assert await provider.missing(caught.value)
    assert [type(step) for step in walk(batch, provider.schema)] == [Ddl, Rows]


async def test_published_jobs_in_etcd_are_read_and_invalid_ones_refused() -> None:
    class Store:
        rows: ClassVar = [(j.schema_version, json.dumps(j.to_json()).encode()) for j in DONE]

        async def all(self) -> list[tuple[int, bytes]]:
            return self.rows

    store = Store()
    source = PublishedSource(store)
    assert [j.id for j in await source.refresh()] == [1, 2]
    assert await source.refresh() == []
    store.rows = [*store.rows, (9, b"{")]
    with pytest.raises(HistoryBroken, match="in etcd, schema version 9"):
        await source.refresh()
    store.rows[-1] = (9, ADD_B.dump())
    (found,) = await source.refresh()
    assert found.table_info is not None and found.table_info.upserts  # rule 21: a service's tables
    assert replace(found, table_info=ADD_B.table_info) == ADD_B


async def test_unavailable_etcd_makes_published_history_unavailable() -> None:
    class Store:
        async def all(self) -> list[tuple[int, bytes]]:
            raise EtcdError("http://etcd: no leader")

    with pytest.raises(HistoryUnavailable, match="no leader"):
        await PublishedSource(Store()).refresh()


async def test_column_of_pending_known_job_is_skipped_before_its_version() -> None:
    """A drainer that is behind: upstream shows the column as public, to rows before the job's version it was not."""
    source = StubSource([*DONE, ADD_B], complete=False)
    source.shown = table(10, "t", ["a", "b"])
    provider = await provider_of(source)
    assert await provider.resolve_column(UNKNOWN_B)
    assert provider.schema.view().skips_column(10, 2, 8)
    assert not provider.schema.view().skips_column(10, 2, 9)


def several(*parts: tuple[ActionType, int]) -> Job:
    """One statement that adds b, and more; what each part records as its version."""
    subs = [{"type": int(kind), "schema_version": version} for kind, version in parts]
    return replace(ADD_B, type=ActionType.MULTI_SCHEMA_CHANGE, rest={"multi_schema_info": {"sub_jobs": subs}})


ADD, DROP, MODIFY = ActionType.ADD_COLUMN, ActionType.DROP_COLUMN, ActionType.MODIFY_COLUMN


@pytest.mark.parametrize(
    ("parts", "runs_before_a_row_of"),
    [
        ([(ADD, 9)], 9),
        ([(ADD, 6), (DROP, 9)], 6),
        ([(ActionType.ADD_INDEX, 6), (ADD, 0), (DROP, 9)], 6),
        ([(ADD, 0), (ADD, 9)], 9),
    ],
    ids=["one part", "dropped later", "noted with the first part", "without drops"],
)
async def test_multi_schema_change_runs_at_version_of_its_added_column(
    parts: list[tuple[ActionType, int]], runs_before_a_row_of: int
) -> None:
    provider = await provider_of(StubSource([*DONE, several(*parts)], complete=False))
    for version in range(3, 10):
        assert belongs(provider.schema.view(), version) is (version < runs_before_a_row_of)
    assert provider.schema.applied_version == runs_before_a_row_of - 1


@pytest.mark.parametrize(
    ("parts", "steps"),
    [([(DROP, 9), (ADD, 0)], [Ddl, Rows]), ([(DROP, 9), (ADD, 0), (MODIFY, 0)], [Ddl, Rows])],
    ids=["an added column", "and a changed type"],
)
async def test_added_column_without_noted_version_runs_before_its_first_row(
    parts: list[tuple[ActionType, int]], steps: list[type[Step]]
) -> None:
    """The part that drops took three versions behind it; other jobs in between may have made it more, which a row
    shows then."""
    source = StubSource([*DONE, several(*parts)], complete=False)
    source.shown = table(10, "t", ["a", "b"])
    provider = await provider_of(source)
    assert [belongs(provider.schema.view(), version) for version in (5, 6)] == [True, False]
    assert await provider.resolve_column(UnknownColumn(table_id=10, column_id=2, schema_version=5, commit_ts=ts(1)))
    batch = read_batch([row(ts(1), 5, 10), ddl(ts(2), 9, "x")], after_ts=BEGIN_TS, until_ts=ts(2))
    assert [type(step) for step in walk(batch, provider.schema)] == steps


T = table(10, "t", ["a"])
UNVERIFIED = TableUnverified(table_ids=(10,), schema_version=8, commit_ts=ts(1))


@pytest.mark.parametrize(
    ("shown", "decided"),
    [
        (T, True),
        (None, True),
        (table(10, "t", ["a", "b"]), True),
        (table(10, "renamed", ["b#9!2", "a#1"]), True),
        (replace(T, columns=(replace(T.columns[0], type=FieldType(Tp.LONG)),)), False),
        (table(10, "t", ["a!2"]), False),
    ],
    ids=["as it was", "gone", "a column more", "one on its way", "another type", "one on its way out"],
)
async def test_rows_of_unverified_table_wait_where_table_differs_from_its_last_job(
    shown: TableInfo | None, decided: bool
) -> None:
    """Where it looks otherwise now than after its newest known job, the rows wait for the job that is running."""
    source = StubSource(DONE, complete=False)
    source.shown = shown
    provider = await provider_of(source)
    provider.schema.settle(8)
    assert [provider.schema.view().must_verify(10, version) for version in (2, 3, 8)] == [True, True, True]
    assert await provider.verify(UNVERIFIED) is decided
    assert [provider.schema.view().must_verify(10, version) for version in (8, 9)] == [not decided, True]


async def test_unverified_rows_are_verified_by_their_new_job() -> None:
    source = StubSource(DONE, [ADD_B], complete=False)
    source.shown = table(10, "t", ["a!2"])
    provider = await provider_of(source)
    assert await provider.verify(UNVERIFIED)
    assert provider.schema.job(9) is ADD_B and provider.schema.view().must_verify(10, 8)
    assert not await provider.verify(UNVERIFIED)
    complete = await provider_of(StubSource(DONE))
    assert not complete.schema.view().must_verify(10, 99)


def test_table_info_with_changed_indexes_or_partitions_is_not_current() -> None:
    key = IndexInfo(3, "u", (IndexColumn("a", 0),), unique=True)
    known = replace(table(10, "t", ["a"], [(11, "p0"), (12, "p1")]), indexes=(key,))
    assert is_current(known, known)
    assert not is_current(known, replace(known, indexes=(replace(key, state=SchemaState.DELETE_ONLY),)))
    assert not is_current(known, replace(known, indexes=()))
    assert not is_current(known, table(10, "t", ["a"], [(12, "p1")]))
    assert is_current(known, replace(known, indexes=(key, replace(key, id=4, name="v"))))


async def test_invalid_table_answer_stops_no_rows_and_unavailable_one_makes_them_wait() -> None:
    """What it does not tell stops no rows; while it is away they wait."""

    class Mute(StubSource):
        error: HistoryBroken = HistoryBroken("http://tidb/schema", "not JSON")

        async def table(self, table_id: int) -> TableInfo | None:
            raise self.error

    source = Mute(DONE, complete=False)
    provider = await provider_of(source)
    assert await provider.verify(UNVERIFIED)
    source.error = HistoryUnavailable("http://tidb/schema", "no answer")
    assert not await provider.verify(UNVERIFIED)
