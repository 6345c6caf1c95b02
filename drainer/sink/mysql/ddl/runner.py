"""Runs the drainer's DDL exactly once: a mark before, the statement, a mark after (fingerprint.py; rule 18).

    (nothing) ──mark──► running ──statement──► running ──mark and position, one transaction──► done

A crash leaves the state `running`. Comparing the destination with the fingerprint in the mark then shows whether the
statement took effect: not if they are equal. A statement runs on the connection that holds the changefeed's lock, so no
statement of a predecessor can still be running when its mark is read.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType
from binlog.tidb.table import IndexInfo, PartitionType

from drainer.ddl.table_diff import foreign_keys
from drainer.schema import job_kinds
from drainer.schema.steps import Ddl
from drainer.sink.errors import DdlFailed, DdlUndecided, DestinationDown, DestinationError, Fenced
from drainer.sink.mysql import position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.ddl import fingerprint, recycle_plan
from drainer.sink.mysql.ddl.fingerprint import Name
from drainer.sink.mysql.ddl.job_plan import JobPlan, Server, offset_of, plan_of, why_not
from drainer.sink.mysql.ddl.recycle_plan import RecycleBin
from drainer.sink.mysql.fenced_session import Driver, lock_name, try_lock
from drainer.sink.mysql.rows.format import quote
from drainer.sink.position import BUILDING, DONE, JobMark, purge_old_jobs
from drainer.sink.retry import RetryDeadline

# Builds an index beside the stream if no row depends on it: ADD INDEX of an index that is not unique.
#
#   (nothing) ── mark and position, one transaction ──► building ── statement, on a thread ──► done
#
# The statement runs on a connection of its own, while rows of the table go on. Another DDL of the table waits for its
# end. A crash leaves `building`, and the next start continues: under a named lock, so that a statement which outlived
# its drainer has ended, it builds the index unless the table has it (rule 18: an interrupted DDL runs once).

_IDLE_S: Final = 24 * 3600
_TOLD_S: Final = 60.0
_EXISTS, _NO_TABLE = 1061, 1146
# The rows that were written meanwhile exceed innodb_online_alter_log_max_size.
_LOG_FULL: Final = 1799


def index_of(step: Ddl, plan: JobPlan, flavour: str) -> IndexInfo | None:
    """Return the index that the step builds, if it may be built beside the stream; else None. Not for TiDB, whose own
    DDL jobs run one after another."""
    if step.job.type != ActionType.ADD_INDEX or step.rewritten or flavour == "tidb":
        return None
    if len(plan.sql) != 1 or plan.instead is not None or plan.clock or plan.zone:
        return None
    if len(step.changes) != 1 or step.changes[0].before is None or step.changes[0].after is None:
        return None
    known = {index.name.lower() for index in step.changes[0].before.info.indexes}
    added = [index for index in step.changes[0].after.info.indexes if index.name.lower() not in known]
    if len(added) != 1 or added[0].unique or added[0].primary:
        return None
    return added[0]


@dataclass(slots=True)
class _Build:
    plan: JobPlan
    thread: threading.Thread
    since_s: float = field(default_factory=time.time)


class BackgroundIndexes:
    """The indexes that one driver builds beside its stream. The driver's thread calls all methods."""

    def __init__(self, config: ServerConfig, driver: Driver, stop: threading.Event) -> None:
        self._config = config
        self._driver = driver
        self._stop = stop
        self._builds: dict[int, _Build] = {}
        self._failure: DestinationError | None = None

    def start(self, plan: JobPlan) -> None:
        """Build the index of a job whose mark is `building`, and wait a moment for its end."""
        if plan.job_id in self._builds:
            return
        thread = threading.Thread(target=self._build, args=(plan,), name=f"index of job {plan.job_id}", daemon=True)
        self._builds[plan.job_id] = _Build(plan, thread)
        thread.start()
        thread.join(self._config.index_wait_s)

    def check(self) -> None:
        """Raises the error that ended a build: DdlFailed, DestinationDown or Fenced."""
        for job_id in [job_id for job_id, build in self._builds.items() if not build.thread.is_alive()]:
            del self._builds[job_id]
        if self._failure is not None:
            raise self._failure

    def wait_for(self, step: Ddl) -> None:
        """Wait for the builds of the tables that the step concerns; of a step that names none, for all. Raises as
        `check`, and DestinationDown if the drainer is to stop."""
        names = _concerned(step)
        for build in list(self._builds.values()):
            if names and not names & {(schema.lower(), table.lower()) for schema, table in build.plan.tables}:
                continue
            self._wait(build, f"DDL job {step.job.id} waits")
        self.check()

    def leave(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the builds. The server ends those that take longer by itself; the next start marks
        them as done."""
        ends_s = time.monotonic() + wait_s
        for build in self._builds.values():
            build.thread.join(max(0.0, ends_s - time.monotonic()))
            if build.thread.is_alive():
                _log.warning(
                    "the drainer stops before an index is built; the server goes on",
                    job=build.plan.job_id,
                    index=build.plan.sql[0],
                )

    def building(self) -> list[str]:
        """Return the statements that run now, each with its time. Any thread may call it."""
        now_s = time.time()
        return [
            f"{build.plan.sql[0]} ({now_s - build.since_s:.0f} s)"
            for build in list(self._builds.values())
            if build.thread.is_alive()
        ]

    def _wait(self, build: _Build, what: str) -> None:
        told_s = float("-inf")
        while build.thread.is_alive():
            build.thread.join(0.2)
            if self._stop.is_set():
                raise DestinationDown(f"{what} for the index of job {build.plan.job_id}: told to stop")
            if time.monotonic() - told_s >= _TOLD_S and build.thread.is_alive():
                told_s = time.monotonic()
                _log.info(f"{what} for an index that is being built", index=build.plan.sql[0])

    def _build(self, plan: JobPlan) -> None:
        deadline = RetryDeadline(f"index of DDL job {plan.job_id}", self._config.retry_for_s, self._stop)
        try:
            deadline.repeat(lambda: self._once(plan), (ConnectionLost, Retry))
        except Fenced as error:
            _log.warning(
                "stopped building an index: another drainer has taken over",
                job=plan.job_id,
                why=str(error),
            )
        except DestinationError as error:
            if not self._stop.is_set():
                self._failure = error

    def _once(self, plan: JobPlan) -> None:
        """Build the index unless it is there, and mark the job as done."""
        changefeed = self._driver.changefeed
        name = lock_name(self._driver.identity.cluster_id, self._driver.identity.changefeed, "index", plan.job_id)
        with contextlib.closing(connect(self._config, idle_s=_IDLE_S, read_timeout_s=None)) as session:
            while not try_lock(session, name):
                if self._stop.is_set():
                    return
            # A successor may have built the index and dropped it again. One that takes over from here on waits for the
            # lock, and with it for this statement.
            store = position.store(session, changefeed)
            store.hold(self._driver.epoch)
            if not session.query(
                b"SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s AND INDEX_NAME=%s"
                b" LIMIT 1" % tuple(map(session.literal, (*plan.tables[0], plan.index)))
            ):
                self._run(session, plan)
                crash_point("sink.ddl_index_built")
            what = f"{changefeed.label}: index of DDL job {plan.job_id}"
            with session.transaction(what, before="sink.ddl_index_commit", after="sink.ddl_index_done"):
                store.hold(self._driver.epoch)
                store.mark_job(JobMark(plan.job_id, DONE, plan.commit_ts, plan.schema_version, 1, plan.text()))

    def _run(self, session: ServerSession, plan: JobPlan) -> None:
        began_s = time.monotonic()
        try:
            if plan.use:
                session.execute(b"USE " + quote(plan.use))
            try:
                session.execute(plan.sql[0].encode())
            except ServerError as error:
                if error.code != _LOG_FULL:
                    raise
                _log.warning("an index is built again, and rows of its table wait", job=plan.job_id, error=str(error))
                session.execute(plan.sql[0].encode() + b", LOCK=SHARED")
        except ServerError as error:
            if error.code == _EXISTS or (plan.may_exist and error.code == _NO_TABLE):
                _log.warning("the destination is as the job leaves it, or later", job=plan.job_id, error=str(error))
                return
            raise self._failed(plan, str(error)) from error
        _log.info("index built", job=plan.job_id, index=plan.sql[0], seconds=round(time.monotonic() - began_s, 1))

    def _failed(self, plan: JobPlan, why: str) -> DdlFailed:
        changefeed = self._driver.changefeed
        return DdlFailed(
            f"DDL job {plan.job_id} (commit_ts {plan.commit_ts}) failed in {changefeed.label}, beside the stream: "
            f"{why}\n  statement: {plan.sql[0]}\n  the next start tries it again; to leave the index out, set state "
            f"to 'done' in {changefeed.job_mark(plan.job_id)}",
            job_id=plan.job_id,
            commit_ts=plan.commit_ts,
        )


def _concerned(step: Ddl) -> set[Name]:
    """The tables of the step, and those that their foreign keys refer to: the server takes a foreign key only if its
    parent has the index."""
    names = {(schema.lower(), table.lower()) for schema, table in step.touched_names}
    for after in (change.after for change in step.changes if change.after is not None):
        names |= {((key.parent_schema or after.schema).lower(), key.parent.lower()) for key in foreign_keys(after.info)}
    return names


# Reads how the destination partitions a table, before rows are removed with a partition.
#
# A table that somebody made there may have partitions of the same names that hold other rows.

_METHODS: Final = {
    PartitionType.RANGE: frozenset({"RANGE", "RANGE COLUMNS"}),
    PartitionType.LIST: frozenset({"LIST", "LIST COLUMNS"}),
    PartitionType.HASH: frozenset({"HASH"}),
}


def other_kind(session: ServerSession, step: Ddl) -> str:
    """Why the partition of this name has other rows here than upstream, '' if no difference is known."""
    if step.rewritten or step.job.type not in job_kinds.TAKES_PARTITIONS or session.flavour == "tidb":
        return ""
    before = next((c.before for c in step.changes if c.before and c.before.info.partition), None)
    parts = before.info.partition if before is not None else None
    if before is None or parts is None or parts.type not in _METHODS:
        return ""
    found = session.query(
        b"SELECT PARTITION_METHOD, COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        b" AND PARTITION_METHOD IS NOT NULL GROUP BY PARTITION_METHOD"
        % (session.literal(before.schema), session.literal(before.name))
    )
    table = f"{before.schema}.{before.name}"
    for method, count in ((str(method), int(count or 0)) for method, count in found):
        if method.upper() not in _METHODS[parts.type]:
            return f"{table} is partitioned by {method} here and by {parts.type.name} upstream"
        if parts.type == PartitionType.HASH and count != len(parts.definitions):
            return f"{table} has {count} partitions here and {len(parts.definitions)} upstream"
    return ""


_log = get_logger(__name__)

# Upstream ignores these errors (D-LD-14): the first copy may contain the effect. Ignored only if the step allows it.
IGNORABLE: Final = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1831})
_ROWS: Final = re.compile(r"\s*(?:INSERT|REPLACE|UPDATE|DELETE)\b", re.IGNORECASE)
_TRAVELLING: Final = job_kinds.RENAMES | {ActionType.EXCHANGE_TABLE_PARTITION}
# Errors that show that the job's effect exists already: the object to drop is missing, or the database to create
# exists. No statement is skipped that could still have an effect.
_ALREADY: Final[Mapping[int, frozenset[int]]] = {
    ActionType.CREATE_SCHEMA: frozenset({1007}),
    ActionType.DROP_SCHEMA: frozenset({1008}),
    ActionType.DROP_TABLE: frozenset({1051}),
    ActionType.DROP_VIEW: frozenset({1051, 4092}),
    ActionType.DROP_SEQUENCE: frozenset({1051, 4091}),
    ActionType.DROP_INDEX: frozenset({1091, 1176}),
    ActionType.DROP_COLUMN: frozenset({1091}),
    ActionType.DROP_FOREIGN_KEY: frozenset({1091}),
}


class DdlRunner:
    """DDL of one changefeed, on its driver's connection."""

    def __init__(self, driver: Driver, bin_: RecycleBin, background: BackgroundIndexes) -> None:
        self._driver = driver
        self._background = background
        self._bin = bin_

    def is_done(self, job_id: int) -> bool:
        """Whether the job's mark is `done`, or its index is built beside the stream."""
        driver = self._driver
        mark = driver.patiently(f"mark of DDL job {job_id}", lambda session: driver.store(session).job(job_id))
        return mark is not None and mark.state in (DONE, BUILDING)

    def run(self, step: Ddl, *, may_exist: bool) -> None:
        """Run all statements of a step and move the position. See base.Sink.ddl."""
        self._background.wait_for(step)
        plan = self._driver.patiently(
            f"statements of DDL job {step.job.id}", lambda _: self._planned(step, may_exist=may_exist)
        )
        deadline = self._driver.deadline(f"DDL job {step.job.id} in {self._driver.changefeed.label}")
        lost = False
        while True:
            try:
                if lost:
                    self.settle()  # whether the statement happened is found out as after a crash
                    lost = False
                if self.is_done(step.job.id):
                    self._finish(plan, BUILDING if plan.index else DONE)
                elif plan.index:
                    self._finish(plan, BUILDING)
                    crash_point("sink.ddl_index_marked")
                    self._background.start(plan)
                else:
                    self._run_from(plan)
                deadline.over()
                return
            except (ConnectionLost, Retry) as error:
                lost = True
                self._driver.lose()
                deadline.failed(error)

    def settle(self) -> None:
        """Find out whether a job that a crash interrupted took effect, and finish it if it did. Raises DdlUndecided."""
        session = self._driver.session()
        for mark in self._driver.store(session).open_jobs():
            plan = JobPlan.parse(mark.plan)
            if mark.state == BUILDING:
                self._background.start(plan)
                continue
            if mark.state == "rerun" or not self._happened(session, plan):
                if plan.statement == 0 and not plan.may_repeat:
                    self._forget(mark.job_id)
                    continue
                self._run_from(plan)
            else:
                self._run_from(replace(plan, statement=plan.statement + 1, before=None))
            _log.warning(
                "the DDL that a crash interrupted has run in the destination", job=plan.job_id, commit_ts=plan.commit_ts
            )

    def _happened(self, session: ServerSession, plan: JobPlan) -> bool:
        if plan.before is None or plan.may_repeat:
            return False
        found = fingerprint.has_run(session, plan, undoes_itself=plan.kind in _TRAVELLING)
        if found is None:
            raise DdlUndecided(
                f"DDL job {plan.job_id} (commit_ts {plan.commit_ts}) was interrupted, and its tables look the same "
                f"before and after it: {plan.sql[plan.statement]!r}. The user of the destination may not read InnoDB's "
                f"table ids (grant PROCESS to have this decided). Look at the tables, then set state to 'done' or to "
                f"'rerun' in {self._driver.changefeed.job_mark(plan.job_id)}"
            )
        return found

    def _planned(self, step: Ddl, *, may_exist: bool) -> JobPlan:
        """The job's plan, made once: every attempt runs it, and a restart runs what its mark has of it.

        Raises DdlFailed for a job that no destination can run."""
        session = self._driver.session()
        server = Server(session.flavour, self._collations)
        if server.is_tidb and step.job.type in job_kinds.CREATES:
            server = replace(server, database_collation=self._database_collation(step.schema))
        plan = plan_of(step, server, may_exist=may_exist)
        index = index_of(step, plan, session.flavour)
        if index is not None:
            plan = replace(plan, index=index.name)
        if self.is_done(step.job.id):  # what it brought back is not in the bin any more
            return plan
        session = self._driver.session()
        why = why_not(step, server) or other_kind(session, step)
        if why:
            raise self._failed(plan, why)
        if not recycle_plan.concerns(step):
            return plan
        try:
            return recycle_plan.through_bin(session, self._bin, step, plan, server)
        except recycle_plan.NotInBin as error:
            raise self._failed(plan, str(error)) from error

    def _run_from(self, plan: JobPlan) -> None:
        """Every statement from plan.statement on, each with its own mark before it."""
        while plan.statement < len(plan.sql):
            session = self._driver.session()
            if _ROWS.match(plan.sql[plan.statement]):
                self._change_rows(session, replace(plan, instead=None, before=None))
                plan = replace(plan, statement=plan.statement + 1)
                continue
            plan = fingerprint.run_marked(session, plan, partial(self._mark, session), partial(self._step, session))
        self._finish(plan)
        crash_point("sink.after_mark")

    def _step(self, session: ServerSession, plan: JobPlan) -> JobPlan:
        if self._execute(session, plan):
            return replace(plan, statement=plan.statement + 1)
        return replace(plan, sql=plan.instead or (), instead=None, instead_codes=(), statement=0)

    def _change_rows(self, session: ServerSession, plan: JobPlan) -> None:
        """A statement on rows, from an operator's ddl-rewrite: no table definition shows whether it ran, but it can
        share a transaction with its mark."""

        try:
            with self._marking(session, plan):
                self._driver.mark(session)
                self._execute(session, plan)
                self._write(session, replace(plan, statement=plan.statement + 1), "running")
        except DdlFailed:
            self._forget(plan.job_id)  # the rollback restored the mark that _execute had removed
            raise

    def _execute(self, session: ServerSession, plan: JobPlan) -> bool:
        """Run one statement. False: it was refused, and `plan.instead` must be run."""
        text = plan.sql[plan.statement]
        try:
            if plan.use:
                session.execute(b"USE " + quote(plan.use))
            if plan.clock:
                session.execute(b"SET timestamp=UNIX_TIMESTAMP(" + session.literal(plan.clock) + b")")
            if plan.zone:
                self._set_zone(session, plan)
            session.execute(text.encode())
            self._report_warnings(session, plan)
        except ServerError as error:
            return self._refused(plan, error)
        finally:
            if plan.zone:
                session.execute(b"SET time_zone='+00:00'")
            if plan.clock:
                session.execute(b"SET timestamp=DEFAULT")
        return True

    def _set_zone(self, session: ServerSession, plan: JobPlan) -> None:
        try:
            session.execute(b"SET time_zone=" + session.literal(plan.zone))
        except ServerError as error:
            offset = offset_of(plan.zone, plan.commit_ts)
            _log.warning(
                "the destination does not know the time zone; using its offset from UTC", error=str(error), used=offset
            )
            session.execute(b"SET time_zone=" + session.literal(offset))

    def _refused(self, plan: JobPlan, error: ServerError) -> bool:
        """After a refusal. True: continue with the next statement; False: with `plan.instead`. Raises DdlFailed."""
        if plan.instead is not None and (not plan.instead_codes or error.code in plan.instead_codes):
            _log.warning(
                "DDL refused by the destination; running an equivalent, or without clauses that no row depends on",
                job=plan.job_id,
                error=str(error),
                statement=plan.sql[plan.statement],
                instead=plan.instead,
            )
            return False
        if error.code in _ALREADY.get(plan.kind, ()) or (plan.may_exist and error.code in IGNORABLE):
            _log.warning("DDL was already done in the destination", job=plan.job_id, error=str(error))
            return True
        if plan.optional_from is not None and plan.statement >= plan.optional_from:
            _log.warning(
                "optional statement of a DDL skipped: the destination refused it",
                job=plan.job_id,
                statement=plan.sql[plan.statement],
                error=str(error),
            )
            return True
        self._forget(plan.job_id)
        raise self._failed(plan, str(error)) from error

    def _failed(self, plan: JobPlan, why: str) -> DdlFailed:
        text = plan.sql[plan.statement] if plan.statement < len(plan.sql) else ""
        return DdlFailed(
            f"DDL job {plan.job_id} (commit_ts {plan.commit_ts}) failed in {self._driver.changefeed.label}: {why}\n"
            f"  statement: {text}\n"
            f"  to run something else in its place, or nothing (sql = []), add to the configuration:\n"
            f"  [[syncer.ddl-rewrite]]\n  job-id = {plan.job_id}\n  sql = []",
            job_id=plan.job_id,
            commit_ts=plan.commit_ts,
        )

    def _report_warnings(self, session: ServerSession, plan: JobPlan) -> None:
        if session.warning_count:
            for level, code, message in session.warnings():
                if level != "Note":
                    _log.warning("DDL warning", job=plan.job_id, level=level, code=code, message=message)

    def _mark(self, session: ServerSession, plan: JobPlan) -> None:
        with self._marking(session, plan):
            self._write(session, plan, "running")

    @contextlib.contextmanager
    def _marking(self, session: ServerSession, plan: JobPlan) -> Iterator[None]:
        """A transaction of this driver's epoch."""
        with session.transaction(self._what(plan), before="sink.ddl_mark_commit", after="sink.ddl_mark_committed"):
            self._driver.store(session).hold(self._driver.epoch)
            yield

    def _finish(self, plan: JobPlan, state: str = DONE) -> None:
        """Store a mark and the position in one transaction. A job that is done stays done."""
        driver = self._driver
        session = driver.session()
        store = driver.store(session)
        with session.transaction(self._what(plan), before="sink.before_commit", after="sink.after_commit"):
            stored = store.read()
            after_ts = min(stored.commit_ts, plan.commit_ts) if stored else 0
            store.move(
                epoch=driver.epoch,
                after_ts=after_ts,
                until_ts=plan.commit_ts,
                schema_version=plan.schema_version,
            )
            mark = store.job(plan.job_id)
            is_done = mark is not None and mark.state == DONE
            self._write(session, replace(plan, before=None), DONE if is_done else state)
            purge_old_jobs(store, plan.job_id, plan.commit_ts)

    def _what(self, plan: JobPlan) -> str:
        return f"{self._driver.changefeed.label}: DDL job {plan.job_id} (commit_ts {plan.commit_ts})"

    def _write(self, session: ServerSession, plan: JobPlan, state: str) -> None:
        mark = JobMark(plan.job_id, state, plan.commit_ts, plan.schema_version, plan.statement, plan.text())
        self._driver.store(session).mark_job(mark)

    def _forget(self, job_id: int) -> None:
        self._driver.store(self._driver.session()).forget_job(job_id)

    def _database_collation(self, schema: str) -> str:
        session = self._driver.session()
        rows = session.query(
            b"SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME="
            + session.literal(schema)
        )
        return str(rows[0][0]) if rows else ""

    @cached_property
    def _collations(self) -> frozenset[str]:
        return known_collations(self._driver.session())


def known_collations(session: ServerSession) -> frozenset[str]:
    """The collations that the server knows, in lower case."""
    names = session.query(b"SELECT COLLATION_NAME FROM information_schema.COLLATIONS")
    known = {str(row[0]).lower() for row in names}
    if session.flavour == "mariadb":
        try:
            full = session.query(
                b"SELECT FULL_COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            )
            known |= {str(row[0]).lower() for row in full}
        except ServerError as error:  # before MariaDB 10.10 there are no such names
            _log.debug("no full collation names", error=str(error))
    return frozenset(known)
