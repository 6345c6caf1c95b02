"""Drivers and writers that wake after another driver has taken over, brokers that go away in the middle, and what the
driver says of topics: on a real broker, with a few rows."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from binlog.errors import ConfigError
from binlog.tidb.job import ActionType, Job

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.dispatch import DispatchError
from drainer.protocol.errors import MessageTooLarge
from drainer.protocol.event import RowEvent
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.base import FirstStart, Identity, Intent
from drainer.sink.errors import DestinationDown, DestinationRefused, Fenced, PositionMoved
from drainer.sink.kafka import sink as sink_module
from drainer.sink.kafka import slot_writer
from drainer.sink.kafka.sink import KafkaSink
from drainer.sink.kafka.slot_writer import KafkaSlotWriter
from drainer.sink.kafka.transactions import driver as driver_module
from drainer.sink.kafka.transactions.control_records import Claims
from tests.support import kafka_case
from tests.support.kafka import Broker
from tests.support.kafka_case import ROWS, Partition, seen
from tests.support.kept_producers import forget_producers
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, table, transaction, view_of
from tests.support.servers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

WHO = Identity(7, "main", "d1")
OTHER = Identity(7, "main", "d2")
INFO = table([("id", INT), ("text", TEXT)], handle="id")
KEYS = tuple(range(1, 13))


class World:
    """One topic, its control topic, and sinks on them."""

    def __init__(self, broker: Broker, topic: str = "", **more: Any) -> None:
        self.broker = broker
        self.topic = topic or broker.topic(3)
        self._more = {name.replace("_", "-"): value for name, value in more.items()}
        self._sinks: list[KafkaSink] = []

    def sink(self, **more: Any) -> KafkaSink:
        """Not opened."""
        given = {
            "addresses": [self.broker.address],
            "topic": self.topic,
            "control-topic": f"{self.topic}-control",
            "dispatchers": ROWS,
            "resolved-interval": "100ms",
            **self._more,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        made = kafka_case.sink(given)
        self._sinks.append(made)
        return made

    def opened(self, who: Identity = WHO, **more: Any) -> KafkaSink:
        made = self.sink(**more)
        made.open(who, BEGIN_TS)
        return made

    def seen(self, **how: Any) -> list[Partition]:
        return seen(self.broker, self.topic, **how)

    def keys(self, **how: Any) -> list[int]:
        return sorted(key(row) for partition in self.seen(**how) for row in partition.rows)

    def open_partitions(self) -> list[int]:
        return self.broker.open_partitions(self.topic)

    def settled(self) -> World:
        """When no transaction is open any more: after its death a broker ends those that were committed by and by."""
        wait_until(lambda: not self.open_partitions(), what="every transaction has its end")
        return self

    def resolved(self) -> set[int]:
        return {partition.resolved - BEGIN_TS for partition in self.seen()}

    def close(self) -> None:
        for one in self._sinks:
            one.interrupt()
            one.close(clean=False)
        forget_producers()


@pytest.fixture
def world(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    kafka_case.set_waits(monkeypatch, behind_s=0.2)  # there is no other broker
    made = World(kafka)
    yield made
    made.close()


def key(row: RowEvent) -> int:
    image = row.new or row.old
    assert image is not None
    value = image["id"].value
    assert isinstance(value, int)
    return value


def segment(after: int, until: int, *keys: int, text: bytes = b"x") -> ChangeSegment:
    payloads = []
    for n, one in enumerate(keys):
        row = ("insert", {}, {1: one, 2: text})
        payloads.append(transaction([(INFO, row)], commit_ts=BEGIN_TS + after + 1 + n))
    decoder = StreamDecoder(view_of(INFO), stored_generated=True)
    return decoder.segment(payloads, BEGIN_TS + after, BEGIN_TS + until)


def ddl(after: int, job_id: int = 5) -> Ddl:
    job = Job(job_id, ActionType.CREATE_TABLE, schema_version=9)
    return Ddl(job, BEGIN_TS + after, False, "d", "d", ("x",), "CREATE TABLE x", BEGIN_TS + after, ())


def range_of(destination: KafkaSink, after: int, until: int) -> Intent:
    slotting = destination.slotting
    return Intent(BEGIN_TS + after, BEGIN_TS + until, slotting.count, 10, slotting.version, "d")


def distributed(destination: KafkaSink, after: int, until: int, *keys: int) -> None:
    """As executors do: every slot gets the whole segment, and writes what is its own."""
    intent = range_of(destination, after, until)
    writer = sent(destination.begin(intent))
    receipts = [writer.write(slot, segment(after, until, *keys)) for slot in range(intent.slots)]
    assert destination.commit(intent, receipts, 1) is None, "nothing is to be written once more"


def sent(writer: KafkaSlotWriter) -> KafkaSlotWriter:
    """As it comes to an executor."""
    found: KafkaSlotWriter = pickle.loads(pickle.dumps(writer))
    return found


class Died(Exception):
    """In place of SIGKILL: nothing of the drainer's catches it to go on."""


