"""Errors of ours survive Spark, which turns everything into text."""

from __future__ import annotations

import pytest
from binlog.errors import BinlogError, DecodeError, PumpUnavailable

from drainer.schema.errors import TableUnknown, UnknownColumn
from drainer.sink.errors import UniqueConflict
from drainer.spark.errors import ErrorInTask, SparkFailed, reason_of, unwrap

OURS = [
    PumpUnavailable("pump a: gone"),
    DecodeError("binlog", offset=7, detail="torn"),
    TableUnknown(table_id=1, schema_version=2, commit_ts=3),
    UnknownColumn(table_id=1, column_id=2, schema_version=3, commit_ts=4),
    UniqueConflict("row in the way", schema="s", table="t", key="k"),
]


@pytest.mark.parametrize("error", OURS, ids=lambda e: type(e).__name__)
def test_what_a_task_raises_is_what_the_driver_gets(error: BinlogError) -> None:
    spark = RuntimeError(f"Job aborted due to stage failure: Traceback …\n{ErrorInTask(error)}\n\n\tat org.apache")
    found = unwrap(spark)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_spark_s_own_failure_is_one_line() -> None:
    text = "[STREAM_FAILED] Query terminated\nTraceback:\n  File x\nOSError: disk full\n\tat org"
    found = unwrap(RuntimeError(text))
    assert isinstance(found, SparkFailed) and str(found) == "OSError: disk full"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no reason given"),
        ("one\ntwo", "one"),
        ("An error\njava.lang.OutOfMemoryError: heap\n\tat x", "java.lang.OutOfMemoryError: heap"),
        ("first\n: org.apache.spark.SparkException: lost", ": org.apache.spark.SparkException: lost"),
        (
            ": org.apache.spark.SparkException: Exception thrown in awaitResult:\n\tat x\nCaused by: org.apache.spark."
            "SparkException: Python worker exited\n\tat y\nCaused by: java.io.EOFException\n\tat z",
            "org.apache.spark.SparkException: Python worker exited",
        ),
    ],
)
def test_the_line_that_matters(text: str, reason: str) -> None:
    assert reason_of(text) == reason
