"""Entry points of the installed commands. Each says which optional packages it lacks before it imports them."""

from __future__ import annotations

import sys
from typing import Final

from drainer.extras import KAFKA, REPARO, SPARK, Extra, missing

LACKING: Final = 2  # exit code


def drainer() -> int:
    if _lacks("drainer", SPARK):
        return LACKING
    from drainer.__main__ import main

    return main()


def reparo() -> int:
    if _lacks("reparo", REPARO):
        return LACKING
    from drainer.reparo.__main__ import main

    return main()


def kafka_check() -> int:
    if _lacks("kafka-check", KAFKA):
        return LACKING
    from drainer.kafka_check.__main__ import main

    return main()


def kafka_consumer() -> int:
    if _lacks("kafka-consumer", KAFKA):
        return LACKING
    from drainer.kafka_consumer.__main__ import main

    return main()


def arbiter() -> int:
    if _lacks("arbiter", KAFKA):
        return LACKING
    from drainer.arbiter.__main__ import main

    return main()


def _lacks(command: str, extra: Extra) -> bool:
    """Whether packages of this extra are missing; if so, says what to do."""
    why = missing(extra)
    if why:
        sys.stderr.write(f"{command}: {why}\n")
    return bool(why)
