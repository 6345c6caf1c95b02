"""Which outcome a transaction gets whose end brokers never wrote, from what is based on it and what readers find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from drainer.sink.base import Intent
from drainer.sink.document_position import Document
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.reader import Reader, Record
from drainer.sink.kafka.transactions.control_records import (
    MARK_KEY,
    SLOTS_NOTE,
    WROTE_NOTE,
    Pair,
    Place,
    changed,
    document_of,
    mark_value,
    slots_note,
    slots_of,
    wrote_note,
    wrote_of,
)
from drainer.sink.kafka.transactions.outcomes import Basis, Outcomes, outcomes
from drainer.sink.kafka.transactions.row_witness import RowWitness, told
from drainer.sink.position import Stored
from drainer.sink.retry import Patience

INTENT = Intent(100, 200, 2, 3, 1, "all", ("a",), (7,))
BEFORE = Stored(100, 5, 0, "n")
WITH_INTENT = replace(BEFORE, intent=INTENT, stage="write")
BEHIND = replace(BEFORE, commit_ts=200)
ROWS: dict[Place, int] = {("t", 0): 10, ("t", 1): 20, ("u", 0): 30}
SLOTS: dict[Place, int] = {("t", 0): 0, ("t", 1): 1, ("u", 0): 1}


def records(*pairs: Pair) -> list[Record]:
    return [Record(40 + n, key, value) for n, (key, value) in enumerate(pairs)]


def noted(
    stored: Stored, wrote: Mapping[Place, int] | None = None, slots: Mapping[Place, int] | None = None
) -> Document:
    notes: dict[str, Any] = {}
    if wrote is not None:
        notes[WROTE_NOTE] = wrote_note(wrote)
    if slots is not None:
        notes[SLOTS_NOTE] = slots_note(ROWS, slots)
    return Document(stored, notes=notes)


def moved(to: Document) -> list[Record]:
    return records(*changed(Document(BEFORE), to))


MARK = records((MARK_KEY, mark_value(INTENT)))
OLD_MARK = records((MARK_KEY, mark_value(replace(INTENT, until_ts=90))))
OTHER_MARK = records((MARK_KEY, mark_value(replace(INTENT, digest="other"))))
NOBODY = Basis().on(Document(BEFORE))
OPEN = Basis().on(noted(WITH_INTENT, {}, SLOTS))


class Partitions:
    """Of rows: where readers find a message at these offsets; None for what was deleted."""

    def __init__(self, **found: Sequence[int] | None) -> None:
        self.found: dict[Place, Sequence[int] | None] = {
            (name[0], int(name[1:])): offsets for name, offsets in found.items()
        }

    def finds(self, place: Place, begin: int) -> bool | None:
        offsets = self.found.get(place, ())
        return None if offsets is None else any(offset >= begin for offset in offsets)

    def is_committed(self, begins: Mapping[Place, int]) -> bool:
        return any(self.finds(place, begin) for place, begin in begins.items())


def decided(
    tails: Mapping[int, Sequence[Record]],
    marks: Sequence[Sequence[Record]] = (),
    basis: Basis = NOBODY,
    *,
    open_rows: Mapping[Place, int] | None = None,
    committed_marks: Mapping[int, Sequence[Record]] | None = None,
    **found: Sequence[int] | None,
) -> Outcomes:
    rows = Partitions(**found)
    return outcomes(tails, open_rows or {}, marks, committed_marks or {}, basis, "x", rows.is_committed, rows.finds)


def position(found: Outcomes) -> int:
    return found.document.stored.commit_ts if found.document.stored is not None else 0


def control(*given: Any, **more: Any) -> tuple[dict[int, bool], int]:
    found = decided(*given, **more)
    return dict(found.control), position(found)


def test_what_something_is_based_on_is_committed() -> None:
    """An intent by the mark of a slot, ended or not; a slot by the position or by its range's end; and what this driver
    was acknowledged."""
    assert control({0: moved(Document(WITH_INTENT))}, [[], MARK]) == ({0: True}, 100)
    assert control({0: moved(Document(BEHIND))}, [[]], replace(NOBODY, acknowledged=Document(BEHIND))) == (
        {0: True},
        200,
    )
    assert control({2: MARK}, [[], MARK], NOBODY.on(Document(BEHIND))) == ({2: True}, 200)
    assert control({2: MARK}, [[], MARK], replace(NOBODY, finished=INTENT)) == ({2: True}, 100)


def test_an_acknowledgement_is_of_one_transaction() -> None:
    """Not of the next one with the same position: other numbers of partitions are recorded so, with events that may not
    all have been written when it was aborted."""
    acknowledged = replace(NOBODY, acknowledged=noted(BEHIND, {("t", 0): 10}))
    assert control({0: moved(noted(BEHIND, {("t", 0): 10}))}, basis=acknowledged) == ({0: True}, 200)
    assert control({0: moved(noted(BEHIND, {("t", 0): 14}))}, basis=acknowledged) == ({0: False}, 100)


def test_what_nobody_knows_of_is_aborted() -> None:
    """It is written again: a slot of a range that is open, a position, an intent that no slot has met; and what does
    not even have its mark or position was never to be committed."""
    assert control({0: moved(Document(BEHIND))}, [[]]) == ({0: False}, 100)
    assert control({0: moved(Document(WITH_INTENT))}, [[], OLD_MARK]) == ({0: False}, 100)
    assert control({2: MARK}, [[], MARK]) == ({2: False}, 100)
    other = replace(INTENT, until_ts=300)
    assert control({2: MARK}, [[], MARK], replace(NOBODY, finished=other)) == ({2: False}, 100)
    assert control({0: [], 1: []}, [[]]) == ({0: False, 1: False}, 100)
    assert control({0: moved(Document(BEHIND))}, [], Basis()) == ({0: False}, 0)


def test_a_slot_goes_by_the_position_that_the_driver_s_own_transaction_gets() -> None:
    """Both hang: the range's end, and a slot of it."""
    tails = {0: moved(Document(BEHIND)), 2: MARK}
    marks = [[], MARK]
    assert control(tails, marks, replace(NOBODY, acknowledged=Document(BEHIND))) == ({0: True, 2: True}, 200)
    assert control(tails, marks) == ({0: False, 2: False}, 100)


