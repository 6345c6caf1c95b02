"""The executor's part of the data source: pull its ranges and yield Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from binlog import envelope
from binlog.errors import BinlogError

from drainer.apply.fold_order import ReadOrder
from drainer.order.blob import packed_totals, with_totals
from drainer.order.blob_pieces import PIECE_BYTES_MAX, cut_blob
from drainer.pumps.binlog_parts import PartJoiner
from drainer.pumps.pull import pull, pull_binlogs
from drainer.spark import blob_files
from drainer.spark.source.planned_reader import PullTask

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
    for part in task.ranges:
        for binlogs, counted in pull_binlogs(part, cluster_id=task.cluster_id, security=task.security):
            assert counted.size is not None, "what has come is known exactly"
            count += counted.count
            size += counted.size
            if len(task.ranges) == 1:  # a range is served in order
                builder.add_in_order(binlogs, counted.size)
            else:
                builder.add_all(binlogs)
    blobs = order.cut(builder)
    if task.folder:
        every = {slot: blobs.get(slot, b"") for slot in range(order.slots)}
        references = blob_files.write(task.folder, every, packed_totals(count, size))
        yield packed("", list(references), list(references.values()))
    else:
        yield from slotted(with_totals(blobs, order.slots, count=count, size=size))


def slotted(slots: Mapping[int, bytes]) -> Iterator[pa.RecordBatch]:
    """Yield slots' blobs as packed rows, in pieces and batches of a few MiB (drainer.order.blob_pieces)."""
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
