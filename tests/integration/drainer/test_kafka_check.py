"""`kafka-check` on a real broker: what was committed is read to its end, whatever lies behind it."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from drainer.kafka_check.__main__ import main
from tests.support.kafka import Broker
from tests.unit.drainer.kafka_check.test_command import ENCODER, rows

pytestmark = pytest.mark.timeout(300)


def write(broker: Broker, topic: str, *, commit: bool, twice: bool = False) -> None:
    """A transaction that has ended, of rows of two partitions, and a resolved event."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": uuid.uuid4().hex, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    shares = rows((1, 10), (3, 12), *([(1, 10)] if twice else [])), rows((2, 11))
    for partition, messages in enumerate(shares):
        for message in [*messages, *ENCODER.resolved(20)]:
            producer.produce(topic, key=message.key, value=message.value, partition=partition)
    assert producer.flush(60) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(60)
    assert broker.settle(topic), "its markers come behind the acknowledgement"


def test_kafka_check_reads_committed_records_of_broker(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    topic, empty = kafka.topic(2), kafka.topic(1)
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    write(kafka, topic, commit=True)
    write(kafka, topic, commit=False, twice=True)
    assert main([uri, "--ordered"]) == 0
    assert "messages 5: rows 3, DDLs 0, resolved 2," in capsys.readouterr().out
    assert main([uri, "--read-uncommitted"]) == 1
    assert main([uri, "--topic", f"^{topic}$", "--topic", empty]) == 1
    assert f"resolved-missing: {empty}[0]" in capsys.readouterr().out


def test_kafka_check_of_missing_topic_exits_with_2(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"kafka://{kafka.address}/nosuch?protocol=open-protocol"
    assert main([uri]) == 2
    assert "topic nosuch does not exist" in capsys.readouterr().err
    assert main([uri, "--topic", "^nosuch"]) == 2
