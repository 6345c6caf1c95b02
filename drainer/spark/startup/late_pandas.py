"""Defers the import of pandas until it is used.

pyspark requires pandas and imports it to check its version, and, through its testing module, with the first list sent
to the JVM; pyarrow imports it at the first array. The drainer does not use it, and the import takes more than a second
of CPU of the start. pyarrow creates no pandas objects in this process.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib import metadata

import pyarrow as pa

from drainer.spark.startup.worker_imports import WithoutPandas


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


def install() -> None:
    """Install the placeholder, unless pandas has been imported already or is missing."""
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
    hidden = WithoutPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
