"""Builds an index beside the stream if no row depends on it: ADD INDEX of an index that is not unique.

    (nothing) ── mark and position, one transaction ──► building ── statement, on a thread ──► done

The statement runs on a connection of its own, while rows of the table go on. Another DDL of the table waits for its
end. A crash leaves `building`, and the next start continues: under a named lock, so that a statement which outlived
its drainer has ended, it builds the index unless the table has it (rule 18: an interrupted DDL runs once).
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType
from binlog.tidb.table import IndexInfo

from drainer.ddl.table_diff import foreign_keys
from drainer.schema.steps import Ddl
from drainer.sink.errors import DdlFailed, DestinationDown, DestinationError, Fenced
from drainer.sink.mysql import position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.ddl.fingerprint import Name
from drainer.sink.mysql.ddl.job_plan import JobPlan
from drainer.sink.mysql.fenced_session import Driver, lock_name, try_lock
from drainer.sink.mysql.rows.format import quote
from drainer.sink.position import DONE, JobMark
from drainer.sink.retry import RetryDeadline

_IDLE_S: Final = 24 * 3600
_TOLD_S: Final = 60.0
_EXISTS, _NO_TABLE = 1061, 1146
# The rows that were written meanwhile exceed innodb_online_alter_log_max_size.
_LOG_FULL: Final = 1799

_log = get_logger(__name__)


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
            _log.warning("another drainer goes on with an index", job=plan.job_id, why=str(error))
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
