"""Tasks on Spark's executors that are stopped, whose JVM ends, and beside which the destination is looked at."""

from __future__ import annotations

import threading
from unittest import mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from drainer.apply.progress import Stopped
from drainer.lake.section import LakeSection
from drainer.lake.sink import LakeSink
from drainer.service import on_spark as module
from drainer.service.on_spark import on_executors, spark_for
from drainer.sink.errors import DestinationDown, Fenced
from drainer.spark.errors import JVM_ENDED, SparkFailed


def result(*looks: Exception, ended: Exception, cancels: int) -> object:
    """The job raises `ended` after the last look, or at cancelling number `cancels`; 0: it is not stopped."""
    over, stop, left, context = threading.Event(), threading.Event(), iter(looks), mock.Mock()

    def collect() -> None:
        assert over.wait(60)
        raise ended

    def cancel() -> None:
        if context.cancelAllJobs.call_count >= cancels:  # before that the job had not begun
            over.set()
        raise ended

    def watch() -> None:
        for error in left:
            raise error
        if not cancels:
            over.set()

    if cancels:
        stop.set()
    context.parallelize().map().collect, context.cancelAllJobs.side_effect = collect, cancel
    with mock.patch.object(module, "_WATCH_S", 0.01):
        return on_executors(mock.Mock(sparkContext=context), str, [1], stop, watch)


@pytest.mark.parametrize("ended", [Py4JError("JVM"), ConnectionRefusedError("JVM")])
def test_tasks_end_with_a_stop_the_jvm_or_a_successor_and_not_with_a_destination_that_is_down(ended: Exception) -> None:
    down = DestinationDown("down")
    with pytest.raises(Stopped):
        result(*[down] * 9, ended=ended, cancels=3)
    with pytest.raises(SparkFailed, match=JVM_ENDED if isinstance(ended, OSError) else "JVM"):
        result(down, down, ended=ended, cancels=0)
    with pytest.raises(Fenced):
        result(Fenced("taken over"), ended=ended, cancels=0)


def test_sink_that_works_in_spark_has_the_session_of_the_drainer_and_is_released_before_it_ends() -> None:
    sink, opening, stop = LakeSink(LakeSection(dir="x")), mock.Mock(), threading.Event()
    with spark_for(mock.Mock(), sink, opening, stop):
        assert (sink.session, opening.before_close) == (opening.session, sink.release)
    with mock.patch.object(module, "opened") as opened, spark_for(mock.Mock(), sink, None, stop):
        assert sink.session is opened.return_value.__enter__.return_value.session
