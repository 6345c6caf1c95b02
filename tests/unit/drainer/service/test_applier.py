"""One piece of work after another on one thread, and what is left of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from drainer.service.spark_runner import Applier

WAIT_S = 60


def nothing() -> None:
    pass


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


class Batch:
    """Stands for what Spark keeps files of."""


def test_applier_frees_finished_work_before_next_begins() -> None:
    """A drainer may stand idle for days behind a batch of many files."""
    applier = Applier()
    batch = Batch()
    gone = threading.Event()
    weakref.finalize(batch, gone.set)
    applier.begin(partial(lambda _batch: None, batch), nothing)
    del batch
    applier.wait()
    gc.collect()
    assert gone.wait(WAIT_S)


def test_applier_refuses_work_after_failure_until_reset() -> None:
    applier = Applier()
    told = threading.Event()
    applier.begin(raising(KeyError("first")), told.set)
    assert told.wait(WAIT_S)
    for _ in range(2):
        with pytest.raises(KeyError, match="first"):
            applier.begin(nothing, nothing)
    applier.reset()
    applier.begin(nothing, nothing)
    applier.wait()


def test_applier_frees_failed_work_without_garbage_collection() -> None:
    applier = Applier()
    batch = Batch()
    gone = threading.Event()
    weakref.finalize(batch, gone.set)

    def work(_batch: Batch) -> None:
        raise KeyError("refused")

    gc.collect()
    gc.disable()
    try:
        applier.begin(partial(work, batch), nothing)
        del batch
        applier.reset()
        assert gone.wait(WAIT_S)
    finally:
        gc.enable()


def test_applier_does_all_work_on_one_thread() -> None:
    """Spark keeps something for every thread that calls it."""
    applier = Applier()
    threads: list[int] = []
    for _ in range(3):
        applier.begin(lambda: threads.append(threading.get_ident()), nothing)
    applier.wait()
    assert len(threads) == 3 and len(set(threads)) == 1 and threads[0] != threading.get_ident()
