"""A recording through the sink into a real broker as Avro, its schemas in a real registry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import pytest

from drainer.protocol.avro.decoder import make_decoder as make_avro_decoder
from drainer.protocol.event import Event, RowEvent
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_decoder
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.settings.registry_http import access_of
from tests.integration.sink.test_kafka_takeover import KEYS, World, range_of, segment, sent
from tests.support import kafka_case
from tests.support.change_replay import commits
from tests.support.http_registry import Registry, serving
from tests.support.kafka import Broker
from tests.support.registry import SchemaRegistryServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

EDGES = commits()[20:100:16]


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


@pytest.fixture
def any_change(schema_registry: SchemaRegistryServer) -> Iterator[SchemaRegistryServer]:
    """The recording has columns that come without a default."""
    schema_registry.ask("PUT", "/config", {"compatibility": "NONE"})
    yield schema_registry
    schema_registry.ask("PUT", "/config", {"compatibility": "BACKWARD"})


def rows_of(broker: Broker, topic: str, decoder: Any) -> list[RowEvent]:
    (records,) = broker.read(topic)
    events: list[Event] = [event for record in records for event in decoder.decode(record.key, record.value)]
    return [event for event in events if isinstance(event, RowEvent)]


@pytest.mark.slow
def test_avro_rows_arrive_under_registered_schemas(kafka: Broker, any_change: SchemaRegistryServer) -> None:
    """All that Open Protocol has; some ranges by the driver and some by slots. With the old row, so that deletes of
    tables without keys are there."""
    plain = settings(kafka, "open")
    kafka_case.run(plain, EDGES)
    given = settings(
        kafka,
        "avro",
        protocol="avro",
        schema_registry=any_change.url,
        enable_tidb_extension=True,
        avro_output_old_row=True,
    )
    kafka_case.run(given, EDGES)
    registry = SchemaRegistry(access_of(any_change.url))
    seen = 0
    for topic in kafka.topics():
        table = topic.removeprefix(plain["topic"] + "_")
        if table == topic:
            continue
        theirs = rows_of(kafka, topic, make_decoder(ProtocolOptions("open-protocol")))
        decoder = make_avro_decoder(ProtocolOptions("avro"), registry)
        ours = rows_of(kafka, f"{given['topic']}_{table}", decoder)
        assert [(row.commit_ts, row.change) for row in ours] == [(row.commit_ts, row.change) for row in theirs], table
        seen += len(ours)
        for record in kafka.read(f"{given['topic']}_{table}")[0]:
            if record.value is None or record.value[:1] != b"\0":
                continue
            schema = fastavro.parse_schema(json.loads(registry.schema(int.from_bytes(record.value[1:5], "big"))))
            fastavro.schemaless_reader(BytesIO(record.value[5:]), schema, None)
    assert seen > 100


def test_unauthorized_registry_is_refused_at_start(kafka: Broker) -> None:
    with serving(Registry(authorization="Basic bWU6c2VjcmV0")) as served:
        given = settings(kafka, "denied", protocol="avro", schema_registry=served.url)
        with pytest.raises(DestinationRefused, match="HTTP 401"):
            kafka_case.run(given, EDGES[-1:])


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
        publication = sink._publication.with_ids({"s": {"f": 1}})
        assert pickle.loads(pickle.dumps(publication)).ids == {"s": {"f": 1}}
        assert pickle.loads(pickle.dumps(publication)).encoder.ids == {"s": {"f": 1}}
