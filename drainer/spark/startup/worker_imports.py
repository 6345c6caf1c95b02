"""Import once, before processes are forked, everything that a task or Spark's Python part of the source imports.

The imported objects are frozen for the garbage collector: a worker starts in milliseconds instead of a second, and the
collection that Spark runs after every task skips it (5 ms of CPU instead of 50). None of these modules starts a thread
on import; grpc opens its channels in the workers only.

pandas is hidden: pyspark requires it, but mapInArrow does not use it, and pyarrow would import it at the first array
made from a list, for a second of CPU. In the driver's process its import is deferred until it is used: pyspark imports
it to check its version, and, through its testing module, with the first list sent to the JVM. The drainer does not use
it, and the import takes more than a second of CPU of the start. pyarrow creates no pandas objects in this process.

As a program (`spark.python.daemon.module`) it is the process that Spark's Python workers are forked from.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import sys
import types
from importlib import metadata
from importlib.abc import MetaPathFinder

# Settings of glibc that make it reuse freed memory. By default each value of some MiB is mapped anew, and the kernel
# clears its pages, which costs as much as processing them.
_MALLOC_OPTIONS = {-3: 32 << 20, -1: 128 << 20}  # M_MMAP_THRESHOLD, at its maximum; M_TRIM_THRESHOLD
# New objects after which Python searches for garbage in cycles; its default is 700. A task makes several objects for
# each row and keeps them until they are sent. With the default they are examined again and again, for 0.3 µs a row and
# more. Spark collects garbage after every task.
_COLLECT_AFTER = 100_000
# The modules of tasks and of the programs that make the source, plan its tasks and query its reader.
MODULES = (
    "grpc",
    "pyarrow",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "drainer.spark.shuffle_apply",
    "drainer.spark.source.data_source",
    "drainer.spark.source.executor",
    "drainer.spark.startup.node_requirements",
    "drainer.spark.startup.warmup",
)


class WithoutPandas(MetaPathFinder):
    """Makes `import pandas` fail as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden from pyarrow here", name=fullname)


class LatePandas(types.ModuleType):
    """Placeholder for pandas that is replaced by the real module at the first access to more than its version. Until
    then its submodules cannot be imported, which the drainer's process never does."""

    def __init__(self, version: str) -> None:
        super().__init__("pandas")
        self.__version__ = version

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # module attributes only, not the contents of pandas
            raise AttributeError(name)
        if sys.modules.get("pandas") is self:
            del sys.modules["pandas"]
        return getattr(importlib.import_module("pandas"), name)


def defer_pandas() -> None:
    """Install the placeholder in the driver's process, unless pandas has been imported already or is missing."""
    if "pandas" in sys.modules:
        return
    try:
        version = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        return
    _hide_from_arrow()
    sys.modules["pandas"] = LatePandas(version)


def _hide_from_arrow() -> None:
    """pyarrow checks once, at the first array of Python values, whether pandas exists, and imports it: a second of CPU
    in the first batch. Make that check here while pandas is hidden."""
    import pyarrow as pa

    hidden = WithoutPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)


@functools.cache
def load() -> None:
    """Import the modules, once per process; processes forked from it have them already."""
    from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401

    with contextlib.suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)
    sys.meta_path.insert(0, WithoutPandas())
    for name in MODULES:
        importlib.import_module(name)
    from drainer.sink.registry import import_writers

    import_writers("drainer.ticdc.pull")
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


if __name__ == "__main__":
    import pyspark.daemon

    from drainer.spark.startup import node_requirements

    node_requirements.check_build()
    load()
    pyspark.daemon.manager()
