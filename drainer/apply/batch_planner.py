"""Decides the next batch: from the pumps' answers to a plan or a question. Pure; pipeline.py carries it out.

A batch is *distributed* to executors if there are enough bytes before the next DDL (and before any row whose schema is
not known yet); all others are applied *in the driver*: collected there, which runs the DDLs. A *large* transaction is a
batch of its own, which the driver pulls without Spark. See docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from binlog.cluster import tso

from drainer.pumps.client import PART_BYTES_MAX
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, PumpRange, Stop, Watermark, ranges_of, together

if TYPE_CHECKING:
    from drainer.apply.fold_order import ReadOrder
    from drainer.sink.base import Intent

MIB = 1 << 20
# A pump's share can only be cut in quarters: a second range for each concurrent task balances them.
READERS_PER_TASK = 2
# The end of a delayed batch moves in steps: without them the end of every survey would be an end of a batch.
DELAY_STEP_MS = 1000


class Mode(StrEnum):
    DRIVER = "driver"
    DISTRIBUTED = "distributed"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How batches are cut. Bytes are of binlog payloads.

    `driver_bytes_max`, `driver_count_max`: one batch in the driver; `distributed_bytes_min`: smaller batches are not
    distributed; `distributed_bytes_max`: one distributed batch, 0 = the destination takes no distributed batches;
    `parallelism`: concurrent tasks available.
    """

    driver_bytes_max: int = 2 * MIB
    driver_count_max: int = 5_000
    distributed_bytes_min: int = 2 * MIB
    distributed_bytes_max: int = 64 * MIB
    parallelism: int = 2
    # Below this many bytes one task pulls from all pumps: a second task costs more than it saves.
    one_task_bytes_max: int = MIB // 4
    # A transaction of more bytes is a batch of its own, and never one value.
    large_bytes_min: int = PART_BYTES_MAX


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch: (after_ts, until_ts] of all pumps, and the ranges that each task pulls. `intent`: an open one of an
    earlier start, which determines the range and the cut (rule 17: the destination's position decides); `fold`: how the
    reading tasks decode and divide a distributed batch; `large`: the ranges that the driver pulls itself, in mode
    LARGE, and `holders`: the pumps that have the large transaction."""

    after_ts: int
    until_ts: int
    mode: Mode
    tasks: tuple[tuple[PumpRange, ...], ...]
    batch_bytes: int
    intent: Intent | None = None
    fold: ReadOrder | None = None
    large: tuple[PumpRange, ...] = ()
    holders: tuple[str, ...] = ()

    @property
    def planned(self) -> dict[str, Counted | None]:
        """The number of binlogs and bytes that each pump must deliver, None if unknown (rule 22: planned binlogs are
        pulled)."""
        parts = [part for task in (*self.tasks, self.large) for part in task]
        return {
            node_id: together(part.planned for part in parts if part.node_id == node_id)
            for node_id in dict.fromkeys(part.node_id for part in parts)
        }


@dataclass(frozen=True, slots=True)
class MovePosition:
    """There are no binlogs up to `until_ts`: the position may move there without a batch."""

    until_ts: int


@dataclass(frozen=True, slots=True)
class Ask:
    """The answers are not sufficient: ask the pumps again with these limits."""

    limits: BatchLimits


Decision = PlannedBatch | MovePosition | Ask | None


def first_limits(sizes: Sizes, *, schema_version: int, pumps: int) -> BatchLimits:
    """The first limits to ask with: for the bytes before the next DDL, or for a batch in the driver if nothing is
    distributed."""
    if not sizes.distributed_bytes_max:
        return driver_limits(sizes, pumps=pumps)
    share = _share(sizes.distributed_bytes_max, pumps)
    return BatchLimits(share, stop_at_schema=True, schema_version=schema_version, large_bytes_min=sizes.large_bytes_min)


def driver_limits(sizes: Sizes, *, pumps: int) -> BatchLimits:
    return BatchLimits(
        _share(sizes.driver_bytes_max, pumps),
        _share(sizes.driver_count_max, pumps),
        large_bytes_min=sizes.large_bytes_min,
    )


def final(reached_now_ts: int | None, stop_at_ts: int) -> int | None:
    """Return the commit_ts at which the drainer ends: the lower one of until-now's and stop-at's. None: at none."""
    return min((ts for ts in (reached_now_ts, stop_at_ts or None) if ts is not None), default=None)


def ceiling(final_ts: int | None, delay_ms: int, now_ts: int) -> int | None:
    """Return the ts that no batch may exceed, None: there is none. `now_ts`: the cluster's time; while it is
    unknown (0) a delay lets nothing pass."""
    if not delay_ms:
        return final_ts
    latest_ms = max(0, tso.physical_ms(now_ts) - delay_ms)
    delayed_ts = tso.compose(latest_ms - latest_ms % DELAY_STEP_MS)
    return delayed_ts if final_ts is None else min(final_ts, delayed_ts)


def decide(
    watermark: Watermark,
    *,
    after_ts: int,
    asked: BatchLimits,
    sizes: Sizes,
    ceiling_ts: int | None = None,
    driver_from: int | None = None,
    another_share: bool = False,
) -> Decision:
    """The next batch after `after_ts`, never above `ceiling_ts`; None = nothing to do now.

    `driver_from`: after it upstream may no longer check a unique key, and nothing is distributed (rule 12: REPLACE
    evicts only stale rows); `another_share`: the pumps may be asked again with another limit if their shares do not add
    up to a batch."""
    until_ts = min(watermark.ts, watermark.end_ts)
    if ceiling_ts is not None:
        until_ts = min(until_ts, ceiling_ts)
    if not after_ts and watermark.purged_ts:  # 0 means: from the oldest binlogs that the pumps still have
        begin_ts = watermark.purged_ts if ceiling_ts is None else min(watermark.purged_ts, ceiling_ts)
        return MovePosition(begin_ts) if begin_ts <= watermark.ts else None
    if driver_from is not None and after_ts < driver_from:
        until_ts = min(until_ts, driver_from)
    if watermark.empty:
        return MovePosition(until_ts) if until_ts > after_ts else None
    large = _large(watermark, after_ts, until_ts, ceiling_ts)
    if large is not None:
        return large
    if driver_from is not None and after_ts >= driver_from and asked.stop_at_schema:
        return Ask(driver_limits(sizes, pumps=len(watermark.marks)))
    batch_bytes = sum(mark.bytes_until(until_ts) for mark in watermark.marks)
    distributed = asked.stop_at_schema and bool(sizes.distributed_bytes_max)
    share = _another_share(watermark, until_ts, batch_bytes, asked, sizes) if distributed and another_share else None
    if share is not None:
        return Ask(replace(asked, batch_bytes_max=share))
    if distributed and until_ts > after_ts and batch_bytes >= sizes.distributed_bytes_min:
        return _plan(Mode.DISTRIBUTED, watermark.marks, after_ts, until_ts, batch_bytes, sizes)
    if distributed and any(mark.stop in (Stop.DDL, Stop.SCHEMA) for mark in watermark.marks):
        return Ask(driver_limits(sizes, pumps=len(watermark.marks)))
    if until_ts <= after_ts:
        return None
    return _plan(Mode.DRIVER, watermark.marks, after_ts, until_ts, batch_bytes, sizes)


def _another_share(
    watermark: Watermark, until_ts: int, batch_bytes: int, asked: BatchLimits, sizes: Sizes
) -> int | None:
    """The share to ask each pump for instead. Pumps are not equally busy: with equal shares, one busy pump of a hundred
    would end every batch at a hundredth of its size; with the whole size for each, a hundred busy pumps would deliver a
    hundred batches.
    """
    most, share = sizes.distributed_bytes_max, asked.batch_bytes_max
    if batch_bytes > most + most // 4 and share > 1:
        return max(1, share * most // batch_bytes)
    short = batch_bytes < most // 2 and share < most
    if short and any(mark.stop is Stop.LIMIT and mark.end_ts <= until_ts for mark in watermark.marks):
        return min(most, share * most // max(1, batch_bytes))
    return None


def _large(watermark: Watermark, after_ts: int, until_ts: int, ceiling_ts: int | None) -> PlannedBatch | None:
    """A large transaction, if there are no binlogs before it. Its commit_ts ends the batch on every pump: another
    pump may hold the same transaction (rule 19: one transaction on several pumps), or a small one of the same commit_ts
    (X-15)."""
    large_ts = watermark.large_ts
    if large_ts is None or not after_ts < large_ts <= watermark.ts or until_ts < large_ts - 1:
        return None
    if ceiling_ts is not None and large_ts > ceiling_ts:
        return None
    marks = watermark.marks
    if after_ts < large_ts - 1 and any(mark.batch_count for mark in marks):
        return None
    holders = tuple(mark for mark in marks if mark.stop is Stop.LARGE and mark.stop_ts == large_ts)
    ranges = tuple(
        PumpRange(mark.node_id, mark.host, mark.extension, after_ts, large_ts, topic=mark.topic)
        for mark in marks
        if mark.stop_ts == large_ts or mark.batch_count
    )
    return PlannedBatch(
        after_ts,
        large_ts,
        Mode.LARGE,
        (),
        sum(mark.stop_bytes for mark in holders),
        large=ranges,
        holders=tuple(mark.node_id for mark in holders),
    )


def resume(watermark: Watermark, intent: Intent, sizes: Sizes) -> PlannedBatch | None:
    """The batch that a crash left open: exactly its range of exactly its pumps, as soon as they can serve it. A pump
    that was excluded then and has returned adds nothing to it."""
    if watermark.ts < intent.until_ts:
        return None
    marks = tuple(mark for mark in watermark.marks if mark.node_id in intent.pumps)
    batch_bytes = sum(mark.bytes_until(intent.until_ts) for mark in marks)
    tasks = _tasks(marks, intent.after_ts, intent.until_ts, sizes, cut=True)
    return PlannedBatch(intent.after_ts, intent.until_ts, Mode.DISTRIBUTED, tasks, batch_bytes, intent)


def only(plan: PlannedBatch, commit_ts: int) -> PlannedBatch:
    """The ranges that the driver pulls to read the binlogs of one commit_ts of a batch."""
    parts = [part for task in plan.tasks for part in task if part.after_ts < commit_ts <= part.until_ts]
    ranges = tuple(replace(part, after_ts=commit_ts - 1, until_ts=commit_ts, planned=None) for part in parts)
    return replace(
        plan, after_ts=commit_ts - 1, until_ts=commit_ts, mode=Mode.LARGE, tasks=(), large=ranges, holders=()
    )


def altered(plan: PlannedBatch, given_up: Collection[str] = ()) -> tuple[str, int, int] | None:
    """A pump that has more or fewer binlogs of an open batch than when the batch was started, with both numbers: the
    rows would be cut differently from the finished chunks (rule 16: same chunks). Pumps in `given_up` are ignored."""
    if plan.intent is None:
        return None
    now = plan.planned
    for node_id, count in zip(plan.intent.pumps, plan.intent.counts, strict=True):
        found = now.get(node_id)
        if count >= 0 and found is not None and found.count != count and node_id not in given_up:
            return node_id, count, found.count
    return None


def absent(watermark: Watermark, intent: Intent) -> tuple[str, ...]:
    """Pumps with rows of an open batch that an operator has forced offline since. Without their rows the batch would be
    cut differently from the finished chunks (rule 16: same chunks)."""
    there = {mark.node_id for mark in watermark.marks}
    return tuple(node_id for node_id in intent.pumps if node_id not in there)


def _plan(
    mode: Mode, marks: tuple[PumpMark, ...], after_ts: int, until_ts: int, batch_bytes: int, sizes: Sizes
) -> PlannedBatch:
    # A pump that counted nothing in (after_ts, end_ts ≥ until_ts] has nothing there for good: it is resolved.
    busy = tuple(mark for mark in marks if mark.batch_count)
    tasks = _tasks(busy, after_ts, until_ts, sizes, cut=mode is Mode.DISTRIBUTED)
    if mode is Mode.DRIVER and batch_bytes <= sizes.one_task_bytes_max and tasks:
        tasks = (tuple(part for task in tasks for part in task),)
    return PlannedBatch(after_ts, until_ts, mode, tasks, batch_bytes)


def _tasks(
    marks: tuple[PumpMark, ...], after_ts: int, until_ts: int, sizes: Sizes, *, cut: bool
) -> tuple[tuple[PumpRange, ...], ...]:
    """Return the ranges of each task. A task has one range if that makes at most READERS_PER_TASK tasks per concurrent
    task; otherwise tasks have several ranges each, of about the same number of bytes in total. `cut`: a pump's part may
    be split into several ranges, in proportion to its bytes."""
    tasks_max = max(1, READERS_PER_TASK * sizes.parallelism)
    shares = [mark.bytes_until(until_ts) for mark in marks]
    total = sum(shares) or 1
    weighed: list[tuple[PumpRange, float]] = []
    for mark, share in zip(marks, shares, strict=True):
        pieces_max = max(1, round(tasks_max * share / total)) if cut else 1
        parts = ranges_of(mark, after_ts=after_ts, until_ts=until_ts, pieces_max=pieces_max)
        weighed += [(part, max(1, share) / len(parts)) for part in parts]
    if len(weighed) <= tasks_max:
        return tuple((part,) for part, _ in weighed)
    return _together(weighed, tasks_max)


def _together(weighed: list[tuple[PumpRange, float]], tasks_max: int) -> tuple[tuple[PumpRange, ...], ...]:
    """Assign neighbouring ranges to the same task, so that all tasks have about the same weight."""
    total, passed = sum(weight for _, weight in weighed), 0.0
    tasks: dict[int, list[PumpRange]] = {}
    for part, weight in weighed:
        tasks.setdefault(int((passed + weight / 2) * tasks_max / total), []).append(part)
        passed += weight
    return tuple(map(tuple, tasks.values()))


def _share(total: int, pumps: int) -> int:
    return max(1, total // max(1, pumps))
