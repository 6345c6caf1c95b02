"""The interface by which a destination stores a changefeed's position, epoch, intent, DDL marks and chunk marks.

    position   commit_ts and schema version: everything up to there has been applied, nothing after it
               (rule 17: the destination's position decides)
    epoch      increases by one at every start; every write names its epoch, and a write of an older epoch has no effect
    intent     the range that is being distributed, and how it is divided (rule 16: same chunks); `stage`: the
               sink's progress with it
    DDL jobs   which have been run, and which one a crash interrupted
    chunks     for each slot of the range, how many of its transactions have been committed

A PositionStore works within a transaction of its caller: its changes become durable with that transaction or not at
all. Implementations: sql_position.py (servers and SQLite), document_position.py (memory and a file).
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


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """The mark of a slot: `done` of its `total` chunks are committed. `total` is 0 until the first one is."""

    epoch: int
    done: int
    total: int


class PositionStore(Protocol):
    """The stored state of one changefeed. The caller begins and ends the transaction. Methods with an `epoch` raise
    Fenced if another epoch is stored, and PositionMoved if the stored position is not the expected one; nothing is
    changed then."""

    @property
    def label(self) -> str:
        """Names the changefeed and the destination, for errors."""
        ...

    def read(self) -> Stored | None:
        """Return the stored position, None if the changefeed has none. Raises DestinationRefused if it cannot be
        read."""
        ...

    def create(self, commit_ts: int, schema_version: int = 0) -> None:
        """Store a first position with epoch 0. The epoch is then taken as at every later start."""
        ...

    def take_epoch(self, epoch: int, node_id: str) -> int:
        """Replace `epoch` by the next one (compare and swap, rule 15: fencing), and return that."""
        ...

    def hold(self, epoch: int) -> None:
        """Check that `epoch` is the stored one, and keep it so until the transaction ends."""
        ...

    def move(self, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
        """Move the position to until_ts. This is the fence of every transaction: the stored position must be exactly
        after_ts, the stored epoch `epoch`, and no range may be open. The schema version never decreases (D-CP-05)."""
        ...

    def write_intent(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Record the range that is about to be distributed, and its stage. The stored position must be
        intent.after_ts."""
        ...

    def clear_intent(self, *, epoch: int, intent: Intent, schema_version: int) -> None:
        """Move the position to intent.until_ts, because the range has been applied, and close the intent."""
        ...

    def job(self, job_id: int) -> JobMark | None: ...

    def open_jobs(self) -> list[JobMark]:
        """Return the jobs that are not DONE, ordered by id."""
        ...

    def mark_job(self, mark: JobMark) -> None:
        """Store the mark, replacing an earlier one of the same job."""
        ...

    def forget_job(self, job_id: int) -> None:
        """Remove the mark of a job of which nothing was executed. A job that is DONE is kept."""
        ...

    def purge_jobs(self, *, before: int, before_ts: int) -> None:
        """Remove the jobs that are DONE and have an id below `before` and a commit_ts below `before_ts`."""
        ...

    def open_chunks(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Set the epoch of every slot's mark of this stage, and create the marks that do not exist."""
        ...

    def chunk(self, *, intent: Intent, stage: str, slot: int) -> ChunkMark | None: ...

    def step_chunk(self, *, epoch: int, intent: Intent, stage: str, slot: int, chunk: int, total: int) -> bool:
        """Record chunk number `chunk` (from 0) of `total` as done. Return False and change nothing if it is not the
        next chunk in this epoch: an attempt of an older epoch, a second attempt of the same chunk, or a finished
        range."""
        ...

    def unfinished(self, *, intent: Intent, stage: str) -> list[int]:
        """Return the slots of which some chunks, but not all, are done."""
        ...

    def purge_chunks(self, intent: Intent) -> None:
        """Remove the marks of a finished range, of all stages, and all older marks."""
        ...


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


def taken_meanwhile(store: PositionStore) -> Fenced:
    return Fenced(f"{store.label}: another drainer took it while this one was starting")


def intent_text(intent: Intent, stage: str) -> str:
    """Return the stored form of an intent. The stage is stored as `phase`."""
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
            pumps=tuple(str(node_id) for node_id in plan["pumps"]),
            counts=tuple(int(count) for count in plan["counts"]),
        )
        return opened, str(plan["phase"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position was not written by this version of the drainer "
            f"({error!r}): {text!r}; start the one that wrote it once, to finish it"
        ) from error


def expect(mark: ChunkMark | None, label: str, *, epoch: int, slot: int, intent: Intent) -> ChunkMark:
    """Return the mark if it has this epoch. Raises Fenced."""
    if mark is None or mark.epoch != epoch:
        held = "its marks are gone" if mark is None else f"its epoch is {mark.epoch}"
        raise Fenced(f"{label}: slot {slot} of ({intent.after_ts}, {intent.until_ts}] is not epoch {epoch}'s: {held}")
    return mark


def check_cut(mark: ChunkMark, total: int, label: str, *, slot: int) -> None:
    """Raise PositionMoved if this attempt divides the slot into another number of chunks than the attempt before."""
    if mark.total not in (0, total):
        raise PositionMoved(
            f"{label}: slot {slot} was cut into {mark.total} chunks before and into {total} now; the range must be "
            f"decoded, filtered and cut as its intent says"
        )
