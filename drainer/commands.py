"""Entry points of the installed commands. Each says which optional packages it lacks before it imports them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from drainer.extras import KAFKA, REPARO, SPARK, Extra, missing

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
    code: int = import_module(module).main()
    return code
