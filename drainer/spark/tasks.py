"""Runs a function for each of many values on executors, a task each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Final, Generic, TypeVar

from binlog.errors import BinlogError
from pyspark.sql import SparkSession

from drainer.apply.progress import Stopped
from drainer.spark.errors import SPARK_ERRORS, ErrorSeal

_WATCH_S: Final = 1.0

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Task(Generic[T, R]):
    work: Callable[[T], R]
    errors: ErrorSeal

    def __call__(self, value: T) -> R:
        try:
            return self.work(value)
        except BinlogError as error:
            raise self.errors.carry(error) from error


def on_executors(
    session: SparkSession, work: Callable[[T], R], values: Sequence[T], stop: Event, watch: Callable[[], None]
) -> list[R]:
    """Return the results, in the order of the values. A task may run again, beside its former attempt, if an executor
    is lost. `work`, values and results: picklable; `watch`: called about every second meanwhile. Raises the BinlogError
    of a task, SparkFailed, and Stopped if `stop` is set."""
    errors, context = ErrorSeal.new(), session.sparkContext

    def run() -> list[R]:
        try:
            found: list[R] = context.parallelize(values, len(values)).map(_Task(work, errors)).collect()
            return found
        except SPARK_ERRORS as error:
            raise (Stopped("stopped") if stop.is_set() else errors.unwrap(error)) from error

    with ThreadPoolExecutor(1, "tasks") as pool:
        job = pool.submit(run)
        while not wait([job], _WATCH_S).done:
            if stop.is_set():
                context.cancelAllJobs()
            watch()
        return job.result()
