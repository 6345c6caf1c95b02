"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from.

Everything a task imports is imported here once, before the first fork, and frozen for the garbage collector: a worker
starts in milliseconds instead of a second, and the collection that Spark runs after every task skips it (5 ms of CPU
instead of 50). None of these modules starts a thread on import; grpc opens its channels in the workers only.

pandas is hidden: pyspark requires it, but mapInArrow does not use it, and pyarrow would import it at the first array
made from a list, for a second of CPU in every worker.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from importlib.abc import MetaPathFinder

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
import grpc  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.daemon
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker

import drainer.spark.shuffle_apply
import drainer.spark.shuffle_examine
import drainer.spark.source.executor
import drainer.spark.source.planned_reader
import drainer.spark.startup.node_requirements
from drainer.changes.warm import warm_up
from drainer.sink.registry import formats, import_writers

# Modules that the above import only at first use: of a channel, or a connection to a named host.
_LATE = ("grpc._channel", "grpc._simple_stubs", "grpc.experimental", "encodings.idna", "pyspark.sql.conversion")


class WithoutPandas(MetaPathFinder):
    """Makes `import pandas` fail as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden from pyarrow in the drainer's workers", name=fullname)


if __name__ == "__main__":
    drainer.spark.startup.node_requirements.check_build()
    sys.meta_path.insert(0, WithoutPandas())
    import_writers()
    for name in _LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for format_ in formats():
        warm_up(format_)
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
