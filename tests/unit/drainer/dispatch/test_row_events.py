"""Events make, transaction by transaction, the states that the changes make, and there is one for each row of them."""

from __future__ import annotations

from collections import Counter

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.dispatch.row_events import RowEvents
from tests.support.row_case import BEGIN_TS, INT, Step, table, transaction
from tests.unit.drainer.dispatch.histories import (
    SHAPES,
    Event,
    Image,
    Row,
    change_rows,
    listed,
    payloads_of,
    rows_of_transactions,
    run,
    segment_of,
    table_of_shape,
)

KEYED = tuple(shape for shape in SHAPES if shape != "none")
A, B = (1, 0, None, 0), (1, 0, None, 1)
C = (1, 0, None, 2)


def events(info: TableInfo, segment: ChangeSegment, *, raw: bool = False) -> list[tuple[int, Event]]:
    return listed(RowEvents(raw=raw).of(segment))


def key(shape: str, image: Image) -> object:
    size = {"two columns": 2}.get(shape, 1)
    return image[:size]


@given(data=st.data(), shape=st.sampled_from(SHAPES), raw=st.booleans(), rows_min=st.sampled_from([1, 1 << 30]))
def test_events_reproduce_state_after_each_transaction(
    data: st.DataObject, shape: str, raw: bool, rows_min: int
) -> None:
    info = table_of_shape(shape)
    transactions = data.draw(rows_of_transactions(shape))
    found = events(info, segment_of([info], payloads_of(info, transactions), rows_min=rows_min), raw=raw)
    wanted: list[Image] = []
    rows: list[Image] = []
    for number, changes in enumerate(transactions):
        change_rows(info, wanted, changes)
        for commit_ts, event in found:
            if commit_ts == BEGIN_TS + number:
                run(rows, event, lambda image: key(shape, image) if shape != "none" else None)
                if not raw:  # what comes has room in every unique key
                    taken = [image[2] for image in rows if image[2] is not None]
                    assert len(set(taken)) == len(taken)
        assert Counter(rows) == Counter(wanted)


@given(data=st.data(), shape=st.sampled_from(KEYED), raw=st.booleans())
def test_each_row_has_one_event_in_transaction(data: st.DataObject, shape: str, raw: bool) -> None:
    """A delete and an insert, where an update was split."""
    info = table_of_shape(shape)
    found = events(info, segment_of([info], payloads_of(info, data.draw(rows_of_transactions(shape)))), raw=raw)
    removed = Counter((commit_ts, key(shape, old)) for commit_ts, (_, old, _) in found if old is not None)
    added = Counter((commit_ts, key(shape, new)) for commit_ts, (_, _, new) in found if new is not None)
    assert {*removed.values(), *added.values()} <= {1}
    classes = [(commit_ts, {Kind.DELETE: 0, Kind.UPDATE: 1, Kind.INSERT: 2}[kind]) for commit_ts, (kind, _, _) in found]
    assert classes == sorted(classes)
    for _, (kind, old, new) in found:
        if kind is Kind.UPDATE and not raw:
            assert old is not None
            assert new is not None
            assert (key(shape, old), old[2]) == (key(shape, new), new[2])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ([(None, A), (A, B)], [(Kind.INSERT, None, B)]),
        ([(A, B), (B, C)], [(Kind.UPDATE, A, C)]),
        ([(None, A), (A, None)], []),
        ([(A, None), (None, B)], [(Kind.UPDATE, A, B)]),
        ([(A, B), (B, None)], [(Kind.DELETE, A, None)]),
        ([(None, A), (A, B), (B, None), (None, C)], [(Kind.INSERT, None, C)]),
        ([(A, B), (B, A)], [(Kind.UPDATE, A, A)]),
        ([(A, (2, 0, None, 1))], [(Kind.DELETE, A, None), (Kind.INSERT, None, (2, 0, None, 1))]),
        ([(A, (2, 0, None, 1)), ((2, 0, None, 1), C)], [(Kind.UPDATE, A, C)]),
        ([((1, 0, 5, 0), (1, 0, None, 0))], [(Kind.DELETE, (1, 0, 5, 0), None), (Kind.INSERT, None, A)]),
        ([((1, 0, 5, 0), (1, 0, 5, 1))], [(Kind.UPDATE, (1, 0, 5, 0), (1, 0, 5, 1))]),
    ],
)
def test_changes_of_one_row_in_transaction_are_merged(
    changes: list[tuple[Row | None, Row | None]], wanted: list[tuple[Kind, Row | None, Row | None]]
) -> None:
    info = table_of_shape("handle")
    assert [event for _, event in events(info, segment_of([info], payloads_of(info, [changes])))] == wanted


