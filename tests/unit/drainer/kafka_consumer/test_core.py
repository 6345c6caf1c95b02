"""However partitions are read, and wherever a consumer begins again, every row and DDL is applied once, in order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_consumer.core import ConsumeError, ConsumerCore, Part, Read, Resume
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import AdminEvent, Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent
from tests.unit.drainer.kafka_check.streams import Stream, ddl_event, image, row_event, streams

P0, P1 = KafkaPartition("topic", 0), KafkaPartition("topic", 1)

Applied = list[tuple[int, object]]  # commit_ts, and the row's key or the DDL's statement


def parts_of(core: ConsumerCore) -> list[Part]:
    found = []
    while (part := core.next()) is not None:
        found.append(part)
    return found


def shown(part: Part) -> Applied:
    rows: Applied = [(row.commit_ts, (row.change, (row.new or row.old or {})["id"].value)) for row in part.rows]
    return rows + ([(part.ddl.commit_ts, part.ddl.query)] if part.ddl is not None else [])


def messages_of(data: st.DataObject, events: list[Event]) -> list[list[Event]]:
    """Some events share a message, as rows do."""
    found: list[list[Event]] = []
    for event in events:
        if found and isinstance(event, RowEvent) and isinstance(found[-1][-1], RowEvent) and data.draw(st.booleans()):
            found[-1].append(event)
        else:
            found.append([event])
    return found


def wanted_of(stream: Stream) -> Applied:
    """Rows before the DDL of their commit_ts."""
    rows = {
        (event.commit_ts, 0, (event.change, (event.new or event.old or {})["id"].value))
        for events in stream.partitions.values()
        for event in events
        if isinstance(event, RowEvent)
    }
    ddls = {
        (event.commit_ts, 1, event.query)
        for events in stream.partitions.values()
        for event in events
        if isinstance(event, DdlEvent)
    }
    return [(commit_ts, what) for commit_ts, _, what in sorted([*rows, *ddls], key=lambda one: (one[:2], str(one[2])))]


def in_order(applied: Applied) -> bool:
    stamps = [commit_ts for commit_ts, _ in applied]
    return stamps == sorted(stamps)


def normal(applied: Applied) -> Applied:
    return sorted(applied, key=lambda one: (one[0], isinstance(one[1], str), str(one[1])))


Messages = Mapping[KafkaPartition, list[list[Event]]]


def consumed(
    data: st.DataObject, messages: Messages, core: ConsumerCore, resume: Resume, messages_max: int
) -> tuple[Applied, Resume]:
    """What is applied of the core's partitions, read in any order, and the position that is stored then: what was read
    and not applied is lost."""
    applied: Applied = []
    at = {one: resume.reads.get(one, Read(0, 0)).offset for one in core.topic_partitions}
    for _ in range(messages_max):
        left = [one for one in at if at[one] < len(messages[one])]
        if not left:
            break
        one = data.draw(st.sampled_from(left))
        core.add(one, at[one], messages[one][at[one]])
        at[one] += 1
        due = parts_of(core)
        for part in due[: data.draw(st.integers(0, len(due)))] if data.draw(st.booleans()) else due:
            applied += shown(part)
            resume = part.resume
        if due and resume != due[-1].resume:
            break
    return applied, resume


def rest(messages: Messages, core: ConsumerCore, resume: Resume) -> Applied:
    applied: Applied = []
    for one in core.topic_partitions:
        for offset in range(resume.reads.get(one, Read(0, 0)).offset, len(messages[one])):
            core.add(one, offset, messages[one][offset])
            for part in parts_of(core):
                applied += shown(part)
    return applied


@given(data=st.data(), stream=streams())
def test_consumer_applies_every_event_once_in_order_after_any_restart(data: st.DataObject, stream: Stream) -> None:
    messages = {topic_partition: messages_of(data, events) for topic_partition, events in stream.partitions.items()}
    resume = Resume()
    applied: Applied = []
    for _ in range(data.draw(st.integers(0, 4))):
        found, resume = consumed(data, messages, ConsumerCore(messages, resume), resume, data.draw(st.integers(0, 20)))
        applied += found
    core = ConsumerCore(messages, resume)
    applied += rest(messages, core, resume)
    assert in_order(applied)
    assert normal(applied) == wanted_of(stream)
    assert core.buffered == []


def of_late_topic(event: Event) -> Event:
    """Other rows, and other DDLs."""
    if isinstance(event, RowEvent):
        key = (event.new or event.old or {})["id"].value
        assert isinstance(key, int)
        return row_event(100 + key, event.commit_ts, event.change)
    return replace(event, query=f"late {event.query}") if isinstance(event, DdlEvent) else event


@given(data=st.data(), stream=streams(), late=streams())
def test_consumer_applies_every_event_of_topic_that_appears_late_once(
    data: st.DataObject, stream: Stream, late: Stream
) -> None:
    """It is found at a start, or beside the others while they are read."""
    found_late = {KafkaPartition("late", n): list(map(of_late_topic, of)) for (_, n), of in late.partitions.items()}
    both = {**stream.partitions, **found_late}
    messages = {topic_partition: messages_of(data, events) for topic_partition, events in both.items()}
    resume, known = Resume(), list(stream.partitions)
    applied: Applied = []
    for _ in range(data.draw(st.integers(1, 4))):
        core = ConsumerCore(known, resume)
        for topic_partition in both if data.draw(st.booleans()) else ():
            core.add_partition(topic_partition)
        found, resume = consumed(data, messages, core, resume, data.draw(st.integers(0, 30)))
        known = core.topic_partitions
        applied += found
    core = ConsumerCore(both, resume)
    applied += rest(messages, core, resume)
    assert normal(applied) == wanted_of(Stream(stream.promises, both))
    assert core.buffered == []


def test_partition_that_appears_late_brings_its_rows_but_no_ddl_again() -> None:
    """Readers of the topic's other partitions have run the DDL; the row was written where nobody read."""
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5), ddl_event(7), ResolvedEvent(9)])
    resume = parts_of(core)[-1].resume
    again = ConsumerCore([P0, P1], resume)
    again.add(P0, 1, [row_event(1, 12), ResolvedEvent(20)])
    assert parts_of(again) == []
    again.add(P1, 0, [row_event(2, 6), ddl_event(7), ResolvedEvent(8)])
    (part,) = parts_of(again)
    assert (shown(part), part.resume.applied_ts) == ([(6, (Change.UPDATE, 2))], 9)
    assert part.resume.reads == {P0: Read(1, 2), P1: Read(1, 1, 8)}
    again.add(P1, 1, [ResolvedEvent(20)])
    (part,) = parts_of(again)
    assert (shown(part), part.resume.applied_ts) == ([(12, (Change.UPDATE, 1))], 20)
    assert part.resume.reads == {P0: Read(2, 2), P1: Read(2, 2)}


