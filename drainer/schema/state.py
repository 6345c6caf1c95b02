"""The schema as the destination has it: the catalog, and the jobs that have not run there yet. Pure.

A job is *pending* from when it is known until it has run downstream or turned out to have nothing to run. The
catalog always shows what the destination has: pending jobs are not in it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from binlog.cluster import tso
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.schema import constraint_drops, job_effects, job_kinds
from drainer.schema.catalog import Catalog
from drainer.schema.create_like import independent
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.steps import Ddl
from drainer.schema.unknown_column import coming_columns, public_version, publisher
from drainer.schema.view import SchemaView

# A DDL's binlog commits before its job's FinishedTS, by up to 850 ms in the recordings: a job finished this
# soon after a first start may have its binlog before the start.
FINISH_LAG_MS_MAX = 10_000

VERDICTS_KEPT = 4096

# How many pending jobs can be at work when a row is written that none of them has to precede: TiDB runs fewer at once.
AT_WORK_MAX = 64


@dataclass(frozen=True, slots=True)
class Planned:
    """A job tried on a copy of the catalog. `ddl` is None when nothing runs downstream."""

    job: Job
    catalog: Catalog
    ddl: Ddl | None


class Schema:
    """Opened from a history; `plan` a job, run its DDL, then `commit` it. `view` never changes once given."""

    def __init__(
        self, history: JobHistory, policy: Policy, *, position_ts: int, first_start: bool, complete: bool
    ) -> None:
        self._history = history
        self._policy = policy
        self._opened_ts = position_ts
        self._first_start = first_start
        self._catalog = Catalog()
        self._pending: list[tuple[int, int]] = []  # (version from which rows need the job, its id)
        self._due: dict[int, int] = {}  # job id → that version, of pending jobs
        self._ran: set[int] = set()
        self._settled_version = 0
        self._complete = complete
        self._verdicts: dict[tuple[int, int], int] = {}
        self._verified: dict[int, int] = {}
        self._view: SchemaView | None = None

    @classmethod
    def open(
        cls,
        history: JobHistory,
        *,
        position_ts: int,
        schema_version: int = 0,
        job_done: Callable[[int], bool] | None = None,
        policy: Policy | None = None,
        first_start: bool = False,
        complete: bool = True,
    ) -> Schema:
        """The schema at a destination's position. Applied already are the jobs finished at or before `position_ts`,
        those the destination has marked (`job_done`), and, for a destination without marks (`job_done` None: a
        position taken from upstream's checkpoint) and for jobs without a FinishedTS, those up to `schema_version`.
        The others are pending.

        `first_start`: the destination had no position before, it was filled from a copy at `position_ts`.
        `complete`: the sources give every job that matters (see JobSource); if not, rows with unknown columns wait.
        """
        schema = cls(history, policy or Policy(), position_ts=position_ts, first_start=first_start, complete=complete)
        for job in history:
            marked = job_done is not None and job_done(job.id)
            by_version = (job_done is None or not job.finished_ts) and job.schema_version <= schema_version
            schema._meet(job, done=marked or by_version)
        schema._settled_version = max(schema_version, history.greatest_version)
        return schema

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def catalog(self) -> Catalog:
        """As the destination has it. Not to be changed by the caller."""
        return self._catalog

    @property
    def settled_version(self) -> int:
        """Rows up to this version may be applied without asking the sources again."""
        return self._settled_version

    @property
    def applied_version(self) -> int:
        """What goes into the checkpoint as schema-version: every known job up to it has run or had nothing to run."""
        return self._pending[0][0] - 1 if self._pending else self._history.greatest_version

    def learn(self, jobs: Iterable[Job]) -> int:
        """Take in what a source gave; returns how many jobs were new."""
        fresh = self._history.add(jobs)
        for job in fresh:
            self._meet(job, done=False)
        return len(fresh)

    def settle(self, version: int) -> None:
        """The sources have been read after a row of `version` was seen: what is still missing is a job that runs."""
        if version > self._settled_version:
            self._settled_version = version
            self._view = None

    def job(self, job_id: int) -> Job | None:
        return self._history.get(job_id)

    def is_pending(self, job: Job) -> bool:
        return job.id in self._due

    def due(self, version: int) -> Job | None:
        """The first pending job at or below `version`."""
        if not self._pending or self._pending[0][0] > version:
            return None
        return self._history.get(self._pending[0][1])

    def publisher(self, table_id: int, column_id: int) -> Job | None:
        """The pending job that makes this column public."""
        return publisher(self._waiting(), table_id, column_id)

    def dropper(self, table_id: int, column_id: int) -> Job | None:
        """The pending job that drops this column."""
        jobs = (job for job in self._waiting() if job.table_id == table_id)
        return next((job for job in jobs if column_id in constraint_drops.lost_columns(job, self._catalog)), None)

    @property
    def loose_from(self) -> int | None:
        """From this ts on upstream may not check every unique key the destination has (constraint_drops.py)."""
        return constraint_drops.loose_from(self._waiting(), self._catalog)

    @property
    def unfolding(self) -> Job | None:
        """The pending job before whose start every row of some fold key must be, and behind whose run the others."""
        return constraint_drops.unfolding(self._waiting(), self._catalog)

    def job_that_drops(self, *, schema: str, table: str, key: str) -> Job | None:
        """The pending job that drops this unique key and may be brought forward."""
        return constraint_drops.job_that_drops(self._waiting(), self._catalog, schema=schema, table=table, key=key)

    def _waiting(self) -> Iterator[Job]:
        """The pending jobs in the order in which they are due."""
        for _, job_id in self._pending:
            job = self._history.get(job_id)
            if job is not None:
                yield job

    def bring_forward(self, job: Job, version: int) -> None:
        """Rows from `version` on need this pending job to have run."""
        if version < self._due[job.id]:
            self._pending.remove((self._due[job.id], job.id))
            self._await(job, version)

    def may_precede_start(self, job: Job) -> bool:
        """Whether the job's binlog may lie before the position this schema was opened at."""
        if not job.finished_ts:
            return False
        return tso.physical_ms(job.finished_ts) <= tso.physical_ms(self._opened_ts) + FINISH_LAG_MS_MAX

    def plan(self, job: Job, *, query: str, commit_ts: int, own_ts: int, early: bool) -> Planned:
        """Try `job` on a copy. Running it and `commit` come after, so a failed DDL leaves this schema as it was."""
        catalog = self._catalog.copy()
        name_before = catalog.schemas.get(job.schema_id)
        changes = job_effects.apply(catalog, job, self._public_version(job))
        name = catalog.schemas.get(job.schema_id) or name_before or job.schema_name
        proposed = Ddl(
            job=job,
            commit_ts=commit_ts,
            early=early,
            schema=name,
            use="",
            sql=(),
            query=query,
            own_ts=own_ts,
            changes=changes,
            may_exist=self._first_start and job.start_ts <= self._opened_ts,
        )
        text = independent(job, query, self._catalog)
        return Planned(job, catalog, self._policy.step(proposed, text))

    def commit(self, planned: Planned) -> None:
        """The planned job has run downstream, or has nothing to run there."""
        self._catalog = planned.catalog
        self._leave(planned.job)
        self._view = None

    def has_run(self, job: Job) -> bool:
        """Whether the job was committed by this schema (as opposed to: before it was opened)."""
        return job.id in self._ran

    def view(self) -> SchemaView:
        """The schema of this moment for decoders."""
        if self._view is None:
            tables, gone = self._catalog.replicated(self._policy.filter.allows)
            due = self._pending[0][0] if self._pending else 0
            verdicts = None if self._complete else dict(self._verdicts)
            strays, homes = dict(self._catalog.strays), dict(self._catalog.homes)
            known, verified = self._history.greatest_version, None if self._complete else dict(self._verified)
            self._view = SchemaView(
                tables,
                gone,
                due,
                self._settled_version,
                verdicts,
                strays,
                homes,
                known,
                verified,
                going=constraint_drops.going_columns(islice(self._waiting(), AT_WORK_MAX), self._catalog),
                coming=coming_columns(islice(self._waiting(), AT_WORK_MAX), self._catalog),
            )
        return self._view

    def leave_out(self, table_id: int, column_id: int, schema_version: int) -> None:
        """Rows up to `schema_version` may lack this column (drainer.schema.unknown_column says when)."""
        key = (table_id, column_id)
        self._verdicts.pop(key, None)
        self._verdicts[key] = schema_version
        while len(self._verdicts) > VERDICTS_KEPT:
            del self._verdicts[next(iter(self._verdicts))]
        self._view = None

    def newest(self, table_id: int) -> TableInfo | None:
        """The table as the last known job leaves it, run or not."""
        found = self._catalog.locate(table_id)
        info = found.info if found else None
        for job in self._waiting():
            if job.table_info is not None and job.table_info.id == table_id:
                info = job.table_info
        return info

    def verify(self, table_id: int, version: int) -> None:
        """The table was seen to be as its newest job says, when rows of `version` had been written already."""
        self._verified[table_id] = max(version, self._verified.get(table_id, 0))
        self._view = None

    def _meet(self, job: Job, *, done: bool) -> None:
        if not job_kinds.takes_effect(job) or job_kinds.is_skipped(job) or job.id in self._ran:
            return
        if done or 0 < job.finished_ts <= self._opened_ts:
            job_effects.apply(self._catalog, job, self._public_version(job))
        elif job.id not in self._due:
            self._await(job, self._public_version(job))
        self._view = None

    def _public_version(self, job: Job) -> int:
        return public_version(job, self._history.version_before(job))

    def _await(self, job: Job, version: int) -> None:
        self._due[job.id] = version
        insort(self._pending, (version, job.id))
        self._view = None

    def _leave(self, job: Job) -> None:
        if job.id in self._due:
            self._pending.remove((self._due.pop(job.id), job.id))
        self._ran.add(job.id)
