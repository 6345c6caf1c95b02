"""Creates the Spark session of the drainer in a JVM started by drainer.spark.startup.jvm_launch."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from binlog.runtime.log import get_logger
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from drainer.apply.progress import Stopped
from drainer.spark import register
from drainer.spark.errors import JVM_ENDED, reason_of, text_of
from drainer.spark.startup import node_requirements
from drainer.spark.startup.java import SparkUnavailable
from drainer.spark.startup.jvm_launch import Jvm, connect, end, killed_when
from drainer.spark.startup.worker_imports import defer_pandas

JVM_EXIT_S = 10

_log = get_logger(__name__)


def open_session(jvm: Jvm, stopping: Callable[[], bool] = lambda: False) -> SparkSession:
    """Open a session with the source "binlog" registered. Raises SparkUnavailable, and Stopped soon after `stopping`
    returns True; the JVM has ended then."""
    defer_pandas()
    gateway, told = None, ""
    conf = SparkConf(loadDefaults=False).setAll(list(jvm.settings.items()))
    try:
        gateway = connect(jvm, conf, stopping)
        with quiet_py4j(), killed_when(stopping, jvm.process):
            try:
                return _made(jvm, conf, gateway)
            except Exception as error:
                told = text_of(error)  # the text is fetched from the JVM, which is ended soon
                raise
    except Stopped:
        raise
    except Exception as error:  # pyspark raises many kinds of errors when its JVM fails
        _end_jvm(gateway, 0 if stopping() else JVM_EXIT_S)
        if stopping():
            raise Stopped("stopped while Spark was starting") from error
        why = reason_of(told or text_of(error))
        if why == JVM_ENDED:
            why = node_requirements.last_error(jvm.output, jvm.begin) or why
        raise SparkUnavailable(f"Spark did not start, see {jvm.output}: {why}") from error


def _made(jvm: Jvm, conf: SparkConf, gateway: Any) -> SparkSession:
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    if jvm.python:
        session.sparkContext.pythonExec = jvm.python
    log_accumulator_errors(session.sparkContext)
    register(session)
    return session


@contextlib.contextmanager
def quiet_py4j() -> Iterator[None]:
    """While inside, drop py4j's log records: it logs the traceback of a call to a killed JVM in addition to raising."""

    def is_other(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def log_accumulator_errors(context: SparkContext) -> None:
    """Send unexpected errors of PySpark's server for accumulators to the log. The server prints a traceback when its
    connection to the JVM ends, as it does when a signal ends the JVM first; that is no error and is dropped."""

    def handle_error(request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, (EOFError, ConnectionError)):
            _log.error("Spark's server for accumulators failed", exc_info=error)

    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = handle_error


def stop_session(session: SparkSession, *, exit_s: float = JVM_EXIT_S) -> None:
    """Stop Spark and its JVM, which is killed after `exit_s` seconds."""
    gateway = session.sparkContext._gateway
    with contextlib.suppress(OSError, Py4JError):  # the JVM may have ended already
        session.stop()
    _end_jvm(gateway, exit_s)


def _end_jvm(gateway: Any, exit_s: float) -> None:
    if gateway is not None:
        with contextlib.suppress(OSError, Py4JError):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            end(process, exit_s)
        folder = getattr(gateway, "folder", None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    SparkContext._gateway = SparkContext._jvm = None
