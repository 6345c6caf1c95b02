"""By which rules rows are cut, and topics that become known while the number of partitions changes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from drainer.dispatch.rules import DispatchRule, Router, SelectorRule
from drainer.protocol.registry import ProtocolOptions
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.settings.section import KafkaSection, PartitionChange
from drainer.sink.kafka.topics.counts import PartitionCountChange, TopicCounts

LONG = "/^" + "a" * 300


class FakeAdmin:
    """Topics of any name, of three partitions with `replicas` replicas."""

    def __init__(self, *names: str, replicas: int = 1, min_insync: int = 1, may_ask: bool = True) -> None:
        self.there = dict.fromkeys(names, 3)
        self.made = dict.fromkeys(names, 1)
        self.of_each, self.wanted, self.may_ask = replicas, min_insync, may_ask

    def replicas(self) -> dict[str, int]:
        return dict.fromkeys(self.there, self.of_each)

    def settings(self, topics: Sequence[str], name: str) -> dict[str, str]:
        return dict.fromkeys(topics, str({"min.insync.replicas": self.wanted, "max.message.bytes": 1 << 20}[name]))

    def default_min_insync(self) -> int:
        if not self.may_ask:
            raise DestinationRefused("asking for the settings of broker 1: CLUSTER_AUTHORIZATION_FAILED")
        return self.wanted

    def create(self, topic: str, partitions: int, replication_factor: int) -> int:
        self.there[topic], self.of_each = partitions, replication_factor
        return partitions

    def counts(self) -> dict[str, int]:
        return dict(self.there)

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: f"{topic} {self.made.get(topic, 1)}" for topic in topics if topic in self.there}

    def make_again(self, topic: str) -> None:
        self.made[topic] = self.made.get(topic, 1) + 1


def counts(
    *topics: str,
    rules: Sequence[DispatchRule] = (),
    selectors: Sequence[SelectorRule] = (),
    change: PartitionChange = "take-up",
    **more: Any,
) -> TopicCounts:
    config = KafkaSection(addresses=("127.0.0.1:1",), partition_change=change, **more)
    options = ProtocolOptions("open-protocol")
    router = Router(rules, "shop", protocol="open-protocol", selectors=selectors)
    stopped = threading.Event()
    stopped.set()  # brokers that may lag are not waited for
    made = TopicCounts(config, Publication(options, router, {}, {}), stopped)
    made.admin = FakeAdmin("shop", *topics)  # type: ignore[assignment]
    made.begin({}, 0)
    return made


def version(*matcher: str) -> int:
    rule = DispatchRule(matcher=matcher, partition="index-value")
    return counts(rules=[rule]).slotting(3).version


def test_slotting_version_changes_with_column_selectors() -> None:
    """Which columns are left chooses partitions, and half a range must not have others."""

    def cut(*columns: str, matcher: str = "db.*") -> int:
        rules = [SelectorRule(matcher=(matcher,), columns=columns)] if columns else []
        return counts(selectors=rules).slotting(3).version

    assert cut("a") == cut("a")
    different = [cut(), cut("a"), cut("b"), cut("*", "!a"), cut("!a", "*"), cut("a", matcher="db.t")]
    assert len(set(different)) == len(different)


def test_slotting_version_changes_with_dispatch_rules() -> None:
    """Patterns of any length: what is behind their first letters counts, too."""
    assert version("db.*") == version("db.*")
    different = [
        ("db.*",), ("db.a",), ("!db.*",), (f"db.{LONG}b/",), (f"db.{LONG}c/",), ("db.*", "e.*"), (f"{LONG}b/.c",),
        (f"{LONG}c/.c",),
    ]  # fmt: skip
    assert len({version(*one) for one in different}) == len(different)


def test_slotting_version_is_independent_of_slot_count() -> None:
    """A control topic that was given more partitions cuts what comes next otherwise, and finishes what was begun."""
    topics = counts()
    assert topics.slotting(3).version == topics.slotting(5).version
    assert (topics.slotting(3).count, topics.slotting(5).count) == (3, 5)


def test_topic_met_during_partition_count_change_stays_known() -> None:
    """The thread that plans asks for it between the transaction's beginning and its end."""
    topics = counts("later")
    before = topics.slotting(3).version
    notes = topics.take_up([PartitionCountChange("shop", 3, 5)])
    topics.know(["later"])
    topics.taken_up(notes)
    assert topics.publication.counts == {"shop": 5, "later": 3}
    assert topics.publication.topic_bytes.keys() == {"shop", "later"}
    assert topics.slotting(3).version != before
    assert topics.notes()["topics"] == {"shop": 5, "later": 3}


