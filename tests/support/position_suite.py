"""What every PositionStore must do: one suite, run against each of them (rules 15 to 17).

`Transactions` begins one for any changefeed. A change that is right in all parts changes its own changefeed's position
and none of its neighbours'; one that is wrong in a single part raises, or says False, and changes nothing. The
neighbours are another cluster and another changefeed, at the same position in the same epoch, so that a part that is
missing from a comparison is felt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from drainer.sink.base import SCHEMA_ID, Identity, Intent, TableLoad
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.position import DONE, JobMark, PositionStore, SqlPositionStore, Stored
from drainer.sink.position import OURS as SQL_OURS

EPOCH = 3
INTENT = Intent(100, 200, 2, 3, 1, "all", ("a",), (7,))
OURS, *OTHERS = FEEDS = [
    Identity(cluster_id, changefeed, "n")
    for cluster_id, changefeed in ((7, "main"), (8, "main"), (7, "other"), (1 << 63, "main"))
]
AS_IT_WAS = Stored(100, 5, EPOCH, "n")

LOADS = (TableLoad(5, (("1", "'a?{e}\\\"ü😀'"), ("2", "x'00'"))), TableLoad(6))
SCHEMA = TableLoad(SCHEMA_ID, ())

Transactions = Callable[[Identity], AbstractContextManager[PositionStore]]
Call = Callable[[PositionStore], object]


class Undone(Exception):
    """A transaction that is to leave nothing behind."""


def hold(store: PositionStore) -> object:
    return store.hold(EPOCH)


def take_epoch(store: PositionStore) -> object:
    return store.take_epoch(EPOCH, "m")


def move(store: PositionStore) -> object:
    return store.move(epoch=EPOCH, after_ts=100, until_ts=200, schema_version=6)


def write_intent(store: PositionStore) -> object:
    return store.write_intent(epoch=EPOCH, intent=INTENT, stage="delete")


def clear_intent(store: PositionStore) -> object:
    return store.clear_intent(epoch=EPOCH, intent=INTENT, schema_version=6)


OPEN = replace(AS_IT_WAS, intent=INTENT, stage="direct")
TAKEN, OLDER = replace(AS_IT_WAS, epoch=4, node_id="m"), replace(AS_IT_WAS, epoch=2)
MOVED, BEFORE = replace(AS_IT_WAS, commit_ts=101), replace(AS_IT_WAS, commit_ts=99)
# What each may begin from, and what it then leaves.
SWAPS: dict[str, tuple[Call, Stored, Stored]] = {
    "hold": (hold, AS_IT_WAS, AS_IT_WAS),
    "take_epoch": (take_epoch, AS_IT_WAS, TAKEN),
    "move": (move, AS_IT_WAS, replace(AS_IT_WAS, commit_ts=200, schema_version=6)),
    "write_intent": (write_intent, AS_IT_WAS, replace(OPEN, stage="delete")),
    "write_intent again": (write_intent, OPEN, replace(OPEN, stage="delete")),
    "clear_intent": (clear_intent, OPEN, replace(AS_IT_WAS, commit_ts=200, schema_version=6)),
}
REFUSED = [
    ("hold", TAKEN, Fenced),
    ("take_epoch", TAKEN, Fenced),
    ("take_epoch", OLDER, Fenced),
    ("move", TAKEN, Fenced),
    ("move", OLDER, Fenced),
    ("move", MOVED, PositionMoved),
    ("move", BEFORE, PositionMoved),
    ("move", OPEN, PositionMoved),
    ("write_intent", TAKEN, Fenced),
    ("write_intent", MOVED, PositionMoved),
    ("clear_intent", replace(OPEN, epoch=4), Fenced),
    ("clear_intent", replace(OPEN, commit_ts=101), PositionMoved),
    ("clear_intent", AS_IT_WAS, PositionMoved),
]


def put(transaction_of: Transactions, identity: Identity, wanted: Stored) -> None:
    """Make a changefeed stand so, by the store's own means."""
    begins = wanted.intent.after_ts if wanted.intent is not None else wanted.commit_ts
    with transaction_of(identity) as store:
        store.create(begins, wanted.schema_version)
        for epoch in range(wanted.epoch):
            store.take_epoch(epoch, wanted.node_id)
        if wanted.intent is not None:
            store.write_intent(epoch=wanted.epoch, intent=wanted.intent, stage=wanted.stage)
        if wanted.commit_ts != begins:  # with an open range nothing moves it: as a hand would
            other = replace(wanted.intent or INTENT, after_ts=begins, until_ts=wanted.commit_ts)
            store.clear_intent(epoch=wanted.epoch, intent=other, schema_version=wanted.schema_version)
            moved = replace(wanted.intent or INTENT, after_ts=wanted.commit_ts)
            store.write_intent(epoch=wanted.epoch, intent=moved, stage=wanted.stage)