def dies() -> None:
    raise Died


class Once:
    """Does something when a crash point is passed for the nth time, in place of dying there."""

    def __init__(self, point: str, action: Callable[[], None], nth: int = 1) -> None:
        self.point, self.action, self.left = point, action, nth

    def __call__(self, name: str) -> None:
        if name == self.point:
            self.left -= 1
            if self.left == 0:
                self.action()


def at(monkeypatch: pytest.MonkeyPatch, once: Once) -> None:
    for module in (driver_module, sink_module, slot_writer):
        monkeypatch.setattr(module, "crash_point", once)


def test_rows_in_driver_and_distributed_and_ddl_arrive_once(world: World) -> None:
    destination = world.opened()
    destination.apply(segment(0, 10, 1, 2, 3), 1)
    destination.ddl(ddl(15))
    distributed(destination, 15, 40, *range(4, 12))
    destination.apply_pieces(
        Pieces(BEGIN_TS + 40, BEGIN_TS + 60, lambda: (segment(40, 50, 12), segment(50, 60, 13))), 1
    )
    assert world.keys() == list(range(1, 14))
    found = world.seen()
    assert [len(partition.ddls) for partition in found] == [1, 1, 1]
    assert world.resolved() == {60}
    assert sum(bool(partition.rows) for partition in found) > 1
    destination.close(clean=True)
    again = world.sink()
    position = again.open(WHO, 1)
    assert (position.commit_ts, position.schema_version, position.fresh) == (BEGIN_TS + 60, 9, False)
    assert (again.job_done(5), again.job_done(6)) == (True, False)


def test_column_selectors_apply_in_driver_and_in_executors(world: World) -> None:
    """A range that was begun under other selectors has another cut, so that it is not finished by these. What does not
    fit is refused when the drainer starts, and before a DDL is published."""
    selectors = [{"matcher": ["db.*"], "columns": ["*", "!TEXT"]}]
    destination = world.opened(column_selectors=selectors)
    destination.check_tables(view_of(INFO))
    destination.apply(segment(0, 10, 1, 2, 3), 1)
    destination.prepare(view_of(INFO))
    distributed(destination, 10, 40, *range(4, 12))
    rows = [row for partition in world.seen() for row in partition.rows]
    assert sorted(map(key, rows)) == list(range(1, 12))
    assert {tuple(row.new or ()) for row in rows} == {("id",)}
    changed = table([("id", INT), ("text", TEXT)], unique={"PRIMARY": ["text"]})
    breaking = replace(ddl(45), changes=(TableChange(None, Located(changed.id, "db", changed)),))
    with pytest.raises(DispatchError, match=r"DDL job 5 .* is not published .*the primary key \(text\) lacks text"):
        destination.ddl(breaking)
    with pytest.raises(ConfigError, match=r"table `db`\.`t`: the column selector for db\.\*"):
        destination.check_tables(view_of(changed))
    assert not any(partition.ddls for partition in world.seen())
    begun = range_of(destination, 40, 60)
    destination.begin(begun)
    other = world.sink()
    assert other.open(WHO, BEGIN_TS).intent == begun
    assert other.slotting.version != begun.hash_version
    again = world.sink(column_selectors=selectors)
    assert again.open(WHO, BEGIN_TS).intent == begun
    assert again.slotting.version == begun.hash_version


