"""Whether a topic has replicas enough to be written with acks=all at all, which is looked at when a drainer starts.

A broker refuses acks=all to a partition with fewer replicas in sync than `min.insync.replicas`. Where the topic does
not even have as many, that never ends, so it is refused; where some are away, they are waited for.
"""

from __future__ import annotations

from binlog.runtime.log import get_logger

from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.topics import Topics

_log = get_logger(__name__)


def check_new(topics: Topics, name: str, config: KafkaConfig) -> None:
    """Before a topic is created with `replication-factor`. Raises DestinationRefused."""
    factor = config.replication_factor
    if not config.acks_all:
        return
    try:
        wanted = topics.default_min_insync()
    except DestinationRefused as error:
        # It needs a right of its own, DescribeConfigs on the cluster; the topic is looked at when it is there.
        _log.info(
            "the brokers' min.insync.replicas could not be asked for; the topic is created, and its own "
            "is held against its replicas then",
            topic=name,
            why=str(error),
        )
        return
    if factor < wanted:
        raise DestinationRefused(
            f"topic {name} is not created: replication-factor is {factor}, and the brokers' min.insync.replicas is "
            f"{wanted}, with which no broker takes a message that all replicas must acknowledge: set "
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
            f"topic {name} has partitions with {found} replicas, and its min.insync.replicas is {wanted}, with which "
            f"no broker takes a message that all replicas must acknowledge: add replicas, or lower the topic's "
            f"min.insync.replicas"
        )
