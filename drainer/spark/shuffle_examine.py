"""Check a spread batch on executors before it begins: claims are collected by value, and the questions that they leave
open are put to the destination (rule 21). The rows that are written before the others are sent to the driver.

    pull ─ fold ─► (seq, blob) ─ repartition by slot ─► merge claims, ask ─► (conflict, blob)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from binlog.runtime.crashpoint import crash_point
from pyspark.sql import DataFrame

from drainer.apply.micro_batch import Examined, ExamineJob
from drainer.order.blob_pieces import cut_blob, join_blobs
from drainer.spark.errors import SPARK_ERRORS, ErrorSeal
from drainer.spark.shuffle_apply import SLOT, Batches, carried, complete, pieces_by_slot, unheard
from drainer.spark.source.executor import decoder_for

FOUND = pa.schema([("slot", pa.int32()), ("conflict", pa.string()), ("blob", pa.binary())])
FOUND_DDL = "slot int, conflict string, blob binary"


@dataclass(frozen=True, slots=True)
class Examine:
    """Task: the claims of one slot in, the reason of a conflict out. For the rows that are written before the others,
    their blobs out. Slots are numbered from the first one with claims."""

    job: ExamineJob

    def __call__(self, batches: Batches) -> Batches:
        for slot, pieces in sorted(pieces_by_slot(batches).items()):
            blobs = complete(self.job.order.slots + slot, pieces, self.job.intent, self.job.planned)
            for conflict, blob in self._found(slot, blobs):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([slot], pa.int32()), pa.array([conflict]), pa.array([blob], pa.binary())], schema=FOUND
                )

    def _found(self, slot: int, blobs: list[bytes]) -> Iterator[tuple[str, bytes | None]]:
        yield self._conflict(blobs) if slot < self.job.intent.slots else "", None
        if slot == self.job.intent.slots:
            for blob in blobs:
                yield from (("", piece) for piece in cut_blob(blob))

    def _conflict(self, blobs: list[bytes]) -> str:
        open_questions = self.job.order.questions(blobs)
        found = open_questions.conflict or self.job.examiner.conflict(open_questions.probes)
        crash_point("drainer.mid_examine")
        return found


def examine(by_slot: DataFrame, job: ExamineJob, errors: ErrorSeal) -> Examined:
    """Check the blobs that `shuffle_apply.read_by_slot` returned. Raises RangeDiffers if a slot has not reported."""
    first, last = job.order.slots, job.order.blobs
    claims = by_slot.where(f"{SLOT} >= {first}").selectExpr(f"{SLOT} - {first} AS {SLOT}", "blob")
    found = claims.mapInArrow(carried(Examine(job), errors), FOUND_DDL)
    try:
        rows = found.toArrow().to_pylist()
    except SPARK_ERRORS as error:
        raise errors.unwrap(error) from error
    unheard({row["slot"] for row in rows}, last - first, job.intent, job.planned)
    conflict = next((row["conflict"] for row in rows if row["conflict"]), "")
    blobs = join_blobs(row["blob"] for row in rows if row["blob"] is not None)
    ahead = (
        job.order.merge(partial(decoder_for, job.order), blobs, job.intent.after_ts, job.intent.until_ts)
        if blobs
        else None
    )
    return Examined(conflict, ahead)