@pytest.mark.parametrize("partition", ["index-value", "conflict"])
def test_transaction_in_pieces_has_one_event_for_each_row(world: World, partition: str) -> None:
    """Deletes first and inserts last, although the last piece has both, and all else than the first has."""
    info = table([("id", INT), ("text", TEXT)], handle="id", unique={"text": ["text"]})
    destination = world.opened(dispatchers=[{"matcher": ["*.*"], "partition": partition}])
    first: list[Step] = [("insert", {}, {1: number, 2: b"%d" % number}) for number in range(1, 9)]
    first += [("update", {1: 20, 2: b"old"}, {1: 20, 2: b"between"})]
    last: list[Step] = [
        ("update", {1: 1, 2: b"1"}, {1: 1, 2: b"net"}),
        ("delete", {1: 2, 2: b"2"}, {}),
        ("update", {1: 20, 2: b"between"}, {1: 20, 2: b"new"}),
        ("delete", {1: 21, 2: b"free"}, {}),
        ("insert", {}, {1: 9, 2: b"free"}),
    ]
    payloads = [transaction([(info, step) for step in steps], commit_ts=BEGIN_TS + 5) for steps in (first, last)]

    def works() -> Iterator[ChangeSegment]:
        piece = StreamDecoder(view_of(info), stored_generated=True).transaction()
        return (piece(payload, BEGIN_TS, BEGIN_TS + 10) for payload in payloads)

    destination.apply_pieces(Pieces(BEGIN_TS, BEGIN_TS + 10, works), 1)
    found = world.seen()
    images = [(row.old is not None, row.new is not None, key(row)) for of in found for row in of.rows]
    wanted = [(False, True, number) for number in (1, *range(3, 10), 20)] + [(True, False, 20), (True, False, 21)]
    assert sorted(images) == sorted(wanted)
    for of in found:
        classes = [row.new is not None for row in of.rows]
        assert classes == sorted(classes)
    texts = {key(row): row.new["text"].value for of in found for row in of.rows if row.new is not None}
    assert (texts[1], texts[20], texts[9]) == ("net", "new", "free")
    if partition == "conflict":
        assert sum(bool(of.rows) for of in found) == 1


@pytest.mark.parametrize("point", ["kafka.rows_sent", "sink.before_commit"])
def test_driver_paused_during_transaction_commits_nothing_after_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It wakes when another one has taken over and gone on."""
    old = world.opened()
    old.apply(segment(0, 10, 1), 1)

    def taken_over() -> None:
        new = world.opened(OTHER)
        assert new.commit_ts == BEGIN_TS + 10
        new.apply(segment(10, 20, 2, 3), 1)

    at(monkeypatch, Once(point, taken_over))
    with pytest.raises(Fenced, match="'d2' has taken over"):
        old.apply(segment(10, 20, 2, 3), 1)
    assert world.keys() == [1, 2, 3]
    assert world.resolved() == {20}


def test_fenced_driver_writes_nothing_after_takeover(world: World) -> None:
    old = world.opened()
    old.apply(segment(0, 10, 1), 1)
    intent = range_of(old, 10, 30)
    writer = old.begin(intent)
    new = world.opened(OTHER)
    distributed(new, 10, 30, *KEYS)
    before = world.broker.read(f"{world.topic}-control")
    for attempt in (
        lambda: old.commit(intent, [], 1),
        lambda: old.apply(segment(10, 20, 2), 1),
        lambda: old.ddl(ddl(15)),
        lambda: old.begin(replace(intent, after_ts=BEGIN_TS + 10)) and old.apply(segment(10, 20, 2), 1),
        lambda: writer.write(0, segment(10, 30, *KEYS)),
    ):
        with pytest.raises((Fenced, PositionMoved)):
            attempt()
    assert world.broker.read(f"{world.topic}-control") == before
    new.apply(segment(30, 40, 99), 1)  # fenced by those attempts, and still the newest
    assert world.keys() == sorted([1, *KEYS, 99])
    assert world.resolved() == {40}


@pytest.mark.parametrize("point", ["kafka.slot_initialised", "kafka.slot_sent", "kafka.slot_flushed"])
def test_slot_writer_paused_during_its_slot_commits_nothing_after_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The new driver finishes the range meanwhile, over the same slots."""
    old = world.opened()
    intent = range_of(old, 0, 30)
    writer = sent(old.begin(intent))

    def taken_over() -> None:
        new = world.sink()
        assert new.open(OTHER, 1).intent == intent
        distributed(new, 0, 30, *KEYS)

    at(monkeypatch, Once(point, taken_over))
    with pytest.raises(Fenced, match="'d2' has taken over"):
        for slot in range(intent.slots):
            writer.write(slot, segment(0, 30, *KEYS))
    assert world.keys() == list(KEYS)
    assert world.resolved() == {30}


