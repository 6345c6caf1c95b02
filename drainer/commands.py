"""Entry points of the installed commands. Each says which optional packages it lacks before it imports them."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

_OF_EXTRA: Final = {"spark": ("pyarrow", "pyspark"), "kafka": ("confluent_kafka", "fastavro", "lz4", "cramjam")}


def drainer() -> int:
    if _lacks("drainer", "spark"):
        return 1
    from drainer.__main__ import main

    return main()


def reparo() -> int:
    if _lacks("reparo", "spark"):
        return 1
    from drainer.reparo.__main__ import main

    return main()


def kafka_check() -> int:
    if _lacks("kafka-check", "spark", "kafka"):
        return 1
    from drainer.kafka_check.__main__ import main

    return main()


def kafka_consumer() -> int:
    if _lacks("kafka-consumer", "spark", "kafka"):
        return 1
    from drainer.kafka_consumer.__main__ import main

    return main()


def _lacks(command: str, *extras: str) -> bool:
    """Whether packages of these extras are missing; if so, says what to do."""
    missing = [name for extra in extras for name in _OF_EXTRA[extra] if importlib.util.find_spec(name) is None]
    if missing:
        wanted = ",".join(extras)
        sys.stderr.write(
            f"{command}: {', '.join(missing)} not installed here: pip install 'tidb-binlog-spark[{wanted}]'\n"
        )
    return bool(missing)
