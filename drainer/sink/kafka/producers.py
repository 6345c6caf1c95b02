"""The producers of a changefeed."""

from __future__ import annotations

from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.producer import Producer


def new_producer(config: KafkaConfig, transactional_id: str, batch_bytes: int = 0) -> Producer:
    """Return a new producer; without transactions it has no transactional id. `batch_bytes`: see Producer."""
    return Producer(
        {**config.client, **config.producer},
        transactional_id=transactional_id if config.exactly_once else "",
        transaction_timeout_s=config.transaction_timeout_s,
        batch_bytes=batch_bytes,
    )