def test_driver_paused_after_its_intent_writes_nothing_after_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new driver finishes the range before the old one asks where the control topic ends: what it finds there then
    is not what it wrote."""
    old = world.opened()
    intent = range_of(old, 0, 30)

    def taken_over() -> None:
        new = world.sink()
        assert new.open(OTHER, 1).intent == intent
        distributed(new, 0, 30, *KEYS)

    at(monkeypatch, Once("sink.after_commit", taken_over))
    with pytest.raises(Fenced, match="'d2' has taken over"):
        writer = sent(old.begin(intent))
        for slot in range(intent.slots):
            writer.write(slot, segment(0, 30, *KEYS))
    assert world.keys() == list(KEYS)
    assert world.resolved() == {30}


def test_driver_alone_does_not_read_claims_for_each_range(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its own transaction says that nobody else wrote."""
    destination = world.opened()
    monkeypatch.setattr(Claims, "poll", None)
    distributed(destination, 0, 30, *KEYS)
    destination.apply(segment(30, 40, 13), 1)
    distributed(destination, 40, 60, *range(20, 30))
    assert world.keys() == [*KEYS, 13, *range(20, 30)]


def test_fenced_slot_writer_that_initialises_late_costs_successor_retry(world: World) -> None:
    """It fences off the new driver's kept producers, sees the claim, and writes nothing."""
    old = world.opened()
    intent = range_of(old, 0, 30)
    zombie = sent(old.begin(intent))
    new = world.opened(OTHER)
    writer = sent(new.begin(intent))
    whole = segment(0, 30, *KEYS)
    receipts = [writer.write(slot, whole) for slot in range(intent.slots)]
    new.commit(intent, receipts, 1)
    for slot in range(intent.slots):
        with pytest.raises(Fenced):
            zombie.write(slot, whole)
    distributed(new, 30, 60, *range(20, 30))
    assert world.keys() == sorted([*KEYS, *range(20, 30)])


