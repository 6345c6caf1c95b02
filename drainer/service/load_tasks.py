"""Loads parts of tables on Spark's executors, for a first load."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from binlog.runtime.log import get_logger

from drainer.apply.progress import Stopped
from drainer.config import Config
from drainer.ranges.progress import LoadProgress
from drainer.sink.base import AnySink, TableLoad
from drainer.spark.startup.session_opening import Opening
from drainer.temporary_files import check_data_dir, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


@contextlib.contextmanager
def spark_session(config: Config, opening: Opening | None = None) -> Iterator[SparkSession]:
    """`opening`: one that exists; else Spark runs while inside. Raises SparkUnavailable."""
    if opening is not None:
        yield opening.session()
        return
    check_data_dir(config.data_dir)
    spark = config.spark
    with temporary_folder():
        own = Opening(master=spark.master, output=config.data_dir / "spark.log", conf=spark.conf)
        try:
            yield own.session()
        finally:
            own.close()


def spread(
    config: Config,
    opening: Opening | None,
    task: Callable[[Any, Any], Callable[[TableLoad], None]],
    sink: AnySink,
    progress: LoadProgress,
    stop: threading.Event,
    parts: list[TableLoad],
) -> None:
    """Load the parts on the executors of `opening`, or of a session of its own, until `stop` is set. `task`: makes of
    two accumulators, for the rows and bytes that are read, what loads a part. Raises as FirstLoad.run, and
    SparkFailed."""
    with spark_session(config, opening) as session:
        from drainer.spark.startup.node_requirements import warn_of_loopback
        from drainer.spark.tasks import on_executors

        for setting, host in {**config.syncer.to.hosts(), "upstream.host": config.upstream.host}.items():
            warn_of_loopback(config.spark.master, setting, host)
        context = session.sparkContext
        rows, size = context.accumulator(0), context.accumulator(0)
        begun, before = sum(part.loaded for part in parts), (progress.loaded, progress.rows, progress.bytes)
        of = {(part.table_id, part.part) for part in parts}

        def watch() -> None:
            loaded = sum(load.loaded for load in sink.loads() if (load.table_id, load.part) in of) - begun
            progress.spread(before[0] + loaded, before[1] + rows.value, before[2] + size.value)

        _log.info("loading on executors", parts=len(parts), tasks=context.defaultParallelism)
        with contextlib.suppress(Stopped):
            on_executors(session, task(rows, size), parts, stop, watch)
        watch()
