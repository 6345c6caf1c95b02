"""Apply a distributed batch on executors: rows are folded where they were pulled, then each slot is collected and
applied.

    pull ─ fold ─► (seq, blob) ─ repartition by slot ─► merge, apply with marks ─► (result)

`seq` is the slot. A slot is one partition and is applied by one task, so its chunks are applied in order. The stages
before and after the shuffle are two jobs, so that a batch can be read while the preceding one is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from binlog.errors import BinlogError
from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from drainer.apply.fold_order import DistributedJob, FoldOrder, ReadOrder
from drainer.changes.slot_blob import LINKS_SLOT, Totals, join_blobs, split_totals
from drainer.changes.slots import divide, groups_of
from drainer.pumps.client import PartJoiner
from drainer.pumps.watermark import Counted, RangeDiffers, check, together
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DataError, DestinationDown
from drainer.spark.errors import SPARK_ERRORS, ErrorInTask, ErrorSeal
from drainer.spark.source.executor import decoder_for, slotted, to_slots

Batches = Iterator[pa.RecordBatch]

# The columns of a packed row that identify and hold a slot; blobs that reading tasks have folded are passed on
# unchanged.
SLOT = "seq"
SLOTTED = pa.schema([(SLOT, pa.int32()), ("blob", pa.binary())])
SLOTTED_DDL = f"{SLOT} int, blob binary"
# The fields of a Receipt, and the error with which the slot's writer gave up.
RESULT = pa.schema(
    [
        ("slot", pa.int32()),
        ("row_count", pa.int64()),
        ("chunks", pa.int32()),
        ("skipped", pa.int32()),
        ("detail", pa.string()),
        ("left_out", pa.int64()),
        ("gave_up", pa.string()),
    ]
)
RESULT_DDL = "slot int, row_count long, chunks int, skipped int, detail string, left_out long, gave_up string"


def carried(work: Callable[[Batches], Batches], errors: ErrorSeal) -> Callable[[Batches], Batches]:
    """Convert errors of the drainer so that they reach the driver as values."""

    def carried(batches: Batches) -> Batches:
        try:
            yield from work(batches)
        except BinlogError as error:
            raise errors.carry(error) from error

    return carried


@dataclass(frozen=True, slots=True)
class Fold:
    """Task: messages in, one blob for each slot out."""

    order: ReadOrder

    def __call__(self, batches: Batches) -> Batches:
        builder = self.order.builder(decoder_for(self.order))
        joiner = PartJoiner()
        count = size = 0
        for batch in batches:
            for message in batch.column("blob"):
                found = joiner.add(message.as_py())
                count += len(found)
                size += sum(map(len, found))
                builder.add_all(found)
        joiner.end()
        blobs = self.order.cut(builder)
        for batch in to_slots(blobs, self.order.slots, Totals(count, size, builder.left_out)):
            yield batch.select(SLOTTED.names)


@dataclass(frozen=True, slots=True)
class AssignGroups:
    """Task: the blobs of all parts in, the groups of their transactions out, as pieces of one value."""

    order: FoldOrder

    def __call__(self, batches: Batches) -> Batches:
        blobs = [blob for _, blob in parts_of(pieces_by_slot(batches).get(LINKS_SLOT, [])) if blob]
        groups = groups_of(blobs, self.order.slots)
        for batch in slotted({LINKS_SLOT: groups} if groups else {}):
            yield batch.select(SLOTTED.names)


@dataclass(frozen=True, slots=True)
class Divide:
    """Task: the blobs of a slot in, one blob for each slot out, of complete groups. Each comes with the totals of the
    parts, so that a slot gets them once from each of these tasks."""

    order: FoldOrder
    groups: bytes
    folder: str

    def __call__(self, batches: Batches) -> Batches:
        for slot, pieces in sorted(pieces_by_slot(batches).items()):
            parts = parts_of(pieces)
            blobs = divide([blob for _, blob in parts if blob], self.order.slots, self.groups)
            counts, sizes, left_out = zip(*(astuple(totals) for totals, _ in parts), strict=True)
            totals = Totals(sum(counts), sum(sizes), 0 if slot else sum(left_out))
            for batch in to_slots(blobs, self.order.slots, totals, self.folder):
                yield batch.select(SLOTTED.names)


@dataclass(frozen=True, slots=True)
class Apply:
    """Task: the blobs of one slot in, its result out. Every part of the batch has a blob in every slot, with the part's
    totals. Unless the sum of the totals equals `planned`, nothing of the slot is applied (rule 22).

    If the writer gives up, the task ends with this result: Spark would repeat a task that fails three times before the
    driver learns why."""

    job: DistributedJob
    errors: ErrorSeal

    def __call__(self, batches: Batches) -> Batches:
        order, intent = self.job.order, self.job.intent
        results = []
        for slot, pieces in sorted(pieces_by_slot(batches).items()):
            blobs, left_out = complete(slot, pieces, intent, self.job.planned)
            nothing = Receipt(slot, 0, 0, 0, left_out=left_out)
            if not blobs:
                results.append((*astuple(nothing), ""))
                continue
            segment = order.merge(partial(decoder_for, order), blobs, intent.after_ts, intent.until_ts)
            try:
                receipt = self.job.writer.write(slot, segment, self.job.retry_for_s)
                results.append((*astuple(replace(receipt, left_out=left_out)), ""))
            except DestinationDown as error:
                results.append((*astuple(nothing), str(self.errors.carry(error))))
            except DataError as error:
                error.commit_ts = error.commit_ts or order.last_change(blobs, error.table_id, error.identity)
                raise
        if results:
            columns = zip(*results, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind.type) for column, kind in zip(columns, RESULT, strict=True)], schema=RESULT
            )


def pieces_by_slot(batches: Batches) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        for slot, blob in zip(batch.column(SLOT), batch.column("blob"), strict=True):
            found.setdefault(slot.as_py(), []).append(blob.as_py())
    return found


def parts_of(pieces: Sequence[bytes]) -> list[tuple[Totals, bytes]]:
    return [split_totals(one) for one in join_blobs(pieces)]


def complete(slot: int, pieces: Sequence[bytes], intent: Intent, planned: Counted | None) -> tuple[list[bytes], int]:
    """Return the blobs of a slot if every part has arrived in it, and how many transactions were left out of the parts.
    Raises RangeDiffers otherwise."""
    parts = parts_of(pieces)
    arrived = Counted(sum(totals.count for totals, _ in parts), sum(totals.size for totals, _ in parts))
    where = f"through Spark to slot {slot}"
    check(planned, arrived, pump_name="all pumps", after_ts=intent.after_ts, until_ts=intent.until_ts, where=where)
    return [blob for _, blob in parts if blob], sum(totals.left_out for totals, _ in parts)


def check_rows(packed: DataFrame, order: ReadOrder, errors: ErrorSeal) -> None:
    """Decode all rows of the batch, and raise the error of a bad one. Writes nothing."""
    try:
        packed.mapInArrow(carried(Fold(order), errors), SLOTTED_DDL).count()
    except SPARK_ERRORS as error:
        raise errors.unwrap(error) from error


@dataclass(frozen=True, slots=True)
class BySlot:
    """(slot, blob) of every part, with a partition for each slot; `copies`: how often each slot has the totals."""

    frame: DataFrame
    copies: int = 1


def read_by_slot(packed: DataFrame, order: ReadOrder, folded: bool, errors: ErrorSeal, folder: str = "") -> BySlot:
    """Return the parts' blobs by slot. When this returns, the batch has been pulled and folded, once, however many jobs
    follow, and divided by the groups of its transactions if these are to be seen whole. `folded`: the tasks that read
    the batch have already carried out `order`; `folder`: that of the batch's files, if there is one."""
    rows = packed if folded else packed.mapInArrow(carried(Fold(order), errors), SLOTTED_DDL)
    try:
        read = shuffled(rows.repartitionById(order.slots, SLOT))
        if not isinstance(order, FoldOrder) or not order.whole:
            return BySlot(read)
        found = read.mapInArrow(carried(AssignGroups(order), errors), SLOTTED_DDL).toArrow()
        if not len(found):  # no transactions that belong together are in different slots
            return BySlot(read)
        (groups,) = join_blobs(found.column("blob").to_pylist())
        rows = read.mapInArrow(carried(Divide(order, groups, folder), errors), SLOTTED_DDL)
        return BySlot(shuffled(rows.repartitionById(order.slots, SLOT)), order.slots)
    except SPARK_ERRORS as error:
        raise errors.unwrap(error) from error


