"""The interface by which a destination stores a changefeed's position, epoch, intent and DDL marks.

    position   commit_ts and schema version: everything up to there has been applied, nothing after it
               (rule 17: the destination's position decides)
    epoch      increases by one at every start; every write names its epoch, and a write of an older epoch has no effect
    intent     the range that is being distributed, and how it is divided (rule 16: same chunks); `stage`: the
               sink's progress with it
    DDL jobs   which have been run, and which one a crash interrupted

A PositionStore works within a transaction of its caller: its changes become durable with that transaction or not at
all. There are SqlPositionStore below (servers and SQLite), which says what the methods do, and DocumentPositionStore
(memory and a file).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from binlog.cluster import tso

from drainer.sink.base import SCHEMA_ID, FirstStart, Intent, Position, TableLoad, TableName, Verification
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved

if TYPE_CHECKING:
    from drainer.sink.document_position import DocumentPositionStore

PositionStore: TypeAlias = "SqlPositionStore | DocumentPositionStore"

DONE = "done"
BUILDING: Final = "building"  # of an index, beside the stream; a state has at most 8 characters
KEPT_JOBS: Final = 1000
KEPT_JOBS_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A changefeed's position as it is stored. `stage`: stage of the open intent, in a format of the sink."""

    commit_ts: int
    schema_version: int
    epoch: int
    node_id: str = ""
    intent: Intent | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class JobMark:
    """A DDL job that was started. `state`: DONE, or a state of the sink; `statement`: how many of its statements are
    complete; `plan`: what the sink needs to continue it."""

    job_id: int
    state: str
    commit_ts: int
    schema_version: int = 0
    statement: int = 0
    plan: str = ""


def purge_old_jobs(store: PositionStore, job_id: int, commit_ts: int) -> None:
    """Remove old jobs after this one is done. A job that ran early (rule 14: DDL before the rows that need it) must
    still be known when its own binlog arrives soon afterwards. Ids alone do not tell which jobs are old, because tables
    and their partitions take ids from the same counter, thousands at a time."""
    before_ts = max(commit_ts - tso.compose(KEPT_JOBS_MS, 0), 0)
    store.purge_jobs(before=job_id - KEPT_JOBS, before_ts=before_ts)


def refusal(store: PositionStore, *, epoch: int, after_ts: int, until_ts: int) -> Fenced | PositionMoved:
    """Return the error that explains why a fenced change had no effect."""
    stored = store.read()
    wanted = f"{store.label}: ({after_ts}, {until_ts}] cannot be applied"
    if stored is None:
        return PositionMoved(f"{wanted}: its position is gone; restore its row in drainer_position, or start anew")
    if stored.epoch != epoch:
        return Fenced(f"{wanted}: drainer {stored.node_id!r} has taken over (epoch {stored.epoch}, ours is {epoch})")
    open_range = f", range {stored.intent} is open" if stored.intent else ""
    return PositionMoved(f"{wanted}: its position is {stored.commit_ts}{open_range}")


def take_over(
    store: PositionStore, node_id: str, initial_ts: int, first: FirstStart, there: Collection[TableName] = ()
) -> tuple[int, Position]:
    """Take the changefeed over, as base.Sink.open does. Return the epoch and the position. `there`: tables of the
    destination, as far as they are known."""
    stored = store.read()
    fresh = stored is None
    missing: tuple[TableName, ...] = ()
    if stored is None:
        missing = first.missing(there)
        stored = Stored(first.begin_ts(initial_ts, missing), 0, 0)
        store.create(stored.commit_ts, loads=first.loads)
    epoch = store.take_epoch(stored.epoch, node_id)
    loads = tuple(store.loads())
    return epoch, Position(stored.commit_ts, stored.schema_version, stored.intent, fresh, missing, loads)


def taken_meanwhile(store: PositionStore) -> Fenced:
    return Fenced(f"{store.label}: another drainer took it while this one was starting")