def test_changed_partition_count_is_detected_by_poll() -> None:
    topics = counts()
    assert isinstance(topics.admin, FakeAdmin)
    assert topics.poll(now=True) == []
    topics.admin.there["shop"] = 4
    assert topics.poll(now=True) == [PartitionCountChange("shop", 3, 4)]
    assert topics.poll() == [], "it is asked for now and then"


def test_recreated_topic_is_detected_by_its_id() -> None:
    topics = counts("other")
    assert isinstance(topics.admin, FakeAdmin)
    topics.know(["other"])
    topics.admin.make_again("shop")
    [change] = topics.poll(now=True)
    assert change == PartitionCountChange("shop", 3, 3, "shop 2")
    notes = topics.take_up([change])
    topics.taken_up(notes)
    assert topics.poll(now=True) == []
    assert topics.notes() == notes
    later = counts("other", change="stop")
    later.begin(notes, 0)
    with pytest.raises(DestinationRefused, match=r'topic shop was deleted and created again.*"take-up"'):
        later.poll(now=True)


def test_announcement_without_transactions_is_recorded_before_sending() -> None:
    """Once for all that comes up to there; by other rules it is refused until the position has passed it."""
    topics = counts(exactly_once=False)
    notes = topics.announcement(50)
    assert notes is not None and topics.notes().keys() < notes.keys()
    assert topics.announcement(50) == notes, "what failed is recorded by the next try"
    topics.sent_ts = 50
    assert (topics.announcement(50), topics.announcement(40)) == (None, None)
    assert topics.announcement(60) != notes
    assert topics.notes() == notes
    assert (topics.may_repeat(49), topics.may_repeat(50)) == (True, False)
    counts(exactly_once=False).begin(notes, 49)
    for other in (counts(rules=[DispatchRule(matcher=("a.*",), partition="ts")]), counts()):
        other.begin(notes, 50)
        assert not other.may_repeat(50)
    with pytest.raises(
        DestinationRefused, match=r"after the position 49 and up to commit_ts 50 may .* changed dispatchers"
    ):
        counts(rules=[DispatchRule(matcher=("a.*",), partition="ts")]).begin(notes, 49)
    with pytest.raises(DestinationRefused, match="with changed dispatchers, column selectors"):
        counts(selectors=[SelectorRule(matcher=("a.*",), columns=("a",))]).begin(notes, 49)
    assert counts().announcement(50) is None, "transactions need none of this"


def test_announcement_without_transactions_names_its_topics() -> None:
    """Also of those that this is the first to go to; with transactions nobody asks which these are."""
    notes = counts(exactly_once=False).announcement(50, iter(["new"]))
    assert notes is not None
    assert notes["topics"] == {"shop": 3, "new": 3}

    def unasked() -> Iterator[str]:
        raise AssertionError
        yield ""

    assert counts().announcement(50, unasked()) is None


def test_topics_of_brokers_without_ids_are_taken_as_they_are() -> None:
    """Also where the brokers have ids later."""
    topics = counts(change="stop")
    notes = topics.notes()
    del notes["topic_ids"]
    topics.begin(notes, 0)
    assert topics.poll(now=True) == []
    assert topics.notes()["topic_ids"] == {"shop": "shop 1"}
    topics.admin.ids = lambda _: {}  # type: ignore[method-assign]
    assert topics.poll(now=True) == []


def test_unexpected_partition_count_or_deleted_topic_is_refused_by_name() -> None:
    with pytest.raises(DestinationRefused, match="topic shop has 3 partitions, and partition-num is 4"):
        counts(partition_num=4)
    fewer = counts(partition_num=2)
    assert fewer.publication.counts == {"shop": 2}
    assert fewer.poll(now=True) == []
    stopping = counts(change="stop")
    assert isinstance(stopping.admin, FakeAdmin)
    stopping.admin.there["shop"] = 4
    with pytest.raises(DestinationRefused, match=r'topic shop has 4 partitions, and 3 when .* = "take-up"'):
        stopping.poll(now=True)
    for topics in (stopping, fewer):
        assert isinstance(topics.admin, FakeAdmin)
        del topics.admin.there["shop"]
        with pytest.raises(DestinationRefused, match="topic shop was deleted, and"):
            topics.poll(now=True)


@pytest.mark.parametrize("slots", [1, 16])
def test_slotting_object_is_reused_until_topic_is_added(slots: int) -> None:
    topics = counts("other")
    first = topics.slotting(slots)
    assert topics.slotting(slots) is first
    topics.know(["other"])
    assert topics.slotting(slots) is not first


