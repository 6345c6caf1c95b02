"""Slow pumps and unknown outcomes, as a service meets them: bounds, repetition, and what it is told."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from binlog.envelope import BinlogType, Envelope
from binlog.errors import EtcdError, TimestampUnavailable

from pumpclient.sdk import (
    BadDeclaration,
    Busy,
    CommitUndelivered,
    Outcome,
    PrewriteFailed,
    Service,
    Stage,
    Table,
    Transaction,
    TransactionReport,
    TransactionRolledBack,
)
from pumpclient.sdk.context import TRANSACTIONS, Permits
from pumpclient.sdk.transaction import PAUSE_MAX_S, Retry
from pumpclient.writer import UNDELIVERED
from tests.support.counted import counting
from tests.unit.pumpclient.conftest import FAST, until
from tests.unit.pumpclient.sdk.conftest import Shop, begun, opened, table_of
from tests.unit.pumpclient.stub_pump import Fault, StubPump

PATIENT = replace(FAST, write_timeout_s=60, commit_budget_s=60)
BRIEF = replace(FAST, write_timeout_s=60, commit_budget_s=0.02)


def gives_up_soon(service: Service) -> None:
    """From now on, with a prewrite that every pump has refused: one that is only slow is answered within a minute."""
    service.client._writer.limits = replace(service.client.limits, write_timeout_s=0.01)


def commits(envelope: Envelope) -> bool:
    return envelope.tp == BinlogType.COMMIT


def prewrites(envelope: Envelope) -> bool:
    return envelope.tp == BinlogType.PREWRITE and envelope.start_ts != 0


def without_commits(shop: Shop, fault: Fault = Fault.ERRMSG) -> StubPump:
    """The pump, which takes no commit from now on, until its `faults` are cleared."""
    pump = shop.pumps["a"]
    pump.only = commits
    pump.faults.extend([fault] * 100_000)
    return pump


# --- places -----------------------------------------------------------------------------------------------------------


async def test_places_admits_at_most_in_flight_max_in_order_of_arrival() -> None:
    permits = Permits(in_flight_max=3, queue_max=100, queue_wait_s=60)
    most, ended = 0, []

    async def one(number: int) -> None:
        nonlocal most
        await permits.take(f"transaction {number}")
        most = max(most, permits.in_flight)
        await asyncio.sleep(0)
        ended.append(number)
        permits.leave()

    await asyncio.gather(*(one(number) for number in range(50)))
    assert most == 3
    assert ended == list(range(50)), "in the order in which they came"
    assert (permits.in_flight, permits.queued) == (0, 0)


async def test_places_with_full_queue_raises_busy_at_once() -> None:
    permits = Permits(in_flight_max=1, queue_max=2, queue_wait_s=60)
    await permits.take("transaction 1")
    waiting = [asyncio.create_task(permits.take(f"transaction {n}")) for n in (2, 3)]
    await until(lambda: permits.queued == 2)
    with pytest.raises(Busy, match="transaction 4 was not sent: 1 are being sent and 2 wait"):
        await permits.take("transaction 4")
    waiting[0].cancel()
    await until(lambda: permits.queued == 1)
    permits.leave()
    await waiting[1]
    assert (permits.in_flight, permits.queued) == (1, 0)


async def test_places_raises_busy_after_queue_wait() -> None:
    permits = Permits(in_flight_max=1, queue_max=1, queue_wait_s=0.01)
    await permits.take("transaction 1")
    with pytest.raises(Busy, match=r"transaction 2 was not sent: none of the 1 being sent ended within 0\.01 s"):
        await permits.take("transaction 2")
    permits.leave()
    assert await permits.take("transaction 3") == 0.0


@pytest.mark.parametrize(
    "wrong", [{"in_flight_max": 0}, {"queue_max": -1}, {"queue_wait_s": -1}, {"in_flight_max": True}]
)
def test_places_refuses_invalid_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadDeclaration, match=next(iter(wrong))):
        Permits(**wrong)


async def test_service_refuses_transactions_when_pumps_are_slow_and_queue_is_full(shop: Shop) -> None:
    """Two commits hang; the third transaction waits, the fourth is told at once; nothing of either is at the pump."""
    service, table = await opened(shop, limits=PATIENT, permits=Permits(in_flight_max=2, queue_max=1, queue_wait_s=60))
    pump = without_commits(shop)
    before = len(shop.received())
    tasks = [asyncio.create_task((await begun(service, table, n)).commit()) for n in (1, 2)]
    await until(lambda: sum(commits(e) for e in shop.received()[before:]) >= 2)
    assert service.in_flight == 2
    third = asyncio.create_task((await begun(service, table, 3)).commit())
    await until(lambda: service.queued == 1)
    fourth = await begun(service, table, 4)
    with pytest.raises(Busy):
        await fourth.commit()
    assert fourth.stage is Stage.FAILED
    assert await fourth.outcome() is False
    assert sum(prewrites(e) for e in shop.received()[before:]) == 2
    pump.faults.clear()
    await asyncio.gather(*tasks, third)
    await until(lambda: (service.in_flight, service.queued) == (0, 0))


async def test_place_stays_taken_while_cancelled_commit_is_under_way(shop: Shop) -> None:
    """Callers that give up do not make room for more: what they began is still being sent."""
    service, table = await opened(shop, limits=PATIENT, permits=Permits(in_flight_max=1, queue_max=0))
    pump = without_commits(shop)
    txn = await begun(service, table)
    task = asyncio.create_task(txn.commit())
    await until(lambda: txn.start_ts in pump.pending and any(map(commits, shop.received()[-1:])))
    task.cancel()
    await asyncio.wait([task])
    assert service.in_flight == 1
    with pytest.raises(Busy):
        await (await begun(service, table, 2)).commit()
    pump.faults.clear()
    assert await txn.outcome() is True
    await until(lambda: service.in_flight == 0)


# --- outcome ----------------------------------------------------------------------------------------------------------


async def undelivered(shop: Shop, service: Service, table: Table) -> Transaction:
    without_commits(shop)
    txn = await begun(service, table)
    with pytest.raises(CommitUndelivered):
        await txn.commit()
    return txn


async def test_outcome_of_undelivered_commit_is_found_by_asking_again(shop: Shop) -> None:
    service = await shop.service(limits=BRIEF)
    txn = await undelivered(shop, service, await table_of(service))
    with pytest.raises(CommitUndelivered):
        await txn.outcome()
    shop.pumps["a"].faults.clear()
    assert await txn.outcome() is True
    assert (txn.stage, shop.pumps["a"].commits[txn.start_ts]) == (Stage.COMMITTED, txn.commit_ts)
    assert await txn.outcome() is True


async def test_outcome_during_commit_waits_for_its_end(shop: Shop) -> None:
    """Its prewrite is under way yet: False would say that it never will be visible."""
    service, table = await opened(shop, limits=PATIENT)
    pump = shop.pumps["a"]
    pump.only = prewrites
    pump.faults.extend([Fault.REFUSE] * 3)
    txn = await begun(service, table)
    committing = asyncio.create_task(txn.commit())
    await asyncio.sleep(0)
    assert txn.stage is Stage.COMMITTING
    assert await asyncio.wait_for(txn.outcome(), 60) is True
    assert await committing == txn.commit_ts == pump.commits[txn.start_ts]


async def test_outcome_during_failing_commit_is_false(shop: Shop) -> None:
    service, table = await opened(shop, limits=PATIENT)
    gives_up_soon(service)
    pump = shop.pumps["a"]
    pump.only = prewrites
    pump.faults.extend([Fault.REFUSE] * 100_000)
    txn = await begun(service, table)
    committing = asyncio.create_task(txn.commit())
    await asyncio.sleep(0)
    assert await asyncio.wait_for(txn.outcome(), 60) is False
    with pytest.raises(PrewriteFailed):
        await committing


async def test_outcome_after_close_of_undelivered_commit_stays_unknown(shop: Shop) -> None:
    """ClientClosed would say that nothing is visible, and the pump has stored the commit."""
    service, table = await opened(shop, limits=BRIEF)
    pump = without_commits(shop, Fault.LOSE_ANSWER)
    txn = await begun(service, table)
    with pytest.raises(CommitUndelivered):
        await txn.commit()
    assert pump.commits[txn.start_ts] == txn.commit_ts
    await service.close(wait_s=0)
    for _ in range(2):
        with pytest.raises(CommitUndelivered, match=f"{txn.start_ts}.* the pump client is closed"):
            await txn.outcome()


async def test_run_of_closed_service_raises_commit_undelivered_for_unknown_outcome(shop: Shop) -> None:
    """At once, for nobody answers any more; and not as ClientClosed, which its caller would make again."""
    service, table = await opened(shop, limits=PATIENT)
    pump = without_commits(shop, Fault.LOSE_ANSWER)
    begun_ts: list[int] = []

    def work(txn: Transaction) -> None:
        begun_ts.append(txn.start_ts)
        txn.insert(table, {"id": 1})

    running = asyncio.create_task(service.run(work, within_s=600))
    await until(lambda: begun_ts and begun_ts[0] in pump.commits)
    await service.close(wait_s=0)
    with pytest.raises(CommitUndelivered):
        await asyncio.wait_for(running, 60)
    assert len(begun_ts) == 1


async def test_outcome_of_commit_rolled_back_by_pump_is_false(shop: Shop) -> None:
    service = await shop.service(limits=BRIEF)
    txn = await undelivered(shop, service, await table_of(service))
    pump = shop.pumps["a"]
    pump.store_rollback(txn.start_ts)
    pump.faults.clear()
    assert await txn.outcome() is False
    assert await txn.outcome() is False


async def test_outcome_of_transaction_never_sent_is_false(shop: Shop) -> None:
    service = await shop.service()
    txn = await begun(service, await table_of(service))
    assert await txn.outcome() is False
    await txn.rollback()
    assert await txn.outcome() is False
    empty = await service.begin()
    await empty.commit()
    assert await empty.outcome() is True


# --- run --------------------------------------------------------------------------------------------------------------


async def test_run_repeats_transactions_that_were_not_committed(shop: Shop) -> None:
    """No timestamp, no pump that takes it, a rollback by the pump: each attempt is a new transaction."""
    service, table = await opened(shop, limits=PATIENT)
    gives_up_soon(service)
    pump = shop.pumps["a"]
    shop.timestamps.fail = 1
    pump.only = prewrites
    seen: list[int] = []

    def work(txn: Transaction) -> None:
        seen.append(txn.start_ts)
        if len(seen) == 1:
            pump.faults.extend([Fault.REFUSE] * 100_000)
        elif len(seen) == 2:
            pump.faults.clear()
            pump.only = commits
            pump.faults.append(Fault.ERRMSG)
            pump.on_write = lambda envelope: commits(envelope) and pump.store_rollback(envelope.start_ts)
        else:
            pump.on_write = lambda envelope: None
        txn.insert(table, {"id": len(seen)})

    commit_ts = await service.run(work, within_s=60)
    assert len(seen) == 3
    assert pump.commits[seen[2]] == commit_ts
    assert seen[1] not in pump.commits


async def test_run_does_not_repeat_what_is_committed(shop: Shop) -> None:
    """The answers of the commit are lost, the budget ends, and it is asked instead of written again."""
    service, table = await opened(shop, limits=BRIEF)
    pump = shop.pumps["a"]
    attempts = itertools.count()
    first: list[int] = []

    async def work(txn: Transaction) -> None:
        first.append(txn.start_ts)
        pump.only = commits
        pump.faults.extend([Fault.LOSE_ANSWER] * 20)
        txn.insert(table, {"id": next(attempts)})

    commit_ts = await service.run(work, within_s=60)
    assert len(first) == 1
    assert pump.commits[first[0]] == commit_ts


async def test_run_raises_last_error_when_its_time_is_over(shop: Shop) -> None:
    service, table = await opened(shop, limits=PATIENT)
    gives_up_soon(service)
    shop.pumps["a"].only = prewrites
    shop.pumps["a"].faults.extend([Fault.REFUSE] * 100_000)
    with pytest.raises(PrewriteFailed):
        await service.run(lambda txn: void(txn.insert(table, {"id": 1})), within_s=0.05)


def void(_: object) -> None: ...


ELSEWHERE = [EtcdError("of another service"), CommitUndelivered(5, 6, pump="x", tries=1, last="another transaction's")]


@pytest.mark.parametrize("error", [Busy("full"), ValueError("mine"), KeyError("mine"), *ELSEWHERE])
async def test_run_raises_other_errors_without_repetition(shop: Shop, error: Exception) -> None:
    service = await shop.service()
    calls: list[int] = []

    def work(txn: Transaction) -> None:
        calls.append(txn.start_ts)
        raise error

    with pytest.raises(type(error)):
        await service.run(work, within_s=60)
    assert len(calls) == 1


def test_retry_pauses_double_up_to_maximum_and_end_with_error() -> None:
    now_s = [0.0]
    retry = Retry(10.0, clock=lambda: now_s[0], dice=random.Random(3))
    error = TimestampUnavailable("none")
    pauses = [retry.pause_s(error) for _ in range(12)]
    assert all(
        0.5 * longest <= pause <= longest for pause, longest in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.8), strict=False)
    )
    assert max(pauses) <= PAUSE_MAX_S
    now_s[0] = 10.0
    with pytest.raises(TimestampUnavailable):
        retry.pause_s(error)


# --- what is told -----------------------------------------------------------------------------------------------------


def counted(outcome: Outcome) -> float:
    return TRANSACTIONS.labels(outcome.value)._value.get()


async def test_each_transaction_is_reported_once(shop: Shop) -> None:
    told: list[TransactionReport] = []
    service, table = await opened(shop, limits=PATIENT, on_transaction=told.append)
    pump = shop.pumps["a"]
    before = {outcome: counted(outcome) for outcome in Outcome}
    async with service.transaction() as txn:
        txn.insert_many(table, [{"id": 1}, {"id": 2}])
    async with service.transaction():
        pass  # no rows, nothing to report
    (done,) = told
    assert (done.start_ts, done.commit_ts, done.outcome, done.rows) == (
        txn.start_ts,
        txn.commit_ts,
        Outcome.COMMITTED,
        2,
    )
    assert (done.pump, done.error) == ("a", None)
    assert done.payload_bytes > 0
    assert done.seconds >= done.queued_s >= 0

    pump.only = prewrites
    pump.faults.append(Fault.TOO_LARGE)
    with pytest.raises(Exception, match="too large") as caught:
        await (await begun(service, table)).commit()
    assert (told[1].outcome, told[1].error, told[1].pump) == (Outcome.FAILED, caught.value, None)

    pump.only = commits
    pump.faults.append(Fault.ERRMSG)
    pump.on_write = lambda envelope: commits(envelope) and pump.store_rollback(envelope.start_ts)
    with pytest.raises(TransactionRolledBack):
        await (await begun(service, table)).commit()
    assert told[2].outcome is Outcome.FAILED
    pump.on_write = lambda envelope: None

    service.client._writer.limits = BRIEF
    await undelivered(shop, service, table)
    assert told[3].outcome is Outcome.UNKNOWN
    assert {outcome: counted(outcome) - before[outcome] for outcome in Outcome} == {
        Outcome.COMMITTED: 1,
        Outcome.FAILED: 2,
        Outcome.UNKNOWN: 1,
    }


async def test_a_hook_that_raises_ends_no_transaction(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def hook(done: TransactionReport) -> None:
        raise RuntimeError("mine")

    service, table = await opened(shop, on_transaction=hook)
    assert await (await begun(service, table)).commit()
    assert "on_transaction raised" in caplog.text


# --- a pump that is away between prewrite and commit ------------------------------------------------------------------

AWAY = replace(FAST, write_timeout_s=60, commit_budget_s=600, commit_wait_s=60)


def waits(service: Service, commit_wait_s: float) -> None:
    """From now on: on a slow machine a commit takes its time, and only what a test is about may be too long."""
    service.client.limits = replace(service.client.limits, commit_wait_s=commit_wait_s)


async def reporting(shop: Shop, *, commit_wait_s: float) -> tuple[Service, Table, list[CommitUndelivered]]:
    """A service and its table; the commits that it gives up behind a caller's back go to the list."""
    seen: list[CommitUndelivered] = []
    service = await shop.service(limits=AWAY)
    service.client._writer.on_undelivered = seen.append
    table = await table_of(service)
    waits(service, commit_wait_s)
    return service, table, seen


