"""Check, when a drainer starts and when a topic becomes known, how many replicas its messages have.

A broker refuses acks=all for a partition with fewer in-sync replicas than `min.insync.replicas`. A topic that has fewer
replicas than that could never be written, so it is refused. If it has enough, but some are not in sync, the drainer
waits for them.

If one broker alone may acknowledge a message, the guarantees depend on that broker: what it has acknowledged is lost
with its disk, and if it is killed, a transaction may stay open for ever (reader.py). Such topics are named
in the log, or refused if `replication-check` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from binlog.runtime.log import get_logger

from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.topics.admin import Topics

_NAMED_MAX: Final = 20  # the most topics that a line of the log names
_CHANGE_IT: Final = (
    'give topics two replicas or more and set min.insync.replicas to 2 or more, or set replication-check = "warn"'
)

_log = get_logger(__name__)


def check_new(topics: Topics, name: str, config: KafkaSection) -> None:
    """Before a topic is created with `replication-factor`. Raises DestinationRefused."""
    factor = config.replication_factor
    if config.required_acks != -1:
        return
    if config.replication_check == "stop" and factor < 2:
        raise _stops(f"topic {name} is not created: replication-factor is 1", config)
    try:
        wanted = topics.default_min_insync()
    except DestinationRefused as error:
        # The request needs a permission of its own, DescribeConfigs on the cluster. The topic is checked once it
        # exists.
        _log.info(
            "the brokers' min.insync.replicas could not be queried; the topic is created, and then its replicas are "
            "compared with its own min.insync.replicas",
            topic=name,
            why=str(error),
        )
        return
    if config.replication_check == "stop" and wanted < 2:
        raise _stops(f"topic {name} is not created: the brokers' min.insync.replicas is {wanted}", config)
    if factor < wanted:
        raise DestinationRefused(
            f"topic {name} is not created: replication-factor is {factor}, and the brokers' min.insync.replicas is "
            f"{wanted}, so brokers would refuse every message that all in-sync replicas must acknowledge: set "
            f"replication-factor to {wanted} or more"
        )


def check_existing(topics: Topics, names: Iterable[str], config: KafkaSection) -> None:
    """Raises DestinationRefused."""
    checked = sorted(set(names))
    if config.required_acks != -1 or not checked:
        return
    replicas, min_insync = topics.replicas(), topics.settings(checked, "min.insync.replicas")
    alone = []
    for name in checked:
        wanted = int(min_insync[name])
        found = replicas.get(name, wanted)
        if found < wanted:
            raise DestinationRefused(
                f"topic {name} has partitions with {found} replicas, and its min.insync.replicas is {wanted}, so "
                f"brokers refuse every message that all in-sync replicas must acknowledge: add replicas, or lower the "
                f"topic's min.insync.replicas"
            )
        if found < 2:
            alone.append(f"{name} (one replica)")
        elif wanted < 2:
            alone.append(f"{name} ({found} replicas, min.insync.replicas 1)")
    if alone:
        _report(alone, config)


def _report(alone: Sequence[str], config: KafkaSection) -> None:
    """`alone`: topics whose messages one broker alone may acknowledge, and why."""
    if config.replication_check == "stop":
        more = f", and {len(alone) - 1} more topics" if len(alone) > 1 else ""
        raise _stops(f"one broker alone may acknowledge messages of topic {alone[0]}{more}", config)
    _log.warning(
        "one broker alone may acknowledge messages of these topics",
        topics=list(alone[:_NAMED_MAX]),
        count=len(alone),
        lost=_lost(config),
        change=_CHANGE_IT.partition(", or ")[0],
    )


def _stops(why: str, config: KafkaSection) -> DestinationRefused:
    return DestinationRefused(f'{why}, and replication-check is "stop": {_lost(config)}; {_CHANGE_IT}')


def _lost(config: KafkaSection) -> str:
    """Return what such a topic cannot promise."""
    lost = "what it alone has acknowledged is lost with its disk"
    if not config.exactly_once:
        return lost
    return (
        f"{lost}, and if it is killed while no other replica is in sync, exactly once is not guaranteed: a transaction "
        "may stay open for ever, and its messages may be lost or repeated"
    )
