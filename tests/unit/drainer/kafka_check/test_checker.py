"""Streams that follow the rules pass, and each breach is found, at the message that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_check.checker import Broken, Checker, Moves, Promises
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import (
    AdminEvent,
    BootstrapEvent,
    Change,
    ColumnValue,
    DdlEvent,
    Event,
    ResolvedEvent,
    RowEvent,
)
from tests.unit.drainer.kafka_check.streams import Stream, ddl_event, image, row_event, streams

P0, P1 = KafkaPartition("topic", 0), KafkaPartition("topic", 1)


def rules(promises: Promises, *partitions: list[Event]) -> dict[Broken, int]:
    stream = Stream(promises, {KafkaPartition("topic", n): events for n, events in enumerate(partitions)})
    return dict(stream.check().broken)


@given(data=st.data(), moves=st.sampled_from(Moves))
def test_streams_that_follow_rules_have_no_violations(data: st.DataObject, moves: Moves) -> None:
    stream = data.draw(streams(moves=Moves.NEVER if moves is Moves.NEVER else Moves.AT_RESOLVED))
    stream.promises = replace(stream.promises, moves=moves)
    mixed = [topic_partition for topic_partition, events in stream.partitions.items() for _ in events]
    data.draw(st.randoms()).shuffle(mixed)
    for report in (stream.check(), stream.check(mixed=mixed)):
        assert report.violations == []
        assert not report.broken
        kinds = [type(event) for events in stream.partitions.values() for event in events]
        assert report.rows == kinds.count(RowEvent)
        assert (report.ddls, report.resolved) == (kinds.count(DdlEvent), kinds.count(ResolvedEvent))
        assert report.unidentified_rows == 0


@given(data=st.data(), stream=streams())
def test_rows_in_wrong_order_are_reported(data: st.DataObject, stream: Stream) -> None:
    """Two messages of a partition trade places."""
    topic_partitions = [
        (topic_partition, first, second)
        for topic_partition, events in stream.partitions.items()
        for first, one in enumerate(events)
        for second, other in enumerate(events[first + 1 :], first + 1)
        if isinstance(one, RowEvent) and isinstance(other, RowEvent) and one.commit_ts != other.commit_ts
    ]
    topic_partition, first, second = data.draw(st.sampled_from(topic_partitions))
    events = stream.partitions[topic_partition]
    images = [(events[first].new, events[second].new), (events[first].old, events[second].old)]  # type: ignore[union-attr]
    is_one_row = any(one is not None and one == other for one, other in images)
    events[first], events[second] = events[second], events[first]
    report = stream.check()
    assert report.broken[Broken.PARTITION_ORDER]
    if is_one_row:
        assert report.broken[Broken.ROW_ORDER]
    stream.promises = replace(stream.promises, ordered=False)
    assert stream.check().broken[Broken.PARTITION_ORDER] == 0


@given(data=st.data(), stream=streams())
def test_row_in_two_partitions_is_reported(data: st.DataObject, stream: Stream) -> None:
    topic_partition = data.draw(
        st.sampled_from([topic_partition for topic_partition, events in stream.partitions.items() if len(events) > 2])
    )
    events = stream.partitions[topic_partition]
    rows = [at for at, event in enumerate(events) if isinstance(event, RowEvent)]
    at = data.draw(st.sampled_from(rows))
    other = stream.partitions[data.draw(st.sampled_from([one for one in stream.partitions if one != topic_partition]))]
    moved = events.pop(at)
    later = [n for n, event in enumerate(other) if event.commit_ts > moved.commit_ts]
    other.insert(min(later), moved)
    assert set(stream.check().broken) == {Broken.ROW_IN_TWO_PARTITIONS}
    stream.promises = replace(stream.promises, moves=Moves.ALWAYS)
    assert not stream.check().broken


@given(data=st.data(), stream=streams())
def test_repeated_row_is_reported(data: st.DataObject, stream: Stream) -> None:
    topic_partition = data.draw(
        st.sampled_from([topic_partition for topic_partition, events in stream.partitions.items() if len(events) > 2])
    )
    events = stream.partitions[topic_partition]
    at = data.draw(st.sampled_from([at for at, event in enumerate(events) if isinstance(event, RowEvent)]))
    events.insert(at + 1, events[at])
    report = stream.check()
    assert set(report.broken) == {Broken.ROW_TWICE}
    (violation,) = report.violations
    assert (violation.topic_partition, violation.offset) == (topic_partition, at + 1)


@given(data=st.data(), stream=streams(), extra=st.booleans())
def test_row_after_its_resolved_event_or_ddl_is_reported(data: st.DataObject, stream: Stream, extra: bool) -> None:
    marks = [
        (topic_partition, at)
        for topic_partition, events in stream.partitions.items()
        for at, event in enumerate(events)
        if not isinstance(event, RowEvent)
    ]
    topic_partition, at = data.draw(st.sampled_from(marks))
    mark = stream.partitions[topic_partition][at]
    is_ddl = isinstance(mark, DdlEvent)
    below = mark.commit_ts - 1 if is_ddl or extra else mark.commit_ts
    stream.partitions[topic_partition].insert(at + 1, row_event(100, below, Change.INSERT))
    wanted = Broken.ROW_BEHIND_DDL if is_ddl else Broken.ROW_BEHIND_RESOLVED
    report = stream.check()
    assert report.broken[wanted] == 1
    assert (report.violations[0].topic_partition, report.violations[0].offset) == (topic_partition, at + 1)
    if is_ddl:  # a row at the very commit_ts of a DDL that ran early is none
        stream.partitions[topic_partition][at + 1] = row_event(100, mark.commit_ts, Change.INSERT)
        assert stream.check().broken[wanted] == 0


@given(data=st.data(), stream=streams())
def test_missing_resolved_event_or_ddl_is_reported(data: st.DataObject, stream: Stream) -> None:
    marks = [
        (topic_partition, at)
        for topic_partition, events in stream.partitions.items()
        for at, event in enumerate(events)
        if not isinstance(event, RowEvent)
    ]
    topic_partition, at = data.draw(st.sampled_from(marks))
    gone = stream.partitions[topic_partition].pop(at)
    report = stream.check()
    wanted = Broken.DDL_MISSING if isinstance(gone, DdlEvent) else Broken.RESOLVED_MISSING
    assert dict(report.broken) == {wanted: 1}
    assert (report.violations[0].topic_partition, report.violations[0].offset) == (topic_partition, -1)


def test_row_may_change_partition_only_after_resolved_event() -> None:
    promises = Promises(moves=Moves.AT_RESOLVED)
    moved: list[Event] = [ResolvedEvent(15), row_event(1, 20), ResolvedEvent(30)]
    home: list[Event] = [row_event(1, 10), ResolvedEvent(15), ResolvedEvent(30)]
    assert rules(promises, home, moved) == rules(promises, moved, home) == {}
    back = [*home, row_event(1, 40)], moved
    assert rules(promises, *back) == {}
    soon: list[Event] = [row_event(1, 12), ResolvedEvent(15), ResolvedEvent(30)]
    for partitions in ((home, soon), (soon, home)):
        assert rules(promises, *partitions) == {Broken.ROW_IN_TWO_PARTITIONS: 1}
    between: list[Event] = [row_event(1, 5), ResolvedEvent(7), ResolvedEvent(15), row_event(1, 25), ResolvedEvent(30)]
    other: list[Event] = [ResolvedEvent(7), ResolvedEvent(15), row_event(1, 20), ResolvedEvent(30)]
    assert rules(promises, between, other) == {Broken.ROW_IN_TWO_PARTITIONS: 1}
    assert rules(Promises(), home, moved) == {Broken.ROW_IN_TWO_PARTITIONS: 1}


def test_resolved_event_or_ddl_going_back_is_reported() -> None:
    back: list[Event] = [ResolvedEvent(10), ResolvedEvent(9)]
    assert rules(Promises(), back) == {Broken.RESOLVED_BACK: 1}
    assert rules(Promises(repeats=True), back) == rules(Promises(), [ResolvedEvent(10), ResolvedEvent(10)]) == {}
    assert rules(Promises(), [ddl_event(10, "a"), ddl_event(9, "b")]) == {Broken.DDL_ORDER: 1}
    assert rules(Promises(), [ddl_event(10, "a"), ddl_event(10, "b")]) == {}
    assert rules(Promises(), [ddl_event(10, "a"), ddl_event(10, "a")]) == {Broken.DDL_TWICE: 1}
    assert rules(Promises(), [ResolvedEvent(10), ddl_event(9)]) == {Broken.DDL_BEHIND_RESOLVED: 1}
    assert rules(Promises(), [ResolvedEvent(10), ddl_event(10)]) == {}


def test_allowed_repeats_in_another_partition_or_after_resolved_are_reported() -> None:
    once: list[Event] = [row_event(1, 10, Change.INSERT), row_event(2, 11, Change.INSERT), row_event(1, 12)]
    promises = Promises(ordered=True, repeats=True)
    stream = Stream(promises, {P0: [*once, *once, ResolvedEvent(12)], P1: [ResolvedEvent(12)]})
    report = stream.check()
    assert not report.broken
    assert (report.rows, report.repeats) == (6, 3)
    assert rules(Promises(ordered=True), [*once, *once])[Broken.ROW_ORDER] == 1
    assert rules(promises, [*once, ResolvedEvent(12), once[0]]) == {
        Broken.ROW_BEHIND_RESOLVED: 1, Broken.ROW_ORDER: 1, Broken.PARTITION_ORDER: 1,
    }  # fmt: skip
    assert rules(promises, [*once, ResolvedEvent(9)], [once[0], ResolvedEvent(9)]) == {Broken.ROW_IN_TWO_PARTITIONS: 1}
    assert rules(promises, [row_event(1, 12), row_event(1, 10)])[Broken.ROW_ORDER] == 1  # the first of its kind
    assert rules(promises, [ddl_event(10), ddl_event(10), ResolvedEvent(11)]) == {}
    assert rules(promises, [ddl_event(10), ResolvedEvent(11), ddl_event(10)]) == {Broken.DDL_BEHIND_RESOLVED: 1}


def test_insert_before_delete_of_one_split_update_is_reported() -> None:
    delete: Event = row_event(1, 10, Change.DELETE)
    insert: Event = row_event(1, 10, Change.INSERT)
    assert rules(Promises(), [delete, insert]) == {}
    assert rules(Promises(), [insert, delete]) == {Broken.ROW_TWICE: 1}
    assert rules(Promises(), [delete, insert, delete]) == {Broken.ROW_TWICE: 1}
    moved = RowEvent(Change.UPDATE, 10, "db", "t", old=image(1, 0), new=image(2, 0))
    assert rules(Promises(), [moved, row_event(1, 11)]) == {}
    assert rules(Promises(), [moved, row_event(2, 10)]) == {Broken.ROW_TWICE: 1}
    assert rules(Promises(), [moved], [row_event(1, 11)]) == {Broken.ROW_IN_TWO_PARTITIONS: 1}


def test_ddl_missing_in_first_partition_is_reported() -> None:
    promises = Promises(ddl_everywhere=False)
    assert rules(promises, [ddl_event(5)], []) == {}
    assert rules(promises, [], [ddl_event(5)]) == {Broken.DDL_MISSING: 1}
    assert rules(Promises(), [ddl_event(5)], []) == {Broken.DDL_MISSING: 1}


def test_topic_that_begins_later_or_ends_may_lack_events_of_other_times() -> None:
    def checked(promises: Promises, other: list[int]) -> set[Broken]:
        checker = Checker({"topic": 1, "other": 1}, promises)
        for topic_partition, stamps in ((P0, [10, 20, 30]), (KafkaPartition("other", 0), other)):
            for offset, commit_ts in enumerate(stamps):
                checker.add(topic_partition, offset, [ResolvedEvent(commit_ts)])
        return set(checker.finish().broken)

    assert checked(Promises(), [20, 30]) == set()
    assert checked(Promises(), [10, 30]) == checked(Promises(), [10, 20]) == {Broken.RESOLVED_MISSING}
    assert checked(Promises(), []) == {Broken.RESOLVED_MISSING}
    assert checked(Promises(topics_end=True), [10, 20]) == set()
    assert checked(Promises(topics_end=True), [10, 30]) == {Broken.RESOLVED_MISSING}


def test_partition_still_written_may_lack_newest_events() -> None:
    live = Promises(whole=False)
    one: list[Event] = [row_event(1, 5), ResolvedEvent(10), ddl_event(15), ResolvedEvent(20)]
    assert rules(live, one, [ResolvedEvent(10)]) == {}
    assert rules(live, one, [ResolvedEvent(20)]) == {Broken.DDL_MISSING: 1, Broken.RESOLVED_MISSING: 1}
    assert rules(live, one, [ResolvedEvent(10), row_event(2, 18)]) == {Broken.DDL_MISSING: 1}
    assert rules(Promises(), one, [ResolvedEvent(10)]) == {Broken.DDL_MISSING: 1, Broken.RESOLVED_MISSING: 1}


def test_row_may_change_partition_when_partitions_are_added() -> None:
    admin = AdminEvent(2, 15)
    old: list[Event] = [row_event(1, 5), ddl_event(8), ResolvedEvent(10), admin, ResolvedEvent(20)]
    new: list[Event] = [admin, row_event(1, 17), ResolvedEvent(20)]
    assert rules(Promises(), old, new) == {}
    assert rules(Promises(), old, [admin, row_event(1, 17)]) == {Broken.RESOLVED_MISSING: 1}
    assert rules(Promises(), [*old, row_event(1, 25)], new) == {Broken.ROW_IN_TWO_PARTITIONS: 1}


def test_partition_count_change_missing_in_partition_is_reported() -> None:
    """One that was told to some lets a row be in two partitions at once; and so does an empty partition."""
    admin, end = AdminEvent(2, 10), ResolvedEvent(20)
    told: list[Event] = [row_event(1, 5), ResolvedEvent(10), admin, end]
    assert rules(Promises(), told, [admin, end]) == {}
    untold = rules(Promises(), told, [row_event(2, 5), ResolvedEvent(10), row_event(3, 15), end])
    assert untold == {Broken.PARTITIONS_UNTOLD: 1}
    assert rules(Promises(), [row_event(1, 5), ResolvedEvent(10), admin], []) == {Broken.PARTITIONS_UNTOLD: 1}
    assert rules(Promises(whole=False), told, []) == {}
    assert rules(Promises(whole=False), told, [end]) == {Broken.PARTITIONS_UNTOLD: 1}
    more: list[Event] = [AdminEvent(3, 12), end]
    assert rules(Promises(), [*told[:3], *more], [admin, *more], more) == {}, "it came with the second"
    assert rules(Promises(), told, [admin, end], [ResolvedEvent(10), end]) == {}, "a third that is not used"


def test_row_on_wrong_side_of_partition_count_change_is_reported() -> None:
    """Rows up to it come before, others behind; else one of a row could overtake another in the other partition."""
    admin, end = AdminEvent(2, 10), ResolvedEvent(30)
    assert rules(Promises(), [row_event(1, 20), admin, end], [admin, row_event(1, 25), end]) == {
        Broken.PARTITIONS_LATE: 1
    }
    assert rules(Promises(), [row_event(1, 5), admin, end], [admin, row_event(1, 10), end]) == {
        Broken.PARTITIONS_LATE: 1
    }
    repeated: list[Event] = [row_event(1, 20), admin, row_event(1, 20), end]
    assert rules(Promises(repeats=True), repeated, [admin, end]) == {}


def test_rows_without_key_are_counted_or_identified_by_given_key() -> None:
    """Rules of time hold for them, too; a table's key may be told apart from the messages."""

    def plain(key: int, commit_ts: int) -> RowEvent:
        return RowEvent(Change.INSERT, commit_ts, "db", "t", new={"id": ColumnValue(key)})

    checker = Checker({"topic": 1})
    events: list[Event] = [plain(1, 5), plain(1, 5), ResolvedEvent(7), plain(2, 6)]
    for offset, event in enumerate(events):
        checker.add(P0, offset, [event])
    report = checker.finish()
    assert dict(report.broken) == {Broken.ROW_BEHIND_RESOLVED: 1}
    assert report.unidentified_rows == 3
    checker = Checker({"topic": 1}, keys={("db", "t"): ("id",)})
    checker.add(P0, 0, [plain(1, 5), plain(1, 5)])
    assert dict(checker.finish().broken) == {Broken.ROW_TWICE: 1}


