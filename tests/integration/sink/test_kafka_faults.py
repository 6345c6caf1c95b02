"""Faults of brokers that are waited out with a reason: a leader that dies or moves, a disk that is full, replicas that
are missing; and what is refused at the start because waiting would not help. On real brokers, with a few rows."""

from __future__ import annotations

import contextlib
import re
import resource
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from drainer.service.status import error_fields
from drainer.sink import retry
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka import sink as sink_module
from drainer.sink.kafka import slot_writer
from drainer.sink.kafka.transactions import driver as driver_module
from drainer.sink.retry import Failures
from tests.integration.sink.test_kafka_takeover import (
    INFO,
    KEYS,
    OTHER,
    Died,
    Once,
    World,
    at,
    distributed,
    key,
    segment,
)
from tests.support.kafka import Broker, running_kafka
from tests.support.kafka_case import seen, set_waits
from tests.support.kafka_cluster import Cluster, running_cluster
from tests.support.row_case import BEGIN_TS, view_of
from tests.support.servers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster_servers() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_servers: Cluster) -> Cluster:
    """Two brokers that run."""
    return cluster_servers.both()


@contextlib.contextmanager
def world(broker: Broker, topic: str, **more: Any) -> Iterator[World]:
    made = World(broker, topic, **more)
    try:
        yield made
    finally:
        made.close()


class Mended:
    """Looks at what /status says of failure; once that matches `reason`, and a line of the log, too, calls `mend`.
    `seen`: what the status said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reason: str, mend: Callable[[], object]) -> None:
        self.failures = Failures()
        monkeypatch.setattr(retry, "FAILURES", self.failures)
        self.seen = ""
        self.logged = False
        self._reason, self._mend = reason, mend
        self._lines: list[Any] = []
        self._captured = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run)

    def error(self) -> str:
        return str(error_fields(self.failures)["Error"])

    def _run(self) -> None:
        def shown() -> bool:
            error = self.error()
            if re.search(self._reason, error):
                self.seen = error
            return bool(self.seen)

        def logged() -> bool:
            """The log's line comes some failures behind the status."""
            texts = [f"{line.get('what')}: {line.get('error')}" for line in self._lines]  # as the status has it
            return any(re.search(self._reason, text) for text in texts)

        try:
            wait_until(shown, deadline_s=150, what=f"the status says {self._reason}")
            wait_until(logged, deadline_s=150, what=f"the log says {self._reason}")
            self.logged = True
        finally:
            self._mend()  # else the test would hang where it is to fail

    def __enter__(self) -> Mended:
        self._lines = self._captured.enter_context(capture_logs())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(540)
        self._captured.close()
        assert not self._thread.is_alive()
        assert self.seen, f"status: {error_fields(self.failures)}"
        assert self.logged, self._lines


def leads_again(cluster: Cluster, topic: str) -> bool:
    """Whether the second broker leads; it is elected where it does not: one that is silent for three seconds, as on a
    machine that stands still, loses its partitions."""
    if cluster.leaders(topic) == [2, 2, 2]:
        return True
    cluster.elect_preferred(topic)
    return False


