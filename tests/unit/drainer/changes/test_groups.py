"""Rule 33: slots have complete groups of transactions that touch a common key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.fold_order import FoldOrder, PackedView
from drainer.batch.work import SegmentWork
from drainer.changes.groups import Links, assign_groups, linked, packed, unpacked
from drainer.changes.segment import SegmentDecoder
from drainer.changes.slot_blob import LINKS_SLOT, BlobError
from drainer.changes.slots import divide, groups_of
from drainer.schema.view import SchemaView, TableVersions
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.examples import FEW, VERY_FEW
from tests.support.row_case import INT, TEXT, Step, not_null, table, transaction
from tests.unit.drainer.cut_case import NULLABLE, SECONDARY, TABLES, Op, payloads, sound, streams

SLOTS = 3
Slots = Mapping[int, SegmentWork]


def view_of(*tables: TableInfo) -> SchemaView:
    return SchemaView({info.id: TableVersions("d", 1, (1,), (info,)) for info in tables}, {}, 0, 1 << 40, None)


def divided(view: SchemaView, parts: Sequence[Sequence[bytes]], *, whole: bool = True, slots: int = SLOTS) -> Slots:
    """The work of each slot, from parts that are folded apart; of `whole` ones by columns and one by one."""
    order = FoldOrder(PackedView.of(view), SQL_TEXT, slots, whole)
    found = []
    for least in (0, 1 << 40) if whole else (1 << 40,):
        blobs: dict[int, list[bytes]] = {}
        for part in parts:
            cutter = order.builder(SegmentDecoder(view, SQL_TEXT, columns_rows_min=least, whole=whole))
            cutter.add_all(part)
            for slot, blob in order.cut(cutter).items():
                blobs.setdefault(slot, []).append(blob)
        groups = groups_of(blobs.get(LINKS_SLOT, []), slots)
        again: dict[int, list[bytes]] = {}
        for slot, mine in blobs.items():
            for to, blob in divide(mine, slots, groups).items() if whole else [(slot, one) for one in mine]:
                again.setdefault(to, []).append(blob)
        found.append({slot: order.merge(order.decoder, mine, 0, 1) for slot, mine in again.items()})
    assert content(found[0]) == content(found[-1])
    return found[0]


def content(slots: Slots) -> dict[int, tuple[dict[int, list[Any]], list[Any]]]:
    return {
        slot: ({of.shape.table_id: list(of.rows) for of in work.folded}, list(work.ordered.changes))
        for slot, work in slots.items()
        if work.folded or work.ordered.changes
    }


def keys_of(work: SegmentWork) -> set[tuple[int, object]]:
    """(table id, identity) of net rows, (table id, commit_ts) of changes that stay in order."""
    net = {(of.shape.table_id, row.identity) for of in work.folded for row in of.rows}
    return net | {(change.shape.table_id, change.commit_ts) for change in work.ordered.changes}


@FEW
@given(drawn=streams(TABLES), parts=st.integers(1, 3), upserts=st.booleans())
def test_each_slot_has_exactly_the_rows_of_its_transactions(drawn: list[list[Op]], parts: int, upserts: bool) -> None:
    """A slot's work is what its transactions give by themselves, so no row of it is changed from another slot."""
    tables = [replace(info, upserts=upserts) for info in TABLES]
    stream = drawn if upserts else sound(drawn)[0]
    binlogs, view = payloads(stream, upserts=upserts), view_of(*tables)
    slots = divided(view, [binlogs[n::parts] for n in range(parts)])
    mine: dict[int, list[bytes]] = {}
    for one in binlogs:
        (alone,) = divided(view, [[one]], whole=False, slots=1).values()
        (slot,) = {slot for slot, work in slots.items() if keys_of(work) & keys_of(alone)}
        mine.setdefault(slot, []).append(one)
    for slot, some in mine.items():
        (alone,) = divided(view, [some], whole=False, slots=1).values()
        assert content({0: alone})[0] == content(slots)[slot]
    assert mine.keys() == content(slots).keys()


@VERY_FEW
@given(drawn=streams(TABLES), data=st.data())
def test_division_does_not_depend_on_parts(drawn: list[list[Op]], data: st.DataObject) -> None:
    """Rule 16: after a crash the range is divided again, by other tasks."""
    binlogs, view = payloads(sound(drawn)[0], upserts=False), view_of(*TABLES)
    of = data.draw(st.lists(st.integers(0, 2), min_size=len(binlogs), max_size=len(binlogs)))
    parts = [[one for one, part in zip(binlogs, of, strict=True) if part == n] for n in range(3)]
    assert content(divided(view, parts)) == content(divided(view, [binlogs]))


def slot_of(slots: Slots, table_id: int, number: int) -> int:
    """The slot of the row whose VALUES begin with this number."""
    (found,) = [
        slot
        for slot, work in slots.items()
        for folded in work.folded
        for row in folded.rows
        if folded.shape.table_id == table_id
        and bytes(row.row or row.stale[0]).strip(b"()").split(b",")[0] == b"%d" % number  # type: ignore[arg-type]
    ]
    return found


def steps(*of: tuple[TableInfo, Step]) -> list[bytes]:
    return [transaction([one], commit_ts=100 + n) for n, one in enumerate(of)]


def put(key: int, u: int | None) -> Step:
    return ("insert", {}, {1: key, 2: u, 3: 0})


