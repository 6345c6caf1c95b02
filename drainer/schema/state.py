"""Schema state of the destination: its catalog, and the pending jobs that have not run there yet. Pure.

A job is *pending* from the moment it is read until it has run downstream, or has turned out to need no statement. The
catalog describes the destination: pending jobs are not in it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from binlog.cluster import tso
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import missing_value
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, TableInfo

from drainer.ddl.lexer import Token, quoted, tokens
from drainer.schema import job_kinds
from drainer.schema.catalog import Catalog, apply_job, put_last
from drainer.schema.filter import is_mark_table
from drainer.schema.history.base import JobHistory
from drainer.schema.job_kinds import REMOVALS, guessed, public_version
from drainer.schema.job_policy import Policy
from drainer.schema.steps import Ddl
from drainer.schema.view import MarkTables, SchemaView, UpcomingColumn, retyped

# Unique keys that TiDB no longer enforces because a running job drops them (correctness rule 12). Pure.
#
# TiDB stops enforcing a unique key some schema versions before the job's own, so rows of those versions may hold a
# value twice while the destination still has the key. The pipeline therefore distributes no batch from the job's
# start_ts on, and runs the job that drops a key early where the key refuses a row.

_DROPS_KEYS = REMOVALS | {ActionType.MULTI_SCHEMA_CHANGE}
_DROPS_COLUMNS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE})


def dropped_keys(before: TableInfo, after: TableInfo, *, fold_only: bool = False) -> frozenset[str]:
    """Lower-case names of the unique keys that only `before` has. `fold_only`: without nullable keys. A renamed key
    keeps its id, and a key that is rebuilt for a changed column keeps its name."""
    names = {index.name.lower() for index in after.unique_indexes()}
    ids = {index.id for index in after.unique_indexes()} - {0}
    keys = (index for index in before.unique_indexes() if not fold_only or not before.takes_null(index))
    return frozenset(index.name.lower() for index in keys if index.id not in ids) - names


# Qualifies the source table of CREATE TABLE a.t LIKE s, which upstream resolved in its session's database. Pure.
#
# The job does not record that database. Where the created name is qualified, it may differ from the job's database, and
# an unqualified source would name another table downstream. The source is found by its name and its columns.
_log = get_logger(__name__)


def independent(job: Job, query: str, catalog: Catalog) -> str:
    """`query` with the source table qualified, so that it can run in any database; unchanged where the source is not
    unqualified or not unique. `catalog`: before the job."""
    if job.table_info is None or job.type != ActionType.CREATE_TABLE:
        return query
    words = list(tokens(query))
    at = next((i + 1 for i, t in enumerate(words) if t.is_word("TABLE")), None)
    if at is not None and [w.value.upper() for w in words[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
        at += 3
    if at is None or not _is_qualified(words, at):
        return query
    rest = words[at + 3 :]
    if rest and rest[0].value == "(":
        rest = rest[1:]
    if len(rest) < 2 or not rest[0].is_word("LIKE") or _is_qualified(rest, 1) or not rest[1].is_name:
        return query
    databases = _databases(job, rest[1].value, catalog)
    if len(databases) != 1:
        _log.warning(
            "CREATE TABLE LIKE: the database of the source table is not known; the statement runs as upstream wrote it",
            job_id=job.id,
            candidates=databases,
        )
        return query
    return f"CREATE TABLE {quoted(words[at].value, words[at + 2].value)} LIKE {quoted(databases[0], rest[1].value)}"


def _databases(job: Job, name: str, catalog: Catalog) -> list[str]:
    """Databases that have a table of this name with the new table's columns."""
    assert job.table_info is not None
    wanted = [(c.name, c.type) for c in job.table_info.columns]
    return [
        table.schema
        for table in catalog.tables.values()
        if table.name.lower() == name.lower() and [(c.name, c.type) for c in table.current.public_columns] == wanted
    ]


def _is_qualified(words: Sequence[Token], at: int) -> bool:
    """Whether the name at `at` is qualified."""
    return at + 2 < len(words) and words[at].is_name and words[at + 1].value == "." and words[at + 2].is_name


