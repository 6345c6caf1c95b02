"""Every partition's events make the states of its rows, whatever the rule, and slots make what the whole makes."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes.groups import components
from drainer.changes.stream import StreamDecoder, merge
from drainer.dispatch import DispatchError
from drainer.dispatch.dispatcher import (
    SLOTTING_VERSION,
    Dispatcher,
    PartitionSlotting,
    Routes,
    part_of_slot,
    slots_of_topic,
    spread_slots,
)
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router, SelectorRule, TopicExpression
from tests.support.row_case import BEGIN_TS, view_of
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.dispatch.histories import (
    CHOICES,
    SHAPES,
    Event,
    Image,
    Row,
    image_of,
    payloads_of,
    rows_of_transactions,
    run,
    segment_of,
    table_of_shape,
)
from tests.unit.drainer.dispatch.test_partition import INT

RULES = {
    "table": DispatchRule(matcher=("*.*",), partition="table"),
    "index-value": DispatchRule(matcher=("*.*",), partition="index-value"),
    "index u": DispatchRule(matcher=("*.*",), partition="index-value", index="u"),
    "columns": DispatchRule(matcher=("*.*",), partition="columns", columns=("v",)),
    "both": DispatchRule(matcher=("*.*",), partition="columns", columns=("b", "v"), topic="{schema}-{table}"),
    "ts": DispatchRule(matcher=("*.*",), partition="ts"),
    "conflict": DispatchRule(matcher=("*.*",), partition="conflict"),
    "conflict beside another": DispatchRule(matcher=("*.t",), partition="conflict"),
}
PARTITIONS = 3
Written = dict[tuple[str, int], list[tuple[int, int, Event]]]  # (topic, partition) → (order, commit_ts, event)


def dispatcher(
    rule: str, *, raw: bool = False, partitions: int = PARTITIONS, selectors: Sequence[SelectorRule] = ()
) -> Dispatcher:
    router = Router([RULES[rule]], "all", selectors=selectors)
    return Dispatcher(router, {"all": partitions, "db-t": partitions}, UTC, raw=raw)


NAMED = {"index u": "u", "columns": "v", "both": "bv"}  # the columns that a rule names


@st.composite
def selected(draw: st.DrawFn, rules: Iterable[str] = RULES) -> tuple[tuple[str, ...], Dispatcher, RowEvents]:
    """The columns that a selector keeps (all, or some with those that a rule names), and what makes events by both."""
    rule = draw(st.sampled_from(sorted(rules)))
    some = [one for one in CHOICES if {*NAMED.get(rule, "")} <= {*one}]
    chosen = draw(st.sampled_from([("a", "b", "u", "v"), *some]))
    to = dispatcher(rule, selectors=[SelectorRule(matcher=("*.*",), columns=chosen)])
    return chosen, to, RowEvents(selectors=to.router.selectors)


def written(routes: Sequence[Routes]) -> Written:
    found: Written = defaultdict(list)
    for one in routes:
        changes = one.changes
        assert len(one.partitions) == len(changes) > 0
        images = [
            [None] * len(changes) if columns is None else list(zip(*[c.to_pylist() for c in columns], strict=True))
            for columns in (changes.old, changes.new)
        ]
        stamps = zip(one.partitions.tolist(), changes.order.tolist(), changes.commit_ts.tolist(), *images, strict=True)
        for partition, order, commit_ts, old, new in stamps:
            found[one.topic, partition].append((order, commit_ts, (changes.kind, old, new)))
    return {topic_partition: sorted(events, key=lambda event: event[0]) for topic_partition, events in found.items()}


@given(data=st.data(), shape=st.sampled_from(SHAPES), by=selected(RULES.keys() - {"ts"}))
def test_events_of_each_partition_reproduce_states_of_its_rows(data: st.DataObject, shape: str, by: Any) -> None:
    """Each partition alone, in its order: it is never asked to remove what it was not given."""
    chosen, to, events = by
    info = table_of_shape(shape)
    transactions = data.draw(rows_of_transactions(shape))
    found = written(to.routes(events.of(segment_of([info], payloads_of(info, transactions)))))

    def image(row: Row) -> Image:
        pairs = zip(info.columns, image_of(info, row), strict=True)
        return tuple(value for column, value in pairs if column.name in chosen)

    rows: Counter[Image] = Counter()
    per_partition: dict[object, list[Image]] = defaultdict(list)
    for number, changes in enumerate(transactions):
        for old, new in changes:
            rows.update([image(new)] if new is not None else [])
            rows.subtract([image(old)] if old is not None else [])
        for topic_partition, mine in found.items():
            for _, commit_ts, event in mine:
                if commit_ts == BEGIN_TS + number:
                    run(per_partition[topic_partition], event, lambda _: None)
        assert Counter(image for some in per_partition.values() for image in some) == +rows


@given(data=st.data(), shape=st.sampled_from(SHAPES), rule=st.sampled_from(sorted(RULES)), raw=st.booleans())
def test_every_event_is_in_exactly_one_partition(data: st.DataObject, shape: str, rule: str, raw: bool) -> None:
    """`ts` puts a transaction into one partition; raw updates stay whole."""
    info = table_of_shape(shape)
    payloads = payloads_of(info, data.draw(rows_of_transactions(shape)))
    events = RowEvents(raw=raw).of(segment_of([info], payloads))
    found = written(dispatcher(rule, raw=raw).routes(events))
    images: Counter[tuple[int, int, Image]] = Counter()
    for one in events:
        for number, columns in enumerate((one.old, one.new)):
            for at in range(len(one) if columns is not None else 0):
                image = tuple(column[at].as_py() for column in columns or ())
                images[number, int(one.commit_ts[at]), image] += 1
    assert images == Counter(
        (number, commit_ts, image)
        for mine in found.values()
        for _, commit_ts, (_, *both) in mine
        for number, image in enumerate(both)
        if image is not None
    )
    if rule == "ts":
        assert all(
            commit_ts % PARTITIONS == topic_partition[1]
            for topic_partition, mine in found.items()
            for _, commit_ts, _ in mine
        )
    if raw:
        assert sum(map(len, found.values())) == sum(map(len, events))


@given(data=st.data(), shape=st.sampled_from(SHAPES), by=selected(), slots=st.integers(1, 4))
def test_slots_write_the_same_events_as_one_task(data: st.DataObject, shape: str, by: Any, slots: int) -> None:
    _, to, events = by
    info = table_of_shape(shape)
    other = table_of_shape("handle", table_id=101, name="other")
    payloads = payloads_of(info, data.draw(rows_of_transactions(shape)))
    payloads += payloads_of(other, data.draw(rows_of_transactions("handle", 3)), lasting=4)
    to.partitions = {**to.partitions, "db-other": 2}
    whole = written(to.routes(events.of(segment_of([info, other], payloads))))
    slotting = pickle.loads(pickle.dumps(PartitionSlotting(to, slots)))
    view = view_of(info, other)
    blobs: dict[int, list[bytes]] = defaultdict(list)
    for share in (payloads[::2], payloads[1::2]):
        cutter = StreamDecoder(view).cutter(slots, slotting.slots_of)
        cutter.add_all(share)
        for slot, blob in cutter.cut().items():
            blobs[slot].append(blob)
    found: Written = {}
    for slot, mine in blobs.items():
        segment = merge(StreamDecoder(view), mine, 0, 1)
        for topic_partition, those in written(part_of_slot(events.of(segment), to, slot, slots)).items():
            found.setdefault(topic_partition, []).extend(those)
    assert {topic_partition: _shown(those) for topic_partition, those in found.items()} == {
        topic_partition: _shown(those) for topic_partition, those in whole.items()
    }
    assert [[event[1] for event in those] for those in found.values()] == [
        sorted(event[1] for event in those) for those in found.values()
    ], "also where a partition has several tables"


def _shown(events: Sequence[tuple[int, int, Event]]) -> list[tuple[int, int, list[str]]]:
    """Of each transaction and kind what there is."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for order, commit_ts, event in events:
        found[commit_ts, order >> 33 & 3].append(repr(event))
    return [(*topic_partition, sorted(of)) for topic_partition, of in sorted(found.items())]