def test_a_position_is_committed_where_readers_have_its_rows() -> None:
    """In any partition that it wrote to, behind where that ended before."""
    tails = {0: moved(noted(BEHIND, {("t", 0): 10, ("t", 1): 20}))}
    assert control(tails, t1=[20]) == ({0: True}, 200)
    assert control(tails, t0=[9], t1=[19], u0=[30]) == ({0: False}, 100)
    assert control(tails, t0=None) == ({0: False}, 100)


def test_a_slot_is_committed_where_readers_have_its_rows() -> None:
    """In any of its own partitions, and only where the mark is that of the open range."""
    assert control({2: MARK}, [[], MARK], OPEN, u0=[30]) == ({2: True}, 100)
    assert control({2: MARK}, [[], MARK], OPEN, t0=[10], t1=[19], u0=[29]) == ({2: False}, 100)
    assert control({2: OTHER_MARK}, [[], OTHER_MARK], OPEN, u0=[30]) == ({2: False}, 100)


def test_a_slot_goes_by_the_range_that_hangs_as_well() -> None:
    """The intent has no end, and is kept because a slot has written: where each slot's partitions ended is in it."""
    tails = {0: moved(noted(WITH_INTENT, {}, SLOTS)), 2: MARK}
    assert control(tails, [[], MARK], t1=[20]) == ({0: True, 2: True}, 100)
    assert control(tails, [[], MARK], t1=[19]) == ({0: True, 2: False}, 100)


def test_rows_that_hang_go_with_the_control_topic() -> None:
    """The driver's with its position, a slot's with its mark, each in the partitions that are open. Where the
    position's transaction wrote nothing, a commit of it is none of what hangs there."""
    tails = {0: moved(noted(BEHIND, {("t", 0): 10}))}
    at = {("t", 0): 10, ("t", 1): 25}
    assert decided(tails, open_rows=at).driver == dict.fromkeys(at, False)
    told = replace(NOBODY, acknowledged=noted(BEHIND, {("t", 0): 10}))
    assert decided(tails, basis=told, open_rows=at).driver == {("t", 0): True, ("t", 1): False}
    old, told = {0: moved(Document(BEHIND))}, replace(NOBODY, acknowledged=Document(BEHIND))
    assert decided(old, basis=told, open_rows=at).driver == dict.fromkeys(at, True), "an earlier version noted nothing"
    marks = [MARK, MARK]
    assert decided({2: MARK}, marks, OPEN, open_rows=at, u0=[30]).slots[1] == {("t", 1): True}
    assert decided({2: MARK}, marks, OPEN, open_rows=at).slots[1] == {("t", 1): False}