def shuffled(frame: DataFrame) -> DataFrame:
    """Run the shuffle at the end of the frame. Return a frame that reads the shuffle's files, which are kept as long as
    the frame is referenced.

    A frame that is planned anew has another shuffle, so later jobs use the RDD of this one. Only the stages before the
    shuffle are run: fetching a first row would start a second stage. persist() would copy all rows into a cache.
    """
    session = frame.sparkSession
    rdd = frame._jdf.queryExecution().toRdd()
    shuffle = _last_shuffle(rdd, session.sparkContext._gateway)
    if shuffle is not None and shuffle.rdd().getNumPartitions():  # Spark refuses a stage without tasks
        session.sparkContext._jsc.sc().submitMapStage(shuffle).get()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), session)


def _last_shuffle(rdd: Any, gateway: Any) -> Any:
    """Return the ShuffleDependency that an RDD reads; None if Spark found that there is nothing to read."""
    while True:
        dependencies = rdd.dependencies()
        if dependencies.isEmpty():
            return None
        dependency = dependencies.head()
        if is_instance_of(gateway, dependency, "org.apache.spark.ShuffleDependency"):
            return dependency
        rdd = dependency.rdd()


def distribute(by_slot: BySlot, job: DistributedJob, errors: ErrorSeal) -> Sequence[Receipt]:
    """Apply the blobs that `read_by_slot` returned. Return the results that say something. Raises RangeDiffers
    if a slot has not reported, and DestinationDown if one has given up."""
    job = replace(job, planned=together([job.planned] * by_slot.copies))
    results = by_slot.frame.mapInArrow(carried(Apply(job, errors), errors), RESULT_DDL)
    try:
        table = results.toArrow()
    except SPARK_ERRORS as error:
        raise errors.unwrap(error) from error
    return receipts_of(table, job, errors)


def receipts_of(results: pa.Table, job: DistributedJob, errors: ErrorSeal) -> list[Receipt]:
    """Return the receipts of all tasks. Raises what `distributed` raises."""
    rows = list(zip(*results.to_pydict().values(), strict=True))
    for *_, gave_up in rows:
        if gave_up:
            raise errors.unwrap(ErrorInTask(gave_up))
    return of_all_slots([Receipt(*fields) for *fields, _ in rows], job.intent, job.planned)


def of_all_slots(found: Sequence[Receipt], intent: Intent, planned: Counted | None = None) -> list[Receipt]:
    """Return the results that say something. Raises RangeDiffers if a slot has not reported, because each slot
    receives at least the totals. If nothing was `planned`, there may have been no reading task: the open batch's pumps
    have all been abandoned by the operator."""
    silent = set(range(intent.slots)) - {result.slot for result in found}
    if silent and planned != Counted():
        batch = f"({intent.after_ts}, {intent.until_ts}]"
        raise RangeDiffers(f"Spark ran no task for slots {sorted(silent)} of the batch {batch}; it is not finished")
    return [result for result in found if result.chunks or result.detail or result.left_out]