@given(data=st.data(), shape=st.sampled_from(SHAPES), raw=st.booleans())
def test_conflict_dispatch_puts_conflicting_rows_in_one_partition(data: st.DataObject, shape: str, raw: bool) -> None:
    """Of one transaction, or with one unique value, over any number of steps: a partition alone makes its rows."""
    info = table_of_shape(shape)
    transactions = data.draw(rows_of_transactions(shape))
    events = RowEvents(raw=raw).of(segment_of([info], payloads_of(info, transactions)))
    found = written(dispatcher("conflict", raw=raw).routes(events))
    of_value: dict[object, set[object]] = defaultdict(set)
    size = {"two columns": 2, "none": 0}.get(shape, 1)
    for topic_partition, mine in found.items():
        for _, commit_ts, (_, old, new) in mine:
            of_value[commit_ts].add(topic_partition)
            for image in (old, new):
                if image is not None and size:
                    of_value["key", image[:size]].add(topic_partition)
                if image is not None and image[2] is not None:
                    of_value["u", image[2]].add(topic_partition)
    assert all(len(partitions) == 1 for partitions in of_value.values())
    if shape == "none":
        assert len(found) <= 1


def test_conflict_dispatch_distributes_independent_rows() -> None:
    info = table_of_shape("handle")
    transactions: list[list[tuple[Row | None, Row | None]]] = [[(None, (n, 0, n, 0))] for n in range(60)]
    events = RowEvents().of(segment_of([info], payloads_of(info, transactions)))
    spread = written(dispatcher("conflict").routes(events))
    assert {topic_partition: len(mine) for topic_partition, mine in spread.items()} == {
        topic_partition: len(mine)
        for topic_partition, mine in written(dispatcher("index-value").routes(events)).items()
    }
    assert len(spread) == PARTITIONS


