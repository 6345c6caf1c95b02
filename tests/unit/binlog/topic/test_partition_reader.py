"""The settings with which partitions are read."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")


@pytest.mark.parametrize("name", ["queued.max.messages.kbytes", "fetch.queue.backoff.ms"])
def test_users_setting_is_given_to_the_client_in_place_of_the_default(name: str) -> None:
    from binlog.topic.kafka import PartitionReader
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException, match=f'"{name}" value -7'):
        PartitionReader({name: -7}, "unused")