def test_kept_producer_of_slot_written_elsewhere_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would send its whole slot before it learnt that it is fenced off, and the slot would be sent again."""
    passed: list[str] = []
    monkeypatch.setattr(slot_writer, "crash_point", passed.append)
    destination = world.opened()
    distributed(destination, 0, 30, *KEYS)
    distributed(destination, 30, 60, *range(20, 30))
    slots = destination.slotting.count
    assert passed.count("kafka.slot_initialised") == slots, "who alone writes a slot keeps its producer"
    kept = dict(slot_writer._kept)
    slot_writer._kept.clear()
    distributed(destination, 60, 90, *range(30, 40))  # in another process
    forget_producers()
    slot_writer._kept.update(kept)
    passed.clear()
    distributed(destination, 90, 120, *range(40, 50))
    assert (passed.count("kafka.slot_sent"), passed.count("kafka.slot_initialised")) == (slots, slots)
    assert world.keys() == sorted([*KEYS, *range(20, 50)])


def test_slot_written_by_several_attempts_counts_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same process, by another one, and by two at a time, each of which fences off the other."""
    destination = world.opened()
    intent = range_of(destination, 0, 30)
    writer = sent(destination.begin(intent))
    whole = segment(0, 30, *KEYS)
    first = [writer.write(slot, whole) for slot in range(intent.slots)]
    assert [receipt.skipped for receipt in first] == [0, 0, 0]
    again = [writer.write(slot, whole) for slot in range(intent.slots)]
    forget_producers()
    elsewhere = [writer.write(slot, whole) for slot in range(intent.slots)]
    assert [receipt.skipped for receipt in (*again, *elsewhere)] == [1] * 6
    destination.commit(intent, elsewhere, 1)

    later = range_of(destination, 30, 60)
    beside = sent(destination.begin(later))
    more = segment(30, 60, *range(20, 32))
    taken: list[int] = []

    def other_attempt() -> None:
        taken.append(beside.write(0, more).skipped)

    at(monkeypatch, Once("kafka.slot_flushed", other_attempt))
    forget_producers()
    mine = beside.write(0, more)
    assert (taken, mine.skipped) == ([0], 1)
    destination.commit(later, [mine, beside.write(1, more), beside.write(2, more)], 1)
    assert world.keys() == sorted([*KEYS, *range(20, 32)])