def tuples(value: Any) -> Any:
    """A value of JSON with tuples in place of lists, of an object in its members."""
    if isinstance(value, dict):
        return {name: tuples(one) for name, one in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def intent_text(intent: Intent, stage: str) -> str:
    """Return the stored form of an intent. The stage is stored as `phase`."""
    return json.dumps({**asdict(intent), "phase": stage})


def intent_of(text: str, label: str) -> tuple[Intent, str]:
    """An intent and its stage. Raises DestinationRefused."""
    try:
        plan: dict[str, Any] = tuples(json.loads(text))
        stage = str(plan.pop("phase"))
        return Intent(**plan), stage
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position was not written by this version of the drainer "
            f"({error!r}): {text!r}; start the one that wrote it once, to finish it"
        ) from error


def body_of(stored: Stored) -> dict[str, Any]:
    """A position as JSON, its intent as text."""
    intent = None if stored.intent is None else intent_text(stored.intent, stored.stage)
    return {**asdict(stored), "intent": intent}


def stored_of(body: Mapping[str, Any], label: str) -> Stored:
    """Return the position of the JSON that `body_of` returned. Raises DestinationRefused for an intent that cannot be
    read, TypeError for other members than those of a position."""
    intent, stage = intent_of(body["intent"], label) if body["intent"] is not None else (None, "")
    return Stored(**{**body, "intent": intent, "stage": stage})


# Stores a changefeed's position in tables of its destination, in SQL that both servers and SQLite understand.
#
#   drainer_position  one row per changefeed: position, epoch, open intent
#   drainer_ddl       one row per DDL job: running or done
#   drainer_load      one row per table of a first load, or part of one: its borders, how many of its ranges are loaded
#   drainer_check     one row per table that was compared with upstream's: the result, and when it was equal
#
# A fence is the WHERE of its UPDATE: it must change exactly one row.


def definition(columns: str, *key: str) -> str:
    """The columns of one of these tables, after those of the changefeed, and its key. Of a type SQLite only looks
    whether it is a number."""
    of_key = ", ".join(("cluster_id", "changefeed", *key))
    head = "cluster_id BIGINT UNSIGNED NOT NULL, changefeed VARCHAR(100) NOT NULL"
    return f"({head}, {columns}, PRIMARY KEY ({of_key}))"


TABLES: Final = {
    "drainer_position": definition(
        "commit_ts BIGINT UNSIGNED NOT NULL, schema_version BIGINT NOT NULL, epoch BIGINT UNSIGNED NOT NULL, "
        "node_id VARCHAR(255) NOT NULL, intent MEDIUMTEXT"
    ),
    "drainer_ddl": definition(
        "job_id BIGINT NOT NULL, state VARCHAR(8) NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, "
        "schema_version BIGINT NOT NULL, statement INT NOT NULL, plan LONGTEXT NOT NULL",
        "job_id",
    ),
    "drainer_load": definition(
        "table_id BIGINT NOT NULL, part INT NOT NULL, borders LONGTEXT, loaded BIGINT NOT NULL", "table_id", "part"
    ),
    "drainer_check": definition(
        "table_id BIGINT NOT NULL, table_name VARCHAR(140) NOT NULL, verified_ts BIGINT UNSIGNED NOT NULL, "
        "checked_ts BIGINT UNSIGNED NOT NULL, differences BIGINT NOT NULL",
        "table_id",
    ),
}
Value = int | str | None
OURS = "cluster_id=? AND changefeed=?"
_VERSION = "schema_version=CASE WHEN schema_version<? THEN ? ELSE schema_version END"


class Tables(Protocol):
    """A database within a transaction. A `?` stands for a value, a `{name}` for a table."""

    def execute(self, text: str, values: Sequence[Value]) -> int:
        """How many rows it found."""
        ...

    def query(self, text: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]: ...


