"""Which outcome a transaction gets whose end brokers never wrote, from what is based on it."""

from __future__ import annotations

from dataclasses import replace

from drainer.sink.base import Intent
from drainer.sink.document_position import Document
from drainer.sink.kafka.control_records import MARK_KEY, Pair, changed, mark_value
from drainer.sink.kafka.hanging import told
from drainer.sink.kafka.outcomes import Basis, outcomes
from drainer.sink.kafka.reader import Record
from drainer.sink.position import Stored

INTENT = Intent(100, 200, 2, 3, 1, "all", ("a",), (7,))
BEFORE = Stored(100, 5, 0, "n")
WITH_INTENT = replace(BEFORE, intent=INTENT, stage="write")
BEHIND = replace(BEFORE, commit_ts=200)


def records(*pairs: Pair) -> list[Record]:
    return [Record(40 + n, key, value) for n, (key, value) in enumerate(pairs)]


def moved(to: Stored) -> list[Record]:
    return records(*changed(Document(BEFORE), Document(to)))


MARK = records((MARK_KEY, mark_value(INTENT)))
NOBODY = Basis().on(Document(BEFORE))


def test_what_something_is_based_on_is_committed() -> None:
    """An intent by the mark of a slot, ended or not; a slot by the position or by its range's end; and what this driver
    was acknowledged."""
    assert outcomes({0: moved(WITH_INTENT)}, [None, INTENT], NOBODY, "x") == ({0: True}, 100)
    assert outcomes({0: moved(BEHIND)}, [None], replace(NOBODY, acknowledged=BEHIND), "x") == ({0: True}, 200)
    assert outcomes({2: MARK}, [None, INTENT], NOBODY.on(Document(BEHIND)), "x") == ({2: True}, 200)
    assert outcomes({2: MARK}, [None, INTENT], replace(NOBODY, finished=INTENT), "x") == ({2: True}, 100)


def test_what_nobody_knows_of_is_aborted() -> None:
    """It is written again: a slot of a range that is open, a position, an intent that no slot has met; and what does
    not even have its mark or position was never to be committed."""
    assert outcomes({0: moved(BEHIND)}, [None], NOBODY, "x") == ({0: False}, 100)
    assert outcomes({0: moved(WITH_INTENT)}, [None, replace(INTENT, until_ts=90)], NOBODY, "x") == ({0: False}, 100)
    assert outcomes({2: MARK}, [None, INTENT], NOBODY, "x") == ({2: False}, 100)
    other = replace(INTENT, until_ts=300)
    assert outcomes({2: MARK}, [None, INTENT], replace(NOBODY, finished=other), "x") == ({2: False}, 100)
    assert outcomes({0: [], 1: []}, [None], NOBODY, "x") == ({0: False, 1: False}, 100)
    assert outcomes({0: moved(BEHIND)}, [], Basis(), "x") == ({0: False}, 0)


def test_a_slot_goes_by_the_position_that_the_driver_s_own_transaction_gets() -> None:
    """Both hang: the range's end, and a slot of it."""
    tails = {0: moved(BEHIND), 2: MARK}
    marks = [None, INTENT]
    assert outcomes(tails, marks, replace(NOBODY, acknowledged=BEHIND), "x") == ({0: True, 2: True}, 200)
    assert outcomes(tails, marks, NOBODY, "x") == ({0: False, 2: False}, 100)


def test_an_operator_is_told_the_commands() -> None:
    text = told({("shop", 3): 17, ("shop", 4): 2}, "k1:9092")
    assert "a transaction has no end at offset 17 of shop-3, and in 1 partitions more" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 describe-producers --topic shop --partition 3" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic shop --partition 3 --start-offset 17" in text
