"""Tasks on Spark's executors that are stopped, whose JVM ends, and beside which the destination is looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from binlog.errors import BinlogError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from drainer.apply.progress import Stopped
from drainer.service import on_spark as module
from drainer.service.on_spark import on_executors
from drainer.sink.errors import DestinationDown, Fenced
from drainer.spark.errors import SparkFailed


class Job:
    """Stands for a SparkContext whose job ends when it was cancelled `after` times. `ended`: what a call into the JVM
    raises then."""

    def __init__(self, after: int, ended: Exception | None = None) -> None:
        self.after, self.ended, self.cancelled, self.over = after, ended, 0, threading.Event()

    def parallelize(self, values: list[int], count: int) -> Job:
        return self

    def map(self, work: Callable[[int], int]) -> Job:
        return self

    def collect(self) -> list[int]:
        assert self.over.wait(60)
        raise self.ended or Py4JError("cancelled")

    def cancelAllJobs(self) -> None:
        self.cancelled += 1
        if self.cancelled == self.after:
            self.over.set()
            if self.ended:
                raise self.ended


def result(job: Job, *, stopped: bool, looks: list[BinlogError]) -> Any:
    stop, left = threading.Event(), iter(looks)
    if stopped:
        stop.set()

    def watch() -> None:
        if (error := next(left, None)) is not None:
            raise error
        job.over.set() if not stopped else None

    with mock.patch.object(module, "_WATCH_S", 0.01):
        return on_executors(mock.Mock(sparkContext=job), str, [1], stop, watch)


@pytest.mark.parametrize("ended", [None, ConnectionRefusedError("JVM"), Py4JError("JVM")])
def test_stop_before_the_job_begins_or_when_the_jvm_has_ended_is_a_stop(ended: Exception | None) -> None:
    job = Job(3, ended)
    with pytest.raises(Stopped):
        result(job, stopped=True, looks=[DestinationDown("down")])
    assert job.cancelled == 3


def test_jvm_that_ends_is_named_and_a_destination_that_is_down_is_left_to_the_tasks() -> None:
    with pytest.raises(SparkFailed, match="JVM"):
        result(Job(9, ConnectionResetError("JVM")), stopped=False, looks=[DestinationDown("down")] * 2)


def test_drainer_that_was_fenced_off_looks_no_more() -> None:
    job = Job(1)
    with pytest.raises(Fenced):
        result(job, stopped=False, looks=[Fenced("another drainer took over")])
    assert job.over.is_set()
