"""What is ended and what is left, with brokers that are made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from drainer.protocol.encoder import Message
from drainer.sink.document_position import Document
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.producer import ProducerLost
from drainer.sink.kafka.reader import Record
from drainer.sink.kafka.transactions import hanging as hanging_module
from drainer.sink.kafka.transactions.control_records import COUNTS_NOTE, WROTE_NOTE, Place, changed, wrote_note
from drainer.sink.kafka.transactions.hanging import Hanging
from drainer.sink.kafka.transactions.outcomes import Basis
from drainer.sink.position import Stored
from drainer.sink.retry import Patience

RESOLVED = Message(b"resolved", b"", 0, 0)
STORED = Stored(100, 5, 0, "n")
NOTES = {COUNTS_NOTE: {"t": 3}, WROTE_NOTE: wrote_note({("t", 0): 10, ("t", 1): 20})}


class Brokers:
    """`open_at`: partitions with a transaction that hangs, and from where on; `shown`: what readers find there, and in
    others. It ends where the right producer sends something to it and ends that."""

    def __init__(self, open_at: Mapping[Place, int]) -> None:
        self.open_at = dict(open_at)
        self.ended: list[tuple[Place, bytes, bool]] = []
        self.given: dict[str, int] = {}
        self.graces: list[float] = []

    def counts(self) -> dict[str, int]:
        return self.given

    def settled(
        self, places: Sequence[Place], grace_s: float, known: Mapping[Place, int] | None = None
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        self.graces.append(grace_s)
        found = {place: self.open_at[place] for place in places if place in self.open_at}
        left = {place: at for place, at in found.items() if known is None or known.get(place) != at}
        return self.ends(places, committed=False), left

    def ends(self, places: Sequence[Place], *, committed: bool) -> dict[Place, int]:
        return dict.fromkeys(places, 50)


class OfControl:
    """Nothing of it hangs."""

    def __init__(self, document: Document) -> None:
        self._records = [Record(n, *pair) for n, pair in enumerate(changed(Document(), document))]

    def before_open(self, partition: int, patience: Patience) -> list[Record]:
        return self._records if partition == 0 else []

    def everything(self, partition: int, patience: Patience, *, begin: int = 0) -> list[Record]:
        return []


class Ending:
    """The driver's producer."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._sent: list[tuple[Place, bytes]] = []

    def begin(self) -> None:
        self._sent = []

    def send(self, topic: str, partition: int, messages: Iterable[Message], patience: Patience) -> None:
        self._sent += [((topic, partition), message.key or b"") for message in messages]

    def flush(self, patience: Patience) -> None: ...

    def commit(self, patience: Patience) -> None:
        self._end(commit=True)

    def abort(self, patience: Patience) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        for place, key in self._sent:
            self._brokers.ended.append((place, key, commit))
            self._brokers.open_at.pop(place, None)


class Witness:
    def __init__(self, *_: object) -> None: ...

    def is_committed(self, begins: Mapping[Place, int]) -> bool:
        raise AssertionError("nothing of the control topic hangs")

    def is_settled_behind(self, place: Place, begin: int) -> bool:
        return place == ("t", 1)

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None: ...


def end(monkeypatch: pytest.MonkeyPatch, brokers: Brokers, filler: Sequence[Message]) -> Callable[[], None]:
    """What a driver does before each transaction."""
    monkeypatch.setattr(hanging_module, "RowWitness", Witness)
    document = Document(STORED, notes=NOTES)
    given: Any = (KafkaConfig({}, "k1:9092", "control"), brokers, OfControl(document), "x", lambda _: filler)
    made = Hanging(*given)
    producer: Any = Ending(brokers)

    def once() -> None:
        basis = Basis(document, None, document)
        assert made.end(producer, [0], 0, basis, lambda: None, Patience("x", 0))["t", 0] == 50

    return once


def test_each_is_ended_with_its_own_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the position's transaction, and that of one behind it."""
    brokers = Brokers({("t", 0): 12, ("t", 1): 25})
    with capture_logs() as logs:
        end(monkeypatch, brokers, [RESOLVED])()
    assert brokers.ended == [(("t", 0), b"resolved", True), (("t", 1), b"end", False)]
    told = next(line for line in logs if line["event"].startswith("brokers have left transactions open"))
    assert (told["committed"], told["aborted"], told["left_open"]) == (["t-0"], ["t-1"], [])


def test_nothing_is_sent_where_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({})
    end(monkeypatch, brokers, [RESOLVED])()
    assert brokers.ended == []


def test_what_another_producer_has_open_is_told_once_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({("t", 2): 12})
    monkeypatch.setattr(brokers, "open_at", _Lasting(brokers.open_at))
    once = end(monkeypatch, brokers, [RESOLVED])
    for _ in range(3):
        once()
    assert brokers.ended == [(("t", 2), b"end", False)], "the first time it was tried"


