"""A recording in every protocol through the sink into a real broker, in the driver and distributed: what its own
decoder reads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from drainer.protocol.errors import MessageError
from drainer.protocol.event import BootstrapEvent, Change, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.schema_registry import SchemaRegistry
from tests.support import kafka_case
from tests.support.change_replay import commits
from tests.support.kafka import Broker
from tests.support.kafka_case import seen
from tests.support.registry import SchemaRegistryServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EDGES = commits()[20:60:5]
Counts = Counter[tuple[str, str, int]]


def written(kafka: Broker, protocol: str, **more: Any) -> str:
    topic = kafka.topic(2, name=protocol)
    given = {"addresses": [kafka.address], "topic": topic, "control-topic": f"{topic}-control", "protocol": protocol}
    kafka_case.run({**given, **more}, EDGES)
    return topic


def events(kafka: Broker, topic: str, options: ProtocolOptions) -> list[list[Event]]:
    found = []
    for records in kafka.read(topic):
        decoder = make_decoder(options)
        found.append([event for record in records for event in decoder.decode(record.key, record.value)])
    return found


def rows_of(partitions: list[list[Event]]) -> Counts:
    rows = [event for of in partitions for event in of if isinstance(event, RowEvent)]
    return Counter((row.schema, row.table, row.commit_ts) for row in rows)


@pytest.fixture(scope="module")
def wanted(kafka_server: Broker) -> Counts:
    """Rows of each table and commit_ts."""
    found = seen(kafka_server, written(kafka_server, "open-protocol"))
    rows = [row for of in found for row in of.rows]
    assert len(rows) > 50
    return Counter((row.schema, row.table, row.commit_ts) for row in rows)


@pytest.mark.parametrize("protocol", ["canal-json", "debezium", "simple"])
def test_recording_in_each_protocol_has_every_row_once(kafka: Broker, wanted: Counts, protocol: str) -> None:
    more = {"enable-tidb-extension": True}
    topic = written(kafka, protocol, **more)
    found = events(kafka, topic, ProtocolOptions(protocol, enable_tidb_extension=True))
    assert rows_of(found) == wanted
    assert any(isinstance(event, DdlEvent) for of in found for event in of)
    resolved = [[event.commit_ts for event in of if isinstance(event, ResolvedEvent)] for of in found]
    assert [of[-1] for of in resolved] == [EDGES[-1]] * 2
    bootstraps = [[event.table for event in of if isinstance(event, BootstrapEvent)] for of in found]
    assert all(bool(of) == (protocol == "simple") for of in bootstraps)


def test_recording_in_avro_has_every_row_with_registered_ids(
    kafka: Broker, schema_registry: SchemaRegistryServer, wanted: Counts
) -> None:
    """A delete has no commit_ts in Avro; all others have theirs by the extension."""
    more = {"enable-tidb-extension": True, "avro-enable-watermark": True, "schema-registry": schema_registry.url}
    more["dispatchers"] = [{"matcher": ["*.*"], "topic": f"{{schema}}_{{table}}_{kafka.topic(1)}"}]
    before = set(kafka.topics())
    try:
        topic = written(kafka, "avro", **more)
    except DestinationRefused as error:
        pytest.fail(str(error))
    registry = SchemaRegistry(schema_registry.url)
    options = ProtocolOptions("avro", enable_tidb_extension=True, avro_enable_watermark=True)
    from drainer.protocol.avro.decoder import AvroDecoder

    found: list[list[Event]] = []
    for one in sorted(set(kafka.topics()) - before - {f"{topic}-control"}):
        for records in kafka.read(one):
            decoder = AvroDecoder(options, registry.schema)
            try:
                found.append([event for record in records for event in decoder.decode(record.key, record.value)])
            except MessageError as error:
                pytest.fail(f"{one}: {error}")
    rows = [event for of in found for event in of if isinstance(event, RowEvent)]
    assert len(rows) == wanted.total()
    stamped = Counter((row.table, row.commit_ts) for row in rows if row.change is not Change.DELETE)
    assert not stamped - by_table(wanted)


def by_table(wanted: Counts) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for (_, table, commit_ts), count in wanted.items():
        found[table, commit_ts] += count
    return found