@pytest.mark.parametrize("point", ["kafka.slot_sent", "kafka.slot_committed"])
def test_rows_arrive_once_when_broker_is_killed_and_restarted(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Under a slot; under the driver's transaction: test_kafka_faults.py, where a leader dies."""
    destination = world.opened()
    destination.apply(segment(0, 10, 1), 1)

    def broker_dies() -> None:
        # One that dies between the acknowledgement of a commit and its marker may never write it, which
        # test_kafka_faults.py looks at: here is what follows a commit that is whole.
        if point == "kafka.slot_committed":
            world.settled()
            assert world.broker.settle(f"{world.topic}-control")
        world.broker.kill()
        world.broker.start()

    at(monkeypatch, Once(point, broker_dies))
    destination.apply(segment(10, 20, 2, 3), 1)
    distributed(destination, 20, 60, *range(4, 20))
    destination.advance(BEGIN_TS + 70, 1)
    destination.apply(segment(70, 80, 20), 1)
    assert world.settled().keys() == list(range(1, 21))
    assert world.resolved() == {80}


def test_broker_that_stays_unreachable_is_reported_and_retries_end(world: World) -> None:
    destination = world.opened()
    patient = World(world.broker).opened()
    world.broker.kill()
    driver, topics = destination._opened()  # impatient from now on: a start may take longer than that
    driver._config = driver._config.model_copy(update={"retry_for": timedelta(seconds=1)})
    topics.admin._retry_for_s = 1.0
    with pytest.raises(DestinationDown, match="gave up after"):
        destination.apply(segment(0, 10, 1), 1)
    failed: list[BaseException] = []

    def applies() -> None:
        try:
            patient.apply(segment(0, 10, 1), 1)
        except DestinationDown as error:
            failed.append(error)

    waiting = threading.Thread(target=applies)
    waiting.start()
    patient.interrupt()
    waiting.join(60)
    assert not waiting.is_alive()
    assert "told to stop" in str(failed[0])
    world.broker.start()
    again = world.opened()
    assert again.commit_ts == BEGIN_TS
    again.apply(segment(0, 10, 1), 1)
    assert world.keys() == [1]


def test_error_during_transaction_leaves_no_rows_and_no_open_transaction(world: World) -> None:
    """A pump that is lost, in the driver; a row that no message can hold, in a slot: no transaction stays open."""
    destination = world.opened()

    def torn() -> Iterator[ChangeSegment]:
        yield segment(0, 10, 77)
        raise DestinationDown("the pump is gone")

    with pytest.raises(DestinationDown, match="the pump is gone"):
        destination.apply_pieces(Pieces(BEGIN_TS, BEGIN_TS + 20, torn), 1)
    wait_until(lambda: not world.open_partitions(), what="no transaction is open")
    destination.apply(segment(0, 20, 1), 1)
    intent = range_of(destination, 20, 40)
    writer = sent(destination.begin(intent))
    large = segment(20, 40, 5, 6, 7, 8, text=b"y" * (2 << 20))
    refused = []
    for slot in range(intent.slots):
        try:
            writer.write(slot, large)
        except MessageTooLarge as error:
            refused.append(str(error))
    assert refused
    assert all("of `db`.`t` at commit_ts" in text and "has 2,097," in text for text in refused)
    assert world.keys() == [1]
    assert world.resolved() == {20}


def test_resolved_event_without_transactions_is_sent_after_position(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who dies between the rows and the position has sent none, so that rows come again before it."""
    old = world.opened(exactly_once=False)
    with monkeypatch.context() as patched:
        at(patched, Once("kafka.rows_acknowledged", dies))
        with pytest.raises(Died):
            old.apply(segment(0, 20, *KEYS), 1)
    new = world.opened(OTHER, exactly_once=False)
    new.apply(segment(0, 20, *KEYS), 1)
    rows = [record for of in world.broker.read(world.topic) for record in of]
    assert len(rows) > len({record.value for record in rows})
    assert world.keys(repeats=True) == list(KEYS)
    with pytest.raises(Fenced, match="'d2' has taken over"):
        old.apply(segment(0, 20, *KEYS), 1)


def test_repeated_rows_without_transactions_go_to_the_same_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the topic has more partitions by then, which are taken up behind them; by other dispatchers they are
    not sent, since they would come to others."""
    more: dict[str, Any] = {"exactly_once": False, "partition_change": "take-up", "partition_check_interval": "1s"}
    old = world.opened(**more)
    old.apply(segment(0, 10, 100), 1)
    with monkeypatch.context() as patched:
        at(patched, Once("kafka.rows_acknowledged", dies))
        with pytest.raises(Died):
            old.apply(segment(10, 40, *KEYS), 1)
    world.broker.grow(world.topic, 5)
    for other in ({"dispatchers": [{"matcher": ["*.*"], "partition": "ts"}]}, {"time_zone": "Asia/Tokyo"}):
        with pytest.raises(DestinationRefused, match=f"up to commit_ts {BEGIN_TS + 40} may .*former settings"):
            world.opened(OTHER, **more, **other)
    new = world.opened(OTHER, **more)
    new.apply(segment(10, 30, *KEYS[:6]), 1)
    distributed(new, 30, 40, *KEYS[6:])
    new._opened()[1]._polled_s = float("-inf")
    distributed(new, 40, 90, *range(20, 50))
    found = world.seen(repeats=True)
    places = {(key(row), number) for number, of in enumerate(found) for row in of.rows}
    assert sorted(one for one, _ in places) == sorted([*KEYS, *range(20, 50), 100]), "each in one partition"
    assert [[(one.partitions, one.commit_ts) for one in of.admin] for of in found] == [[(5, BEGIN_TS + 40)]] * 5
    assert found[3].rows and found[4].rows
    new.close(clean=True)
    world.opened(**more, dispatchers=[{"matcher": ["*.*"], "partition": "ts"}]).apply(segment(90, 99, 60), 1)


def test_repeated_rows_of_new_topic_go_to_the_same_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes its first rows dies before the position, and somebody adds partitions."""
    topic = f"{world.topic}-new"
    more: dict[str, Any] = {"exactly_once": False, "partition_change": "take-up", "partition_check_interval": "1s"}
    more["dispatchers"] = [{"matcher": ["*.*"], "partition": "index-value", "topic": topic}]
    old = world.opened(**more)
    with monkeypatch.context() as patched:
        at(patched, Once("kafka.rows_acknowledged", dies))
        with pytest.raises(Died):
            old.apply(segment(0, 40, *KEYS), 1)
    world.broker.grow(topic, 7)
    new = world.opened(OTHER, **more)
    new.apply(segment(0, 40, *KEYS), 1)
    found = seen(world.broker, topic, repeats=True)
    places = {(key(row), number) for number, of in enumerate(found) for row in of.rows}
    assert sorted(one for one, _ in places) == list(KEYS), "each in one partition"


def test_message_above_topics_limit_is_refused_and_not_dropped(world: World) -> None:
    """Above what is the default elsewhere, too, where the topic takes it."""
    world.broker.set_topic(world.topic, max_message_bytes=str(100_000))
    destination = world.opened()
    with pytest.raises(MessageTooLarge, match=r"id = 1 .*99,872 are allowed"):
        destination.apply(segment(0, 20, 1, 2, 3, text=b"z" * 99_900), 1)
    assert world.keys() == []
    destination.close(clean=False)
    world.broker.set_topic(world.topic, max_message_bytes=str(5 << 20))
    again = world.opened()
    again.apply(segment(0, 20, 1, 2, 3, text=b"z" * (4 << 20)), 1)
    assert world.keys() == [1, 2, 3]


def test_unannounced_partitions_stop_drainer_by_default(world: World) -> None:
    destination = world.opened(partition_check_interval="1s")
    destination.apply(segment(0, 10, *KEYS), 1)
    world.broker.grow(world.topic, 5)
    destination.close(clean=True)
    wanted = rf"topic {world.topic} has 5 partitions, and 3 when rows were last written.*take-up"
    with pytest.raises(DestinationRefused, match=wanted):
        world.opened()
    world.opened(partition_change="take-up").close(clean=False)
    taking = world.opened()  # it is recorded
    assert taking.commit_ts == BEGIN_TS + 10
    taking.apply(segment(10, 30, *range(20, 50)), 1)
    found = world.seen()
    assert [[(one.partitions, one.commit_ts) for one in of.admin] for of in found] == [[(5, BEGIN_TS + 10)]] * 5
    assert world.keys() == sorted([*KEYS, *range(20, 50)])
    assert all(found[number].rows for number in (3, 4))


def test_added_partitions_are_used_at_end_of_range(world: World) -> None:
    """At the end of a range; one that was cut by the former numbers is not written by the new ones."""
    destination = world.opened(partition_change="take-up", partition_check_interval="1s")
    before = destination.slotting.version
    distributed(destination, 0, 30, *KEYS)
    world.broker.grow(world.topic, 4)
    intent = range_of(destination, 30, 60)
    writer = destination.begin(intent)
    destination._opened()[1]._polled_s = float("-inf")
    more = segment(30, 60, *range(20, 40))
    destination.commit(intent, [writer.write(slot, more) for slot in range(intent.slots)], 1)
    assert destination.slotting.version != before
    distributed(destination, 60, 90, *range(50, 70))
    found = world.seen()
    assert [[(one.partitions, one.commit_ts) for one in of.admin] for of in found] == [[(4, BEGIN_TS + 60)]] * 4
    assert {key(row) for row in found[3].rows} <= set(range(50, 70))
    assert found[3].rows
    assert world.keys() == sorted([*KEYS, *range(20, 40), *range(50, 70)])


def test_deleted_topic_is_refused_by_name(world: World) -> None:
    destination = world.opened()
    destination.apply(segment(0, 10, 1), 1)
    world.broker.delete(world.topic)
    destination._opened()[1]._polled_s = float("-inf")
    with pytest.raises(DestinationRefused, match=f"topic {world.topic} was deleted, and"):
        destination.apply(segment(10, 20, 2), 1)


@pytest.mark.parametrize("partitions", [3, 2])
def test_recreated_topic_is_refused_or_used_by_option(world: World, partitions: int) -> None:
    """Between two looks at it, and so also with fewer partitions."""
    destination = world.opened()
    destination.apply(segment(0, 20, *KEYS), 1)
    world.broker.make_again(world.topic, partitions)
    destination._opened()[1]._polled_s = float("-inf")
    refused = f"topic {world.topic} was deleted and created again"
    with pytest.raises(DestinationRefused, match=refused):
        destination.apply(segment(20, 30, 20), 1)
    with pytest.raises(DestinationRefused, match=refused):
        world.opened()
    again = world.opened(partition_change="take-up")
    again.apply(segment(20, 40, *range(20, 32)), 1)
    distributed(again, 40, 60, *range(40, 52))
    found = world.seen()
    assert [[(one.partitions, one.commit_ts) for one in of.admin] for of in found] == (
        [[(partitions, BEGIN_TS + 20)]] * partitions
    )
    assert all(of.rows for of in found)
    assert world.keys() == [*range(20, 32), *range(40, 52)]
    again.close(clean=True)
    world.opened().apply(segment(60, 70, 99), 1)


OTHERS = "is the control topic of changefeed 'main' of cluster 7"


@pytest.mark.parametrize("dies", [False, True])
def test_second_changefeed_claiming_new_control_topic_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Both find no claim in it. The first claim counts, and whose it is goes on, also where the other one `dies` before
    it takes its own back."""
    first, second = Identity(7, "main", "d1"), Identity(7, "other", "d2")
    opened: list[KafkaSink] = []
    real = Claims._send

    def claim(claims: Claims, *args: Any) -> None:
        """The other one comes between what this one has read and its own claim."""
        monkeypatch.undo()
        opened.append(world.opened(first))
        real(claims, *args)
        if dies:
            raise Died

    monkeypatch.setattr(Claims, "_send", claim)
    with pytest.raises(Died if dies else DestinationRefused, match=None if dies else OTHERS):
        world.opened(second)
    [winner] = opened
    winner.apply(segment(0, 10, 1), 1)
    assert world.broker.topics()[f"{world.topic}-control"] == 4
    winner.close(clean=True)
    if dies:
        winner = world.opened(first)
        winner.close(clean=True)
    with pytest.raises(DestinationRefused, match=OTHERS):
        world.opened(second)
    assert world.opened(first).commit_ts == BEGIN_TS + 10
    assert world.keys() == [1]


def test_topics_by_table_are_created_and_get_resolved_events(world: World) -> None:
    rules = [{"matcher": ["db.*"], "partition": "index-value", "topic": f"{world.topic}_{{schema}}_{{table}}"}]
    destination = world.opened(dispatchers=rules, partition_num=2)
    destination.apply(segment(0, 10, *KEYS), 1)
    made = f"{world.topic}_db_t"
    assert world.broker.topics()[made] == 2
    found = seen(world.broker, made)
    assert sorted(key(row) for of in found for row in of.rows) == list(KEYS)
    assert {of.resolved - BEGIN_TS for of in (*found, *world.seen()[:2])} == {10}
    assert world.seen()[2].resolved == 0, "partition-num leaves it out"
    destination.prepare(view_of(INFO))
    distributed(destination, 10, 30, *range(20, 32))
    assert sorted(key(row) for of in seen(world.broker, made) for row in of.rows) == sorted([*KEYS, *range(20, 32)])


def test_resolved_events_are_sent_at_intervals_without_rows(world: World) -> None:
    """Not more often than it is set, and the position with them; what is left is written at a clean end."""
    clock = [0.0]
    destination = world.sink(resolved_interval="1s")
    destination._monotonic = lambda: clock[0]
    destination.open(WHO, BEGIN_TS)
    clock[0] += 1
    for step in range(1, 7):
        destination.advance(BEGIN_TS + step, 1)
        clock[0] += 0.5
    assert world.resolved() == {5}
    assert destination.commit_ts == BEGIN_TS + 6
    with pytest.raises(PositionMoved):
        destination.apply(segment(5, 10, 1), 1)
    destination.close(clean=True)
    assert world.opened().commit_ts == BEGIN_TS + 6


def test_first_start_creates_control_topic_and_begins_at_offered_position(world: World) -> None:
    destination = world.sink(control_topic="", slots=2)
    who = Identity(int(world.topic[2:8], 16), "a/b", "n")
    position = destination.open(who, 7, FirstStart((("d", "t"),), 3))
    assert (position.commit_ts, position.fresh, position.missing) == (3, True, (("d", "t"),))
    assert world.broker.topics()[f"tidb-binlog-a_b-{who.cluster_id}"] == 3