def test_rows_that_alone_hang_go_with_the_position_that_wrote_them() -> None:
    """What readers find behind its beginning is the position's; then what hangs came later, and had no position."""
    basis = Basis().on(noted(BEHIND, {("t", 0): 10, ("t", 1): 20}))
    at = {("t", 0): 12, ("t", 1): 22, ("u", 0): 30}
    found = decided({}, basis=basis, open_rows=at, t0=[11])
    assert found.driver == {("t", 0): False, ("t", 1): True, ("u", 0): False}
    assert position(found) == 200
    assert decided({}, basis=basis, open_rows={("t", 0): 9}).driver == {}, "older than that"
    assert decided({}, basis=basis, open_rows=at, t0=None).driver == {("t", 1): True, ("u", 0): False}, "deleted"
    assert decided({}, basis=NOBODY, open_rows=at).driver == {}, "of a drainer that noted nothing"


def test_rows_of_a_slot_that_alone_hang_go_with_its_mark() -> None:
    at = dict.fromkeys(SLOTS, 40)
    marks = {0: OLD_MARK, 1: MARK}
    assert decided({}, basis=OPEN, open_rows=at, committed_marks=marks).slots == {
        0: {("t", 0): False},
        1: {("t", 1): True, ("u", 0): True},
    }
    assert decided({}, basis=OPEN, open_rows={("u", 0): 40}, committed_marks=marks).slots == {1: {("u", 0): True}}
    assert decided({}, basis=OPEN, open_rows=at).slots[1] == {("t", 1): False, ("u", 0): False}


def test_what_is_noted_is_read_back() -> None:
    pairs = changed(Document(BEFORE), noted(WITH_INTENT, {("t", 1): 20}, SLOTS))
    found = document_of(records(*pairs), "x")
    assert wrote_of(found) == {("t", 1): 20}
    assert slots_of(found) == {0: {("t", 0): 10}, 1: {("t", 1): 20, ("u", 0): 30}}
    assert (wrote_of(Document(BEFORE)), slots_of(Document(BEFORE))) == (None, {})


def test_partitions_that_have_lost_their_messages_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither outcome may be taken for granted then."""
    rows = Partitions(t0=None, t1=[])
    with RowWitness(KafkaConfig({}, "k1:9092", "control"), "x", ROWS, {}, Patience("x", 0)) as witness:
        monkeypatch.setattr(witness, "is_settled_behind", rows.finds)
        assert not witness.is_committed({("t", 1): 20})
        assert not witness.is_committed({("t", 0): 10, ("t", 1): 20}), "the other one has its end, and nothing before"
        rows.found["t", 1] = [20]
        assert witness.is_committed({("t", 0): 10, ("t", 1): 20})
        with pytest.raises(
            DestinationRefused, match=r"the messages of t-0 from offset 10 on have been deleted\. .*describe-prod"
        ):
            witness.is_committed({("t", 0): 10})


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED.*: this user needs Read on the topic$"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "SASL_AUTHENTICATION_FAILED.*: user or password is wrong$"),
    ],
)
def test_where_rows_are_not_shown_it_is_told_what_the_brokers_said(
    monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    """Nothing else needs the right to read rows, so this may be the first time that it is missed."""

    class Refusing:
        def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
            raise KafkaException(KafkaError(code))

        def close(self) -> None: ...

    monkeypatch.setattr(Reader, "_made", lambda *_, **__: Refusing())
    with (
        RowWitness(KafkaConfig({}, "k1:9092", "control"), "x", ROWS, {}, Patience("x", 0)) as witness,
        pytest.raises(DestinationRefused, match=rf"only reading topic t .* reading is refused: topic t: {why}"),
    ):
        witness.is_committed({("t", 0): 10})


def test_topics_that_are_gone_tell_nothing_and_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of many partitions no more are read than it takes."""
    read: list[int] = []

    def shows(self: Reader, partition: int, *_: object) -> bool:
        read.append(partition)
        return partition == 1

    monkeypatch.setattr(Reader, "shows", shows)
    there = {("t", partition) for partition in range(4)}
    with RowWitness(KafkaConfig({}, "k1:9092", "control"), "x", there, {}, Patience("x", 0)) as witness:
        assert witness.is_committed({("gone", 0): 3, **dict.fromkeys(there, 10)})
        assert read == [0, 1]
        assert not witness.is_committed({("gone", 0): 3, ("t", 2): 10})
        with pytest.raises(DestinationRefused, match="the messages of gone-0 from offset 3 on have been deleted"):
            witness.is_committed({("gone", 0): 3})


def test_an_operator_is_told_the_commands() -> None:
    text = told({("shop", 3): 17, ("shop", 4): 2}, "k1:9092")
    assert "a transaction has no end at offset 17 of shop-3, and in 1 partitions more" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 describe-producers --topic shop --partition 3" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic shop --partition 3 --start-offset 17" in text
