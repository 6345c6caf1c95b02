"""Rows into a real broker, exactly once: a driver and its writers that die by SIGKILL at any of their crash points,
drivers that wake after another one has taken over, and brokers that go away."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from drainer.kafka_check.__main__ import main as check
from drainer.protocol.event import ResolvedEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from tests.integration.sink.forks import children
from tests.support import kafka_case
from tests.support.change_replay import commits
from tests.support.kafka import Broker
from tests.support.kafka_case import ROWS, Partition, same, seen, shape

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

EDGES = commits()[20:100:6]
PARTITIONS = 4
# Of the driver, of writers of slots, which these tests run in the driver's process, and of both in a takeover.
POINTS = [
    "kafka.claimed",
    "kafka.initialised",
    "kafka.rows_sent:3",
    "sink.before_commit:6",
    "sink.after_commit:6",
    "kafka.ddl_sent:2",
    "drainer.after_intent",
    "kafka.slot_initialised",
    "kafka.slot_sent:2",
    "kafka.slot_flushed:2",
    "kafka.slot_committed",
    "kafka.slot_committed:2",
    "drainer.before_commit",
    "kafka.committed",
    "drainer.mid_large:3",
]


def settings(broker: Broker, topic: str, **more: Any) -> dict[str, Any]:
    return {
        "addresses": [broker.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "dispatchers": ROWS,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def whole(kafka_server: Broker) -> list[Partition]:
    """All of it in one batch of one life."""
    topic = kafka_server.topic(PARTITIONS, name="whole")
    kafka_case.run(settings(kafka_server, topic), EDGES[-1:])
    found = seen(kafka_server, topic)
    assert sum(len(partition.rows) for partition in found) > 100
    assert all(partition.ddls for partition in found)
    return found


def life(settings_: dict[str, Any], scratch: Path, crash: str = "") -> int:
    return children().start(kafka_case.run, (settings_, EDGES, str(scratch / "log")), scratch, crash).wait()


def arrived(kafka: Broker, topic: str, whole: list[Partition]) -> None:
    """A read-committed consumer sees everything once, in order, and that nothing is missing."""
    found = seen(kafka, topic)
    same(found, whole)
    assert {partition.resolved for partition in found} == {EDGES[-1]}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_kafka_rows_of_process_killed_at_any_point_arrive_once(
    kafka: Broker, whole: list[Partition], tmp_path: Path, point: str
) -> None:
    topic = kafka.topic(PARTITIONS)
    given = settings(kafka, topic)
    assert life(given, tmp_path, point) == -signal.SIGKILL
    assert life(given, tmp_path) == 0, (tmp_path / "log").read_text()[-4000:]
    arrived(kafka, topic, whole)


def test_kafka_rows_of_processes_killed_repeatedly_arrive_once(
    kafka: Broker, whole: list[Partition], tmp_path: Path
) -> None:
    topic = kafka.topic(PARTITIONS)
    given = settings(kafka, topic)
    again = ["kafka.claimed", "kafka.slot_committed", "kafka.slot_flushed", "sink.before_commit:2", "kafka.initialised"]
    assert [life(given, tmp_path, point) for point in again] == [-signal.SIGKILL] * len(again)
    assert life(given, tmp_path) == 0
    arrived(kafka, topic, whole)


def test_kafka_rows_of_two_concurrent_drainers_arrive_once(
    kafka: Broker, whole: list[Partition], tmp_path: Path
) -> None:
    """Each takes the changefeed over from the other as it starts, and who was taken over from stops. They are started
    again and again until one gets to the end."""
    topic = kafka.topic(PARTITIONS)
    given = settings(kafka, topic)
    codes: list[int] = []
    for turn in range(6):
        scratches = [tmp_path / f"{turn}-{who}" for who in ("a", "b")]
        for scratch in scratches:
            scratch.mkdir()
        running = [
            children().start(kafka_case.run, (given, EDGES, str(scratch / "log")), scratch, "") for scratch in scratches
        ]
        codes += [one.wait() for one in running]
        if turn and 0 in codes:
            break
    assert 0 in codes
    assert set(codes) <= {0, 1}
    arrived(kafka, topic, whole)


LEAST = [
    "kafka.rows_acknowledged:4",
    "sink.after_commit:6",
    "kafka.slot_flushed:2",
    "kafka.committed",
]


@pytest.mark.slow
@pytest.mark.parametrize("point", LEAST)
def test_at_least_once_repeats_no_row_after_resolved_event(
    kafka: Broker, whole: list[Partition], tmp_path: Path, point: str
) -> None:
    """Without transactions: rows may be there again, in their partition."""
    topic = kafka.topic(PARTITIONS)
    given = settings(kafka, topic, exactly_once=False)
    assert life(given, tmp_path, point) == -signal.SIGKILL
    assert life(given, tmp_path) == 0, (tmp_path / "log").read_text()[-4000:]
    for found, wanted in zip(seen(kafka, topic, repeats=True), whole, strict=True):
        assert {shape(row) for row in found.rows} == {shape(row) for row in wanted.rows}
        assert {shape(ddl) for ddl in found.ddls} == {shape(ddl) for ddl in wanted.ddls}
        assert found.resolved == EDGES[-1]


@pytest.mark.slow
def test_drainer_continues_in_topic_of_ticdc_changefeed(kafka: Broker, whole: list[Partition]) -> None:
    """docs/migration.md: at the changefeed's checkpoint, above which a TiCDC has written some rows and no resolved
    event. They come again, each in its partition, and what was resolved does not."""
    before, topic = kafka.topic(PARTITIONS), kafka.topic(PARTITIONS)
    checkpoint = EDGES[4]
    kafka_case.run(settings(kafka, before, exactly_once=False), EDGES[:9])
    decoder = make_decoder(ProtocolOptions("open-protocol"))
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for partition, records in enumerate(kafka.read(before)):
        for record in records:
            events = decoder.decode(record.key, record.value)
            if not any(isinstance(event, ResolvedEvent) and event.commit_ts > checkpoint for event in events):
                producer.produce(topic, key=record.key, value=record.value, partition=partition)
    assert producer.flush(240) == 0
    left = seen(kafka, topic)
    assert {partition.resolved for partition in left} == {checkpoint}
    assert any(row.commit_ts > checkpoint for partition in left for row in partition.rows)

    kafka_case.run(settings(kafka, topic), EDGES, initial_ts=checkpoint)
    assert kafka.settle(topic), "a transaction is open"
    for found, wanted in zip(seen(kafka, topic, repeats=True), whole, strict=True):
        assert {shape(row) for row in found.rows} == {shape(row) for row in wanted.rows}
        assert {shape(ddl) for ddl in found.ddls} == {shape(ddl) for ddl in wanted.ddls}
        assert found.resolved == EDGES[-1]
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    assert check([uri, "--allow-repeats"]) == 0
    assert check([uri]) == 1, "without that the rows that came twice are told"
