"""Random DDL with rows of every version around it: what arrives is what upstream's tables hold, in the driver and
distributed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from binlog import envelope
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.apply import progress
from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.sink.base import Identity
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.live_provider import LiveProvider
from tests.support.local_batch import LocalBatch
from tests.support.schema_case import BEGIN_TS, ts
from tests.unit.drainer.cut_case import SQLiteDistributed
from tests.upstream.model import Upstream

SEEDS = int(os.environ.get("DIFFERENTIAL_SEEDS", "15"))
EVENTS = 150


class File(JobSource):
    """Every job at once."""

    complete = True

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.clock = 0

    def describe(self) -> str:
        return "a file"

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        return self._upstream.jobs


class Port(File):
    """Jobs that have finished by now, and tables as they stand now. Time goes on while it is asked."""

    complete = False

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        self.clock += 1
        return [job for clock, job in self._upstream.finished if clock <= self.clock]

    async def table(self, table_id: int) -> TableInfo | None:
        found = [info for clock, known, info in self._upstream.shown if clock <= self.clock and known == table_id]
        return found[-1] if found and found[-1].id == table_id else None


def plan_of(pipeline: Pipeline, upstream: Upstream, until_ts: int) -> PlannedBatch:
    """Spread what the drainer would distributed of a large batch (batch_planner.decide)."""
    begin_ts, driver_from = pipeline.position_ts, pipeline.driver_from
    if driver_from is not None and begin_ts < driver_from:
        until_ts = min(until_ts, driver_from)
    found = sorted(map(envelope.scan, upstream.binlogs), key=lambda binlog: binlog.commit_ts)
    some = [binlog for binlog in found if begin_ts < binlog.commit_ts <= until_ts]
    bad = [b.commit_ts for b in some if b.ddl_job_id or b.schema_version > pipeline.schema_version]
    good = [b.commit_ts for b in some if not bad or b.commit_ts < bad[0]]
    if good and (driver_from is None or begin_ts < driver_from):
        return PlannedBatch(begin_ts, good[-1], Mode.DISTRIBUTED, (), 1)
    return PlannedBatch(begin_ts, until_ts, Mode.DRIVER, (), 1)


def drained(
    upstream: Upstream, path: Path, source: File, *, distributed: bool = False
) -> dict[str, list[tuple[object, ...]]]:
    destination = SQLiteDistributed(path) if distributed else SQLiteSink(path)
    position = destination.open(Identity(1, "default", "n"), BEGIN_TS)
    provider = SchemaProvider([source], Policy())
    asyncio.run(provider.open(position_ts=position.commit_ts, job_done=destination.job_done))
    pipeline = Pipeline(destination, LiveProvider(provider), Cut(4, 100, "d"), position_ts=position.commit_ts)
    commits = sorted(envelope.scan(payload).commit_ts for payload in upstream.binlogs)
    few = 10 if distributed else 40
    cuts = sorted({*upstream.dice.sample(commits, min(len(commits), few)), commits[-1]})
    for until_ts in cuts:
        source.clock = max(source.clock, (until_ts >> 18) - (ts(0) >> 18))
        while pipeline.position_ts < until_ts:
            begin_ts = pipeline.position_ts
            plan = (
                plan_of(pipeline, upstream, until_ts)
                if distributed
                else PlannedBatch(begin_ts, until_ts, Mode.DRIVER, (), 1)
            )
            pipeline.run(plan, LocalBatch([upstream.binlogs], begin_ts, plan.until_ts))
    destination.close(clean=False)
    found = {}
    with sqlite3.connect(path) as connection:
        for table in upstream.tables:
            name = f"d.{table.info.name}"
            columns = ", ".join(f'"{c.name}"' for c in table.info.public_columns)
            found[name] = sorted(connection.execute(f'SELECT {columns} FROM "{name}"').fetchall(), key=repr)
    return found


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("kind", [File, Port])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_after_random_ddl_equal_upstreams_tables(
    seed: int, kind: type[File], distributed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "WAIT_FIRST_S", 0.0)
    upstream = Upstream(seed).run(EVENTS)
    assert drained(upstream, tmp_path / "down.sqlite", kind(upstream), distributed=distributed) == upstream.truth()
