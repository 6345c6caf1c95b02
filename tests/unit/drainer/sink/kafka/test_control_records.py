"""The control topic as records: what is read is what was written, whatever is compacted, and whoever else wrote."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import cast
from unittest import mock

import pytest
from binlog.topic.kafka import KafkaPartition, Record
from hypothesis import given
from hypothesis import strategies as st

from drainer.sink.base import Identity, Intent, TableLoad
from drainer.sink.document_position import Document, DocumentPositionStore, label_of
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.transactions import control_records
from drainer.sink.kafka.transactions.control_records import (
    MARK_KEY,
    Claims,
    changed,
    check_claims,
    claim_key,
    claim_value,
    claims,
    document_of,
    is_marked,
    mark_value,
    taken,
)
from drainer.sink.position import DONE, JobMark, PositionStore, Stored
from tests.support.position_suite import LoadSuite, PositionSuite, Transactions

INTENT = Intent(100, 200, 2, 3, 1, "all", ("a",), (7,))


CLAIM = claim_key((7, "main"))

CONTROL = KafkaPartition("control", 0)


class Log:
    """A partition of a compacted topic."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.end = 0

    def append(self, key: bytes, value: bytes | None) -> int:
        self.records.append(Record(CONTROL, self.end, key, value))
        self.end += random.Random(self.end).randint(1, 2)  # markers of transactions have offsets, too
        return self.records[-1].offset

    def compact(self, upto: int) -> None:
        """Of what is below `upto` only the last of each key stays, and a deletion perhaps not even that."""
        last = {record.key: record.offset for record in self.records}
        self.records = [
            record
            for record in self.records
            if record.offset >= upto or (last[record.key] == record.offset and record.value is not None)
        ]


class TestPosition(PositionSuite, LoadSuite):
    """The suite of all stores, over records; marks of slots lie elsewhere here."""

    test_a_chunk_is_counted_once_and_in_turn = None  # type: ignore[assignment]
    test_opening_again_takes_its_own_marks_and_makes_what_is_missing = None  # type: ignore[assignment]
    test_a_purge_takes_the_range_and_older_ones_of_its_own_changefeed = None  # type: ignore[assignment]
    test_a_slot_s_mark_is_judged = None  # type: ignore[assignment]
    test_only_a_job_that_is_not_done_is_open_and_forgotten = None  # type: ignore[assignment]
    test_a_first_position_forgets_loads_of_an_earlier_one = None  # type: ignore[assignment]  # of SQL's tables

    @pytest.fixture
    def transaction_of(self) -> Transactions:
        logs: dict[Identity, Log] = {}

        @contextlib.contextmanager
        def transaction(identity: Identity) -> Iterator[PositionStore]:
            log = logs.setdefault(identity, Log())
            label = label_of(identity, "topic c")
            document = document_of(log.records, label)
            store = DocumentPositionStore(deepcopy(document), label)
            yield store
            after = store.document
            if after.stored is None and (after.jobs or after.notes):  # a driver has a position before it has jobs
                after.stored = Stored(0, 0, 0)
                for key, value in changed(document, after):
                    log.append(key, value)
                return
            for key, value in changed(document, after):
                log.append(key, value)
            log.compact(log.end // 2)

        return transaction


positions = st.builds(
    Stored,
    commit_ts=st.integers(0, 1 << 62),
    schema_version=st.integers(0, 1 << 40),
    epoch=st.just(0),
    node_id=st.text(max_size=5),
    intent=st.none() | st.just(INTENT),
    stage=st.just(""),
)
jobs = st.dictionaries(st.integers(-9, 9), st.integers(1, 99), max_size=5)
borders = st.none() | st.lists(st.tuples(st.text(max_size=2), st.just("7")), max_size=7).map(tuple)
loads = st.dictionaries(st.integers(0, 3), st.tuples(borders, st.integers(0, 8)), max_size=3)
notes = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)