@pytest.mark.parametrize("waits", [row_event(1, 0, Change.DELETE), row_event(2, 9)])
def test_events_that_wait_for_late_topic_are_kept_over_restart(waits: RowEvent) -> None:
    """A tombstone, or a late row at the applied commit_ts: they were read, and not applied."""
    late = KafkaPartition("late", 0)
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5, Change.UPSERT), ResolvedEvent(9)])
    parts_of(core)
    core.add_partition(late)
    core.add(P0, 1, [waits])
    core.add(late, 0, [ResolvedEvent(4)])
    resume = parts_of(core)[-1].resume
    again = ConsumerCore([P0, late], resume)
    again.add(P0, 1, [waits])
    assert (again.left_out, again.buffered) == (0, [waits])
    again.add(late, 1, [ResolvedEvent(9)])
    (part,) = parts_of(again)
    assert part.rows == (waits,)


def test_rows_at_applied_commit_ts_are_skipped_again_if_restart_did_not_reach_them() -> None:
    late = KafkaPartition("late", 0)
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5), row_event(2, 12)])
    core.add(P0, 1, [ResolvedEvent(5)])
    (part,) = parts_of(core)
    second = ConsumerCore([P0, late], part.resume)
    second.add(late, 0, [ResolvedEvent(3)])
    (part,) = parts_of(second)
    third = ConsumerCore([P0, late], part.resume)
    third.add(P0, 0, [row_event(1, 5), row_event(2, 12)])
    assert (third.left_out, third.buffered) == (1, [row_event(2, 12)])


