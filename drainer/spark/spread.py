"""The spread way on executors: rows are folded where they were pulled, slots are brought together and applied.

    pull ─ fold ─► (slot, blob) ─ repartition by slot ─► merge, apply with marks ─► (result)

A slot is one partition and is applied by one task, so its chunks come in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from binlog.crashpoint import crash_point
from binlog.errors import BinlogError
from pyspark.sql import DataFrame

from drainer.feed import SpreadJob
from drainer.order.blob import merge_slot
from drainer.order.fold import FoldBuilder
from drainer.pumps.pull import payloads
from drainer.reading import FoldOrder
from drainer.sink.protocol import Intent, SlotResult, SpreadTarget
from drainer.spark.errors import SPARK_ERRORS, ErrorInTask, unwrap
from drainer.spark.read import decoder_for

Batches = Iterator[pa.RecordBatch]

SLOTTED = pa.schema([("slot", pa.int32()), ("blob", pa.binary())])
SLOTTED_DDL = "slot int, blob binary"
RESULT_DDL = "result binary"


def _carried(work: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Lets errors of ours through to the driver as values."""

    def carried(batches: Batches) -> Batches:
        try:
            yield from work(batches)
        except BinlogError as error:
            raise ErrorInTask(error) from error

    return carried


@dataclass(frozen=True, slots=True)
class Fold:
    """Task: messages in, one blob for each slot out."""

    order: FoldOrder

    def __call__(self, batches: Batches) -> Batches:
        builder = FoldBuilder(decoder_for(self.order))
        for batch in batches:
            for message in batch.column("blob"):
                builder.add_all(payloads(message.as_py()))
        slots = builder.slots(self.order.slots, self.order.apart)
        if slots:
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(slots), pa.int32()), pa.array(list(slots.values()), pa.binary())], schema=SLOTTED
            )


@dataclass(frozen=True, slots=True)
class Apply:
    """Task: the blobs of one slot in, its result out."""

    intent: Intent
    target: SpreadTarget

    def __call__(self, batches: Batches) -> Batches:
        found: dict[int, list[bytes]] = {}
        for batch in batches:
            for slot, blob in zip(batch.column("slot"), batch.column("blob"), strict=True):
                found.setdefault(slot.as_py(), []).append(blob.as_py())
        intent = self.intent
        results = []
        for slot, blobs in sorted(found.items()):
            work = merge_slot(blobs, intent.after_ts, intent.until_ts, slot=slot)
            results.append(pickle.dumps(self.target.apply(slot, work)))
            crash_point("drainer.mid_spread")
        if results:
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])


def check(packed: DataFrame, order: FoldOrder) -> None:
    """Raises what decoding a row of the batch raises; writes nothing."""
    try:
        packed.mapInArrow(_carried(Fold(order)), SLOTTED_DDL).count()
    except SPARK_ERRORS as error:
        raise unwrap(error) from error


def spread(packed: DataFrame, job: SpreadJob) -> Sequence[SlotResult]:
    """Run the whole job; one result for each slot that had rows."""
    slotted = (
        packed.selectExpr("seq AS slot", "blob")
        if job.folded
        else packed.mapInArrow(_carried(Fold(job.order)), SLOTTED_DDL)
    )
    results = slotted.repartitionById(job.intent.slots, "slot").mapInArrow(
        _carried(Apply(job.intent, job.target)), RESULT_DDL
    )
    try:
        table = results.toArrow()
    except SPARK_ERRORS as error:
        raise unwrap(error) from error
    return [pickle.loads(result.as_py()) for result in table.column("result")]  # noqa: S301  from our own tasks