async def test_commit_raises_undelivered_after_commit_wait_while_delivery_goes_on(shop: Shop) -> None:
    """The caller is told that it is not known yet; the pump comes back, and has the commit without another call."""
    service, table, seen = await reporting(shop, commit_wait_s=0.05)
    pump = without_commits(shop)
    txn = await begun(service, table)
    with pytest.raises(
        CommitUndelivered, match=r"pump a has not acknowledged the commit \d+ yet: .* for 600 s in total"
    ) as told:
        await asyncio.wait_for(txn.commit(), 60)
    assert (told.value.under_way, told.value.pump, told.value.commit_ts) == (True, "a", txn.commit_ts)
    assert service.client.open_transactions == 1
    with pytest.raises(CommitUndelivered):
        await asyncio.wait_for(txn.outcome(), 60)
    assert not seen, "it is being sent: nothing is given up"
    pump.faults.clear()
    await until(lambda: pump.commits.get(txn.start_ts) == txn.commit_ts)
    await until(lambda: service.client.open_transactions == 0)
    assert await txn.outcome() is True


async def test_undelivered_commit_in_background_is_reported_and_can_be_asked_again(shop: Shop) -> None:
    service, table, seen = await reporting(shop, commit_wait_s=0)
    service.client._writer.limits = replace(AWAY, commit_budget_s=0.1)
    pump = without_commits(shop)
    txn = await begun(service, table)
    with pytest.raises(CommitUndelivered):
        await asyncio.wait_for(txn.commit(), 60)
    await until(lambda: seen and txn._delivery is not None and txn._delivery.done())  # told first, then ended
    assert (seen[0].start_ts, seen[0].under_way) == (txn.start_ts, False)
    pump.faults.clear()
    waits(service, 60)
    assert await txn.outcome() is True