Loads = dict[int, tuple[tuple[tuple[str, ...], ...] | None, int]]
states_ = st.tuples(positions, jobs, notes, loads, st.booleans(), st.integers(0, 60))


@mock.patch.object(control_records, "BORDERS_MAX", 2)
@given(st.lists(states_, min_size=1, max_size=8))
def test_control_document_reads_back_equal_after_any_compaction(
    states: list[tuple[Stored, dict[int, int], dict[str, int], Loads, bool, int]],
) -> None:
    """By one driver after another, each of which claims."""
    log = Log()
    before, epoch = Document(), 0
    for stored, marks, noted, begun, takes_over, compacted in states:
        if takes_over or before.stored is None:
            epoch = log.append(CLAIM, claim_value(Identity(7, "main", "n")))
        after = Document(
            replace(stored, epoch=epoch, stage="write" if stored.intent is not None else ""),
            {id_: JobMark(id_, DONE, ts) for id_, ts in marks.items()},
            notes=noted,
            loads={id_: TableLoad(id_, of, loaded) for id_, (of, loaded) in begun.items()},
        )
        for key, value in changed(before, after):
            log.append(key, value)
        log.compact(compacted)
        assert document_of(log.records, "x") == after
        claim = max(claims(log.records, "x"), key=lambda one: one.epoch, default=None)
        assert claim is not None
        assert claim.epoch == epoch
        assert not changed(after, deepcopy(after))
        before = after


def test_records_of_older_epoch_do_not_change_document() -> None:
    """Where nothing fences it off, and even if compaction leaves nothing but its last words."""
    log = Log()
    old = Document(Stored(5, 1, 0, "old"))
    for key, value in changed(Document(), old):
        log.append(key, value)
    new = taken(old, 3, "new")
    for key, value in changed(old, new):
        log.append(key, value)
    moved = replace(old, stored=replace(old.stored or Stored(0, 0, 0), commit_ts=99))
    for key, value in changed(old, moved):
        log.append(key, value)
    log.compact(log.end)
    assert document_of(log.records, "x") == new


def test_loaded_range_writes_no_borders_again_and_missing_ones_are_an_error() -> None:
    """Else a table of many ranges would write all of them for each."""
    load = TableLoad(5, tuple((str(number),) for number in range(75)), 1)
    before = Document(Stored(5, 1, 0, "n"), loads={5: load})
    records = [Record(CONTROL, at, key, value) for at, (key, value) in enumerate(changed(Document(), before))]
    assert [one.key for one in records] == [
        b"0/position",
        *(b"0/borders/5/%d" % at for at in (0, 30, 60)),
        b"0/load/5",
    ]
    stepped = replace(before, loads={5: replace(load, loaded=2)})
    assert [key for key, _ in changed(before, stepped)] == [b"0/load/5"]
    with pytest.raises(DestinationRefused, match="borders/5/30"):
        document_of([one for one in records if not one.key.endswith(b"/30")], "x")


def test_claim_without_position_changes_no_document() -> None:
    log = Log()
    before = Document(Stored(5, 1, 0, "old"), {4: JobMark(4, DONE, 5)})
    for key, value in changed(Document(), before):
        log.append(key, value)
    log.append(CLAIM, claim_value(Identity(7, "main", "n")))
    assert document_of(log.records, "x") == before


def test_later_claim_fences_driver() -> None:
    log = Log()
    mine = log.append(CLAIM, claim_value(Identity(7, "main", "n")))
    check_claims(log.records, mine, "x")
    log.append(CLAIM, claim_value(Identity(7, "main", "m")))
    with pytest.raises(Fenced, match="'m' has taken over"):
        check_claims(log.records, mine, "x")