def all_of(transaction_of: Transactions) -> list[Stored | None]:
    found = []
    for identity in FEEDS:
        with transaction_of(identity) as store:
            found.append(store.read())
    return found


class PositionSuite:
    """Mixed into a test class that has the fixture `transaction_of`, empty for each test."""

    @pytest.mark.parametrize("name", SWAPS)
    def test_a_swap_changes_its_own_position_alone(self, transaction_of: Transactions, name: str) -> None:
        call, begin, wanted = SWAPS[name]
        for identity in FEEDS:
            put(transaction_of, identity, begin)
        with transaction_of(OURS) as store:
            call(store)
        assert all_of(transaction_of) == [wanted, *[begin] * len(OTHERS)]

    @pytest.mark.parametrize(("name", "wrong", "error"), REFUSED)
    def test_a_swap_that_is_wrong_in_one_part_changes_nothing(
        self, transaction_of: Transactions, name: str, wrong: Stored, error: type[Exception]
    ) -> None:
        """The neighbours stand as the swap would need its own."""
        call, begin, _ = SWAPS[name]
        put(transaction_of, OURS, wrong)
        for identity in OTHERS:
            put(transaction_of, identity, begin)
        before = all_of(transaction_of)
        with transaction_of(OURS) as store, pytest.raises(error, match="'main' of cluster 7"):
            call(store)
        assert all_of(transaction_of) == before

    @pytest.mark.parametrize("name", SWAPS)
    def test_a_swap_without_a_position(self, transaction_of: Transactions, name: str) -> None:
        call, begin, _ = SWAPS[name]
        for identity in OTHERS:
            put(transaction_of, identity, begin)
        with transaction_of(OURS) as store, pytest.raises((PositionMoved, Fenced), match="'main' of cluster 7"):
            call(store)
        assert all_of(transaction_of) == [None, *[begin] * len(OTHERS)]

    def test_what_a_transaction_did_is_gone_when_it_raises(self, transaction_of: Transactions) -> None:
        put(transaction_of, OURS, AS_IT_WAS)
        with pytest.raises(Undone), transaction_of(OURS) as store:
            move(store)
            store.mark_job(JobMark(9, "running", 150))
            raise Undone
        with transaction_of(OURS) as store:
            assert store.read() == AS_IT_WAS
            assert store.job(9) is None

    def test_the_schema_version_never_goes_back(self, transaction_of: Transactions) -> None:
        """D-CP-05: a batch of rows older than the newest DDL carries a lower one."""
        put(transaction_of, OURS, AS_IT_WAS)
        with transaction_of(OURS) as store:
            store.move(epoch=EPOCH, after_ts=100, until_ts=150, schema_version=4)
            assert store.read() == replace(AS_IT_WAS, commit_ts=150)
            later = replace(INTENT, after_ts=150)
            store.write_intent(epoch=EPOCH, intent=later, stage="direct")
            store.clear_intent(epoch=EPOCH, intent=later, schema_version=4)
        with transaction_of(OURS) as store:
            assert store.read() == replace(AS_IT_WAS, commit_ts=200)

    def test_a_node_id_and_a_plan_of_any_text(self, transaction_of: Transactions) -> None:
        text = "a'b\"c\\d?{e}\nü😀"
        with transaction_of(OURS) as store:
            store.create(1 << 62)
            store.take_epoch(0, text)
            store.mark_job(JobMark(1, "running", 1 << 62, 2, 3, text))
        with transaction_of(OURS) as store:
            assert store.read() == Stored(1 << 62, 0, 1, text)
            assert store.job(1) == JobMark(1, "running", 1 << 62, 2, 3, text)

    # DDL jobs

    def test_each_changefeed_has_its_own_jobs(self, transaction_of: Transactions) -> None:
        with transaction_of(OURS) as store:
            store.mark_job(JobMark(5, "running", 100, 3, 1, "plan"))
        for identity in FEEDS:
            with transaction_of(identity) as store:
                found = JobMark(5, "running", 100, 3, 1, "plan") if identity == OURS else None
                assert store.job(5) == found
                assert store.job(6) is None

    def test_a_job_s_mark_takes_the_place_of_the_former(self, transaction_of: Transactions) -> None:
        with transaction_of(OURS) as store:
            for mark in (JobMark(6, "rerun", 101), JobMark(5, "running", 100), JobMark(5, DONE, 100, 4, 2)):
                store.mark_job(mark)
        with transaction_of(OURS) as store:
            assert store.job(5) == JobMark(5, DONE, 100, 4, 2)

    def test_only_a_job_that_is_not_done_is_open_and_forgotten(self, transaction_of: Transactions) -> None:
        for identity in FEEDS:
            with transaction_of(identity) as store:
                store.mark_job(JobMark(5, "running", 100))
                store.mark_job(JobMark(6, DONE, 100))
        with transaction_of(OURS) as store:
            assert store.open_jobs() == [JobMark(5, "running", 100)]
            store.forget_job(5)
            store.forget_job(6)
            assert not store.open_jobs()
        for identity in FEEDS:
            with transaction_of(identity) as store:
                assert (store.job(5) is None, store.job(6) is None) == (identity == OURS, False)

    def test_old_jobs_that_are_done_are_purged(self, transaction_of: Transactions) -> None:
        for identity in FEEDS:
            with transaction_of(identity) as store:
                for job_id, state, commit_ts in ((7, DONE, 100), (8, DONE, 99), (9, "running", 99), (10, DONE, 99)):
                    store.mark_job(JobMark(job_id, state, commit_ts))
        with transaction_of(OURS) as store:
            store.purge_jobs(before=10, before_ts=100)
        for identity in FEEDS:
            with transaction_of(identity) as store:
                there = [job_id for job_id in (7, 8, 9, 10) if store.job(job_id) is not None]
                assert there == ([7, 9, 10] if identity == OURS else [7, 8, 9, 10])


