"""What `drainer load` and `drainer check` do on Spark's executors: a session, a task for each of many values, and the
loading of parts of tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from drainer.apply.progress import LoadProgress, Stopped
from drainer.config import Config
from drainer.ranges.load import Origin
from drainer.sink.base import AnySink, TableLoad, UsesSpark
from drainer.sink.errors import Fenced
from drainer.spark.startup.jvm_launch import Opening, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = get_logger(__name__)
_WATCH_S: Final = 2.0

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def spark_session(config: Config, stop: threading.Event, opening: Opening | None = None) -> Iterator[SparkSession]:
    """`opening`: one that exists; else Spark runs while inside, with a log of its own, because a drainer may run beside
    it. Raises SparkUnavailable, and Stopped if `stop` is set meanwhile."""
    with _opening(config, stop, opening) as given:
        yield given.session()


def _opening(
    config: Config, stop: threading.Event, opening: Opening | None
) -> contextlib.AbstractContextManager[Opening]:
    return opened(config, "spark-tasks.log", stop.is_set) if opening is None else contextlib.nullcontext(opening)


@contextlib.contextmanager
def spark_for(
    config: Config, sink: AnySink, opening: Opening | None, stop: threading.Event, origin: Origin | None = None
) -> Iterator[None]:
    """Give a sink that works in Spark's session, and the origin of a first load, the one of `opening`, or one of its
    own while inside, as `spark_session` does."""
    if not isinstance(sink, UsesSpark) and origin is None:
        yield
        return
    with _opening(config, stop, opening) as given:
        if origin is not None:
            origin.session = given.session
        use_session(sink, given)
        yield


def use_session(sink: AnySink, opening: Opening) -> None:
    """Let a sink that works in Spark's session use that of `opening`, and end its work before the session is closed."""
    if isinstance(sink, UsesSpark):
        sink.session, opening.before_close = opening.session, sink.release


def on_executors(
    session: SparkSession, work: Callable[[T], R], values: Sequence[T], stop: threading.Event, watch: Callable[[], None]
) -> list[R]:
    """Return the results, in the order of the values. A task may run again, beside its former attempt, if an executor
    is lost. `work`, values and results: picklable; `watch`: called every two seconds meanwhile. Raises the BinlogError
    of a task, SparkFailed, Stopped if `stop` is set, and the Fenced of `watch`."""
    from drainer.spark.errors import JVM_ENDED, SPARK_ERRORS, ErrorSeal, SparkFailed

    errors, context = ErrorSeal.new(), session.sparkContext

    def task(value: T) -> R:
        try:
            return work(value)
        except BinlogError as error:
            raise errors.carry(error) from error

    def run() -> list[R]:
        try:
            found: list[R] = context.parallelize(values, len(values)).map(task).collect()
            return found
        except (*SPARK_ERRORS, OSError) as error:  # OSError: the JVM has ended
            failure = SparkFailed(f"{JVM_ENDED}: {error}") if isinstance(error, OSError) else errors.unwrap(error)
            raise (Stopped("stopped") if stop.is_set() else failure) from error

    def cancel() -> None:
        with contextlib.suppress(*SPARK_ERRORS, OSError):
            context.cancelAllJobs()

    with ThreadPoolExecutor(1, "tasks") as pool:
        job = pool.submit(run)
        while not wait([job], _WATCH_S).done:
            if stop.is_set():
                cancel()
            try:
                watch()
            except Fenced:  # to look again would take the destination from the successor
                cancel()
                raise
            except BinlogError:  # the tasks find it, too
                pass
        return job.result()


def distribute(
    config: Config,
    opening: Opening | None,
    task: Callable[[Any, Any], Callable[[list[TableLoad]], None]],
    sink: AnySink,
    progress: LoadProgress,
    stop: threading.Event,
    shares: list[list[TableLoad]],
) -> None:
    """Load the shares, each in a task, on the executors of `opening`, or of a session of its own, until `stop` is set.
    `task`: makes of two accumulators, for the rows and bytes that are read, what loads a share. Raises as
    FirstLoad.run, and SparkFailed."""
    with contextlib.suppress(Stopped), spark_session(config, stop, opening) as session:
        from drainer.spark.startup.node_requirements import warn_of_loopback

        warn_of_loopback(config.spark.master, {**config.syncer.to.hosts(), "upstream.host": config.upstream.host})
        context = session.sparkContext
        rows, size = context.accumulator(0), context.accumulator(0)
        left = {(part.table_id, part.part): part.left for share in shares for part in share}
        end, begin_rows, begin_bytes = progress.loaded + sum(left.values()), progress.rows, progress.bytes

        def watch() -> None:
            now = sum(load.left for load in sink.loads() if (load.table_id, load.part) in left)
            progress.distribute(end - now, begin_rows + rows.value, begin_bytes + size.value)

        _log.info("loading on executors", tasks=len(shares), concurrent_tasks=context.defaultParallelism)
        on_executors(session, task(rows, size), shares, stop, watch)
        watch()
