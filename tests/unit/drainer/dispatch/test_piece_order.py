"""A transaction in pieces is written as the same transaction in one: the same events, in the same order of classes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.dispatch import piece_order
from drainer.dispatch.piece_order import in_order
from drainer.dispatch.row_events import RowEvents, class_of
from tests.support.examples import FEW
from tests.support.row_case import BEGIN_TS, view_of
from tests.unit.drainer.dispatch.histories import (
    SHAPES,
    Event,
    Image,
    Row,
    change_rows,
    payloads_of,
    rows_of_transactions,
    run,
    table_of_shape,
)
from tests.unit.drainer.dispatch.test_dispatcher import RULES, Written, dispatcher, written
from tests.unit.drainer.dispatch.test_row_events import key

Changed = tuple[Row | None, Row | None]
Works = Callable[[], Iterable[ChangeSegment]]
A, B, C = (1, 0, None, 0), (1, 0, None, 1), (1, 0, None, 2)


def pieces_of(shape: str, pieces: Sequence[Sequence[Changed]], *, begin: int = BEGIN_TS) -> Works:
    """One transaction, decoded as the driver decodes a large one."""
    info = table_of_shape(shape)
    decoder = StreamDecoder(view_of(info))
    payloads = [payloads_of(info, [changes])[0] for changes in pieces]

    def works() -> Iterable[ChangeSegment]:
        piece = decoder.transaction()
        for payload in payloads:
            yield piece(payload, begin - 1, begin)

    return works


def in_pieces(works: Works, rule: str, *, raw: bool = False) -> Written:
    """(number, commit_ts, event) of each partition, as they are written."""
    to, events = dispatcher(rule, raw=raw), RowEvents(raw=raw)
    found: Written = defaultdict(list)
    for part in in_order(works, events):
        routes = to.routes(events.of(part.segment), is_piece=part.is_piece)
        for partition, rows in written([of for of in routes if part.class_ in (None, class_of(of.changes))]).items():
            found[partition] += [
                (len(found[partition]) + n, commit_ts, event) for n, (_, commit_ts, event) in enumerate(rows)
            ]
    return found


def events_of(found: Written) -> dict[tuple[str, int], list[Event]]:
    return {partition: [event for _, _, event in rows] for partition, rows in found.items()}


def divided(changes: Sequence[Changed], cuts: Iterable[int]) -> list[Sequence[Changed]]:
    edges = sorted({0, *cuts, len(changes)})
    return [changes[begin:end] for begin, end in pairwise(edges)]


@st.composite
def transactions(draw: st.DrawFn, shape: str) -> tuple[list[Changed], list[Changed], list[Sequence[Changed]]]:
    """(what was there before, a transaction, the transaction in pieces)."""
    history = [one for of in draw(rows_of_transactions(shape)) for one in of]
    begin = draw(st.integers(0, len(history)))
    changes = history[begin:]
    cuts = draw(st.sets(st.integers(1, max(1, len(changes) - 1)), max_size=6))
    return history[:begin], changes, divided(changes, cuts if len(changes) > 1 else ())


@pytest.mark.parametrize("rule", sorted(RULES))
@FEW
@given(data=st.data(), shape=st.sampled_from(SHAPES))
def test_transaction_in_pieces_gives_each_partition_events_of_the_whole(
    rule: str, data: st.DataObject, shape: str
) -> None:
    _, changes, pieces = data.draw(transactions(shape))
    if not changes:
        return
    whole = events_of(in_pieces(pieces_of(shape, [changes]), rule))
    found = events_of(in_pieces(pieces_of(shape, pieces), rule))
    assert {partition: Counter(rows) for partition, rows in found.items()} == {
        partition: Counter(rows) for partition, rows in whole.items()
    }
    for partition, rows in found.items():
        kinds = [kind for kind, _, _ in rows]
        assert kinds == [kind for kind, _, _ in whole[partition]]
        if shape == "none":
            assert rows == whole[partition]
        else:
            assert kinds == sorted(kinds, key=[Kind.DELETE, Kind.UPDATE, Kind.INSERT].index)


@given(data=st.data(), shape=st.sampled_from(SHAPES), raw=st.booleans())
def test_events_of_pieces_applied_in_order_violate_no_unique_key(data: st.DataObject, shape: str, raw: bool) -> None:
    info = table_of_shape(shape)
    before, changes, pieces = data.draw(transactions(shape))
    rows: list[Image] = []
    change_rows(info, rows, before)
    wanted = list(rows)
    change_rows(info, wanted, changes)
    for partition in (in_pieces(pieces_of(shape, pieces), "table", raw=raw) if pieces else {}).values():
        for _, _, event in partition:
            if raw and event[1] is not None:  # an update that moves a row onto one that another is to leave
                rows.remove(event[1])
                event = (event[0], None, event[2])
            run(rows, event, lambda image: key(shape, image) if shape != "none" and not raw else None)
            taken = [image[2] for image in rows if image[2] is not None]
            assert raw or len(set(taken)) == len(taken)
    assert Counter(rows) == Counter(wanted)


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ([[(None, A)], [(A, B)]], [(Kind.INSERT, None, B)]),
        ([[(A, B)], [(B, C)]], [(Kind.UPDATE, A, C)]),
        ([[(A, None)], [(None, B)]], [(Kind.UPDATE, A, B)]),
        ([[(None, A)], [(A, None)]], []),
        ([[(A, (2, 0, None, 1))], [((2, 0, None, 1), C)]], [(Kind.UPDATE, A, C)]),
        # One key of a moved row is changed in both pieces, the other in one.
        (
            [[(A, (2, 0, None, 1))], [((2, 0, None, 1), (2, 0, None, 2))]],
            [(Kind.DELETE, A, None), (Kind.INSERT, None, (2, 0, None, 2))],
        ),
        # A value that a row gives up in the last piece, and another takes there.
        (
            [[(None, (7, 0, None, 0))], [((1, 0, 5, 0), None), (None, (2, 0, 5, 0))]],
            [
                (Kind.DELETE, (1, 0, 5, 0), None),
                (Kind.INSERT, None, (7, 0, None, 0)),
                (Kind.INSERT, None, (2, 0, 5, 0)),
            ],
        ),
        # The row that gives up the value is changed in two pieces, the row that takes it in one.
        (
            [[((1, 0, 5, 0), (1, 0, 6, 0)), (None, (2, 0, 5, 0))], [((1, 0, 6, 0), None)]],
            [(Kind.DELETE, (1, 0, 5, 0), None), (Kind.INSERT, None, (2, 0, 5, 0))],
        ),
    ],
)
def test_changes_of_one_row_in_several_pieces_are_merged(pieces: list[list[Changed]], wanted: list[Event]) -> None:
    found = events_of(in_pieces(pieces_of("handle", pieces), "table"))
    assert [event for rows in found.values() for event in rows] == wanted


def test_only_rows_that_occur_in_several_pieces_are_held() -> None:
    """A transaction of any size is held in memory only as far as its pieces meet."""
    pieces: list[list[Changed]] = [
        [(None, (number, 0, None, 0)) for number in range(begin, begin + 11)] for begin in (0, 11, 22)
    ]
    pieces[2].append(((5, 0, None, 0), (5, 0, None, 1)))
    parts = list(in_order(pieces_of("handle", pieces), RowEvents()))
    assert max(part.segment.change_count for part in parts) == 11
    assert sum(part.segment.change_count == 2 for part in parts) == 3  # once for each class


def test_pieces_with_only_inserts_are_read_twice() -> None:
    read = 0
    works = pieces_of("handle", [[(None, (number, 0, None, 0))] for number in range(5)])

    def counted() -> Iterable[ChangeSegment]:
        nonlocal read
        read += 1
        yield from works()

    assert len(list(in_order(counted, RowEvents()))) == 5
    assert read == 2


@FEW
@given(data=st.data(), shape=st.sampled_from(SHAPES))
def test_colliding_row_hashes_change_no_event(data: st.DataObject, shape: str) -> None:
    _, changes, pieces = data.draw(transactions(shape))
    if not changes:
        return
    whole = events_of(in_pieces(pieces_of(shape, [changes]), "index-value"))
    with pytest.MonkeyPatch.context() as patched:
        before = piece_order._digests
        patched.setattr(piece_order, "_digests", lambda *image: before(*image) % np.uint64(2))
        found = events_of(in_pieces(pieces_of(shape, pieces), "index-value"))
    assert {partition: Counter(rows) for partition, rows in found.items()} == {
        partition: Counter(rows) for partition, rows in whole.items()
    }


@FEW
@given(data=st.data(), shape=st.sampled_from(SHAPES), rule=st.sampled_from(sorted(RULES)))
def test_pieces_of_several_transactions_are_written_in_order(data: st.DataObject, shape: str, rule: str) -> None:
    """Each has one piece or two."""
    info = table_of_shape(shape)
    history = [changes for changes in data.draw(rows_of_transactions(shape)) if changes]
    decoder = StreamDecoder(view_of(info))
    pieces: list[bytes] = []
    for number, changes in enumerate(history):
        cut = data.draw(st.integers(0, len(changes)))
        for part in (changes[:cut], changes[cut:]):
            if part:
                pieces.append(payloads_of(info, [[]] * number + [part])[number])

    def works() -> Iterable[ChangeSegment]:
        for payload in pieces:
            yield decoder.segment([payload], 0, 1)

    found = in_pieces(works, rule)
    rows: list[Image] = []
    change_rows(info, rows, [change for changes in history for change in changes])
    if rule == "table":
        made: list[Image] = []
        for partition in found.values():
            for _, _, event in partition:
                run(made, event, lambda image: key(shape, image) if shape != "none" else None)
        assert Counter(made) == Counter(rows)
    for partition in found.values():
        stamps = [commit_ts for _, commit_ts, _ in partition]
        assert stamps == sorted(stamps)
    if shape != "none":
        removed = Counter((ts, key(shape, old)) for of in found.values() for _, ts, (_, old, _) in of if old)
        added = Counter((ts, key(shape, new)) for of in found.values() for _, ts, (_, _, new) in of if new)
        assert {*removed.values(), *added.values()} <= {1}


def test_error_raised_while_reading_pieces_is_passed_on() -> None:
    works = pieces_of("handle", [[(None, A)], [(A, B)]])

    def torn() -> Iterable[ChangeSegment]:
        yield from works()
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        list(in_order(torn, RowEvents()))


def test_pieces_without_changes_give_no_events() -> None:
    def empty() -> Iterable[ChangeSegment]:
        yield ChangeSegment(0, 1, (), 0, 0)

    assert not list(in_order(empty, RowEvents()))
    assert not list(in_order(lambda: (), RowEvents()))
