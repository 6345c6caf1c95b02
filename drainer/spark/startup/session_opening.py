"""Opens the Spark session in a thread while the daemon connects to etcd and opens its destination.

The JVM needs several seconds, mostly on one processor, so it is started first, before any slow import.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from drainer.apply.progress import Stopped
from drainer.spark.startup.jvm_launch import Jvm, start_jvm
from drainer.temporary_files import check_data_dir, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainer.config import Config


class Opening:
    """Starts in the constructor. `session` waits for the result; `close` ends it at any stage. `finish_warm_up`, known
    after `session`, waits for the executors of a cluster (WarmUp.finish), at most until a stop."""

    finish_warm_up: Callable[[], None]

    def __init__(
        self, *, master: str, output: Path, conf: Mapping[str, str], stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """`stopping`: returns True when the session is no longer needed. `before_close`: ends other users of the
        session."""
        self.before_close: Callable[[], None] = lambda: None
        self._asked_to_stop = stopping
        self._closed = threading.Event()
        self._made: Future[SparkSession] = Future()
        self._jvm: Jvm | None = None
        self._thread = threading.Thread(target=self._run, args=(master, output, conf), name="Spark start", daemon=True)
        self._thread.start()

    def session(self) -> SparkSession:
        """Wait for the session. Raises SparkUnavailable, and Stopped after `stopping` or `close`."""
        return self._made.result()

    def node_lacks(self) -> str | None:
        """Return what a node of the cluster lacks to run tasks, as far as Spark's log of this session shows it."""
        from drainer.spark.startup.node_requirements import lacking_in

        return None if self._jvm is None else lacking_in(self._jvm.output, self._jvm.begin)

    def close(self) -> None:
        """Stop the session within some seconds, or kill a JVM that is still starting. May be called again."""
        self._closed.set()
        self._thread.join()
        self.before_close()
        made = self._made
        if made.exception() is None:
            from drainer.spark.startup.session import stop_session

            self._made = Future()
            self._made.set_exception(Stopped("Spark has been stopped"))
            stop_session(made.result())

    def _stopping(self) -> bool:
        return self._closed.is_set() or self._asked_to_stop()

    def _run(self, master: str, output: Path, conf: Mapping[str, str]) -> None:
        try:
            self._jvm = start_jvm(master=master, output=output, conf=conf)
            self._made.set_result(self._session(self._jvm))
        except BaseException as error:  # noqa: BLE001  raised by `session`
            self._made.set_exception(error)

    def _session(self, jvm: Jvm) -> SparkSession:
        try:
            # Imports that take more than half a second, while the JVM starts.
            from drainer.spark import query  # noqa: F401
            from drainer.spark.source import planner_server  # noqa: F401
            from drainer.spark.startup.session import open_session
            from drainer.spark.startup.warmup import WarmUp
        except BaseException:
            jvm.end()
            raise
        session = open_session(jvm, self._stopping)
        warm_up = WarmUp(session, max(1, session.sparkContext.defaultParallelism))
        self.finish_warm_up = partial(warm_up.finish, self._stopping)
        return session


@contextlib.contextmanager
def opened(config: Config, log: str, stopping: Callable[[], bool]) -> Iterator[Opening]:
    """Start Spark, whose log is `log` in data-dir, and use a folder for all temporary files of this process while
    inside. Raises ConfigError."""
    check_data_dir(config.data_dir)
    spark, output = config.spark, config.data_dir / log
    with (
        temporary_folder(),
        contextlib.closing(
            Opening(master=spark.master, output=output, conf=config.spark_settings(), stopping=stopping)
        ) as opening,
    ):
        yield opening