@pytest.mark.parametrize("point", ["sink.before_commit", "kafka.slot_flushed"])
def test_rows_arrive_once_when_leader_is_killed_in_transaction(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It stays away: the other broker leads from then on."""
    topic = cluster.replicated(3)
    with world(cluster, topic, replication_factor=2) as made:
        destination = made.opened()
        destination.apply(segment(0, 10, 1), 1)
        wait_until(lambda: leads_again(cluster, topic), what="the second broker leads")
        at(monkeypatch, Once(point, cluster.second.kill))
        destination.apply(segment(10, 20, 2, 3), 1)
        distributed(destination, 20, 60, *range(4, 20))
        destination.apply(segment(60, 70, 20), 1)
        assert not cluster.second.server.alive
        assert cluster.leaders(topic) == [1, 1, 1]
        assert made.keys() == list(range(1, 21))
        assert made.resolved() == {70}
    cluster.both()


@pytest.mark.parametrize("point", ["kafka.rows_sent", "kafka.slot_sent"])
def test_rows_arrive_once_when_partitions_are_reassigned_in_transaction(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """With leader and replicas, by a reassignment, those of the control topic, too; the next time while rows are
    written on, so that somewhere in between each partition is handed over. Leaders that move alone look the same."""
    topic, control = cluster.alone(3), cluster.alone(4, cleanup_policy="compact")
    with world(cluster, topic, control_topic=control) as made:
        destination = made.opened()
        destination.apply(segment(0, 10, 1), 1)

        def order(broker: int) -> None:
            cluster.reassign(topic, *[[broker]] * 3)
            cluster.reassign(control, *[[broker]] * 4)

        def moved(broker: int) -> bool:
            return cluster.moved(topic, *[[broker]] * 3) and cluster.moved(control, *[[broker]] * 4)

        def move() -> None:
            order(1)
            wait_until(lambda: moved(1), what="everything has moved")

        at(monkeypatch, Once(point, move))
        destination.apply(segment(10, 20, 2, 3), 1)
        distributed(destination, 20, 60, *range(4, 20))
        monkeypatch.undo()
        keys = [*range(1, 20)]
        order(2)
        after, behind = 60, False
        while not behind:
            behind = moved(2)  # the last one is behind all moves
            keys += [100 + after, 101 + after]
            destination.apply(segment(after, after + 10, 100 + after), 1)
            distributed(destination, after + 10, after + 20, 101 + after)
            after += 20
        assert made.keys() == keys
        assert made.resolved() == {after}


def test_topics_and_partitions_added_on_another_broker_are_used(cluster: Cluster) -> None:
    """On another broker than those before: partitions are taken up there, and a topic that is there before its first
    row is used as it is."""
    topic, control = cluster.placed([1], [1]), cluster.placed(*[[1]] * 4, cleanup_policy="compact")
    other = cluster.alone(5)
    rules = [{"matcher": ["*.*"], "partition": "index-value"}]
    more: dict[str, Any] = {"partition_change": "take-up", "partition_check_interval": "1s", "dispatchers": rules}
    with world(cluster, topic, control_topic=control, **more) as made:
        destination = made.opened()
        distributed(destination, 0, 30, *KEYS)
        cluster.grow_on(topic, [2], [2])
        destination._opened()[1]._polled_s = float("-inf")
        distributed(destination, 30, 60, *range(20, 40))
        distributed(destination, 60, 90, *range(50, 70))
        found = made.seen()
        assert [[one.partitions for one in of.admin] for of in found] == [[4]] * 4
        assert all(of.rows for of in found[2:])
        assert made.keys() == [*KEYS, *range(20, 40), *range(50, 70)]
        destination.close(clean=True)
        moved = made.opened(dispatchers=[{**rules[0], "topic": other}])
        moved.prepare(view_of(INFO))  # as the planner does, by which topics become known
        distributed(moved, 90, 120, *range(70, 90))
        assert all(of.rows for of in seen(cluster, other))
        assert sorted(key(row) for of in seen(cluster, other) for row in of.rows) == list(range(70, 90))
        assert made.resolved() == {120}


def test_too_few_replicas_in_sync_are_retried_with_reason(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library itself tells of no refusal that it answers by trying again."""
    topic = cluster.replicated(3, min_insync_replicas="2")
    reason = rf"partition \d of topic {topic} has 1 of 2 replicas in sync, not that of broker 2, .*min.insync.replicas"
    with world(cluster, topic, replication_factor=2) as made:
        destination = made.opened()
        destination.apply(segment(0, 10, 1), 1)
        cluster.second.kill()
        wait_until(lambda: cluster.in_sync(topic) == [[1], [1], [1]], what="the second broker is out of sync")
        with Mended(monkeypatch, reason, cluster.second.start) as status:
            destination.apply(segment(10, 20, *range(2, 13)), 1)
        assert status.error() == "", "nothing fails any more"
        distributed(destination, 20, 60, *range(20, 30))
        assert made.keys() == [*range(1, 13), *range(20, 30)]
        assert made.resolved() == {60}


class Leaderless:
    """What befalls a transaction between two crash points: as it begins to be committed its partitions lose their
    leader, so that brokers acknowledge it and pass its markers over (KAFKA-20734), and have one again behind that."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], begin: str, end: str) -> None:
        """`topics`: in all of which the transaction is that this befalls."""
        self._cluster, self._topics, self._begin, self._end = cluster, topics, begin, end
        self.done = False

    def _open(self) -> bool:
        return all(self._cluster.open_partitions(topic) for topic in self._topics)

    def __call__(self, name: str) -> None:
        if name == self._begin and not self.done and self._cluster.second.server.alive and self._open():
            self._cluster.second.kill()
            wait_until(self._away, what="partitions have no leader")
        elif name == self._end and not self._cluster.second.server.alive:
            self.done = True
            self._cluster.both()
            assert self._open()

    def _away(self) -> bool:
        """Of the partitions that the second broker alone has."""
        return not any(2 in self._cluster.leaders(topic) for topic in self._topics)


DRIVER = ("sink.before_commit", "sink.after_commit")
SLOT = ("kafka.slot_flushed", "kafka.slot_committed")


def end_all(cluster: Cluster, *topics: str) -> None:
    """As an operator does by the commands that the drainer names, one after another."""
    for topic in topics:
        for partition in cluster.open_partitions(topic):
            cluster.abort_open(topic, partition)


@pytest.mark.parametrize("points", [DRIVER, SLOT])
def test_transaction_without_marker_at_start_named_with_command_and_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, points: tuple[str, str]
) -> None:
    """Its driver died behind it. When it is aborted everywhere by that command, its rows are written again."""
    topic, control = cluster.alone(3), cluster.alone(4, cleanup_policy="compact")
    with world(cluster, topic, control_topic=control) as made:
        old = made.opened()
        old.apply(segment(0, 10, 1), 1)
        leaderless = Leaderless(cluster, [topic, control], *points)

        def passed(name: str) -> None:
            leaderless(name)
            if leaderless.done:
                raise Died

        for module in (driver_module, sink_module, slot_writer):
            monkeypatch.setattr(module, "crash_point", passed)
        with pytest.raises(Died):
            if points == SLOT:
                distributed(old, 10, 60, *range(2, 14))
            else:
                old.apply(segment(10, 60, *range(2, 14)), 1)
        monkeypatch.undo()
        set_waits(monkeypatch, grace_s=1.0)
        reason = (
            rf"a transaction is open at offset (\d+) of {control}-(\d).*kafka-transactions.sh --bootstrap-server "
            rf"{cluster.address} abort --topic {control} --partition \2 --start-offset \1`"
        )
        with Mended(monkeypatch, reason, lambda: end_all(cluster, control, topic)) as status:
            new = made.opened(OTHER)
        assert status.error() == "", "nothing fails any more"
        assert new.commit_ts == BEGIN_TS + 10
        distributed(new, 10, 60, *range(2, 14))
        assert made.keys() == list(range(1, 14))
        assert made.resolved() == {60}
    cluster.both()


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    """A broker that makes topics to which it alone may not write."""
    with running_kafka(["min.insync.replicas=2"]) as broker:
        yield broker


def test_broker_with_full_disk_is_retried_until_it_has_space(strict: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends fail, so the broker takes its directory offline and, having no other, ends. It is started again when
    there is room. Files of a limited size stand for the disk: that needs no right to mount one."""
    broker, topic = strict, strict.topic(3, min_insync_replicas="1")
    control = broker.topic(4, cleanup_policy="compact", min_insync_replicas="1")
    with world(broker, topic, control_topic=control) as made:
        destination = made.opened()
        destination.apply(segment(0, 10, 1), 1)
        process = broker.server.process
        assert process is not None

        def fill() -> None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (256 << 10, resource.RLIM_INFINITY))

        def room() -> None:
            process.wait(120)  # a JVM that ends by itself
            assert "File too large" in broker.server.text()
            broker.start()

        fill()
        with Mended(monkeypatch, f"main.*{broker.address}.*(refused|disconnect|no leader|not acknowledged)", room):
            destination.apply(segment(10, 20, *range(2, 13), text=b"x" * 200_000), 1)
        distributed(destination, 20, 60, *range(20, 30))
        assert made.keys() == [*range(1, 13), *range(20, 30)]
        assert made.resolved() == {60}


