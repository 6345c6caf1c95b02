"""Entry points of the installed commands. Each says which optional packages it lacks before it imports them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Final

# An extra of the package, and what it brings along.
_SPARK: Final = ("spark", ("pyarrow", "pyspark"))
_KAFKA: Final = ("kafka", ("confluent_kafka", "fastavro", "lz4", "cramjam"))


def drainer() -> int:
    if _lacks("drainer", _SPARK):
        return 1
    from drainer.__main__ import main

    return main()


def reparo() -> int:
    if _lacks("reparo", _SPARK):
        return 1
    from drainer.reparo.__main__ import main

    return main()


def kafka_check() -> int:
    if _lacks("kafka-check", _SPARK, _KAFKA):
        return 2  # 1 means that a rule is broken
    from drainer.kafka_check.__main__ import main

    return main()


def kafka_consumer() -> int:
    if _lacks("kafka-consumer", _SPARK, _KAFKA):
        return 1
    from drainer.kafka_consumer.__main__ import main

    return main()


def _lacks(command: str, *extras: tuple[str, Sequence[str]]) -> bool:
    """Whether packages of these extras are missing; if so, says what to do."""
    missing = [name for _, names in extras for name in names if importlib.util.find_spec(name) is None]
    if missing:
        wanted = ",".join(extra for extra, _ in extras)
        sys.stderr.write(
            f"{command}: {', '.join(missing)} not installed here: pip install 'tidb-binlog-spark[{wanted}]'\n"
        )
    return bool(missing)