def test_deletes_come_before_updates_and_inserts_last() -> None:
    """The split of one row's update would else collide with the row that takes its value."""
    info = table_of_shape("handle")
    changes: list[tuple[Row | None, Row | None]] = [
        (None, (7, 0, None, 0)),
        ((3, 0, 3, 0), (3, 0, 3, 1)),
        ((1, 0, 1, 0), (1, 0, 2, 0)),
        ((4, 0, 4, 0), None),
    ]
    found = [event for _, event in events(info, segment_of([info], payloads_of(info, [changes])))]
    assert [kind for kind, _, _ in found] == [Kind.DELETE, Kind.DELETE, Kind.UPDATE, Kind.INSERT, Kind.INSERT]


@pytest.mark.parametrize("shape", SHAPES)
def test_raw_mode_keeps_update_of_unique_key_whole(shape: str) -> None:
    """A clustered key is upstream's own key, under which a moved row is a delete and an insert."""
    info = table_of_shape(shape)
    updates: list[list[tuple[Row | None, Row | None]]] = [
        [((1, 1, 1, 1), (1, 1, 2, 1))],
        [((1, 1, 2, 1), (2, 2, 2, 1))],
    ]
    found = events(info, segment_of([info], payloads_of(info, updates)), raw=True)
    kinds = [kind for _, (kind, _, _) in found]
    if shape in ("handle", "clustered", "two columns"):
        assert kinds == [Kind.UPDATE, Kind.DELETE, Kind.INSERT]
    else:
        assert kinds == [Kind.UPDATE, Kind.UPDATE]


def test_transactions_with_equal_commit_ts_are_kept_apart() -> None:
    info = table([("id", INT), ("v", INT)], handle="id")
    payloads = [
        transaction([(info, ("insert", {}, {1: 1, 2: 1}))], commit_ts=BEGIN_TS, start_ts=5),
        transaction([(info, ("update", {1: 1, 2: 1}, {1: 1, 2: 2}))], commit_ts=BEGIN_TS, start_ts=6),
    ]
    assert [kind for _, (kind, _, _) in events(info, segment_of([info], payloads))] == [Kind.INSERT, Kind.UPDATE]


def test_events_of_several_tables_are_in_commit_order() -> None:
    first = table_of_shape("handle")
    second = table_of_shape("none", table_id=101, name="other")
    steps: list[tuple[TableInfo, Step]] = []
    for number in range(3):
        steps += [
            (info, ("insert", {}, {1: value, 2: 0, 3: None, 4: 0}))
            for info, value in ((first, number), (second, str(number).encode()))
        ]
    payloads = [
        transaction(steps, commit_ts=BEGIN_TS),
        transaction([(first, ("delete", {1: 1, 2: 0, 3: None, 4: 0}, {}))], commit_ts=BEGIN_TS + 1),
    ]
    found = events(first, segment_of([first, second], payloads))
    assert [commit_ts - BEGIN_TS for commit_ts, _ in found] == [0] * 6 + [1]
    texts = [new[0] for _, (_, _, new) in found if new is not None]
    assert [text for text in texts if isinstance(text, bytes)] == [b"0", b"1", b"2"]


def test_segment_without_changes_has_no_events() -> None:
    assert RowEvents().of(ChangeSegment(0, 1, (), 0, 0)) == []
