"""Check, when a drainer starts, whether a topic has enough replicas to be written with acks=all.

A broker refuses acks=all for a partition with fewer in-sync replicas than `min.insync.replicas`. A topic that has fewer
replicas than that could never be written, so it is refused. If it has enough, but some are not in sync, the drainer
waits for them.
"""

from __future__ import annotations

from binlog.runtime.log import get_logger

from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.topics.admin import Topics

_log = get_logger(__name__)


def check_new(topics: Topics, name: str, config: KafkaConfig) -> None:
    """Before a topic is created with `replication-factor`. Raises DestinationRefused."""
    factor = config.replication_factor
    if not config.acks_all:
        return
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
    if factor < wanted:
        raise DestinationRefused(
            f"topic {name} is not created: replication-factor is {factor}, and the brokers' min.insync.replicas is "
            f"{wanted}, so brokers would refuse every message that all in-sync replicas must acknowledge: set "
            f"replication-factor to {wanted} or more"
        )


def check_existing(topics: Topics, name: str, config: KafkaConfig) -> None:
    """Raises DestinationRefused."""
    if not config.acks_all:
        return
    wanted = topics.min_insync(name)
    found = topics.replicas().get(name, wanted)
    if found < wanted:
        raise DestinationRefused(
            f"topic {name} has partitions with {found} replicas, and its min.insync.replicas is {wanted}, so "
            f"brokers refuse every message that all in-sync replicas must acknowledge: add replicas, or lower the "
            f"topic's min.insync.replicas"
        )
