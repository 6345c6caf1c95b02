"""Check a spread batch on executors before it begins: claims are collected by value, and the questions that they leave
open are put to the destination (rule 21).

    pull ─ fold ─► (seq, blob) ─ repartition by slot ─► merge claims, ask ─► (slot, conflict)
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from binlog.runtime.crashpoint import crash_point
from pyspark.sql import DataFrame

from drainer.apply.micro_batch import Examined, ExamineJob
from drainer.spark.errors import SPARK_ERRORS, ErrorSeal
from drainer.spark.failure_reports import ReportAddress
from drainer.spark.shuffle_apply import SLOT, Batches, carried, complete, pieces_by_slot, unheard

FOUND = pa.schema([("slot", pa.int32()), ("conflict", pa.string())])
FOUND_DDL = "slot int, conflict string"


@dataclass(frozen=True, slots=True)
class Examine:
    """Task: the claims of one slot in, the reason of a conflict out. Slots are numbered from the first one with
    claims."""

    job: ExamineJob

    def __call__(self, batches: Batches) -> Batches:
        for slot, pieces in sorted(pieces_by_slot(batches).items()):
            blobs = complete(self.job.order.slots + slot, pieces, self.job.intent, self.job.planned)
            found = [pa.array([slot], pa.int32()), pa.array([self._conflict(blobs)])]
            yield pa.RecordBatch.from_arrays(found, schema=FOUND)

    def _conflict(self, blobs: list[bytes]) -> str:
        open_questions = self.job.order.questions(blobs)
        found = open_questions.conflict or self.job.examiner.conflict(open_questions.probes)
        crash_point("drainer.mid_examine")
        return found


def examine(by_slot: DataFrame, job: ExamineJob, errors: ErrorSeal, reports: ReportAddress | None = None) -> Examined:
    """Check the blobs that `shuffle_apply.read_by_slot` returned. Raises RangeDiffers if a slot has not reported."""
    first, last = job.order.slots, job.order.blobs
    claims = by_slot.where(f"{SLOT} >= {first}").selectExpr(f"{SLOT} - {first} AS {SLOT}", "blob")
    found = claims.mapInArrow(carried(Examine(job), errors, reports), FOUND_DDL)
    try:
        rows = found.toArrow().to_pylist()
    except SPARK_ERRORS as error:
        raise errors.unwrap(error) from error
    unheard({row["slot"] for row in rows}, last - first, job.intent, job.planned)
    conflict = next((row["conflict"] for row in rows if row["conflict"]), "")
    return Examined(conflict)
