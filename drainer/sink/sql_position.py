"""Stores a changefeed's position in tables of its destination, in SQL that both servers and SQLite understand.

`drainer_position`  one row per changefeed: position, epoch, open intent
`drainer_mark`      one row per (changefeed, range, phase, slot): number of chunks, and how many are committed
`drainer_ddl`       one row per DDL job: running or done

A fence is the WHERE of its UPDATE: it must change exactly one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from drainer.sink.base import Intent
from drainer.sink.position import DONE, ChunkMark, JobMark, Stored, intent_of, intent_text, refusal, taken_meanwhile

Value = int | str | None
_OURS = "cluster_id=? AND changefeed=?"
_RANGE = f"{_OURS} AND until_ts=? AND phase=?"
_VERSION = "schema_version=CASE WHEN schema_version<? THEN ? ELSE schema_version END"


class Tables(Protocol):
    """A database within a transaction, and whose rows are meant. A `?` stands for a value, a `{name}` for a table."""

    @property
    def label(self) -> str: ...

    @property
    def key(self) -> tuple[int, str]:
        """cluster_id and changefeed, as they are stored."""
        ...

    @property
    def insert_new(self) -> str:
        """The INSERT statement that leaves existing rows unchanged."""
        ...

    def execute(self, text: str, values: Sequence[Value]) -> int:
        """How many rows it found."""
        ...

    def query(self, text: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]: ...


@dataclass(frozen=True, slots=True)
class SqlPositionStore:
    """See position.PositionStore."""

    tables: Tables

    @property
    def label(self) -> str:
        return self.tables.label

    def read(self) -> Stored | None:
        rows = self.tables.query(
            f"SELECT commit_ts, schema_version, epoch, node_id, intent FROM {{drainer_position}} WHERE {_OURS}",
            self.tables.key,
        )
        if not rows:
            return None
        commit_ts, schema_version, epoch, node_id, intent = rows[0]
        opened, stage = intent_of(str(intent), self.label) if intent is not None else (None, "")
        return Stored(int(commit_ts or 0), int(schema_version or 0), int(epoch or 0), str(node_id), opened, stage)

    def create(self, commit_ts: int, schema_version: int = 0) -> None:
        self.tables.execute(
            "INSERT INTO {drainer_position}"
            " (cluster_id, changefeed, commit_ts, schema_version, epoch, node_id, intent) VALUES (?,?,?,?,0,'',NULL)",
            (*self.tables.key, commit_ts, schema_version),
        )

    def take_epoch(self, epoch: int, node_id: str) -> int:
        if not self._swap("epoch=?, node_id=?", (epoch + 1, node_id), "epoch=?", (epoch,)):
            raise taken_meanwhile(self)
        return epoch + 1

    def hold(self, epoch: int) -> None:
        if not self._swap("epoch=epoch", (), "epoch=?", (epoch,)):
            raise refusal(self, epoch=epoch, after_ts=0, until_ts=0)

    def move(self, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
        self._moved(epoch, after_ts, until_ts, schema_version, "", "intent IS NULL")

    def write_intent(self, *, epoch: int, intent: Intent, stage: str) -> None:
        values = (intent_text(intent, stage),)
        if not self._swap("intent=?", values, "epoch=? AND commit_ts=?", (epoch, intent.after_ts)):
            raise refusal(self, epoch=epoch, after_ts=intent.after_ts, until_ts=intent.until_ts)

    def clear_intent(self, *, epoch: int, intent: Intent, schema_version: int) -> None:
        self._moved(epoch, intent.after_ts, intent.until_ts, schema_version, ", intent=NULL", "intent IS NOT NULL")

    def _moved(self, epoch: int, after_ts: int, until_ts: int, schema_version: int, and_set: str, only: str) -> None:
        to = f"commit_ts=?, {_VERSION}{and_set}"
        values = (until_ts, schema_version, schema_version)
        if not self._swap(to, values, f"epoch=? AND commit_ts=? AND {only}", (epoch, after_ts)):
            raise refusal(self, epoch=epoch, after_ts=after_ts, until_ts=until_ts)

    def _swap(self, to: str, values: Sequence[Value], where: str, wanted: Sequence[Value]) -> bool:
        """Update this changefeed's row to `to` if it matches `where`. Return whether it did."""
        text = f"UPDATE {{drainer_position}} SET {to} WHERE {_OURS} AND {where}"
        return self.tables.execute(text, (*values, *self.tables.key, *wanted)) == 1

    def job(self, job_id: int) -> JobMark | None:
        return next(iter(self._jobs("job_id=?", job_id)), None)

    def open_jobs(self) -> list[JobMark]:
        return self._jobs("state<>?", DONE)

    def _jobs(self, where: str, value: Value) -> list[JobMark]:
        rows = self.tables.query(
            "SELECT job_id, state, commit_ts, schema_version, statement, plan FROM {drainer_ddl}"
            f" WHERE {_OURS} AND {where} ORDER BY job_id",
            (*self.tables.key, value),
        )
        return [
            JobMark(int(job_id), str(state), int(commit_ts), int(version), int(statement), str(plan))
            for job_id, state, commit_ts, version, statement, plan in rows
        ]

    def mark_job(self, mark: JobMark) -> None:
        self.tables.execute(
            "REPLACE INTO {drainer_ddl}"
            " (cluster_id, changefeed, job_id, state, commit_ts, schema_version, statement, plan)"
            " VALUES (?,?,?,?,?,?,?,?)",
            (*self.tables.key, mark.job_id, mark.state, mark.commit_ts, mark.schema_version, mark.statement, mark.plan),
        )

    def forget_job(self, job_id: int) -> None:
        text = f"DELETE FROM {{drainer_ddl}} WHERE {_OURS} AND job_id=? AND state<>?"
        self.tables.execute(text, (*self.tables.key, job_id, DONE))

    def purge_jobs(self, *, before: int, before_ts: int) -> None:
        text = f"DELETE FROM {{drainer_ddl}} WHERE {_OURS} AND job_id<? AND commit_ts<? AND state=?"
        self.tables.execute(text, (*self.tables.key, before, before_ts, DONE))

    def open_chunks(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Waits for open transactions of older attempts: they commit before this and are seen, or find no row
        afterwards."""
        range_ = (*self.tables.key, intent.until_ts, stage)
        self.tables.execute(f"UPDATE {{drainer_mark}} SET epoch=? WHERE {_RANGE}", (epoch, *range_))
        rows = [(*range_, slot, intent.after_ts, epoch) for slot in range(intent.slots)]
        self.tables.execute(
            f"{self.tables.insert_new} INTO {{drainer_mark}}"
            " (cluster_id, changefeed, until_ts, phase, slot, after_ts, epoch, chunks_done, chunks_total) VALUES "
            + ",".join(["(?,?,?,?,?,?,?,0,0)"] * len(rows)),
            [value for row in rows for value in row],
        )

    def chunk(self, *, intent: Intent, stage: str, slot: int) -> ChunkMark | None:
        rows = self.tables.query(
            f"SELECT epoch, chunks_done, chunks_total FROM {{drainer_mark}} WHERE {_RANGE} AND slot=?",
            (*self.tables.key, intent.until_ts, stage, slot),
        )
        return ChunkMark(*(int(cell or 0) for cell in rows[0])) if rows else None

    def step_chunk(self, *, epoch: int, intent: Intent, stage: str, slot: int, chunk: int, total: int) -> bool:
        found = self.tables.execute(
            f"UPDATE {{drainer_mark}} SET chunks_done=?, chunks_total=? WHERE {_RANGE}"
            " AND slot=? AND epoch=? AND chunks_done=? AND chunks_total IN (0,?)",
            (chunk + 1, total, *self.tables.key, intent.until_ts, stage, slot, epoch, chunk, total),
        )
        return found == 1

    def unfinished(self, *, intent: Intent, stage: str) -> list[int]:
        rows = self.tables.query(
            f"SELECT slot FROM {{drainer_mark}} WHERE {_RANGE} AND chunks_done<chunks_total ORDER BY slot",
            (*self.tables.key, intent.until_ts, stage),
        )
        return [int(row[0] or 0) for row in rows]

    def purge_chunks(self, intent: Intent) -> None:
        text = f"DELETE FROM {{drainer_mark}} WHERE {_OURS} AND until_ts<=?"
        self.tables.execute(text, (*self.tables.key, intent.until_ts))