def upcoming_columns(jobs: Sequence[Job], catalog: Catalog) -> dict[tuple[int, int], UpcomingColumn]:
    """(table id, column id) of columns that pending `jobs` make public in a schema version that is only estimated. A
    row with another value in such a column than before the job shows that the job must have run."""
    tables = {job.table_info.id for job in jobs if job.table_info is not None and guessed(job)}
    before = {i: at.info for i in tables if (at := catalog.locate(i)) is not None}
    found: dict[tuple[int, int], UpcomingColumn] = {}
    for job in jobs if before else ():
        info = job.table_info
        if info is None or info.id not in before:
            continue
        if guessed(job):
            known = before[info.id].columns_by_id
            heirs = dict(retyped(before[info.id], info, one_changed=False, query=job.query))
            for column in info.public_columns:
                if column.id not in known:
                    found[info.id, column.id] = UpcomingColumn(_default(column), heirs.get(column.id, 0))
        before[info.id] = info
    return found


def _default(column: ColumnInfo) -> Datum:
    try:
        return missing_value(column)
    except DecodeError:
        return None


# A DDL's binlog commits before its job's FinishedTS , by up to 850 ms in the recordings: a job that finished
# within this time after a first start may have its binlog before the start.
FINISH_LAG_MS_MAX = 10_000

UNKNOWN_COLUMNS_KEPT = 4096

# Upper limit of DDL jobs that TiDB runs at once; a row can show effects of no more pending jobs than that.
RUNNING_JOBS_MAX = 64


@dataclass(frozen=True, slots=True)
class Planned:
    """A job applied to a copy of the catalog. `ddl`: None when nothing runs downstream."""

    job: Job
    catalog: Catalog
    ddl: Ddl | None