@pytest.mark.parametrize("info", [SECONDARY, NULLABLE], ids=lambda info: info.name)
@pytest.mark.parametrize(
    "freed", [("delete", {1: 1, 2: 7, 3: 0}, {}), ("update", {1: 1, 2: 7, 3: 0}, {1: 1, 2: 8, 3: 0})]
)
def test_row_that_takes_a_freed_unique_value_is_in_the_slot_of_its_former_row(info: TableInfo, freed: Step) -> None:
    for key in range(2, 9):
        slots = divided(view_of(info), [steps((info, freed)), steps((info, put(key, 7)))])
        assert slot_of(slots, info.id, 1) == slot_of(slots, info.id, key)


def test_unique_keys_with_null_have_nothing_in_common() -> None:
    slots = divided(view_of(NULLABLE), [steps(*((NULLABLE, put(key, None)) for key in range(30)))])
    assert slots.keys() == {0, 1, 2}


PARENT = table([("id", INT)], handle="id", table_id=1, name="parent")
CHILD = table([("id", INT), ("p", INT)], handle="id", table_id=2, name="child")
FOREIGN = {
    "id": 1, "fk_name": {"O": "own", "L": "own"}, "ref_table": {"O": "Parent", "L": "parent"},
    "ref_cols": [{"O": "id", "L": "id"}], "cols": [{"O": "p", "L": "p"}], "state": 5,
}  # fmt: skip


def test_row_is_in_the_slot_of_its_parent() -> None:
    joined = view_of(PARENT, replace(CHILD, rest={"fk_info": [FOREIGN]}))
    of = [(PARENT, put(key, None)) for key in range(20)] + [(CHILD, put(key, key)) for key in range(20)]
    binlogs = steps(*((info, (kind, old, {1: new[1], 2: new[2]})) for info, (kind, old, new) in of))
    assert len(divided(joined, [binlogs])) == 1
    assert len(divided(view_of(PARENT, CHILD), [binlogs])) == SLOTS


GENERATED = ColumnInfo(3, "g", 2, INT, generated_expr="`id` div 2")


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (replace(TEXT, collate="utf8mb4_general_ci"), IndexColumn("c", 1)),
        (replace(TEXT, collate=""), IndexColumn("c", 1)),
        (TEXT, IndexColumn("c", 1, 3)),
        (TEXT, IndexColumn("g", 2)),
    ],
)
def test_table_with_unique_key_that_cannot_be_compared_is_in_one_slot(kind: Any, part: IndexColumn) -> None:
    info = table([("id", INT), ("c", not_null(kind))], handle="id", table_id=3)
    info = replace(info, columns=(*info.columns, GENERATED), indexes=(IndexInfo(1, "cc", (part,), unique=True),))
    binlogs = steps(*((info, ("insert", {}, {1: key, 2: b"%d" % key})) for key in range(30)))
    assert len(divided(view_of(info), [binlogs])) == 1


def test_transaction_over_many_rows_is_in_one_slot_and_others_are_dealt_evenly() -> None:
    info = table([("id", INT)], handle="id", table_id=4)
    many: list[Step] = [("insert", {}, {1: key}) for key in range(100)]
    pairs = [[("insert", {}, {1: 1000 + 2 * n + m}) for m in (0, 1)] for n in range(200)]
    binlogs = [transaction([(info, step) for step in of], commit_ts=10 + n) for n, of in enumerate([many, *pairs])]
    sizes = sorted(len(work.folded[0].rows) for work in divided(view_of(info), [binlogs]).values())
    assert sum(sizes) == 500 and sizes[-1] - sizes[0] <= 2


edges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=60)


def links_of(pairs: Sequence[tuple[int, int]]) -> Links:
    nodes, marks = np.array(pairs, np.int64).reshape(-1, 2).T
    return nodes, marks


@FEW
@given(pairs=edges, cut=st.integers(0, 60), slots=st.integers(1, 5))
def test_groups_are_closed_and_equal_for_any_parts(pairs: list[tuple[int, int]], cut: int, slots: int) -> None:
    """A mark is a transaction, which is in one part: so parts are made of complete marks."""
    groups = assign_groups([linked([links_of(pairs)])], slots)
    parts = [[pair for pair in pairs if (pair[1] < cut // 3) == side] for side in (True, False)]
    again = assign_groups([linked([links_of(part)]) for part in parts], slots)
    assert (groups.nodes.tolist(), groups.slots.tolist()) == (again.nodes.tolist(), again.slots.tolist())
    slot_of_node = groups.slots_of(np.arange(31), slots).tolist()
    assert set(slot_of_node) <= set(range(slots))
    for _, mark in pairs:
        assert len({slot_of_node[node] for node, other in pairs if other == mark}) == 1


@FEW
@given(st.binary(max_size=64))
def test_damaged_links_are_refused(data: bytes) -> None:
    try:
        nodes, marks = unpacked(data)
    except ValueError:
        assert len(data) % 16
    else:
        assert packed((nodes, marks)) == data


def test_damaged_blob_is_refused() -> None:
    order = FoldOrder(PackedView.of(view_of(SECONDARY)), SQL_TEXT, SLOTS, whole=True)
    cutter = order.builder(order.decoder())
    cutter.add_all(steps((SECONDARY, put(1, 1))))
    blob = order.cut(cutter)[LINKS_SLOT]
    for end in range(0, len(blob), 7):
        with pytest.raises(BlobError):
            groups_of([blob[:end]], SLOTS)