def test_tombstone_without_commit_ts_is_checked_for_its_partition() -> None:
    key = {"id": ColumnValue(1)}

    def avro(change: Change, commit_ts: int) -> RowEvent:
        return RowEvent(change, commit_ts, "db", "t", new=None if change is Change.DELETE else image(1, 0), key=key)

    stream: list[Event] = [avro(Change.UPSERT, 5), ResolvedEvent(6), avro(Change.DELETE, 0), avro(Change.UPSERT, 7)]
    assert rules(Promises(ordered=True), stream) == {}
    elsewhere: list[Event] = [ResolvedEvent(6), avro(Change.DELETE, 0)]
    assert rules(Promises(), stream, elsewhere) == {Broken.ROW_IN_TWO_PARTITIONS: 1}


def test_bootstrap_admin_and_unreadable_messages_are_counted() -> None:
    checker = Checker({"topic": 1})
    checker.add(P0, 0, [BootstrapEvent("db", "t", 3), AdminEvent(1)])
    checker.add_unreadable(P0, 1, "torn")
    report = checker.finish()
    assert (report.messages, report.others) == (2, 2)
    assert [str(one) for one in report.violations] == ["message: topic[0] offset 1: torn"]


@pytest.mark.parametrize("value", ["a", "\ud800", b"\xff", 1.5, None])
def test_row_key_may_have_any_value(value: object) -> None:
    def event(commit_ts: int) -> RowEvent:
        key = {"id": ColumnValue(value)}  # type: ignore[arg-type]
        return RowEvent(Change.UPSERT, commit_ts, "db", "t", new={}, key=key)

    assert rules(Promises(), [event(1), event(2)]) == {}
    assert rules(Promises(), [event(1)], [event(2)]) == {Broken.ROW_IN_TWO_PARTITIONS: 1}