async def test_commits_to_unreachable_pump_do_not_occupy_all_places(shop: Shop) -> None:
    """With a place each they would keep out, for ten minutes, what other pumps store at once; a caller who was
    cancelled makes no difference."""
    service, table = await opened(shop, limits=AWAY, permits=Permits(in_flight_max=2, queue_max=1, queue_wait_s=60))
    waits(service, 1)
    pump = without_commits(shop)
    patient, cancelled = [await begun(service, table, number) for number in (1, 2)]
    tasks = [asyncio.create_task(txn.commit()) for txn in (patient, cancelled)]
    await until(lambda: cancelled.start_ts in {each.start_ts for each in pump.received if commits(each)})
    tasks[1].cancel()
    with pytest.raises(CommitUndelivered):
        await asyncio.wait_for(tasks[0], 60)
    await until(lambda: service.in_flight == 0)
    assert service.client.open_transactions == 2
    pump.only = lambda envelope: commits(envelope) and envelope.start_ts in (patient.start_ts, cancelled.start_ts)
    waits(service, 60)
    third = await begun(service, table, 3)
    assert await asyncio.wait_for(third.commit(), 60) == pump.commits[third.start_ts]
    pump.faults.clear()
    assert [await txn.outcome() for txn in (patient, cancelled)] == [True, True]
    assert service.in_flight == 0, "each place is given back once"


