"""The client of a pump's topic, without a broker."""

from __future__ import annotations

import pytest
from binlog.topic.kafka import KafkaReader, KafkaWriter
from binlog.topic.message import TopicError


def test_settings_that_client_library_refuses_are_topic_error() -> None:
    """Such as certificates that cannot be read when the topic is opened again: the pump tries again
    after a TopicError; any other error ends its publishing for good, and silently."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": "/missing/ca.pem"}
    with pytest.raises(TopicError, match=r"cannot be created: .*ssl\.ca\.location"):
        KafkaWriter(settings, "t", 1000).open()
    with pytest.raises(TopicError, match=r"cannot be read: .*ssl\.ca\.location"):
        KafkaReader(settings, "t").open(5)
