"""pandas, imported when it is used and not when it is asked whether it is there.

pyspark wants pandas installed, and imports it for its version and, by way of its module for tests, at the first list
that goes to the JVM; pyarrow imports it at the first array. Nothing of the drainer goes through it, and importing it
takes more than a second of CPU on the way to a running drainer. pyarrow makes no pandas objects in this process.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib import metadata, util
from importlib.abc import MetaPathFinder

import pyarrow as pa


class LatePandas(types.ModuleType):
    """Stands for pandas until somebody wants more of it than its version. Then the real one takes its place. Before
    that its submodules cannot be imported: it is for the drainer's own process, where nobody does."""

    def __init__(self, version: str) -> None:
        super().__init__("pandas")
        self.__version__ = version

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # who looks at it as a module wants nothing of pandas
            raise AttributeError(name)
        if sys.modules.get("pandas") is self:
            del sys.modules["pandas"]
        return getattr(importlib.import_module("pandas"), name)


def install() -> None:
    """Nothing where pandas has been imported already, or is not installed: then pyspark says so."""
    if "pandas" in sys.modules or util.find_spec("pandas") is None:
        return
    try:
        version = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        return
    _tell_arrow()
    sys.modules["pandas"] = LatePandas(version)


class _Hidden(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pyarrow does without pandas here", name=fullname)


def _tell_arrow() -> None:
    """pyarrow looks once, at the first array made of Python's values, whether there is a pandas, and takes its classes
    from it: a second of CPU in the first batch. Now it finds none, and asks no more."""
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