async def test_run_asks_until_its_time_is_over_and_writes_once(shop: Shop) -> None:
    service, table = await opened(shop, limits=AWAY)
    waits(service, 0.05)
    pump = without_commits(shop)
    made: list[Transaction] = []

    def work(txn: Transaction) -> None:
        made.append(txn)
        txn.insert(table, {"id": 1})

    running = asyncio.create_task(service.run(work, within_s=600))
    await until(lambda: made and made[0].stage is Stage.FAILED)
    pump.faults.clear()
    assert await asyncio.wait_for(running, 60) == pump.commits[made[0].start_ts]
    assert len(made) == 1


async def test_create_database_raises_undelivered_after_commit_wait(shop: Shop) -> None:
    service = await shop.service(limits=AWAY)
    waits(service, 0.05)
    pump = without_commits(shop)
    with pytest.raises(CommitUndelivered) as told:
        await asyncio.wait_for(service.create_database("shop"), 60)
    assert told.value.under_way
    pump.faults.clear()
    await until(lambda: pump.commits.get(told.value.start_ts) == told.value.commit_ts)
    assert "shop" in await service.databases()


def rollbacks(envelope: Envelope) -> bool:
    return envelope.tp == BinlogType.ROLLBACK


def no_timestamp_behind_a_prewrite(shop: Shop) -> None:
    """As where the pump that dies is the one that allocates them; nor does it take a rollback."""
    pump = shop.pumps["a"]
    pump.only = rollbacks
    pump.faults.extend([Fault.ERRMSG] * 100_000)

    def fail(envelope: Envelope) -> None:
        if prewrites(envelope):
            shop.timestamps.fail = 1

    pump.on_write = fail