@dataclass(frozen=True, slots=True)
class SqlPositionStore:
    """The stored state of one changefeed. The caller begins and ends the transaction. Methods with an `epoch` raise
    Fenced if another epoch is stored, and PositionMoved if the stored position is not the expected one; nothing is
    changed then. `label`: names the changefeed and the destination, for errors; `key`: cluster_id and changefeed, as
    they are stored."""

    tables: Tables
    label: str
    key: tuple[int, str]

    def read(self) -> Stored | None:
        """Return the stored position, None if the changefeed has none. Raises DestinationRefused if it cannot be
        read."""
        rows = self.tables.query(
            f"SELECT commit_ts, schema_version, epoch, node_id, intent FROM {{drainer_position}} WHERE {OURS}",
            self.key,
        )
        if not rows:
            return None
        commit_ts, schema_version, epoch, node_id, intent = rows[0]
        opened, stage = intent_of(str(intent), self.label) if intent is not None else (None, "")
        return Stored(int(commit_ts or 0), int(schema_version or 0), int(epoch or 0), str(node_id), opened, stage)

    def create(self, commit_ts: int, schema_version: int = 0, *, loads: bool = False) -> None:
        """Store a first position with epoch 0. The epoch is then taken as at every later start. `loads`: with the load
        of SCHEMA_ID. Loads of an earlier position are forgotten, with the marks of what they created: jobs below 0. All
        of this precedes the position, because the caller may have no transaction, and no position may be found without
        its load."""
        self.tables.execute(f"DELETE FROM {{drainer_load}} WHERE {OURS}", self.key)
        self.tables.execute(f"DELETE FROM {{drainer_ddl}} WHERE {OURS} AND job_id<0", self.key)
        if loads:
            self._put_load(TableLoad(SCHEMA_ID, ()))
        self.tables.execute(
            "INSERT INTO {drainer_position}"
            " (cluster_id, changefeed, commit_ts, schema_version, epoch, node_id, intent) VALUES (?,?,?,?,0,'',NULL)",
            (*self.key, commit_ts, schema_version),
        )

    def take_epoch(self, epoch: int, node_id: str) -> int:
        """Replace `epoch` by the next one (compare and swap, rule 15: fencing), and return that."""
        if not self._swap("epoch=?, node_id=?", (epoch + 1, node_id), "epoch=?", (epoch,)):
            raise taken_meanwhile(self)
        return epoch + 1

    def hold(self, epoch: int) -> None:
        """Check that `epoch` is the stored one, and keep it so until the transaction ends."""
        if not self._swap("epoch=epoch", (), "epoch=?", (epoch,)):
            raise refusal(self, epoch=epoch, after_ts=0, until_ts=0)

    def move(self, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
        """Move the position to until_ts. This is the fence of every transaction: the stored position must be exactly
        after_ts, the stored epoch `epoch`, and no range may be open. The schema version never decreases (D-CP-05)."""
        self._moved(epoch, after_ts, until_ts, schema_version, "", "intent IS NULL")

    def write_intent(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Record the range that is about to be distributed, and its stage. The stored position must be
        intent.after_ts."""
        values = (intent_text(intent, stage),)
        if not self._swap("intent=?", values, "epoch=? AND commit_ts=?", (epoch, intent.after_ts)):
            raise refusal(self, epoch=epoch, after_ts=intent.after_ts, until_ts=intent.until_ts)

    def clear_intent(self, *, epoch: int, intent: Intent, schema_version: int) -> None:
        """Move the position to intent.until_ts, because the range has been applied, and close the intent."""
        self._moved(epoch, intent.after_ts, intent.until_ts, schema_version, ", intent=NULL", "intent IS NOT NULL")

    def _moved(self, epoch: int, after_ts: int, until_ts: int, schema_version: int, and_set: str, only: str) -> None:
        to = f"commit_ts=?, {_VERSION}{and_set}"
        values = (until_ts, schema_version, schema_version)
        if not self._swap(to, values, f"epoch=? AND commit_ts=? AND {only}", (epoch, after_ts)):
            raise refusal(self, epoch=epoch, after_ts=after_ts, until_ts=until_ts)

    def _swap(self, to: str, values: Sequence[Value], where: str, wanted: Sequence[Value]) -> bool:
        """Update this changefeed's row to `to` if it matches `where`. Return whether it did."""
        text = f"UPDATE {{drainer_position}} SET {to} WHERE {OURS} AND {where}"
        return self.tables.execute(text, (*values, *self.key, *wanted)) == 1

    def job(self, job_id: int) -> JobMark | None:
        return next(iter(self._jobs("job_id=?", job_id)), None)

    def open_jobs(self) -> list[JobMark]:
        """Return the jobs that are not DONE, ordered by id."""
        return self._jobs("state<>?", DONE)

    def _jobs(self, where: str, value: Value) -> list[JobMark]:
        rows = self.tables.query(
            "SELECT job_id, state, commit_ts, schema_version, statement, plan FROM {drainer_ddl}"
            f" WHERE {OURS} AND {where} ORDER BY job_id",
            (*self.key, value),
        )
        return [
            JobMark(int(job_id), str(state), int(commit_ts), int(version), int(statement), str(plan))
            for job_id, state, commit_ts, version, statement, plan in rows
        ]

    def mark_job(self, mark: JobMark) -> None:
        """Store the mark, replacing an earlier one of the same job."""
        self.tables.execute(
            "REPLACE INTO {drainer_ddl}"
            " (cluster_id, changefeed, job_id, state, commit_ts, schema_version, statement, plan)"
            " VALUES (?,?,?,?,?,?,?,?)",
            (*self.key, mark.job_id, mark.state, mark.commit_ts, mark.schema_version, mark.statement, mark.plan),
        )

    def forget_job(self, job_id: int) -> None:
        """Remove the mark of a job of which nothing was executed. A job that is DONE is kept."""
        text = f"DELETE FROM {{drainer_ddl}} WHERE {OURS} AND job_id=? AND state<>?"
        self.tables.execute(text, (*self.key, job_id, DONE))

    def loads(self) -> list[TableLoad]:
        """The loads of tables, ordered by id and part."""
        rows = self.tables.query(
            f"SELECT table_id, part, borders, loaded FROM {{drainer_load}} WHERE {OURS} ORDER BY table_id, part",
            self.key,
        )
        return [_load_of(int(table_id), int(part), text, int(loaded)) for table_id, part, text, loaded in rows]

    def put_loads(self, epoch: int, loads: Sequence[TableLoad], done: TableLoad | None) -> None:
        self.hold(epoch)
        if done is None or self.step_load(done.table_id, done.part, done.loaded):
            for load in loads:
                self._put_load(load)

    def _put_load(self, load: TableLoad) -> None:
        borders = None if load.borders is None else json.dumps([load.lower, *load.borders, load.upper])
        self.tables.execute(
            "REPLACE INTO {drainer_load} (cluster_id, changefeed, table_id, part, borders, loaded)"
            " VALUES (?,?,?,?,?,?)",
            (*self.key, load.table_id, load.part, borders, load.loaded),
        )

    def step_load(self, table_id: int, part: int, number: int) -> bool:
        """Record range `number` (from 0) of a part as loaded. Return False and change nothing if it is loaded already.
        Raises PositionMoved if it is not the next one."""
        key = table_id, part
        text = f"UPDATE {{drainer_load}} SET loaded=? WHERE {OURS} AND table_id=? AND part=? AND loaded=?"
        if self.tables.execute(text, (number + 1, *self.key, *key, number)) == 1:
            return True
        if any((one.table_id, one.part) == key and one.loaded > number for one in self.loads()):
            return False
        raise PositionMoved(f"{self.label}: range {number} of table {table_id} is not the next one of its load")

    def expect(self, *, epoch: int, commit_ts: int) -> None:
        """Check that this is the stored epoch and position, without a lock. Raises Fenced, PositionMoved."""
        stored = self.read()
        if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != (epoch, commit_ts, None):
            raise refusal(self, epoch=epoch, after_ts=commit_ts, until_ts=commit_ts)

    def verifications(self) -> list[Verification]:
        """The last comparisons of tables, ordered by id."""
        rows = self.tables.query(
            "SELECT table_id, table_name, verified_ts, checked_ts, differences FROM {drainer_check}"
            f" WHERE {OURS} ORDER BY table_id",
            self.key,
        )
        return [Verification(int(row[0]), str(row[1]), *map(int, row[2:])) for row in rows]

    def put_verifications(self, found: Iterable[Verification], known: Container[int]) -> None:
        """Store comparisons, and forget those of tables whose id is not `known`."""
        before = {one.table_id: one for one in self.verifications()}
        for table_id in before:
            if table_id not in known:
                text = f"DELETE FROM {{drainer_check}} WHERE {OURS} AND table_id=?"
                self.tables.execute(text, (*self.key, table_id))
        for one in found:
            self.tables.execute(
                "REPLACE INTO {drainer_check} (cluster_id, changefeed, table_id, table_name, verified_ts, checked_ts,"
                " differences) VALUES (?,?,?,?,?,?,?)",
                (*self.key, *astuple(one.after(before.get(one.table_id)))),
            )

    def purge_jobs(self, *, before: int, before_ts: int) -> None:
        """Remove the jobs that are DONE and have an id below `before` and a commit_ts below `before_ts`."""
        text = f"DELETE FROM {{drainer_ddl}} WHERE {OURS} AND job_id<? AND commit_ts<? AND state=?"
        self.tables.execute(text, (*self.key, before, before_ts, DONE))


def _load_of(table_id: int, part: int, text: str | None, loaded: int) -> TableLoad:
    if text is None:
        return TableLoad(table_id, None, loaded, part)
    lower, *borders, upper = tuples(json.loads(text))
    return TableLoad(table_id, tuple(borders), loaded, part, lower, upper)


class ConsumerPosition(SqlPositionStore):
    """The position of the consumer that the changefeed's name names. Nothing of it is written."""

    def read(self) -> Stored | None:
        """Every row and DDL up to the position is there, and none above it (kafka_consumer.core.Resume). The version
        changes with each DDL, and is below that of every job. Raises PositionMoved while a DDL runs, and soon after its
        commit_ts: its job may not have finished (facts.md, X-05), and rows of a first load follow its CREATEs."""
        from drainer.schema.state import FINISH_LAG_MS_MAX  # executors import this module, and need no schema

        query = "SELECT position, ddl FROM tidb_binlog.kafka_consumer WHERE name=?"
        rows = self.tables.query(query, self.key[1:])
        if not rows or not rows[0][0]:
            return None
        found = json.loads(str(rows[0][0]))
        at_ts, ddl_ts = found["applied_ts"], max((ddl[0] for ddl in found["ddls"]), default=0)
        if rows[0][1] is not None or tso.physical_ms(at_ts) <= tso.physical_ms(ddl_ts) + FINISH_LAG_MS_MAX:
            raise PositionMoved(f"{self.label}: the DDL at {ddl_ts} has not run, or not been finished at {at_ts}")
        if any(len(read) > 4 for read in found["reads"]):  # with an `applied_ts` of its own
            raise PositionMoved(f"{self.label}: a partition has not reached {at_ts} yet, or is not read any more")
        return Stored(at_ts, -ddl_ts, 0)

    def job(self, job_id: int) -> JobMark | None:
        return None

    def open_jobs(self) -> list[JobMark]:
        return []

    def loads(self) -> list[TableLoad]:
        return []

    def put_verifications(self, found: Iterable[Verification], known: Container[int]) -> None:
        """The result is the report alone."""