@given(edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60), count=st.integers(31, 40))
def test_components_equal_connected_groups(edges: list[tuple[int, int]], count: int) -> None:
    groups = [{n} for n in range(count)]
    for value in {value for _, value in edges}:
        joined = {node for node, other in edges if other == value}
        touched = [group for group in groups if group & joined]
        groups = [group for group in groups if not group & joined] + [set().union(*touched)]
    found = components(count, *(np.array([edge[at] for edge in edges], np.int64) for at in (0, 1)))
    assert found.tolist() == [min(next(group for group in groups if n in group)) for n in range(count)]


def test_long_chain_is_one_component() -> None:
    """A node at a time would take a round for each."""
    size = 5000
    nodes = np.repeat(np.random.default_rng(1).permutation(size), 2)[1:-1]
    assert len(set(components(size, nodes, np.repeat(np.arange(size - 1), 2)).tolist())) == 1


def test_update_that_changes_partition_is_split() -> None:
    table = make_table("db", "t", [("id", INT), ("v", INT)], primary=["id"])
    rule = Router([DispatchRule(matcher=("*.*",), partition="columns", columns=("v",))], "all")
    values = [0, 1, 2, 3, 4]
    moved = make_changes(table, Kind.UPDATE, old=[[n, n] for n in values], new=[[n, 0] for n in values])
    found = Dispatcher(rule, {"all": 2}, UTC).routes([moved])
    where = [crc32(b"dbt") ^ crc32(b"v%d" % n) for n in values]
    parities = [n % 2 for n in where]
    assert len(set(where)) > 1
    stays = [n for n in values if parities[n] == parities[0]]
    goes = [n for n in values if parities[n] != parities[0]]
    assert [(one.changes.kind, one.changes.image[0].to_pylist(), set(one.partitions.tolist())) for one in found] == [
        (Kind.UPDATE, stays, {parities[0]}),
        (Kind.DELETE, goes, {1 - parities[0]}),
        (Kind.INSERT, goes, {parities[0]}),
    ]
    (whole,) = Dispatcher(rule, {"all": 2}, UTC, raw=True).routes([moved])
    assert set(whole.partitions.tolist()) == {parities[0]}