class LoadSuite:
    """The loads of tables."""

    @pytest.fixture
    def stores(self, transaction_of: Transactions) -> Transactions:
        """Each changefeed has a position and the same loads, of which one range of table 5 is loaded."""
        for identity in FEEDS:
            with transaction_of(identity) as store:
                store.create(100, loads=True)
                store.put_loads(store.take_epoch(0, "n"), [replace(LOADS[0], loaded=1), LOADS[1]], None)
        return transaction_of

    def test_a_range_is_loaded_once_and_in_its_order(self, stores: Transactions) -> None:
        begun = [SCHEMA, replace(LOADS[0], loaded=1), LOADS[1]]
        with stores(OURS) as store:
            for table_id, number in ((5, 2), (7, 0)):
                with pytest.raises(PositionMoved, match=f"'main' of cluster 7.*range {number} of table {table_id}"):
                    store.step_load(table_id, 0, number)
            assert not store.step_load(5, 0, 0)
            assert store.loads() == begun
            assert store.step_load(5, 0, 1)
        with stores(OURS) as store:
            assert not store.step_load(5, 0, 1)
            assert not store.step_load(5, 0, 0)
            assert store.loads() == [SCHEMA, replace(LOADS[0], loaded=2), LOADS[1]]
        for identity in OTHERS:
            with stores(identity) as store:
                assert store.loads() == begun

    def test_loads_are_listed_once_and_by_the_drainer_that_holds_the_position(self, stores: Transactions) -> None:
        with stores(OURS) as store:
            store.put_loads(1, [], SCHEMA)
            store.put_loads(1, [LOADS[0]], SCHEMA)
            assert store.loads() == [replace(SCHEMA, loaded=1), replace(LOADS[0], loaded=1), LOADS[1]]
        with pytest.raises(Fenced), stores(OURS) as store:
            store.put_loads(2, [LOADS[0]], None)

    @pytest.mark.parametrize("loads", [False, True])
    def test_a_first_position_forgets_loads_of_an_earlier_one(self, stores: Transactions, loads: bool) -> None:
        with stores(OURS) as store:
            assert isinstance(store, SqlPositionStore)
            store.tables.execute(f"DELETE FROM {{drainer_position}} WHERE {SQL_OURS}", store.key)
            for job_id in (-5, 5):
                store.mark_job(JobMark(job_id, DONE, 100))
            store.create(100, loads=loads)
            assert store.loads() == ([SCHEMA] if loads else [])
            assert store.job(-5) is None, "a load that begins anew creates its tables again"
            assert store.job(5) is not None
        for identity in OTHERS:
            with stores(identity) as store:
                assert len(store.loads()) == 3
