"""The executor's part of the data source: pull its ranges and yield Arrow record batches; and the drainer's own reader,
which plans such tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from binlog import envelope
from binlog.errors import BinlogError
from binlog.runtime.security import Security
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from drainer.apply.fold_order import ReadOrder
from drainer.changes.slot_blob import PIECE_BYTES_MAX, Totals, cut_blob, folder_of, with_totals, write_blobs
from drainer.pumps.client import PartJoiner
from drainer.pumps.pull import folded, pull
from drainer.pumps.watermark import PumpRange
from drainer.spark.errors import ErrorSeal
from drainer.spark.source.data_source import SourceOptions
from drainer.spark.source.planner import PlannerLine

# The stream reader of the drainer itself, and the task it plans.
#
# It imports little: Spark makes a reader in three processes of a query before the first task runs, and each of them
# executes these imports.

Offset = dict[str, int]
UNSEALED = ErrorSeal()


@dataclass(frozen=True)
class PullTask(InputPartition):  # type: ignore[misc]  # mypy does not follow pyspark
    """One task's ranges, pulled one after another. Picklable; holds no connection. With `fold` the task yields one row
    for each slot instead of one for each message: `seq` is the slot, `blob` its rows (drainer.changes.slots). If there
    is a `folder`, the rows are written to a file in it."""

    ranges: tuple[PumpRange, ...]
    cluster_id: int
    security: Security
    packed: bool
    fold: ReadOrder | None = None
    errors: ErrorSeal = UNSEALED
    folder: str = ""


class PlannedReader(DataSourceStreamReader):  # type: ignore[misc]  # mypy does not follow pyspark
    """The drainer's own stream reader: its scheduler decides where a batch ends and which task pulls which ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._line: PlannerLine | None = None

    def initialOffset(self) -> Offset:
        return {"commit_ts": self._options.start_ts}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return {"commit_ts": self._planner().next_until(start["commit_ts"])}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        tasks, fold = self._planner().tasks(start["commit_ts"], end["commit_ts"])
        options = self._options
        errors = ErrorSeal(options.error_secret)
        folder = folder_of(options.blob_folder, start["commit_ts"], end["commit_ts"]) if fold is not None else ""
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        cluster_id, security, packed = options.cluster_id, options.security, options.packed
        return [PullTask(task, cluster_id, security, packed, fold, errors, folder) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PullTask)
        return read_task(partition)

    def stop(self) -> None:
        if self._line is not None:
            self._line.close()

    def _planner(self) -> PlannerLine:
        if self._line is None:
            self._line = PlannerLine(self._options.planner, self._options.planner_key)
        return self._line


PACKED = pa.schema([("pump", pa.string()), ("seq", pa.int32()), ("blob", pa.binary())])
COLUMNS = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("pump", pa.string()),
        ("ddl_job_id", pa.int64()),
        ("ddl_query", pa.string()),
        ("payload", pa.binary()),
    ]
)


PAYLOAD_BYTES_MAX = 64 << 20  # bytes in the column `payload`: one value, which Spark copies several times


class PayloadTooLarge(BinlogError):
    """A transaction does not fit into one row, as the data source requires when it is used without the drainer."""


def read_task(task: PullTask) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of one task: one for each message of a pull, or one for some slots."""
    try:
        if task.fold is not None:
            yield from _folded(task, task.fold)
            return
        joiner = PartJoiner()
        for pump, seq, message in _messages(task):
            if task.packed:
                yield packed(pump, [seq], [message])
            elif binlogs := joiner.add(message):
                yield _columns(pump, binlogs)
    except BinlogError as error:
        raise task.errors.carry(error) from error


def packed(pump: str, numbers: list[int], blobs: list[bytes]) -> pa.RecordBatch:
    columns = [pa.array([pump] * len(blobs), pa.string()), pa.array(numbers, pa.int32()), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _messages(task: PullTask) -> Iterator[tuple[str, int, bytes]]:
    for part in task.ranges:
        for seq, message in enumerate(pull(part, cluster_id=task.cluster_id, security=task.security)):
            yield part.node_id, seq, message


def _folded(task: PullTask, order: ReadOrder) -> Iterator[pa.RecordBatch]:
    builder = order.builder(decoder_for(order))
    count = size = 0

    def add(binlogs: list[bytes], its_size: int) -> None:
        if len(task.ranges) == 1:  # a range is served in order
            builder.add_in_order(binlogs, its_size)
        else:
            builder.add_all(binlogs)

    for part in task.ranges:
        for counted in folded(part, builder, add, cluster_id=task.cluster_id, security=task.security):
            assert counted.size is not None, "what has come is known exactly"
            count += counted.count
            size += counted.size
    blobs = order.cut(builder)
    yield from to_slots(blobs, order.slots, Totals(count, size, builder.left_out), task.folder)


def to_slots(blobs: Mapping[int, bytes], slots: int, totals: Totals, folder: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the blob of every slot of a part as packed rows, or references to them in a file of the folder, if there is
    one."""
    if folder:
        every = {slot: blobs.get(slot, b"") for slot in range(slots)}
        references = write_blobs(folder, every, totals.packed())
        yield packed("", list(references), list(references.values()))
    else:
        yield from slotted(with_totals(blobs, slots, totals))


def slotted(slots: Mapping[int, bytes]) -> Iterator[pa.RecordBatch]:
    """Yield slots' blobs as packed rows, in pieces and batches of a few MiB (drainer.changes.slot_blob)."""
    numbers: list[int] = []
    pieces: list[bytes] = []
    size = 0
    for slot, blob in slots.items():
        for piece in cut_blob(blob):
            numbers.append(slot)
            pieces.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES_MAX:
                yield packed("", numbers, pieces)
                numbers, pieces, size = [], [], 0
    if pieces:
        yield packed("", numbers, pieces)


_decoders: dict[str, Any] = {}
DECODERS_KEPT = 2


def decoder_for(order: ReadOrder) -> Any:
    """Return this worker's decoder for a view. A worker lives through many batches, and a view through many batches
    too.
    """
    view = order.view
    decoder = _decoders.get(view.token)
    if decoder is None:
        decoder = _decoders[view.token] = order.decoder()
        while len(_decoders) > DECODERS_KEPT:
            del _decoders[next(iter(_decoders))]
    return decoder


def _columns(pump: str, binlogs: list[bytes]) -> pa.RecordBatch:
    rows = []
    for payload in binlogs:
        binlog = envelope.scan(payload)
        if binlog.is_fake:
            continue
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(
                f"binlog of commit_ts {binlog.commit_ts} from pump {pump} has {len(payload)} bytes, and a row "
                f"of the source holds at most {PAYLOAD_BYTES_MAX}: read around it with start-ts and end-ts, or let the "
                f"drainer apply it"
            )
        query = payload[binlog.query_at : binlog.query_end].decode() if binlog.ddl_job_id else None
        rows.append((binlog.commit_ts, binlog.start_ts, pump, binlog.ddl_job_id, query, payload))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
    )
