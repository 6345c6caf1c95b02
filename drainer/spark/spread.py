"""The spread way on executors: messages are folded where they were pulled, slots are brought together, applied.

    (pump, seq, blob) ─ fold ─► (slot, blob) ─ repartition by slot ─► merge, apply with marks ─► (result)

A slot is one partition and is applied by one task, so its chunks come in order. Errors of ours travel to the driver
as values: Spark would reduce them to text.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from binlog.crashpoint import crash_point
from binlog.errors import BinlogError
from pyspark.sql import DataFrame

from drainer.order.blob import merge_slot
from drainer.order.fold import FoldBuilder
from drainer.pipeline import PackedView, SpreadJob
from drainer.pumps.pull import payloads
from drainer.row.decode import Decoder
from drainer.sink.protocol import Dialect, Intent, SlotResult
from drainer.spark.errors import SPARK_ERRORS, ErrorInTask, unwrap

Batches = Iterator[pa.RecordBatch]

SLOTTED = pa.schema([("slot", pa.int32()), ("blob", pa.binary())])
SLOTTED_DDL = "slot int, blob binary"
RESULT_DDL = "result binary"


def _carried(work: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    def carried(batches: Batches) -> Batches:
        try:
            yield from work(batches)
        except BinlogError as error:
            raise ErrorInTask(error) from error

    return carried


_decoders: dict[str, Decoder] = {}
DECODERS_KEPT = 2


def _decoder(view: PackedView, dialect: Dialect) -> Decoder:
    """This worker's decoder for a view; workers live through many batches, views through many too."""
    decoder = _decoders.get(view.token)
    if decoder is None:
        decoder = _decoders[view.token] = Decoder(pickle.loads(view.pickled), dialect)  # noqa: S301  our driver's
        while len(_decoders) > DECODERS_KEPT:
            del _decoders[next(iter(_decoders))]
    return decoder


@dataclass(frozen=True, slots=True)
class Fold:
    """Task: messages in, one blob for each slot out."""

    view: PackedView
    dialect: Dialect
    slots: int

    def __call__(self, batches: Batches) -> Batches:
        builder = FoldBuilder(_decoder(self.view, self.dialect))
        for batch in batches:
            for message in batch.column("blob"):
                builder.add_all(payloads(message.as_py()))
        slots = builder.slots(self.slots)
        if slots:
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(slots), pa.int32()), pa.array(list(slots.values()), pa.binary())], schema=SLOTTED
            )


@dataclass(frozen=True, slots=True)
class Apply:
    """Task: the blobs of one slot in, its result out."""

    job: SpreadJob

    def __call__(self, batches: Batches) -> Batches:
        found: dict[int, list[bytes]] = {}
        for batch in batches:
            for slot, blob in zip(batch.column("slot"), batch.column("blob"), strict=True):
                found.setdefault(slot.as_py(), []).append(blob.as_py())
        intent = self.job.intent
        results = []
        for slot, blobs in sorted(found.items()):
            work = merge_slot(blobs, after_ts=intent.after_ts, until_ts=intent.until_ts)
            results.append(pickle.dumps(self.job.target.apply(slot, work)))
            crash_point("drainer.mid_spread")
        if results:
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])


def slotted(packed: DataFrame, view: PackedView, dialect: Dialect, intent: Intent) -> DataFrame:
    fold = _carried(Fold(view, dialect, intent.slots))
    return packed.mapInArrow(fold, SLOTTED_DDL)


def check(packed: DataFrame, view: PackedView, dialect: Dialect, intent: Intent) -> None:
    """Raises what decoding a row of the batch raises; writes nothing."""
    try:
        slotted(packed, view, dialect, intent).count()
    except SPARK_ERRORS as error:
        raise unwrap(error) from error


def spread(packed: DataFrame, dialect: Dialect, job: SpreadJob) -> Sequence[SlotResult]:
    """Run the whole job; one result for each slot that had rows."""
    rows = (
        slotted(packed, job.view, dialect, job.intent)
        .repartitionById(job.intent.slots, "slot")
        .mapInArrow(_carried(Apply(job)), RESULT_DDL)
    )
    try:
        table = rows.toArrow()
    except SPARK_ERRORS as error:
        raise unwrap(error) from error
    return [pickle.loads(result.as_py()) for result in table.column("result")]  # noqa: S301  from our own tasks