def test_topic_with_unknown_partition_count_is_refused_by_name() -> None:
    table = make_table("db", "t", [("id", INT)], primary=["id"])
    with pytest.raises(DispatchError, match="topic all: the number of its partitions is not known"):
        Dispatcher(Router([], "all"), {}, UTC).routes([make_changes(table, Kind.INSERT, new=[[1]])])


@given(topic=st.text(min_size=1, max_size=20), partitions=st.integers(1, 70), slots=st.integers(1, 20))
def test_spread_slots_balances_partitions_over_slots(topic: str, partitions: int, slots: int) -> None:
    """The fullest slot is what a batch takes."""
    found = np.bincount(spread_slots(topic, partitions, slots), minlength=slots)
    assert len(found) == slots
    assert found.max() - found.min() <= 1
    alone = {int(spread_slots(f"{topic}{number}", 1, 4)[0]) for number in range(64)}
    assert alone == {0, 1, 2, 3}, "topics of one partition are in all slots"


def test_spread_slots_equal_slotting_version_3() -> None:
    """Part of a batch's recorded cut: another answer needs another SLOTTING_VERSION."""
    assert SLOTTING_VERSION == 3
    assert spread_slots("shop", 5, 3).tolist() == [0, 1, 2, 0, 1]
    assert spread_slots("orders", 5, 3).tolist() == [2, 0, 1, 2, 0]
    to = dispatcher("conflict")
    assert slots_of_topic(to, "all", 7).tolist() == [crc32(b"all") % 7] * to.count("all")


def test_topic_with_conflict_dispatch_is_in_one_slot() -> None:
    """With the other tables that go there, of which nothing but the topic is known."""
    rules = [
        DispatchRule(matcher=("a.*",), partition="conflict", topic="{schema}_x_{table}"),
        DispatchRule(matcher=("b.*",), partition="index-value", topic="a_x_t"),
        DispatchRule(matcher=("c.*",), partition="index-value", topic="a_y_t"),
        DispatchRule(matcher=("d.*",), partition="conflict", topic="one"),
    ]
    router = Router(rules, "all")
    to = Dispatcher(router, dict.fromkeys(["a_x_t", "a_y_t", "one", "once", "all", "_"], 4), UTC)
    found = {topic: len(set(slots_of_topic(to, topic, 4).tolist())) for topic in to.partitions}
    assert found == {"a_x_t": 1, "a_y_t": 4, "one": 1, "once": 4, "all": 4, "_": 1}
    long = TopicExpression("{schema}-b").topic("a" * 300, "t")
    assert router.may_conflict(long), "a name that was cut off does not show its end"


def test_pickled_slotting_leaves_out_cached_tables() -> None:
    """Those are kept by ids of objects, which are others in another process."""
    info = table_of_shape("handle")
    slotting = PartitionSlotting(dispatcher("index-value"), 3)
    (changes,) = segment_of([info], payloads_of(info, [[(None, (n, 0, None, 0))] for n in range(9)])).changes
    wanted = [one.tolist() for one in slotting.slots_of(changes, 3)]
    assert len(set(wanted[0])) > 1
    assert slotting._events._tables._made
    travelled = pickle.loads(pickle.dumps(slotting))
    assert not travelled._events._tables._made
    for raw in (False, True):
        assert pickle.loads(pickle.dumps(RowEvents(raw=raw)))._raw is raw
    assert travelled == replace(slotting, dispatcher=travelled.dispatcher)
    assert [one.tolist() for one in travelled.slots_of(changes, 3)] == wanted


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_events_grouped_by_partition_keep_their_order(partitions: list[int]) -> None:
    table = make_table("db", "t", [("id", INT)], primary=["id"])
    changes = make_changes(table, Kind.INSERT, new=[(number,) for number in range(len(partitions))])
    found = Routes(changes, "all", np.array(partitions, np.int64)).by_partition()
    expected = sorted(range(len(partitions)), key=lambda at: partitions[at])
    assert found.partitions.tolist() == sorted(partitions)
    assert found.changes.order.tolist() == expected
    assert found.changes.image[0].to_pylist() == expected
