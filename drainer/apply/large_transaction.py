"""Large transactions: pulled by the driver without Spark, cut into pieces, applied in one downstream transaction.

    pump ─ parts ─► spool (a file) ─► pieces: binlogs of a few MiB ─► fold ─┐
                                                   begin, fence ─► piece, piece, … ─► commit

The transaction is never held as one value; drainer.row.transaction explains why the pieces may be applied one
after another. If anything fails in between, the destination rolls back, and the transaction is applied from the start
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security

from drainer.apply.batch_planner import PlannedBatch
from drainer.apply.fold_order import RowDecoder
from drainer.apply.progress import Progress
from drainer.batch.served import ServedBinlog
from drainer.pumps.binlog_parts import PART_BYTES_MAX
from drainer.pumps.spool import NotServed, Spool, give_back
from drainer.row.transaction import PIECE_BYTES_MAX, pieces
from drainer.schema.steps import Rows
from drainer.sink.base import Segment

SAY_EVERY_S = 10.0

_log = get_logger(__name__)

PullLarge = Callable[[PlannedBatch, Progress], "contextlib.AbstractContextManager[list[ServedBinlog]]"]


@dataclass(slots=True)
class Step:
    """One step of a long operation, shown on the status page and periodically logged; ends with the block."""

    progress: Progress
    name: str
    total_bytes: int
    commit_ts: int
    begun_s: float = field(default_factory=time.monotonic)
    said_s: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Step:
        self.progress.step, self.progress.step_bytes, self.progress.step_total = self.name, 0, self.total_bytes
        _log.info(f"{self.name} a large transaction", commit_ts=self.commit_ts, bytes=self.total_bytes)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            seconds = round(time.monotonic() - self.begun_s, 1)
            _log.info(f"{self.name} is done", commit_ts=self.commit_ts, seconds=seconds)
        self.progress.step, self.progress.step_bytes, self.progress.step_total = "", 0, 0

    def add(self, size: int) -> None:
        self.progress.step_bytes += size
        now_s = time.monotonic()
        if now_s - self.said_s >= SAY_EVERY_S:
            self.said_s = now_s
            _log.info(
                f"{self.name} a large transaction",
                commit_ts=self.commit_ts,
                bytes=self.progress.step_bytes,
                of=self.total_bytes,
            )


@dataclass(frozen=True, slots=True)
class LargePuller:
    """Pulls the ranges of a LARGE plan from pumps of one cluster."""

    cluster_id: int
    security: Security

    @contextlib.contextmanager
    def __call__(self, plan: PlannedBatch, progress: Progress) -> Iterator[list[ServedBinlog]]:
        """The binlogs of the plan's ranges, for as long as the block lasts. Raises NotServed and what Spool raises."""
        with contextlib.closing(Spool()) as spool:
            with Step(progress, "pulling", plan.batch_bytes, plan.until_ts) as step:
                spool.pull(plan.large, cluster_id=self.cluster_id, security=self.security, on_bytes=step.add)
            found = list(spool.binlogs(PART_BYTES_MAX))
            for node_id in plan.holders:
                if not any(one.pump == node_id and one.commit_ts == plan.until_ts for one in found):
                    raise NotServed(node_id, plan.until_ts)
            yield found


@dataclass(frozen=True, slots=True)
class Section:
    """Binlogs of (after_ts, until_ts] for one downstream transaction; `large`: applied in pieces."""

    after_ts: int
    until_ts: int
    binlogs: tuple[ServedBinlog, ...]
    large: bool


def sections(rows: Rows) -> list[Section]:
    """Split the rows before and after each commit_ts of a large transaction. Other binlogs of that commit_ts are in the
    same section, because a position cannot be between them."""
    runs: list[tuple[bool, list[ServedBinlog]]] = []
    for _, group in groupby(rows.binlogs, attrgetter("commit_ts")):
        same = list(group)
        large = any(one.is_large for one in same)
        if runs and not large and not runs[-1][0]:
            runs[-1][1].extend(same)
        else:
            runs.append((large, same))
    found: list[Section] = []
    for number, (large, binlogs) in enumerate(runs):
        after_ts = found[-1].until_ts if found else rows.after_ts
        until_ts = rows.until_ts if number == len(runs) - 1 else binlogs[-1].commit_ts
        found.append(Section(after_ts, until_ts, tuple(binlogs), large))
    return found


def works(
    section: Section, decoder: RowDecoder, progress: Progress, piece_bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[Segment]:
    """The section's work piece by piece, in order. Raises as SegmentDecoder.segment."""
    total = sum(len(one.payload) for one in section.binlogs)
    with Step(progress, "applying", total, section.until_ts) as step:
        for one in section.binlogs:
            piece = decoder.transaction()
            for payload in _small(one, piece_bytes_max):
                yield piece(payload, section.after_ts, section.until_ts)
                step.add(len(payload))
                if isinstance(one.payload, memoryview):
                    give_back(one.payload)
                crash_point("drainer.mid_large")


def _small(one: ServedBinlog, piece_bytes_max: int) -> Iterable[bytes]:
    payload = one.payload
    if not isinstance(payload, memoryview):
        return (payload,)
    return pieces(payload, piece_bytes_max, release=lambda: give_back(payload))