def test_claims_of_several_changefeeds_are_kept_apart_after_compaction() -> None:
    """Also when the topic is compacted; one that is taken back is none."""
    log = Log()
    ours, theirs = Identity(7, "main", "n"), Identity(7, "other", "m")
    mine = log.append(claim_key((7, "main")), claim_value(ours))
    other = log.append(claim_key((7, "other")), claim_value(theirs))
    log.compact(log.end)
    check_claims(log.records, mine, "x", (7, "main"))
    with pytest.raises(Fenced, match="'m' has taken over"):
        check_claims(log.records, mine, "x")
    assert {(claim.epoch, claim.owner) for claim in claims(log.records, "x")} == {
        (mine, (7, "main")),
        (other, (7, "other")),
    }
    log.append(claim_key((7, "other")), None)
    assert [claim.owner for claim in claims(log.records, "x")] == [(7, "main")]
    log.append(claim_key((7, "main")), claim_value(replace(ours, node_id="later")))
    with pytest.raises(Fenced, match="'later' has taken over"):
        check_claims(log.records, mine, "x", (7, "main"))


def test_new_epoch_deletes_records_of_former_epoch() -> None:
    """Else the topic would grow with each start."""
    jobs = {id_: JobMark(id_, DONE, 30 + id_) for id_ in (1, 2)}
    before = Document(Stored(40, 3, 5, node_id="n"), jobs=jobs)
    written = changed(Document(), before)
    assert all(value is not None for _, value in written)
    anew = dict(changed(before, taken(before, 9, "m")))
    assert {key for key, value in anew.items() if value is None} == {key for key, _ in written}
    assert {key for key, value in anew.items() if value is not None} == {b"9/position", b"9/job/1", b"9/job/2"}


@pytest.mark.parametrize("after", [False, True])
def test_claim_in_recreated_control_topic_fences_driver(after: bool) -> None:
    """Whose offset is smaller than that of ours, or another record has ours."""
    log, mine = Log(), 57
    log.append(CLAIM, claim_value(Identity(7, "main", "d2")))
    if after:
        log.end = mine
        log.append(b"57/position", b"{}")
    with pytest.raises(Fenced, match=r"'d2' has taken over \(epoch 0, ours is 57\)"):
        check_claims(log.records, mine, "x")
    with pytest.raises(Fenced, match="the claim of this drainer no longer exists"):
        check_claims(log.records[1:], mine, "x")


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_driver_knows_its_claim_by_its_id(is_ours: bool) -> None:
    log, identity = Log(), Identity(7, "main", "d")
    driver = Claims(KafkaSection(control_topic="control"), identity, cast(Reader, None), "x")
    driver._epoch = log.append(claim_key(driver.owner), claim_value(identity, driver.id if is_ours else "theirs"))
    with contextlib.nullcontext() if is_ours else pytest.raises(Fenced, match="the control topic was created again"):
        driver.check(log.records)


def test_slot_mark_counts_only_for_its_range_and_slots() -> None:
    log = Log()
    assert not is_marked(log.records, INTENT, "x")
    log.append(MARK_KEY, mark_value(replace(INTENT, after_ts=50, until_ts=100)))
    assert not is_marked(log.records, INTENT, "x")
    log.append(MARK_KEY, mark_value(INTENT))
    assert is_marked(log.records, INTENT, "x")
    with pytest.raises(PositionMoved, match="cut as its intent says"):
        is_marked(log.records, replace(INTENT, slots=3), "x")


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b"7", b'{"commit_ts": "x"}', b"\xff"])
def test_invalid_control_record_is_refused_with_topic_name(value: bytes) -> None:
    wanted = pytest.raises(DestinationRefused, match=r"topic c.*start the one that wrote it")
    with wanted:
        document_of([Record(CONTROL, 0, b"0/position", value)], "topic c")
    with pytest.raises(DestinationRefused):
        claims([Record(CONTROL, 0, CLAIM, value)], "topic c")
    with pytest.raises(DestinationRefused):
        is_marked([Record(CONTROL, 0, MARK_KEY, value)], INTENT, "topic c")
