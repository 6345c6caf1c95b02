"""A batch as the pipeline sees it, without Spark: messages from memory, folding in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from binlog import envelope
from binlog.pb import pump_ext_pb2 as ext

from drainer.apply.fold_order import DistributedJob, FoldOrder, ReadOrder
from drainer.changes.slot_blob import LINKS_SLOT
from drainer.changes.slots import divide, groups_of
from drainer.sink.base import Receipt
from drainer.sink.errors import DataError


@dataclass
class LocalBatch:
    """`parts`: what each reading task holds, binlogs of (after_ts, until_ts] only."""

    parts: list[list[bytes]]
    after_ts: int
    until_ts: int
    checks: int = 0
    reads: int = 0
    distributed_jobs: list[DistributedJob] = field(default_factory=list)
    left_out: int = 0

    def messages(self) -> Iterable[tuple[str, bytes]]:
        for number, part in enumerate(self.parts):
            chosen = [p for p in part if self.after_ts < envelope.scan(p).commit_ts <= self.until_ts]
            yield f"p{number}", ext.PullRangeResp(payloads=chosen).SerializeToString()

    def check(self, order: ReadOrder) -> None:
        self.checks += 1
        self._fold(order)

    def read(self, order: ReadOrder, *, folded: bool) -> None:
        self.reads += 1
        self._fold(order)

    def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
        self.distributed_jobs.append(job)
        found = [self._applied(job, slot, blobs) for slot, blobs in sorted(self._slots(job.order).items())]
        return [replace(one, left_out=self.left_out) for one in found or [Receipt(0, 0, 0, 0)]]

    def _applied(self, job: DistributedJob, slot: int, blobs: list[bytes]) -> Receipt:
        try:
            segment = job.order.merge(job.order.decoder, blobs, job.intent.after_ts, job.intent.until_ts)
            return job.writer.write(slot, segment, job.retry_for_s)
        except DataError as error:
            error.commit_ts = error.commit_ts or job.order.last_change(blobs, error.table_id, error.identity)
            raise

    def _slots(self, order: ReadOrder) -> dict[int, list[bytes]]:
        slots = _by_slot(self._fold(order))
        if not isinstance(order, FoldOrder) or not order.whole:
            return slots
        groups = groups_of(slots.get(LINKS_SLOT, []), order.slots)
        return _by_slot(divide(blobs, order.slots, groups) for blobs in slots.values()) if groups else slots

    def _fold(self, order: ReadOrder) -> list[dict[int, bytes]]:
        found = []
        self.left_out = 0
        for _, message in self.messages():
            builder = order.builder(order.decoder())
            builder.add_all(ext.PullRangeResp.FromString(message).payloads)
            found.append(order.cut(builder))
            self.left_out += builder.left_out
        return found


def _by_slot(parts: Iterable[Mapping[int, bytes]]) -> dict[int, list[bytes]]:
    slots: dict[int, list[bytes]] = {}
    for blobs in parts:
        for slot, blob in blobs.items():
            slots.setdefault(slot, []).append(blob)
    return slots
