"""What an executor does for the data source: pull its ranges and yield Arrow record batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from binlog import envelope
from binlog.errors import BinlogError

from drainer.order.fold import FoldBuilder
from drainer.pumps.pull import payloads, pull
from drainer.reading import FoldOrder
from drainer.row.decode import Decoder
from drainer.spark.errors import ErrorInTask
from drainer.spark.planned import PullTask

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


def read_task(task: PullTask) -> Iterator[pa.RecordBatch]:
    """The record batches of one task: one for each message of a pull, or one of slots."""
    try:
        if task.fold is not None:
            yield from _folded(task, task.fold)
            return
        for pump, seq, message in _messages(task):
            yield packed(pump, [seq], [message]) if task.packed else _columns(pump, payloads(message))
    except BinlogError as error:
        raise ErrorInTask(error) from error


def packed(pump: str, numbers: list[int], blobs: list[bytes]) -> pa.RecordBatch:
    columns = [pa.array([pump] * len(blobs), pa.string()), pa.array(numbers, pa.int32()), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _messages(task: PullTask) -> Iterator[tuple[str, int, bytes]]:
    for part in task.ranges:
        for seq, message in enumerate(pull(part, cluster_id=task.cluster_id, security=task.security)):
            yield part.node_id, seq, message


def _folded(task: PullTask, order: FoldOrder) -> Iterator[pa.RecordBatch]:
    builder = FoldBuilder(decoder_for(order))
    # A range is served in order; what is to be kept apart is looked at twice.
    add = builder.add_in_order if len(task.ranges) == 1 and not order.apart else builder.add_all
    for _, _, message in _messages(task):
        add(payloads(message))
    slots = builder.slots(order.slots, order.apart)
    if slots:
        yield packed("", list(slots), list(slots.values()))


_decoders: dict[str, Decoder] = {}
DECODERS_KEPT = 2


def decoder_for(order: FoldOrder) -> Decoder:
    """This worker's decoder for a view; workers live through many batches, views through many too."""
    view = order.view
    decoder = _decoders.get(view.token)
    if decoder is None:
        decoder = _decoders[view.token] = Decoder(pickle.loads(view.pickled), order.dialect)  # noqa: S301  our driver's
        while len(_decoders) > DECODERS_KEPT:
            del _decoders[next(iter(_decoders))]
    return decoder


def _columns(pump: str, binlogs: list[bytes]) -> pa.RecordBatch:
    rows = []
    for payload in binlogs:
        found = envelope.scan(payload)
        if found.is_fake:
            continue
        query = payload[found.query_at : found.query_end].decode() if found.ddl_job_id else None
        rows.append((found.commit_ts, found.start_ts, pump, found.ddl_job_id, query, payload))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
    )