def test_partition_that_is_not_shown_for_a_while_goes_on_where_it_was_read() -> None:
    core = ConsumerCore([P0, P1])
    for one in (P0, P1):
        core.add(one, 0, [row_event(one.partition, 5), ResolvedEvent(9)])
    resume = parts_of(core)[-1].resume
    without = ConsumerCore([P0], resume)
    without.add(P0, 1, [ResolvedEvent(20)])
    resume = parts_of(without)[-1].resume
    assert (resume.applied_ts, resume.reads) == (20, {P0: Read(2, 2), P1: Read(1, 1, 9)})
    again = ConsumerCore([P0], resume)
    again.add_partition(P1)
    assert (again.begin(P0), again.begin(P1)) == (2, 1)
    again.add(P1, 1, [row_event(1, 12), ResolvedEvent(20)])
    (part,) = parts_of(again)
    assert shown(part) == [(12, (Change.UPDATE, 1))]


def test_consumer_begins_partition_that_was_never_read_at_its_first_record() -> None:
    assert ConsumerCore([P0]).begin(P0) is None
    assert ConsumerCore([P0], Resume(9, {P0: Read(0, 3)})).begin(P0) == 0


def test_partition_announced_by_admin_event_begins_at_slowest_watermark() -> None:
    core = ConsumerCore([P0, P1])
    core.add(P1, 0, [ResolvedEvent(5)])
    core.add(P0, 0, [ResolvedEvent(9), AdminEvent(3)])
    core.add(KafkaPartition("topic", 2), 0, [row_event(1, 7), ResolvedEvent(9)])
    core.add(P1, 1, [ResolvedEvent(9)])
    assert [one for part in parts_of(core) for one in shown(part)] == [(7, (Change.UPDATE, 1))]


def test_ddl_at_applied_commit_ts_is_not_run_again_while_another_topic_catches_up() -> None:
    late = KafkaPartition("late", 0)
    core = ConsumerCore([P0, P1])
    for one in (P0, P1):
        core.add(one, 0, [ddl_event(9), ResolvedEvent(9)])
    resume = parts_of(core)[0].resume
    again = ConsumerCore([P0, P1, late], resume)
    again.add(late, 0, [ddl_event(4, "CREATE TABLE u (id INT)"), ResolvedEvent(6)])
    (part,) = [part for part in parts_of(again) if part.ddl is not None]
    assert part.ddl == ddl_event(4, "CREATE TABLE u (id INT)")
    third = ConsumerCore([P0, P1, late], part.resume)
    third.add(late, 1, [ResolvedEvent(20)])
    for one in (P0, P1):
        third.add(one, 0, [ddl_event(9), ResolvedEvent(20)])
    assert [part.ddl for part in parts_of(third)] == [None]


def test_consumer_names_partitions_that_others_wait_for() -> None:
    core = ConsumerCore([P0, P1])
    assert core.ahead() == set()
    core.add(P0, 0, [ResolvedEvent(5)])
    assert core.ahead() == {P0}


@given(data=st.data(), stream=streams())
def test_consumer_applies_rows_repeated_by_producer_once(data: st.DataObject, stream: Stream) -> None:
    """At least once: a stretch above the newest resolved event comes again."""
    for topic_partition, events in stream.partitions.items():
        begin = max((n + 1 for n, one in enumerate(events[:-1]) if isinstance(one, ResolvedEvent)), default=0)
        cut = data.draw(st.integers(begin, len(events) - 1))
        stream.partitions[topic_partition] = [*events[:cut], *events[begin:]]
    core = ConsumerCore(stream.partitions)
    applied: Applied = []
    for topic_partition, events in stream.partitions.items():
        for offset, event in enumerate(events):
            core.add(topic_partition, offset, [event])
            for part in parts_of(core):
                applied += shown(part)
    assert in_order(applied)
    assert normal(applied) == wanted_of(stream)