def test_replication_factor_below_min_insync_replicas_is_refused(strict: Broker) -> None:
    """Before a topic is made of it: nothing could be written there."""
    new = f"new-{uuid.uuid4().hex[:10]}"
    words = r"replication-factor is 1, and the brokers' min\.insync\.replicas is 2"
    with world(strict, new) as made:
        control = strict.topic(4, cleanup_policy="compact", min_insync_replicas="1")
        with pytest.raises(DestinationRefused, match=f"topic {new}-control is not created: {words}"):
            made.opened()
        with pytest.raises(DestinationRefused, match=f"topic {new} is not created: {words}"):
            made.opened(control_topic=control)
        assert not strict.topics().keys() & {new, f"{new}-control"}
        made.topic = strict.topic(3, min_insync_replicas="1")
        made.opened(control_topic=control).apply(segment(0, 10, *KEYS), 1)
        assert made.keys() == list(KEYS)


def test_topic_with_fewer_replicas_than_min_insync_is_refused(cluster: Cluster) -> None:
    with world(cluster, cluster.topic(3, min_insync_replicas="2"), replication_factor=2) as made:
        words = f"topic {made.topic} has partitions with 1 replicas, and its min.insync.replicas is 2"
        with pytest.raises(DestinationRefused, match=words):
            made.opened()
        cluster.set_topic(made.topic, min_insync_replicas="1")
        made.opened().apply(segment(0, 10, *KEYS), 1)
        assert made.keys() == list(KEYS)


def test_partition_num_above_topics_is_refused_and_below_limits_it(cluster: Cluster) -> None:
    with world(cluster, cluster.topic(3)) as made:
        with pytest.raises(DestinationRefused, match=f"topic {made.topic} has 3 partitions, and partition-num is 4"):
            made.opened(partition_num=4)
        with capture_logs() as lines:
            made.opened(partition_num=2).apply(segment(0, 10, *KEYS), 1)
        [line] = [line for line in lines if line.get("topic") == made.topic and line["log_level"] == "warning"]
        assert (line["used"], line["partitions"]) == (2, 3)
        found = made.seen()
        assert [bool(of.rows) for of in found] == [True, True, False]
        assert made.keys() == list(KEYS)
