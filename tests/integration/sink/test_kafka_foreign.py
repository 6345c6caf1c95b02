"""Other programs beside a drainer, and clocks that differ: on a real broker, with a few rows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, Producer

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.sink.errors import DestinationDown, DestinationRefused
from tests.integration.sink.test_kafka_takeover import KEYS, OTHER, World, distributed, segment
from tests.support.kafka import Broker
from tests.support.kafka_case import set_waits
from tests.support.row_case import BEGIN_TS
from tests.support.servers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

ANSWER_S = 120


@pytest.fixture
def world(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    set_waits(monkeypatch, grace_s=0.5)
    made = World(kafka)
    yield made
    made.close()


def in_transaction(world: World, id_: str, *topics: str) -> Producer:
    """Another program's producer, with a message in each partition of rows."""
    other = Producer(
        {
            "bootstrap.servers": world.broker.address,
            "transactional.id": id_,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    other.init_transactions(ANSWER_S)
    other.begin_transaction()
    for topic in topics:
        other.produce(topic, b"not ours", key=b"key", partition=0)
    assert other.flush(ANSWER_S) == 0
    return other


@pytest.mark.parametrize("where", ["rows", "control"])
def test_open_transaction_of_another_program_at_start_named_with_command(world: World, where: str) -> None:
    """The drainer does not end it, and continues when it has ended."""
    first = world.opened()
    first.apply(segment(0, 10, 1), 1)
    first.close(clean=True)
    topic = world.topic if where == "rows" else f"{world.topic}-control"
    other = in_transaction(world, f"{world.topic}-other", topic)
    command = rf"`kafka-transactions.sh --bootstrap-server {world.broker.address} abort --topic {topic} --partition 0"
    for _ in range(2):
        with pytest.raises(DestinationDown, match=rf"a transaction is open at offset \d+ of {topic}-0\. .*{command} "):
            world.opened(OTHER, retry_for="2s")
    other.abort_transaction(ANSWER_S)
    destination = world.opened(OTHER)
    destination.apply(segment(10, 20, 2), 1)
    assert world.keys() == [1, 2]
    assert world.resolved() == {20}


def test_open_transaction_of_another_program_does_not_delay_drainer(world: World) -> None:
    """While the drainer runs. Nor does the drainer end it."""
    destination = world.opened()
    destination.apply(segment(0, 10, 1), 1)
    other = in_transaction(world, f"{world.topic}-other", world.topic)
    destination.apply(segment(10, 20, 2), 1)
    distributed(destination, 20, 50, *KEYS[2:])
    distributed(destination, 50, 80, *range(20, 30))
    wait_until(lambda: world.open_partitions() == [0], what="the drainer's own transactions have ended")
    other.abort_transaction(ANSWER_S)
    assert world.keys() == sorted([*KEYS, *range(20, 30)])
    assert world.resolved() == {80}


def test_program_using_drainers_transactional_id_is_aborted(world: World) -> None:
    """Its transaction is aborted, and every row of the drainer's is there once."""
    destination = world.opened()
    config = destination._opened()[0]._config
    distributed(destination, 0, 30, *KEYS)
    used = {f"{config.control_topic}-driver": [world.topic, config.control_topic], config.slot_id(1): [world.topic]}
    for number, (id_, topics) in enumerate(used.items()):
        after = 30 * (number + 1)
        other = in_transaction(world, id_, *topics)
        destination.apply(segment(after, after + 10, 100 + number), 1)
        distributed(destination, after + 10, after + 30, *range(after, after + 10))
        with pytest.raises(KafkaException):
            other.commit_transaction(ANSWER_S)
    assert world.keys() == sorted([*KEYS, *range(30, 40), *range(60, 70), 100, 101])
    assert world.resolved() == {90}


def test_message_time_refused_by_brokers_is_reported_with_remedy(
    pausable_kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message counts whose time was refused, and none is lost once clocks agree again. The rows arrive two seconds
    after they were sent. (Of a batch with several such messages the library says INVALID_RECORD. A limit of
    milliseconds can refuse the broker's own marker at the end of a transaction, which then stays open.)"""
    set_waits(monkeypatch, grace_s=0.5)
    with closing(World(pausable_kafka)) as world:
        _refuse_message_time(world)


def _refuse_message_time(world: World) -> None:
    destination = world.opened()
    destination.apply(segment(0, 1, 1), 1)
    world.broker.set_topic(world.topic, message_timestamp_before_max_ms="1000")
    broker, done, resumed = world.broker.server.process, 1, threading.Event()
    assert broker is not None

    def resume() -> None:
        broker.send_signal(signal.SIGCONT)
        resumed.set()

    def late() -> Iterator[ChangeSegment]:
        broker.send_signal(signal.SIGSTOP)
        threading.Timer(2, resume).start()
        yield segment(done, done + 1, done + 1)

    with pytest.raises(DestinationRefused, match=r"INVALID_(TIMESTAMP|RECORD).*clock of this machine.*set the clock"):
        for done in range(1, 20):  # brokers show a setting before they use it
            destination.apply_pieces(Pieces(BEGIN_TS + done, BEGIN_TS + done + 1, late), 1)
    assert resumed.wait(60)
    world.broker.set_topic(world.topic, message_timestamp_before_max_ms=str((1 << 63) - 1))

    def continues() -> bool:
        again = world.opened(OTHER)
        assert again.commit_ts == BEGIN_TS + done
        try:
            again.apply(segment(done, done + 1, done + 1), 1)
        except DestinationRefused:
            return False
        return True

    wait_until(continues, what="messages of this time are accepted")
    assert world.keys() == list(range(1, done + 2))