def keyless(commit_ts: int, value: int, change: Change = Change.INSERT) -> RowEvent:
    image = {"v": ColumnValue(value)}
    delete = change is Change.DELETE
    return RowEvent(change, commit_ts, "db", "t", old=image if delete else None, new=None if delete else image)


@given(
    transactions=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=2, max_size=6),
    resolved=st.sets(st.integers(1, 6)),
    data=st.data(),
)
def test_consumer_applies_equal_keyless_rows_as_often_as_written(
    transactions: list[list[int]], resolved: set[int], data: st.DataObject
) -> None:
    """Each transaction may have equal rows. The producer ends anywhere and begins again with an earlier transaction."""
    written: list[Event] = []
    begins: list[int] = []
    for commit_ts, values in enumerate(transactions, 1):
        begins.append(len(written))
        written += [keyless(commit_ts, value) for value in values]
        written += [ResolvedEvent(commit_ts)] if commit_ts in resolved else []
    last = data.draw(st.integers(1, len(transactions) - 1))
    ends = data.draw(st.integers(begins[last] + 1, len(written)))
    again = data.draw(st.integers(0, last - 1))
    core = ConsumerCore([P0])
    rows: list[RowEvent] = []
    for offset, event in enumerate([*written[:ends], *written[begins[again] :], ResolvedEvent(99)]):
        core.add(P0, offset, [event])
        rows += [row for part in parts_of(core) for row in part.rows]
    assert rows == [event for event in written if isinstance(event, RowEvent)]


@pytest.mark.parametrize("schema", ["tidb_binlog", "TiDB_Binlog"])
def test_the_schema_of_positions_is_left_out(schema: str) -> None:
    """TiCDC sends upstream's own. Its DROP DATABASE would remove our position."""
    core = ConsumerCore([P0])
    theirs = [
        row_event(1, 5)._replace(schema=schema),
        replace(ddl_event(6, "DROP DATABASE tidb_binlog"), schema=schema),
    ]
    core.add(P0, 0, [*theirs, row_event(2, 7), ResolvedEvent(9)])
    assert [one for part in parts_of(core) for one in shown(part)] == [(7, (Change.UPDATE, 2))]
    assert core.left_out == 2


def test_consumer_applies_delete_before_insert_of_row_that_changed_partition() -> None:
    core = ConsumerCore([P0, P1])
    core.add(P0, 0, [row_event(1, 5, Change.INSERT), ResolvedEvent(9)])
    core.add(P1, 0, [row_event(1, 5, Change.DELETE), ResolvedEvent(9)])
    (part,) = parts_of(core)
    assert [row.change for row in part.rows] == [Change.DELETE, Change.INSERT]


def test_consumer_applies_delete_before_insert_where_messages_name_no_key() -> None:
    """Canal-JSON names primary keys alone, and a table may be dispatched by a unique key."""
    core = ConsumerCore([P0, P1])
    core.add(P0, 0, [keyless(5, 1), ResolvedEvent(5)])
    core.add(P1, 0, [keyless(5, 1, Change.DELETE), ResolvedEvent(5)])
    (part,) = parts_of(core)
    assert [row.change for row in part.rows] == [Change.DELETE, Change.INSERT]


CHAINS = [(None, 1, None), (None, 1, 2, 3), (1, 2, 3, None), (1, None, 2), (None, 1, 2, None), (None, 1, None, 2)]


def of_service(*values: int | None) -> list[RowEvent]:
    """What a service does to row 1 in one transaction: its value from each to the next, None where there is no row."""
    found = []
    for old, new in itertools.pairwise(values):
        change = Change.INSERT if old is None else Change.DELETE if new is None else Change.UPDATE
        images = [None if value is None else image(1, value) for value in (old, new)]
        found.append(RowEvent(change, 5, "db", "t", old=images[0], new=images[1]))
    return found


