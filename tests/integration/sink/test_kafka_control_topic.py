"""What becomes of the control topic under a drainer: made anew, given more partitions, kept for a time only; that
readers are told of another number of partitions whatever fails; and brokers that abort or answer late. On a real one,
with a few rows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from prometheus_client import REGISTRY

from drainer.sink.document_position import Document
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.transactions.control_records import changed
from drainer.sink.retry import RetryDeadline
from tests.integration.sink.test_kafka_takeover import (
    KEYS,
    OTHER,
    WHO,
    Once,
    World,
    at,
    distributed,
    range_of,
    segment,
    sent,
)
from tests.support.kafka import Broker
from tests.support.kept_producers import forget_producers
from tests.support.row_case import BEGIN_TS
from tests.support.servers import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def world(kafka: Broker) -> Iterator[World]:
    made = World(kafka)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("exactly_once", "starts"), [(True, 3), (True, 0), (False, 0)])
def test_recreated_control_topic_fences_former_driver(world: World, exactly_once: bool, starts: int) -> None:
    """Its claims have smaller offsets than those of the former one, or the same; the former driver goes on in
    neither."""
    for _ in range(starts):
        world.opened(exactly_once=exactly_once).close(clean=True)
    old = world.opened(exactly_once=exactly_once)
    old.apply(segment(0, 10, 1), 1)
    intent = range_of(old, 10, 30)
    writer = sent(old.begin(intent))
    world.broker.delete(f"{world.topic}-control")
    new = world.sink(exactly_once=exactly_once)
    new.open(OTHER, BEGIN_TS + 10)
    assert (new._opened()[0].epoch < old._opened()[0].epoch) == (starts > 0)
    new.apply(segment(10, 20, 2), 1)
    forget_producers()
    for slot in range(intent.slots):
        with pytest.raises(Fenced):
            writer.write(slot, segment(10, 30, *KEYS))
    with pytest.raises(Fenced):
        old.commit(intent, [], 1)
    new.apply(segment(20, 30, 3), 1)
    assert world.keys() == [1, 2, 3]
    assert world.resolved() == {30}


def test_stored_position_below_acknowledged_one_stops_driver(world: World) -> None:
    """Brokers may lose what they acknowledged."""
    sink = world.opened()
    sink.apply(segment(0, 10, 1), 1)
    driver = sink._opened()[0]
    older = driver.document
    sink.apply(segment(10, 20, 2), 1)
    producer = Producer({"bootstrap.servers": world.broker.address})
    for key, value in changed(Document(), older):
        producer.produce(f"{world.topic}-control", value, key, partition=0)
    assert producer.flush(60) == 0
    driver.lose()
    with pytest.raises(PositionMoved, match=f"brokers acknowledged the position {BEGIN_TS + 20}"):
        sink.apply(segment(20, 30, 3), 1)
    assert world.keys() == [1, 2]


@pytest.mark.parametrize("required_acks", [0, 1])
def test_driver_starts_with_required_acks_below_all(world: World, required_acks: int) -> None:
    for until in (10, 20):
        sink = world.opened(exactly_once=False, required_acks=required_acks)
        sink.apply(segment(until - 10, until, until), 1)
        sink.close(clean=True)
    assert world.keys() == [10, 20]


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_control_topic_with_delete_policy_is_refused(world: World, policy: str) -> None:
    """A position that is deleted after a time looks like a first start, which begins somewhere else."""
    world.opened().close(clean=True)
    control = f"{world.topic}-control"
    world.broker.set_topic(control, cleanup_policy=policy)
    with pytest.raises(DestinationRefused, match=rf"{control}.*cleanup.policy={policy}.*compact"):
        world.opened()
    world.broker.set_topic(control, cleanup_policy="compact")
    world.opened()


def test_open_range_is_finished_after_control_topic_got_more_partitions(world: World) -> None:
    """The range is cut by the slots that its intent records."""
    first = world.opened()
    intent = range_of(first, 0, 30)
    sent(first.begin(intent)).write(0, segment(0, 30, *KEYS))
    first.close(clean=False)
    world.broker.grow(f"{world.topic}-control", 6)
    again = world.sink()
    assert again.open(OTHER, 1).intent == intent
    assert again.slotting.count == 5
    assert again.slotting.version == intent.hash_version, "else a drainer refuses to finish it"
    writer = sent(again.begin(intent))
    again.commit(intent, [writer.write(slot, segment(0, 30, *KEYS)) for slot in range(intent.slots)], 1)
    assert world.keys() == list(KEYS)
    assert world.resolved() == {30}


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("point", ["sink.before_commit", "sink.after_commit"])
def test_partition_count_event_reaches_every_partition_after_crash(
    world: World, monkeypatch: pytest.MonkeyPatch, exactly_once: bool, point: str
) -> None:
    """Every partition has the Admin event, once a row may be somewhere else."""
    first = world.opened(exactly_once=exactly_once)
    first.apply(segment(0, 10, 99), 1)
    first.close(clean=True)
    world.broker.grow(world.topic, 5)

    class Died(Exception):
        pass

    def dies() -> None:
        raise Died

    at(monkeypatch, Once(point, dies, 2))  # the first is that of the takeover
    with pytest.raises(Died):
        world.opened(exactly_once=exactly_once, partition_change="take-up")
    monkeypatch.undo()
    again = world.opened(WHO, exactly_once=exactly_once, partition_change="take-up")
    again.apply(segment(10, 30, *KEYS), 1)
    found = world.seen(repeats=not exactly_once)
    assert [{(one.partitions, one.commit_ts) for one in of.admin} for of in found] == [{(5, BEGIN_TS + 10)}] * 5
    assert world.keys(repeats=not exactly_once) == sorted([*KEYS, 99])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["kafka.rows_sent", "kafka.slot_flushed"])
def test_transaction_beyond_its_timeout_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The brokers have aborted it by the time that it is to be committed."""
    destination = world.opened(transaction_timeout="2s")
    # The mark of the first slot, which may have no rows; rows themselves.
    topic, partitions = (f"{world.topic}-control", [1]) if point == "kafka.slot_flushed" else (world.topic, [0, 1, 2])
    reader = Reader({"bootstrap.servers": world.broker.address}, topic)

    def waits() -> None:
        """Until what was sent is there, and until no transaction is open any more."""
        for partition in partitions:
            wait_until(lambda at=partition: reader.end(at, deadline), deadline_s=120, what="it is at the broker")  # type: ignore[misc]
            reader.settled_end(partition, deadline)
        assert world.keys() == []

    deadline = RetryDeadline("the broker aborts", 120.0)
    at(monkeypatch, Once(point, waits))
    if point == "kafka.rows_sent":
        destination.apply(segment(0, 30, *KEYS), 1)
    else:
        distributed(destination, 0, 30, *KEYS)
    reader.close()
    assert world.keys() == list(KEYS)
    assert world.resolved() == {30}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["sink.before_commit", "kafka.slot_flushed"])
def test_rows_arrive_once_when_broker_is_paused(
    pausable_kafka: Broker, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It is stopped until a call has given up waiting, and goes on."""
    process, before = pausable_kafka.server.process, retries()
    assert process is not None

    def resume() -> None:
        try:
            wait_until(lambda: retries() > before, what="a call has given up waiting")
        finally:
            process.send_signal(signal.SIGCONT)

    resuming = threading.Thread(target=resume)

    def pause() -> None:
        process.send_signal(signal.SIGSTOP)
        resuming.start()

    with closing(World(pausable_kafka)) as world:
        destination = world.opened()
        destination.apply(segment(0, 10, 99), 1)
        before = retries()
        at(monkeypatch, Once(point, pause))
        try:
            destination.apply(segment(10, 20, 1, 2, 3), 1)
            distributed(destination, 20, 60, *range(4, 13))
        finally:
            resuming.join()
        assert retries() > before
        assert world.keys() == [*range(1, 13), 99]
        assert world.resolved() == {60}


def retries() -> float:
    """How often a destination's calls have failed in this process."""
    return REGISTRY.get_sample_value("binlog_drainer_destination_retries_total", {"error": "DestinationDown"}) or 0