async def test_commit_without_commit_ts_raises_while_rollback_goes_on(shop: Shop) -> None:
    """Nothing is visible, and the caller is told why; the rollback goes on."""
    service, table = await opened(shop, limits=AWAY)
    waits(service, 0.05)
    no_timestamp_behind_a_prewrite(shop)
    txn = await begun(service, table)
    with pytest.raises(TimestampUnavailable):
        await asyncio.wait_for(txn.commit(), 60)
    assert txn.commit_ts is None and await txn.outcome() is False
    await until(lambda: service.in_flight == 0)
    assert service.client.open_transactions == 1, "the rollback is being sent"
    shop.pumps["a"].faults.clear()
    await until(lambda: service.client.open_transactions == 0)
    assert txn.start_ts not in shop.pumps["a"].pending


async def test_failed_rollback_does_not_replace_error_of_commit(shop: Shop) -> None:
    service, table = await opened(shop, limits=replace(BRIEF, commit_wait_s=60))
    no_timestamp_behind_a_prewrite(shop)
    txn, undelivered = await begun(service, table), counting(UNDELIVERED)
    with pytest.raises(TimestampUnavailable):
        await asyncio.wait_for(txn.commit(), 60)
    assert undelivered() == 1


async def test_ddl_without_commit_ts_raises_after_commit_wait_and_releases_lock(shop: Shop) -> None:
    """Nor does it keep the lock from the next one."""
    service = await shop.service(limits=AWAY)
    waits(service, 0.05)
    no_timestamp_behind_a_prewrite(shop)
    with pytest.raises(TimestampUnavailable):
        await asyncio.wait_for(service.create_database("shop"), 60)
    pump = shop.pumps["a"]
    pump.on_write = lambda _envelope: None
    waits(service, 60)
    await asyncio.wait_for(service.create_database("shop"), 60)
    pump.faults.clear()
    await until(lambda: service.client.open_transactions == 0)


async def test_closing_service_reports_transactions_it_was_still_sending(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller has been told that it is being sent; now it is not any more."""
    service, table, seen = await reporting(shop, commit_wait_s=0.05)
    without_commits(shop)
    txn = await begun(service, table)
    with pytest.raises(CommitUndelivered):
        await asyncio.wait_for(txn.commit(), 60)
    undelivered = counting(UNDELIVERED)
    await service.client.close(drain_s=0)
    await until(lambda: seen)
    assert [(error.start_ts, error.commit_ts, error.under_way) for error in seen] == [
        (txn.start_ts, txn.commit_ts, False)
    ]
    assert any(str(txn.start_ts) in str(record.__dict__) for record in caplog.records if record.levelname == "ERROR")
    assert undelivered() == 1
    await until(lambda: service.in_flight == 0)
    with pytest.raises(CommitUndelivered):
        await txn.outcome()