class _Lasting(dict[Place, int]):
    def pop(self, *_: Any) -> Any:
        return None


def test_what_is_committed_and_cannot_be_ended_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time: an abort would take it away."""
    brokers = Brokers({("t", 0): 12, ("t", 1): 25})
    once = end(monkeypatch, brokers, [])
    for _ in range(2):
        with pytest.raises(
            ProducerLost, match=r"no end at offset 12 of t-0\. .*abort --topic t --partition 0 .*no resolved events"
        ):
            once()
    assert brokers.ended == [(("t", 1), b"end", False)]


def test_an_operator_is_told_of_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log, while nothing can end it here."""
    brokers = Brokers({("t", 2): 12})
    monkeypatch.setattr(brokers, "open_at", _Lasting(brokers.open_at))
    with capture_logs() as logs:
        end(monkeypatch, brokers, [RESOLVED])()
    told = [line for line in logs if line["event"] == "read-committed consumers cannot read past an open transaction"]
    assert len(told) == 1
    assert "offset 12 of t-2" in told[0]["why"]


class Meeting:
    """A driver's first transaction of a topic, in steps."""

    def __init__(self, brokers: Brokers) -> None:
        document = Document(STORED, notes=NOTES)
        given: Any = (KafkaConfig({}, "k1:9092", "control"), brokers, OfControl(document), "x", lambda _: [RESOLVED])
        self.hanging = Hanging(*given)
        self._producer: Any = Ending(brokers)
        self._basis = Basis(document, None, document)

    def look(self) -> dict[Place, int]:
        return self.hanging.end(self._producer, [0], 0, self._basis, lambda: None, Patience("x", 0))


def test_what_hangs_in_a_topic_that_no_position_names_is_ended_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver made the topic, sent rows there, and died before its position. What was aborted would be committed with
    the same rows when they come again."""
    monkeypatch.setattr(hanging_module, "RowWitness", Witness)
    brokers = Brokers({("new", 1): 3})
    brokers.given = {"new": 2}
    driver = Meeting(brokers)
    driver.look()
    assert brokers.ended == [], "nobody knows of it yet"
    with pytest.raises(ProducerLost, match="no end at offset 3 of new-1"):
        driver.hanging.meet("new")
    driver.look()
    assert brokers.ended == [(("new", 1), b"end", False)]
    assert driver.hanging.meet("new") == {("new", 0): 50, ("new", 1): 50}


def test_a_topic_that_was_met_is_looked_at_until_a_position_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction fails after it met the topic, and its abort has no end there."""
    monkeypatch.setattr(hanging_module, "RowWitness", Witness)
    brokers = Brokers({})
    brokers.given = {"new": 1, "t": 5}
    driver = Meeting(brokers)
    driver.hanging.meet("new")
    driver.hanging.meet("t")
    brokers.open_at.update({("new", 0): 3, ("t", 4): 8})
    driver.look()
    assert brokers.ended == [(("new", 0), b"end", False), (("t", 4), b"end", False)], "of more partitions, too"


def test_what_stays_open_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another producer's transaction would take half of the time. One that began since is looked for anew."""
    brokers = Brokers({("t", 2): 12})
    monkeypatch.setattr(brokers, "open_at", _Lasting(brokers.open_at))
    once = end(monkeypatch, brokers, [RESOLVED])
    once()
    monkeypatch.setattr(hanging_module, "GRACE_S", -1.0)
    brokers.graces.clear()
    once()
    assert brokers.graces == [-1.0, 0.0], "one look around the transaction, one at what is open still"
    brokers.ended.clear()
    brokers.open_at["t", 2] = 20
    once()
    assert brokers.ended == [(("t", 2), b"end", False)]


def test_a_control_topic_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({})
    monkeypatch.setattr(brokers, "ends", lambda places, *, committed: {})
    with pytest.raises(ProducerLost, match="partition 0 of control was not found"):
        Meeting(brokers).look()


def test_a_transaction_that_begins_while_it_looks_is_looked_for_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that hangs, and is not told before it was waited for."""
    brokers = Brokers({("t", 2): 12})
    monkeypatch.setattr(brokers, "open_at", _Lasting(brokers.open_at))
    once = end(monkeypatch, brokers, [RESOLVED])
    once()
    monkeypatch.setattr(hanging_module, "GRACE_S", -1.0)
    settled = brokers.settled

    def moves(places: Sequence[Place], grace_s: float, known: Mapping[Place, int] | None = None) -> Any:
        if grace_s == 0.0:
            brokers.open_at["t", 2] = 20
        return settled(places, grace_s, known)

    monkeypatch.setattr(brokers, "settled", moves)
    brokers.ended.clear()
    once()
    assert brokers.ended == []
    once()
    assert brokers.ended == [(("t", 2), b"end", False)]
