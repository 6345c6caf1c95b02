"""What an executor does for the data source: pull its ranges and yield Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from binlog import envelope
from binlog.security import Security
from pyspark.sql.datasource import InputPartition

from drainer.pumps.mark import PumpRange
from drainer.pumps.pull import payloads, pull


@dataclass(frozen=True)
class PullTask(InputPartition):  # type: ignore[misc]  # mypy does not follow pyspark
    """One task's ranges, pulled one after another. Picklable; holds no connection."""

    ranges: tuple[PumpRange, ...]
    cluster_id: int
    security: Security
    packed: bool


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
    """The record batches of one task: one for each message of a pull."""
    for part in task.ranges:
        for seq, message in enumerate(pull(part, cluster_id=task.cluster_id, security=task.security)):
            if task.packed:
                yield pa.RecordBatch.from_pydict(
                    {"pump": [part.node_id], "seq": [seq], "blob": [message]}, schema=PACKED
                )
            else:
                yield _columns(part.node_id, payloads(message))


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
