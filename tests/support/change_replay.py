"""A recording through a pipeline into a sink that wants every change, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from binlog import envelope

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.apply.progress import Progress
from drainer.batch.served import Batch, ServedBinlog
from drainer.pipeline import Pipeline
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.job_policy import Policy
from drainer.schema.state import Schema
from drainer.sink.base import ChangeSink, Identity
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.local_batch import LocalBatch

WHO = Identity(1, "default", "n")


class StubProvider:
    """A schema that knows everything."""

    complete = True

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def prepare(self, batch: Batch) -> None:
        self.schema.settle(batch.greatest_version)

    def missing(self, error: JobUnknown) -> bool:
        raise AssertionError(error)

    def resolve_column(self, error: UnknownColumn) -> bool:
        raise AssertionError(error)

    def verify(self, error: TableUnverified) -> bool:
        for table_id in error.table_ids:
            self.schema.verify(table_id, error.schema_version)
        return True


def replay_changes(
    destination: ChangeSink,
    edges: Sequence[int],
    *,
    parts: int = 2,
    who: Identity = WHO,
    initial_ts: int = 0,
    name: str = "keys",
    in_pieces: bool = True,
    policy: Policy | None = None,
) -> None:
    """What is left of a recording up to the last of `edges`, in batches that end there: in turn in the driver,
    distributed where it may be, and, if `in_pieces`, in pieces, as large transactions go. The sink is opened and
    closed. `initial_ts`: where it begins if the destination has no position, 0: where the recording does."""
    capture = CaptureSet(GOLDEN / name)
    begin = capture.meta["scenario_start_ts"]
    binlogs = [payload for payload in capture.binlogs if begin < commit_ts(payload)]
    history = JobHistory(parse_jobs(capture.jobs_text.decode(), "recording"))
    replay_binlogs(
        destination, binlogs, history, edges,
        parts=parts, who=who, initial_ts=initial_ts or begin, in_pieces=in_pieces, policy=policy,
    )  # fmt: skip


def replay_binlogs(
    destination: ChangeSink,
    binlogs: Sequence[bytes],
    history: JobHistory,
    edges: Sequence[int],
    *,
    parts: int = 2,
    who: Identity = WHO,
    initial_ts: int,
    in_pieces: bool = True,
    policy: Policy | None = None,
) -> None:
    """The same of these binlogs."""
    binlogs = [payload for payload in binlogs if commit_ts(payload) <= edges[-1]]
    ddls = [envelope.scan(payload).commit_ts for payload in binlogs if envelope.scan(payload).ddl_job_id]
    position = destination.open(who, initial_ts)
    job_done = None if position.fresh else destination.job_done
    schema = Schema.open(history, position_ts=position.commit_ts, job_done=job_done, policy=policy)
    cut = Cut(slots=7, chunk_rows=100, digest="d")

    @contextlib.contextmanager
    def pulled(plan: PlannedBatch, progress: Progress) -> Iterator[list[ServedBinlog]]:
        """All that the batch has, each transaction as if it were large."""
        scans = [(envelope.scan(payload), payload) for payload in binlogs]
        chosen = [(seen, payload) for seen, payload in scans if plan.after_ts < seen.commit_ts <= plan.until_ts]
        yield [
            ServedBinlog(seen.commit_ts, seen.start_ts, "p", payload if seen.ddl_job_id else memoryview(payload))
            for seen, payload in chosen
        ]

    pipeline = Pipeline(
        destination,
        StubProvider(schema),
        cut,
        position_ts=position.commit_ts,
        intent=position.intent,
        pull_large=pulled,
        piece_bytes_max=200,
    )

    def batch(until_ts: int, mode: Mode, intent: Any = None) -> None:
        after_ts = pipeline.position_ts
        feed = LocalBatch([binlogs[n::parts] for n in range(parts)], after_ts, until_ts)
        pipeline.run(PlannedBatch(after_ts, until_ts, mode, (), 1, intent), feed)

    if position.intent is not None:
        batch(position.intent.until_ts, Mode.DISTRIBUTED, position.intent)
    last = Mode.LARGE if in_pieces else Mode.DRIVER
    for number, edge in enumerate(edges):
        after_ts = pipeline.position_ts
        if edge > after_ts:
            of_batch = [envelope.scan(payload) for payload in binlogs if after_ts < commit_ts(payload) <= edge]
            newest = max((one.schema_version for one in of_batch), default=0)
            plain = not any(after_ts < ts <= edge for ts in ddls) and newest <= pipeline.schema_version
            distributed = Mode.DISTRIBUTED if plain and destination.parallel is not None else Mode.DRIVER
            batch(edge, (Mode.DRIVER, distributed, last)[number % 3])
    destination.close(clean=True)


def commit_ts(payload: bytes) -> int:
    return envelope.scan(payload).commit_ts


def commits(name: str = "keys") -> list[int]:
    """Of the recording, in order."""
    capture = CaptureSet(GOLDEN / name)
    begin, end = capture.meta["scenario_start_ts"], capture.meta["scenario_end_ts"]
    return sorted({ts for payload in capture.binlogs if begin < (ts := commit_ts(payload)) <= end})
