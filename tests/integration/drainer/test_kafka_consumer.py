"""`kafka-consumer` on a real broker: in steps, each from where the one before ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from drainer.batch.work import Kind
from drainer.kafka_consumer.__main__ import main
from drainer.kafka_reading.records import Record, TopicReader
from drainer.protocol.encoder import Ddl, Message
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.kafka import Broker
from tests.support.row_changes import make_changes
from tests.unit.drainer.kafka_check.test_command import ENCODER, TABLE, rows
from tests.unit.drainer.kafka_consumer.test_sqlite import contents

pytestmark = pytest.mark.timeout(300)


def write(broker: Broker, topic: str, *partitions: list[Message]) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0})
    for partition, messages in enumerate(partitions):
        for message in messages:
            producer.produce(topic, key=message.key, value=message.value, partition=partition)
    assert producer.flush(60) == 0


def changed(kind: Kind, key: int, value: int, commit_ts: int) -> list[Message]:
    old = None if kind is Kind.INSERT else [[key, 0]]
    new = None if kind is Kind.DELETE else [[key, value]]
    changes = make_changes(TABLE, kind, old=old, new=new, commit_ts=commit_ts)
    return list(framed_rows(ENCODER, encoded_rows(ENCODER.table(TABLE), changes)))


def test_kafka_consumer_applies_rows_and_ddls_once_over_several_runs(kafka: Broker, tmp_path: Path) -> None:
    topic, path = kafka.topic(2), tmp_path / "rows.db"
    command = [f"kafka://{kafka.address}/{topic}?protocol=open-protocol", "--to", f"sqlite:{path}", "--once"]
    truncate = ENCODER.ddl(Ddl(15, 14, "db", "t", "TRUNCATE TABLE t", 11))
    write(
        kafka, topic, [*rows((1, 10)), *ENCODER.resolved(12), *rows((3, 14))], [*rows((2, 11)), *ENCODER.resolved(11)]
    )
    assert main(command) == 0
    assert contents(path) == [(1, 0), (2, 0)]  # up to 11, which both partitions have resolved
    write(kafka, topic, [*truncate, *ENCODER.resolved(15)], [*rows((4, 13)), *truncate])
    assert main(command) == 0
    assert contents(path) == [(1, 0), (2, 0)]
    write(kafka, topic, [*rows((1, 16)), *ENCODER.resolved(20)], [*rows((2, 17)), *ENCODER.resolved(20)])
    assert main(command) == 0
    assert contents(path) == [(1, 0), (2, 0)]  # truncated, and put again
    update, delete = changed(Kind.UPDATE, 1, 7, 21), changed(Kind.DELETE, 2, 0, 22)
    write(kafka, topic, [*update, *ENCODER.resolved(30)], [*delete, *ENCODER.resolved(30)])
    assert main(command) == 0
    assert main(command) == 0
    assert contents(path) == [(1, 7)]


@pytest.mark.parametrize("resolved_ts", [12, 9], ids=["first applied", "first only read"])
def test_kafka_consumer_refuses_records_deleted_before_it_applied_them(
    kafka: Broker, tmp_path: Path, resolved_ts: int
) -> None:
    from confluent_kafka import TopicPartition

    topic = kafka.topic(1)
    command = [
        f"kafka://{kafka.address}/{topic}?protocol=open-protocol",
        "--to",
        f"sqlite:{tmp_path}/rows.db",
        "--once",
    ]
    write(kafka, topic, [*rows((1, 10)), *ENCODER.resolved(resolved_ts)])
    assert main(command) == 0
    write(kafka, topic, [*rows((2, 13)), *rows((3, 14)), *ENCODER.resolved(20)])
    for future in kafka.admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result(60)
    assert main(command) == 2


@pytest.mark.timeout(60)
def test_record_is_read_before_others_come(kafka: Broker) -> None:
    """Otherwise every event would be late by the time for which a read waits."""
    topic = kafka.topic(1)
    reader = TopicReader({"bootstrap.servers": kafka.address}, [topic])
    reader.begin(dict.fromkeys(reader.topic_partitions()))
    write(kafka, topic, list(ENCODER.resolved(12)))
    found: list[Record] = []
    while not found:  # the end of the empty partition may come first
        found = reader.poll(600.0)
    reader.close()
    assert [record.offset for record in found] == [0]


def test_kafka_consumer_exits_with_error_for_unusable_settings(kafka: Broker, tmp_path: Path) -> None:
    uri = f"kafka://{kafka.address}/nosuch?protocol="
    assert main([f"{uri}open-protocol", "--to", f"sqlite:{tmp_path}/rows.db"]) == 2
    assert main([f"{uri}canal-json", "--to", f"sqlite:{tmp_path}/rows.db"]) == 1
    assert main([f"{uri}open-protocol", "--to", "postgres://host"]) == 1