class Schema:
    """Open from a history; for each job `plan` it, run its DDL, then `commit` it. A returned `view` never changes."""

    def __init__(
        self, history: JobHistory, policy: Policy, *, position_ts: int, first_start: bool, complete: bool
    ) -> None:
        self._history = history
        self.policy = policy
        self._opened_ts = position_ts
        self._first_start = first_start
        self.catalog = Catalog()  # of the destination; callers must not modify it
        self._pending: list[tuple[int, int]] = []  # (version from which rows need the job, its id)
        self._due: dict[int, int] = {}  # job id → that version, of pending jobs
        self._ran: set[int] = set()
        # Rows up to this schema version can be applied without reading the sources again.
        self.settled_version = 0
        self._complete = complete
        self._unknown_columns: dict[tuple[int, int], int] = {}
        self._verified: dict[int, int] = {}
        self._view: SchemaView | None = None
        # Whether upstream's stream leaves out the DDL of a finished job: then it does not run at the destination.
        self.is_left_out: Callable[[Job], bool] = lambda _: False

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
        base: Catalog | None = None,
    ) -> Schema:
        """The schema at a destination's position. Jobs count as applied if they finished at or before `position_ts`,
        if the destination has recorded them (`job_done`), or, without such records (`job_done` None: a position taken
        from the original's checkpoint) and for jobs without a FinishedTS, if their version is at most
        `schema_version`. The others are pending.

        `first_start`: the destination had no position; it was loaded from a copy of the upstream at `position_ts`.
        `complete`: the sources contain every relevant job (see JobSource); if not, rows with unknown columns wait.
        `base`: the catalog before the first job of `history`, where that does not begin with the first job of all.
        """
        schema = cls(history, policy or Policy(), position_ts=position_ts, first_start=first_start, complete=complete)
        schema.catalog = base or schema.catalog
        for job in history:
            marked = job_done is not None and job_done(job.id)
            by_version = (job_done is None or not job.finished_ts) and job.schema_version <= schema_version
            schema._add(job, done=marked or by_version)
        schema.settled_version = max(schema_version, history.greatest_version)
        return schema

    @property
    def applied_version(self) -> int:
        """The schema version for the checkpoint: every known job up to it has run or needed no statement."""
        return self._pending[0][0] - 1 if self._pending else self._history.greatest_version

    def learn(self, jobs: Iterable[Job]) -> int:
        """Add jobs read from a source; returns how many were new."""
        fresh = self._history.add(jobs)
        for job in fresh:
            self._add(job, done=False)
        return len(fresh)

    def settle(self, version: int) -> None:
        """Record that the sources were read after a row of `version` was seen: jobs still missing are running."""
        if version > self.settled_version:
            self.settled_version = version
            self._view = None

    def job(self, job_id: int) -> Job | None:
        return self._history.get(job_id)

    def due(self, version: int) -> Job | None:
        """The first pending job that rows of `version` need, None if there is none."""
        if not self._pending or self._pending[0][0] > version:
            return None
        return self._history.get(self._pending[0][1])

    def job_that_publishes(self, table_id: int, column_id: int) -> Job | None:
        """The first pending job, in version order, after which the table has the column."""
        for job in self._pending_jobs():
            info = job.table_info
            column = info.columns_by_id.get(column_id) if info is not None and info.id == table_id else None
            if column is not None and column.is_public:
                return job
        return None

    def job_that_drops_column(self, table_id: int, column_id: int) -> Job | None:
        """The pending job that drops this column."""
        jobs = (job for job in self._pending_jobs() if job.table_id == table_id)
        return next((job for job in jobs if column_id in self._lost_columns(job)), None)

    @property
    def unenforced_from(self) -> int | None:
        """The least start_ts of the pending jobs from whose start TiDB may not enforce a unique key that the
        destination has, updates may lack a column, or the version in which rows need the job is not recorded. None:
        there is no such job."""
        starts = [
            job.start_ts
            for job in self._pending_jobs()
            if (job.type in _DROPS_KEYS and (self._dropped_keys(job) or self._lost_columns(job) or guessed(job)))
            or self._frees_values(job)
        ]
        return min(starts, default=None)

    @property
    def fold_key_drop(self) -> Job | None:
        """The pending job with the least start_ts that drops a key usable as fold key (rule 9). From its start on two
        rows may have the same key value, and a REPLACE would delete the one that the batch does not write: the job must
        run before the first row after its start_ts. Jobs of REMOVALS may: a dropped column is only left out of older
        rows. A statement of several changes runs before every row of a version in which its keys are not enforced
        anyway (job_kinds.public_version)."""
        found = []
        tables: set[int] = set()
        for job in self._pending_jobs():
            first = job.table_id not in tables
            tables.add(job.table_id)
            if first and job.type in REMOVALS and self._dropped_keys(job, fold_only=True):
                found.append(job)
        return min(found, key=lambda job: job.start_ts, default=None)

    def job_that_drops(self, *, schema: str, table: str, key: str) -> Job | None:
        """The pending job that drops this unique key of the destination's table. It may run before rows of older
        versions: they get defaults in the columns that it adds, and are cast where it changes a type. None where there
        is no such job, or where another job of the table has to run before it."""
        seen: set[int] = set()
        for job in self._pending_jobs():
            at = self.catalog.tables.get(job.table_id)
            names = self.policy.rules.name(at.schema, at.name) if at is not None else ("", "")
            if job.table_id in seen or (names[0].lower(), names[1].lower()) != (schema.lower(), table.lower()):
                continue
            if job.type == ActionType.DROP_TABLE_PARTITION:
                return job  # the conflicting key may be in a partition that the job drops
            if job.type in _DROPS_KEYS and key.lower() in self._dropped_keys(job):
                return job
            seen.add(job.table_id)  # of several tables with this name each has its own jobs
        return None

    def _dropped_keys(self, job: Job, *, fold_only: bool = False) -> frozenset[str]:
        """As `dropped_keys`, of the catalog's table."""
        at = self.catalog.tables.get(job.table_id)
        if at is None or job.table_info is None:
            return frozenset()
        return dropped_keys(at.current, job.table_info, fold_only=fold_only)

    def _lost_columns(self, job: Job) -> frozenset[int]:
        """Ids of the columns of the catalog's table that a job drops."""
        at = self.catalog.tables.get(job.table_id)
        if at is None or job.table_info is None or job.type not in _DROPS_COLUMNS:
            return frozenset()
        return frozenset(at.current.columns_by_id) - frozenset(job.table_info.columns_by_id)

    def _frees_values(self, job: Job) -> bool:
        """Whether a job drops a partition of a table with a unique key beside the primary key: rows that are written
        before the DDL's binlog may have the values of rows in that partition."""
        at = self.catalog.tables.get(job.table_id) if job.type == ActionType.DROP_TABLE_PARTITION else None
        return at is not None and any(not index.primary for index in at.current.unique_indexes())

    def _pending_jobs(self) -> Iterator[Job]:
        """The pending jobs by the schema version that needs them."""
        for _, job_id in self._pending:
            job = self._history.get(job_id)
            if job is not None:
                yield job

    def bring_forward(self, job: Job, version: int) -> None:
        """Lower the schema version from which rows need this pending job."""
        if version < self._due[job.id]:
            self._pending.remove((self._due[job.id], job.id))
            self._add_pending(job, version)

    def may_precede_start(self, job: Job) -> bool:
        """Whether the job's binlog may precede the position at which this schema was opened."""
        if not job.finished_ts:
            return False
        return tso.physical_ms(job.finished_ts) <= tso.physical_ms(self._opened_ts) + FINISH_LAG_MS_MAX

    @property
    def unclear_at_start(self) -> Job | None:
        """A pending job of which it is not known whether its binlog, with its effect, precedes the position at which
        this schema was opened; None: there is none."""
        began = (job for job in self._pending_jobs() if job.start_ts <= self._opened_ts)
        return next(filter(self.may_precede_start, began), None)

    def plan(self, job: Job, *, query: str, commit_ts: int, own_ts: int, early: bool) -> Planned:
        """Apply `job` to a copy of the catalog. A DDL that fails before `commit` leaves this schema unchanged."""
        catalog = self.catalog.copy()
        name_before = catalog.schema_name(job.schema_id)
        changes = apply_job(catalog, job, self._public_version(job))
        name = catalog.schema_name(job.schema_id) or name_before or job.schema_name
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
        if self.policy.rules:  # those that cannot be applied to its tables are told before it runs
            self.policy.viewed(catalog.replicated(self.policy.filter.allows)[0])
        text = independent(job, query, self.catalog)
        known = self.catalog.replicated(self.policy.filter.allows)[0] if self.policy.rules.merges else {}
        tables = [(table.schema, table.current) for table in known.values()]
        return Planned(job, catalog, self.policy.step(proposed, text, tables))

    def commit(self, planned: Planned) -> None:
        """Adopt the planned catalog, after the job has run downstream or needed no statement."""
        self.catalog = planned.catalog
        job_id = planned.job.id
        if job_id in self._due:
            self._pending.remove((self._due.pop(job_id), job_id))
        self._ran.add(job_id)
        self._view = None

    def has_run(self, job: Job) -> bool:
        """Whether the job was committed since this schema was opened."""
        return job.id in self._ran

    def view(self) -> SchemaView:
        """The current schema as an immutable value for decoders."""
        if self._view is None:
            tables, gone = self.catalog.replicated(self.policy.filter.allows)
            tables, ignored_kinds = self.policy.viewed(tables)
            due = self._pending[0][0] if self._pending else 0
            unknown_columns = None if self._complete else dict(self._unknown_columns)
            relocations, relocated_ids = dict(self.catalog.relocations), dict(self.catalog.relocated_ids)
            running = [*islice(self._pending_jobs(), RUNNING_JOBS_MAX)]
            lost = frozenset((job.table_id, column_id) for job in running for column_id in self._lost_columns(job))
            known, verified = self._history.greatest_version, None if self._complete else dict(self._verified)
            self._view = SchemaView(
                tables,
                gone,
                due,
                self.settled_version,
                unknown_columns,
                relocations,
                relocated_ids,
                known,
                verified,
                columns_being_dropped=lost,
                upcoming_columns=upcoming_columns(running, self.catalog),
                ignored_kinds=ignored_kinds,
                marks=self._marks(),
            )
        return self._view

    def _marks(self) -> MarkTables | None:
        channel_id = self.policy.channel_id
        if channel_id is None:
            return None
        tables = self.catalog.tables.items()
        return MarkTables(channel_id, {i: table for i, table in tables if is_mark_table(table.schema, table.name)})

    def skip_column(self, table_id: int, column_id: int, schema_version: int) -> None:
        """Allow decoders to skip this column in rows up to `schema_version` (see job_kinds)."""
        put_last(self._unknown_columns, (table_id, column_id), schema_version, UNKNOWN_COLUMNS_KEPT)
        self._view = None

    def newest(self, table_id: int) -> TableInfo | None:
        """The TableInfo after the last known job of the table, pending or not."""
        found = self.catalog.locate(table_id)
        info = found.info if found else None
        for job in self._pending_jobs():
            if job.table_info is not None and job.table_info.id == table_id:
                info = job.table_info
        return info

    def verify(self, table_id: int, version: int) -> None:
        """Record that the status port showed the table as after its newest job, once rows of `version` existed."""
        self._verified[table_id] = max(version, self._verified.get(table_id, 0))
        self._view = None

    def _add(self, job: Job, *, done: bool) -> None:
        if not job_kinds.takes_effect(job) or job.id in self._ran:
            return
        if done or 0 < job.finished_ts <= self._opened_ts:
            apply_job(self.catalog, job, self._public_version(job))
        elif job.id not in self._due:
            self._add_pending(job, self._public_version(job))
        self._view = None

    def _public_version(self, job: Job) -> int:
        return public_version(job, self._history.version_before(job))

    def _add_pending(self, job: Job, version: int) -> None:
        self._due[job.id] = version
        insort(self._pending, (version, job.id))
        self._view = None
