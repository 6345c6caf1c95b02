"""The interface by which a destination stores a changefeed's position, epoch, intent, DDL marks and chunk marks.

    position   commit_ts and schema version: everything up to there is in the destination, nothing behind it (rule 17)
    epoch      one higher at every start; whatever is written says in which epoch, and an older one changes nothing
    intent     the range that is being spread, and how it was cut (rule 16); `stage`: how far the sink is with it
    DDL jobs   which were run, and which one a crash interrupted
    chunks     of a slot of the range: how many of its transactions are committed

A PositionStore is bound to a transaction of its caller's: what it does becomes durable with it, or not at all. Where it
lies: sql_position.py (servers and SQLite), document_position.py (memory and a file).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from binlog.cluster import tso

from drainer.sink.base import Intent
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved

DONE = "done"
KEPT_JOBS: Final = 1000
KEPT_JOBS_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A changefeed's position as it lies there. `stage`: of the open intent, in its sink's own words."""

    commit_ts: int
    schema_version: int
    epoch: int
    node_id: str = ""
    intent: Intent | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class JobMark:
    """A DDL job that was begun: `state` is DONE, or its sink's own word; `statement`: how many of its statements are
    done; `plan`: what its sink needs to go on with it."""

    job_id: int
    state: str
    commit_ts: int
    schema_version: int = 0
    statement: int = 0
    plan: str = ""


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """A slot's: `total` is 0 until its first chunk is committed."""

    epoch: int
    done: int
    total: int


class PositionStore(Protocol):
    """The stored state of one changefeed. The caller begins and ends the transaction. Methods with an `epoch` raise
    Fenced if another epoch is stored, and PositionMoved if the stored position is not the expected one; nothing is
    changed then."""

    @property
    def label(self) -> str:
        """Names the changefeed and the place, for errors."""
        ...

    def read(self) -> Stored | None:
        """None where the changefeed has no position. Raises DestinationRefused for one that cannot be read."""
        ...

    def create(self, commit_ts: int, schema_version: int = 0) -> None:
        """A first position with epoch 0; the epoch is taken as on every later start."""
        ...

    def take_epoch(self, epoch: int, node_id: str) -> int:
        """Compare and swap (rule 15): from `epoch` to the next one, which is returned."""
        ...

    def hold(self, epoch: int) -> None:
        """Check that the epoch is ours, and that it stays so until the transaction ends."""
        ...

    def move(self, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
        """The fence of every transaction: from exactly after_ts, in our epoch, with no range open. The schema version
        never goes back (D-CP-05)."""
        ...

    def write_intent(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Record what is about to be spread, and its stage; only from its after_ts."""
        ...

    def clear_intent(self, *, epoch: int, intent: Intent, schema_version: int) -> None:
        """The range is applied: move the position over it and close it."""
        ...

    def job(self, job_id: int) -> JobMark | None: ...

    def open_jobs(self) -> list[JobMark]:
        """Those that are not DONE, by id."""
        ...

    def mark_job(self, mark: JobMark) -> None:
        """In place of what was noted of it."""
        ...

    def forget_job(self, job_id: int) -> None:
        """Nothing was done of it. One that is DONE stays."""
        ...

    def purge_jobs(self, *, before: int, before_ts: int) -> None:
        """Throw away what is DONE, below this id and below this commit_ts."""
        ...

    def open_chunks(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Put every slot's mark of this stage into our epoch, making those that are not there."""
        ...

    def chunk(self, *, intent: Intent, stage: str, slot: int) -> ChunkMark | None: ...

    def step_chunk(self, *, epoch: int, intent: Intent, stage: str, slot: int, chunk: int, total: int) -> bool:
        """Count chunk number `chunk` (from 0) of `total` as done. False, with nothing changed, when it is not the next
        one of our epoch: an attempt of an older epoch, a second attempt of the same chunk, a range that is finished."""
        ...

    def unfinished(self, *, intent: Intent, stage: str) -> list[int]:
        """Slots that have begun and not ended."""
        ...

    def purge_chunks(self, intent: Intent) -> None:
        """Throw away the marks of a finished range, in all stages, and any older ones."""
        ...


def purge_old_jobs(store: PositionStore, job_id: int, commit_ts: int) -> None:
    """After this job. A job that ran early (rule 14) must still be known when its own binlog comes, which is soon; but
    ids say nothing of that: tables and their partitions take theirs from the same counter, thousands at a time."""
    before_ts = max(commit_ts - tso.compose(KEPT_JOBS_MS, 0), 0)
    store.purge_jobs(before=job_id - KEPT_JOBS, before_ts=before_ts)


def refusal(store: PositionStore, *, epoch: int, after_ts: int, until_ts: int) -> Fenced | PositionMoved:
    """Why a fenced change was refused."""
    stored = store.read()
    wanted = f"{store.label}: ({after_ts}, {until_ts}] cannot be applied"
    if stored is None:
        return PositionMoved(f"{wanted}: its position is gone; restore its row in drainer_position, or start anew")
    if stored.epoch != epoch:
        return Fenced(f"{wanted}: drainer {stored.node_id!r} has taken over (epoch {stored.epoch}, ours is {epoch})")
    open_range = f", range {stored.intent} is open" if stored.intent else ""
    return PositionMoved(f"{wanted}: its position is {stored.commit_ts}{open_range}")


def taken_meanwhile(store: PositionStore) -> Fenced:
    return Fenced(f"{store.label}: another drainer took it while this one was starting")


def intent_text(intent: Intent, stage: str) -> str:
    """As it is stored; the stage is called `phase` there."""
    return json.dumps({**asdict(intent), "phase": stage})


def intent_of(text: str, label: str) -> tuple[Intent, str]:
    """An intent and its stage. Raises DestinationRefused."""
    try:
        plan: Mapping[str, Any] = json.loads(text)
        opened = Intent(
            after_ts=int(plan["after_ts"]),
            until_ts=int(plan["until_ts"]),
            slots=int(plan["slots"]),
            chunk_rows=int(plan["chunk_rows"]),
            hash_version=int(plan["hash_version"]),
            digest=str(plan["digest"]),
            pumps=tuple(str(node_id) for node_id in plan.get("pumps", ())),
            counts=tuple(int(count) for count in plan.get("counts", ())),
        )
        return opened, str(plan["phase"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position was not written by this version of the drainer "
            f"({error!r}): {text!r}; start the one that wrote it once, to finish it"
        ) from error


def expect(mark: ChunkMark | None, label: str, *, epoch: int, slot: int, intent: Intent) -> ChunkMark:
    """The mark if it is ours. Raises Fenced."""
    if mark is None or mark.epoch != epoch:
        held = "its marks are gone" if mark is None else f"its epoch is {mark.epoch}"
        raise Fenced(f"{label}: slot {slot} of ({intent.after_ts}, {intent.until_ts}] is not epoch {epoch}'s: {held}")
    return mark


def check_cut(mark: ChunkMark, total: int, label: str, *, slot: int) -> None:
    """Raises PositionMoved when this attempt cut the slot differently from the one that began it."""
    if mark.total not in (0, total):
        raise PositionMoved(
            f"{label}: slot {slot} was cut into {mark.total} chunks before and into {total} now; the range must be "
            f"decoded, filtered and cut as its intent says"
        )
