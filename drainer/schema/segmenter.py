"""Splits a batch into segments of rows and the DDLs between them (correctness rule 14: DDL before the rows that need
it).

A DDL runs before the first row whose schema_version is at or above its job's version, and is skipped at its own binlog
if it has run already. A DDL that drops a fold key runs before the first row after its job's start_ts, because TiDB may
not enforce the key from then on (rule 12: REPLACE evicts only stale rows). See drainer.schema.steps for the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from binlog.runtime.log import get_logger
from binlog.tidb.job import Job

from drainer.batch.served import Batch, Item, ServedBinlog
from drainer.schema import job_kinds
from drainer.schema.errors import JobUnknown
from drainer.schema.state import Schema
from drainer.schema.steps import Advance, Rows, Step

_log = get_logger(__name__)


def walk(batch: Batch, schema: Schema, *, job_done: Callable[[int], bool] = lambda _: False) -> Iterator[Step]:
    """Yield the steps of `batch`. Apply each before requesting the next, because that commits it to `schema`.

    `job_done`: whether the destination has recorded a job id as done. The last step is a Rows or a Advance that ends at
    the batch's until_ts, unless a DDL does. Raises JobUnknown after all earlier steps have been yielded: read the job,
    then continue with `batch.after(error.final_ts)`.
    """
    return _Walk(batch, schema, job_done).steps()


class _Walk:
    """One pass over a batch. `_rows` holds the binlogs after `_after_ts`, the destination's position."""

    def __init__(self, batch: Batch, schema: Schema, job_done: Callable[[int], bool]) -> None:
        self._batch = batch
        self._schema = schema
        self._job_done = job_done
        self._after_ts = batch.after_ts
        self._rows: list[ServedBinlog] = []
        self._fold_key_drop = schema.fold_key_drop

    def steps(self) -> Iterator[Step]:
        ignored = self._schema.policy.ignored_ts
        for item in self._batch.items:
            if item.ddl is not None:
                yield from self._ddl(item)
            elif item.commit_ts not in ignored:
                yield from self._row(item)
        yield from self._flush(self._batch.until_ts)
        if self._after_ts < self._batch.until_ts:
            yield Advance(self._batch.until_ts)

    def _row(self, item: Item) -> Iterator[Step]:
        if item.schema_version > self._schema.settled_version:
            yield from self._unknown(item, None, item.schema_version)
        while (job := self._fold_key_drop) is not None and item.commit_ts > job.start_ts:
            self._schema.bring_forward(job, item.schema_version)
            yield from self._run_due(item, item.schema_version)
        yield from self._run_due(item, item.schema_version)
        self._rows.append(item.binlog)

    def _ddl(self, item: Item) -> Iterator[Step]:
        assert item.ddl is not None
        if item.ddl.announces_drop:
            return  # the delete-only step of DROP COLUMN: its job is still running and in no history
        job = self._schema.job(item.ddl.job_id)
        if job is None:
            if item.commit_ts in self._schema.policy.ignored_ts:
                return
            yield from self._unknown(item, item.ddl.job_id, None)
            return
        if not job_kinds.takes_effect(job):
            return
        yield from self._run_due(item, job.schema_version - 1, but=job)
        if self._schema.has_run(job):
            return
        yield from self._run(job, item.commit_ts, query=item.ddl.query, own_ts=item.commit_ts, early=False)

    def _run_due(self, item: Item, version: int, *, but: Job | None = None) -> Iterator[Step]:
        """Run the pending jobs that a row of `version` needs, lowest version first, up to but not including `but`."""
        while (job := self._schema.due(version)) is not None and job is not but:
            own = self._batch.ddl_texts.get(job.id)
            query, own_ts = (own.query, own.commit_ts) if own else (job.query, 0)
            yield from self._run(job, item.commit_ts - 1, query=query, own_ts=own_ts, early=True)

    def _run(self, job: Job, commit_ts: int, *, query: str, own_ts: int, early: bool) -> Iterator[Step]:
        planned = self._schema.plan(job, query=query, commit_ts=commit_ts, own_ts=own_ts, early=early)
        before_start = early and not own_ts and self._began_before_start(job)
        if before_start:
            _log.info("DDL not run: its binlog precedes the start position", job_id=job.id, query=query)
        has_finished = job.finished_ts <= self._batch.until_ts
        left_out = early and not before_start and has_finished and self._schema.is_left_out(job)
        if left_out:
            _log.info("DDL not run: upstream's topics have no message of it", job_id=job.id, query=query)
        yield from self._flush(commit_ts - 1 if own_ts == commit_ts else commit_ts)
        if planned.ddl is not None and not before_start and not left_out and not self._job_done(job.id):
            yield planned.ddl
            self._after_ts = commit_ts
        self._schema.commit(planned)
        self._fold_key_drop = self._schema.fold_key_drop

    def _began_before_start(self, job: Job) -> bool:
        """Return whether the job began before the start: its binlog commits before FinishedTS, and so would be in this
        batch if it were after the start.
        """
        return self._schema.may_precede_start(job) and job.finished_ts <= self._batch.until_ts

    def _unknown(self, item: Item, job_id: int | None, version: int | None) -> Iterator[Step]:
        final_ts = item.commit_ts - 1
        yield from self._flush(final_ts)
        raise JobUnknown(job_id=job_id, version=version, commit_ts=item.commit_ts, final_ts=final_ts)

    def _flush(self, until_ts: int) -> Iterator[Step]:
        if not self._rows:
            return
        rows = Rows(self._after_ts, until_ts, tuple(self._rows), self._schema.view())
        self._rows.clear()
        yield rows
        self._after_ts = until_ts
