"""Avro into a real broker, with registries of this process. A recording, its schemas in a real registry:
test_kafka_protocols.py."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from drainer.sink.errors import DestinationRefused
from tests.integration.sink.test_kafka_takeover import KEYS, World, range_of, segment, sent
from tests.support import kafka_case
from tests.support.change_replay import commits
from tests.support.http_registry import Registry, serving
from tests.support.kafka import Broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def settings(broker: Broker, prefix: str, **more: Any) -> dict[str, Any]:
    topic = broker.topic(1, name=prefix)
    return {
        "addresses": [broker.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "partition-num": 1,
        "dispatchers": [{"matcher": ["*.*"], "topic": topic + "_{schema}_{table}"}],
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def test_unauthorized_registry_is_refused_at_start(kafka: Broker) -> None:
    with serving(Registry(authorization="Basic bWU6c2VjcmV0")) as served:
        given = settings(kafka, "denied", protocol="avro", schema_registry=served.url)
        with pytest.raises(DestinationRefused, match="HTTP 401"):
            kafka_case.run(given, commits()[-1:])


def test_slots_with_unregistered_table_are_written_again_after_registration(kafka: Broker) -> None:
    """Such as late rows under a definition that is not the view's any more: the driver registers its schemas, and all
    slots are written once more."""
    with serving(Registry()) as served:
        topic = kafka.topic(3)
        made = World(kafka, topic, protocol="avro", schema_registry=served.url)
        try:
            destination = made.opened()
            intent = range_of(destination, 0, 30)
            writer = sent(destination.begin(intent))
            whole = segment(0, 30, *KEYS)
            receipts = [writer.write(slot, whole) for slot in range(intent.slots)]
            again = destination.commit(intent, receipts, 1)
            assert again is not None
            assert all(not partition for partition in kafka.read(topic)), "none of it is there yet"
            receipts = [sent(again).write(slot, whole) for slot in range(intent.slots)]
            assert destination.commit(intent, receipts, 1) is None
            assert sum(map(len, kafka.read(topic))) == len(KEYS)
            assert destination.commit_ts == intent.until_ts
        finally:
            made.close()


def test_pickled_publication_keeps_its_schema_ids(kafka: Broker) -> None:
    with serving(Registry()) as served:
        given = settings(kafka, "travels", protocol="avro", schema_registry=served.url)
        sink = kafka_case.sink(given)
        publication = replace(sink._publication, ids={"s": {"f": 1}})
        assert pickle.loads(pickle.dumps(publication)).ids == {"s": {"f": 1}}
        assert pickle.loads(pickle.dumps(publication)).encoder.ids == {"s": {"f": 1}}