@pytest.mark.parametrize(
    "values", [(None, 1, None), (None, 1, 2, 3), (1, 2, 3, None), (1, None, 2), (None, 1, 2, None)]
)
@pytest.mark.parametrize("has_key", [True, False])
def test_consumer_keeps_order_of_changes_of_one_row_in_transaction(
    values: tuple[int | None, ...], has_key: bool
) -> None:
    changes = of_service(*values)
    if not has_key:
        changes = [one._replace(old=without_flags(one.old), new=without_flags(one.new)) for one in changes]
    core = ConsumerCore([P0])
    core.add(P0, 0, [*changes, ResolvedEvent(5)])
    assert [part.rows for part in parts_of(core)] == [tuple(changes)]


def without_flags(image: Image | None) -> Image | None:
    return image and {name: ColumnValue(one.value) for name, one in image.items()}


def test_deletes_without_images_of_two_tables_are_no_repeats() -> None:
    """Their key alone is the same."""
    deletes = [RowEvent(Change.DELETE, 5, "db", name, key={"id": ColumnValue(1)}) for name in ("t", "u")]
    core = ConsumerCore([P0])
    core.add(P0, 0, [*deletes, *deletes, ResolvedEvent(5)])
    assert [part.rows for part in parts_of(core)] == [tuple(deletes)]


def test_consumer_applies_delete_before_insert_of_row_that_changed_table_partition() -> None:
    """TiDB may write the insert first: a global index has one key, and the values differ."""
    insert, delete = row_event(1, 5, Change.INSERT, value=1), row_event(1, 5, Change.DELETE, value=2)
    core = ConsumerCore([P0])
    core.add(P0, 0, [insert, delete, ResolvedEvent(5)])
    assert [part.rows for part in parts_of(core)] == [(delete, insert)]


def test_consumer_watermark_is_that_of_slowest_partition() -> None:
    core = ConsumerCore([P0, P1])
    core.add(P0, 0, [row_event(1, 5)])
    core.add(P0, 1, [ddl_event(7)])
    core.add(P0, 2, [ResolvedEvent(9)])
    core.add(P0, 3, [row_event(1, 12)])
    assert core.next() is None
    assert core.resume().reads == {P0: Read(0, 4), P1: Read(0, 0)}
    core.add(P1, 0, [ResolvedEvent(6)])
    (part,) = parts_of(core)
    assert (shown(part), part.resume) == (
        [(5, (Change.UPDATE, 1))],
        Resume(6, {P0: Read(1, 4), P1: Read(1, 1)}),
    )
    core.add(P1, 1, [ResolvedEvent(9)])
    ddl, rest = parts_of(core)
    assert (shown(ddl), ddl.resume.applied_ts, ddl.resume.reads[P0]) == (
        [(7, "ALTER TABLE t ADD c INT")], 7, Read(2, 4),
    ), "the resolved event at 9 is read again"  # fmt: skip
    assert (rest.rows, rest.ddl, rest.resume.applied_ts) == ((), None, 9)


def test_consumer_applies_only_the_rest_of_half_applied_message_after_restart() -> None:
    both: list[Event] = [row_event(1, 5), row_event(2, 12)]
    core = ConsumerCore([P0])
    core.add(P0, 0, both)
    core.add(P0, 1, [ResolvedEvent(5)])
    (part,) = parts_of(core)
    assert part.resume.reads == {P0: Read(0, 2)}
    again = ConsumerCore([P0], part.resume)
    again.add(P0, 0, both)
    again.add(P0, 1, [ResolvedEvent(5)])
    assert ([row.commit_ts for row in again.buffered], again.left_out, again.next()) == ([12], 1, None)
    again.add(P0, 2, [row_event(3, 6)])
    assert [row.commit_ts for row in again.buffered] == [12, 6]


def test_consumer_skips_row_read_again_at_applied_commit_ts() -> None:
    """A row without a key would be there twice."""
    messages: list[list[Event]] = [[row_event(2, 12)], [row_event(1, 5)], [ResolvedEvent(5)]]
    core = ConsumerCore([P0])
    for offset, events in enumerate(messages):
        core.add(P0, offset, events)
    (part,) = parts_of(core)
    assert part.resume.reads == {P0: Read(0, 3)}
    again = ConsumerCore([P0], part.resume)
    for offset, events in enumerate(messages):
        again.add(P0, offset, events)
    assert ([row.commit_ts for row in again.buffered], again.left_out, again.next()) == ([12], 1, None)


