"""Optional packages: which extra of the package has them, how it is installed, and the installed commands, which say
what is missing before they import it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
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
KAFKA: Final = Extra("kafka", ("confluent_kafka", "fastavro", "lz4", "cramjam", "orjson", "numpy", "pyarrow"))
REPARO: Final = Extra("reparo", ("numpy", "pyarrow"))


def install(extra: str) -> str:
    """Return the command that installs an extra. The package is on no index."""
    return f"pip install '.[{extra}]' in a checkout, or with the path of a wheel in place of the dot"


def missing(extra: Extra) -> str:
    """Return what to do if modules of this extra are not installed; empty if all are."""
    lacking = [name for name in extra.modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacking)} not installed here: {install(extra.name)}" if lacking else ""


# Entry points of the installed commands.
LACKING: Final = 2  # exit code


def drainer() -> int:
    return _run("drainer", SPARK, "drainer.__main__")


def reparo() -> int:
    return _run("reparo", REPARO, "drainer.reparo.__main__")


def kafka_check() -> int:
    return _run("kafka-check", KAFKA, "drainer.kafka_check.__main__")


def kafka_consumer() -> int:
    return _run("kafka-consumer", KAFKA, "drainer.kafka_consumer.__main__")


def arbiter() -> int:
    return _run("arbiter", KAFKA, "drainer.arbiter.__main__")


def _run(command: str, extra: Extra, module: str) -> int:
    """Run the module's `main`, or say what to do if packages of this extra are missing."""
    why = missing(extra)
    if why:
        sys.stderr.write(f"{command}: {why}\n")
        return LACKING
    code: int = importlib.import_module(module).main()
    return code
