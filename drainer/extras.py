"""Optional packages: which extra of the package has them, and how it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final, NamedTuple

from binlog.errors import BinlogError


class ExtraMissing(BinlogError):
    """A library that the settings need is not installed. The text says how to install it."""


class Extra(NamedTuple):
    """An extra of the package, and modules that it brings along."""

    name: str
    modules: Sequence[str]


SPARK: Final = Extra("spark", ("pyarrow", "pyspark"))
KAFKA: Final = Extra("kafka", ("confluent_kafka", "fastavro", "lz4", "cramjam", "numpy", "pyarrow"))
REPARO: Final = Extra("reparo", ("numpy", "pyarrow"))


def install(extra: str) -> str:
    """Return the command that installs an extra. The package is on no index."""
    return f"pip install '.[{extra}]' in a checkout, or with the path of a wheel in place of the dot"


def missing(extra: Extra) -> str:
    """Return what to do if modules of this extra are not installed; empty if all are."""
    lacking = [name for name in extra.modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacking)} not installed here: {install(extra.name)}" if lacking else ""