def test_consumer_applies_late_row_at_applied_commit_ts() -> None:
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5), ResolvedEvent(5)])
    (part,) = parts_of(core)
    for one in (core, ConsumerCore([P0], part.resume)):
        one.add(P0, 1, [row_event(2, 5), ResolvedEvent(6)])
        late = one.next()
        assert late is not None and [row.commit_ts for row in late.rows] == [5]


def test_ddl_at_commit_ts_of_resolved_event_runs_once() -> None:
    core = ConsumerCore([P0, P1])
    for topic_partition in (P0, P1):
        core.add(topic_partition, 0, [ResolvedEvent(10)])
    parts_of(core)
    core.add(P0, 1, [ddl_event(10)])
    (part,) = parts_of(core)
    assert part.ddl is not None
    core.add(P1, 1, [ddl_event(10)])
    core.add(P1, 2, [ddl_event(9, "older")])
    assert (core._ddls, core.next()) == ([], None)
    again = ConsumerCore([P0, P1], part.resume)
    again.add(P1, 1, [ddl_event(10)])
    assert again._ddls == []
    again.add(P1, 2, [ddl_event(10, "another")])
    assert [one.event.query for one in again._ddls] == ["another"]


def test_ddls_of_several_topics_run_in_commit_ts_order() -> None:
    other = KafkaPartition("other", 0)
    core = ConsumerCore([P0, other])
    core.add(P0, 0, [ddl_event(20, "b"), ResolvedEvent(20)])
    core.add(other, 0, [ddl_event(10, "a"), ResolvedEvent(20)])
    assert [part.ddl.query for part in parts_of(core) if part.ddl is not None] == ["a", "b"]


def test_consumer_waits_for_added_partition_after_partition_count_event() -> None:
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5), ResolvedEvent(10), AdminEvent(2, 10), row_event(1, 15), ResolvedEvent(20)])
    (part,) = parts_of(core)
    assert part.resume.applied_ts == 10  # the new partition has not come so far
    core.add(P1, 0, [AdminEvent(2, 10), row_event(1, 12), ResolvedEvent(20)])
    (part,) = parts_of(core)
    assert [row.commit_ts for row in part.rows] == [12, 15]
    assert part.resume.reads == {P0: Read(1, 1), P1: Read(1, 1)}


@pytest.mark.parametrize("upsert", [Change.UPSERT, Change.INSERT])
def test_tombstone_without_commit_ts_is_applied_in_offset_order(upsert: Change) -> None:
    """They tell no commit_ts. INSERT: Avro with TiCDC's extension."""
    delete = Change.DELETE
    core = ConsumerCore([P0])
    stamps = [(1, 5, upsert), (1, 0, delete), (2, 7, upsert), (1, 0, delete), (1, 7, upsert), (1, 0, delete)]
    for offset, (key, commit_ts, change) in enumerate(stamps):
        core.add(P0, offset, [row_event(key, commit_ts, change)])
    core.add(P0, 9, [ResolvedEvent(8)])
    (part,) = parts_of(core)
    assert [(row.commit_ts, row.change) for row in part.rows] == [
        (commit_ts, change) for _, commit_ts, change in stamps
    ]


def test_tombstone_read_first_after_restart_is_applied() -> None:
    """It follows a row that the consumer before had applied."""
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5, Change.UPSERT), ResolvedEvent(5)])
    (part,) = parts_of(core)
    again = ConsumerCore([P0], part.resume)
    again.add(P0, 1, [row_event(1, 0, Change.DELETE)])
    again.add(P0, 2, [ResolvedEvent(9)])
    applied = [(row.commit_ts, row.change) for part in parts_of(again) for row in part.rows]
    assert (applied, again.left_out) == ([(0, Change.DELETE)], 0)