def begun(admin: FakeAdmin, notes: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> TopicCounts:
    config = KafkaSection(addresses=("127.0.0.1:1",), **more)
    router = Router((), "shop", protocol="open-protocol")
    made = TopicCounts(config, Publication(ProtocolOptions("open-protocol"), router, {}, {}), threading.Event())
    made.admin = admin  # type: ignore[assignment]
    made.begin(notes, 0)
    return made


def test_topic_creation_with_fewer_replicas_than_min_insync_is_refused() -> None:
    admin = FakeAdmin(min_insync=2)
    with pytest.raises(DestinationRefused, match=r"factor is 1, and the brokers' min\.insync\.replicas is 2"):
        begun(admin)
    assert not admin.there
    begun(admin, replication_factor=2)
    assert admin.there == {"shop": 3}


def test_existing_topic_with_fewer_replicas_than_min_insync_is_refused() -> None:
    """Also behind its creation, where this user may not ask what the brokers' setting is."""
    words = r"topic shop has partitions with 1 replicas, and its min\.insync\.replicas is 2"
    with pytest.raises(DestinationRefused, match=words):
        begun(FakeAdmin("shop", min_insync=2))
    with pytest.raises(DestinationRefused, match=words):
        begun(FakeAdmin(min_insync=2, may_ask=False))
    begun(FakeAdmin("shop", replicas=2, min_insync=2))
    begun(FakeAdmin(may_ask=False))


@pytest.mark.parametrize("acks", [0, 1])
def test_min_insync_replicas_is_ignored_without_acks_all(acks: int) -> None:
    begun(FakeAdmin("shop", min_insync=2), required_acks=acks, exactly_once=False)
    begun(FakeAdmin(min_insync=2), required_acks=acks, exactly_once=False)


def warned(admin: FakeAdmin, notes: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> list[Any]:
    """The lines of the log that name topics, with what is lost."""
    with capture_logs() as lines:
        begun(admin, notes, **more)
    return [(line["topics"], line["lost"]) for line in lines if line["log_level"] == "warning"]


def test_topics_that_one_broker_alone_acknowledges_are_named() -> None:
    """At each start, also those that are recorded; without transactions less is lost."""
    [(topics, lost)] = warned(FakeAdmin("shop"))
    assert topics == ["shop (one replica)"]
    assert "if it is killed while no other replica is in sync, exactly once is not guaranteed" in lost
    [(topics, lost)] = warned(FakeAdmin("shop", "more", replicas=3), {"topics": {"more": 3, "shop": 3, "gone": 3}})
    assert topics == ["more (3 replicas, min.insync.replicas 1)", "shop (3 replicas, min.insync.replicas 1)"]
    [(_, lost)] = warned(FakeAdmin("shop"), exactly_once=False)
    assert lost == "what it alone has acknowledged is lost with its disk"
    assert warned(FakeAdmin("shop", replicas=2, min_insync=2)) == []
    assert warned(FakeAdmin("shop"), required_acks=1, exactly_once=False) == []


def test_topic_that_one_broker_alone_acknowledges_refused_if_set() -> None:
    words = 'topic shop.*, and replication-check is "stop": .* exactly once is not guaranteed.*min.insync.replicas to 2'
    for admin in (FakeAdmin("shop"), FakeAdmin("shop", replicas=3), FakeAdmin(replicas=3, may_ask=False)):
        with pytest.raises(DestinationRefused, match=f"one broker alone may acknowledge messages of {words}"):
            begun(admin, replication_check="stop", replication_factor=2)
    for factor, admin in ((1, FakeAdmin(min_insync=2)), (2, FakeAdmin())):
        with pytest.raises(DestinationRefused, match=r"topic shop is not created: .* exactly once is not guaranteed"):
            begun(admin, replication_check="stop", replication_factor=factor)
        assert not admin.there
    begun(FakeAdmin("shop", replicas=2, min_insync=2), replication_check="stop")


@pytest.mark.parametrize(("wanted", "used"), [(0, 3), (1, 1), (2, 2), (3, 3)])
def test_partition_num_limits_partitions_used(wanted: int, used: int) -> None:
    assert begun(FakeAdmin("shop"), partition_num=wanted).publication.counts == {"shop": used}


def test_topic_unknown_to_one_broker_is_asked_for_again() -> None:
    """Each question may go to another broker, one of which is behind."""
    admin = FakeAdmin("shop")
    topics = begun(admin)
    answers = [{}, {"shop": 2}, {"shop": 3}]
    admin.counts = lambda: answers.pop(0)  # type: ignore[method-assign]
    assert topics.poll(now=True) == []
    assert not answers


def test_created_topic_need_not_be_known_to_next_broker() -> None:
    admin = FakeAdmin()
    admin.counts = dict  # type: ignore[method-assign]
    assert begun(admin).publication.counts == {"shop": 3}