def test_tombstone_read_but_not_applied_is_read_again_after_restart() -> None:
    """Although what it follows is applied before it is reached."""
    core = ConsumerCore([P0, P1])
    core.add(P0, 0, [row_event(1, 30, Change.UPSERT)])
    core.add(P0, 1, [ResolvedEvent(30)])
    core.add(P0, 2, [row_event(1, 0, Change.DELETE)])
    core.add(P1, 0, [ResolvedEvent(20)])
    (part,) = parts_of(core)
    assert (part.rows, part.resume.reads[P0]) == ((), Read(0, 3))
    again = ConsumerCore([P0, P1], part.resume)
    again.add(P1, 1, [ResolvedEvent(30)])
    applied = []
    put, delete = row_event(1, 30, Change.UPSERT), row_event(1, 0, Change.DELETE)
    for offset, event in enumerate((put, ResolvedEvent(30), delete)):
        again.add(P0, offset, [event])
        applied += [row.change for part in parts_of(again) for row in part.rows]
    assert applied == [Change.UPSERT, Change.DELETE]


def test_tombstone_already_applied_is_skipped_after_restart() -> None:
    """It is read again, since a DDL before it waits."""
    core = ConsumerCore([P0])
    core.add(P0, 0, [row_event(1, 5, Change.UPSERT), ResolvedEvent(5)])
    parts_of(core)
    core.add(P0, 1, [ddl_event(9)])
    core.add(P0, 2, [row_event(1, 0, Change.DELETE)])
    (part,) = parts_of(core)
    assert ([row.change for row in part.rows], part.resume.reads[P0]) == ([Change.DELETE], Read(1, 3))
    again = ConsumerCore([P0], part.resume)
    again.add(P0, 1, [ddl_event(9)])
    again.add(P0, 2, [row_event(1, 0, Change.DELETE)])
    assert (again.buffered, again.left_out) == ([], 1)


def test_handle_only_row_without_resolver_raises_consume_error() -> None:
    core = ConsumerCore([P0])
    words = r"topic\[0\] offset 3: the insert of `db`\.`t` \(id = 7\) at commit_ts 5 .* "
    row = RowEvent(Change.INSERT, 5, "db", "t", new={"id": ColumnValue(7)}, handle_only=True)
    with pytest.raises(ConsumeError, match=f"{words}in no message; --skip-handle-only"):
        core.add(P0, 3, [row])
    with pytest.raises(ConsumeError, match=f"{words}at claim/7; claim-check-storage-uri"):
        core.add(P0, 3, [row._replace(claim="claim/7")])


def test_handle_only_row_is_resolved_once_unless_already_applied() -> None:
    """And not for rows that are applied."""
    asked: list[int] = []

    def whole(topic_partition: KafkaPartition, offset: int, event: RowEvent) -> RowEvent | None:
        asked.append(offset)
        return None if offset == 1 else row_event(1, event.commit_ts, Change.INSERT)

    core = ConsumerCore([P0], Resume(4, {P0: Read(0, 0)}), whole)
    for offset, commit_ts in enumerate((3, 5, 6)):
        core.add(P0, offset, [RowEvent(Change.INSERT, commit_ts, "db", "t", new={}, handle_only=True)])
    core.add(P0, 3, [ResolvedEvent(9)])
    (part,) = parts_of(core)
    assert ([row.commit_ts for row in part.rows], asked) == ([6], [1, 2])
    assert part.resume.reads[P0] == Read(4, 4), "a row that is left out is not read again"


def test_row_below_its_partitions_watermark_is_kept_until_applied() -> None:
    """A producer that began again: what the watermark of one partition has passed need not be applied."""
    core = ConsumerCore([P0, P1])
    core.add(P0, 0, [row_event(1, 40), ResolvedEvent(100)])
    core.add(P0, 1, [row_event(1, 50)])
    core.add(P1, 0, [ResolvedEvent(60)])
    (part,) = parts_of(core)
    assert ([row.commit_ts for row in part.rows], core.left_out) == ([40, 50], 0)
