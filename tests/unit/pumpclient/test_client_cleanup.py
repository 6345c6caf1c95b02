"""Correctness rule 5, the writer's half: clean-up rollbacks of prewrites whose result is unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from binlog.envelope import BinlogType

from pumpclient.errors import (
    CommitUndelivered,
    PrewriteFailed,
)
from tests.unit.pumpclient.conftest import FAST, Field, until
from tests.unit.pumpclient.stub_pump import Fault

KEY, VALUE = b"t\x80key", b"\x08\x01"
BOTH_WAYS = pytest.mark.parametrize("extension", [True, False], ids=["batched", "plain"])


@BOTH_WAYS
async def test_copy_with_lost_answer_is_rolled_back_only_after_commit_is_stored(field: Field, extension: bool) -> None:
    """The prewrite sits on two pumps; the one that did not acknowledge gets a rollback once the commit is stored."""
    lost, acked, idle = [await field.add(name, extension=extension) for name in ("a", "b", "c")]
    client = await field.client()
    lost.faults.append(Fault.LOSE_ANSWER)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    assert 100 in lost.pending
    assert client.rollbacks_owed == 0
    await asyncio.sleep(0.05)
    assert not lost.of(BinlogType.ROLLBACK)  # not settled, so nothing is cleaned up
    await client.commit(100, 101)
    await until(lambda: not lost.pending and not client.rollbacks_owed)
    assert [e.start_ts for e in lost.of(BinlogType.ROLLBACK)] == [100]
    assert not acked.of(BinlogType.ROLLBACK)
    assert not idle.received
    assert acked.commits == {100: 101}


async def test_rollback_that_overtakes_delayed_prewrite_leaves_nothing_pending(field: Field) -> None:
    """The copy arrives after its rollback: the tombstone refuses it, and nothing stays pending."""
    late, acked = await field.add("a"), await field.add("b")
    client = await field.client()
    late.faults.append(Fault.DELAY)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    await client.commit(100, 101)
    await until(lambda: late.tombstones == {100})
    late.release()
    assert not late.pending
    assert acked.commits == {100: 101}


async def test_cleanup_rollback_is_repeated_until_pump_answers(field: Field) -> None:
    """A pump that is down owes an answer until it is back."""
    lost, _acked = await field.add("a", returns=True), await field.add("b")
    client = await field.client()
    client._writer.cleaner._retry_s = 0.02
    lost.faults.append(Fault.LOSE_ANSWER)
    await client.write_prewrite(100, KEY, VALUE)
    port = lost.port
    await lost.stop()
    await client.commit(100, 101)
    await until(lambda: client.rollbacks_owed == 1)
    await asyncio.sleep(0.1)
    assert client.rollbacks_owed == 1
    await lost.start(port)
    await until(lambda: not client.rollbacks_owed)
    assert not lost.pending


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.FULL, Fault.REFUSE_TEXT])
async def test_cleanup_rollback_is_repeated_after_temporary_refusal(field: Field, fault: Fault) -> None:
    """A pump with a full disk, or too much in flight, refuses rollbacks, too, and has the copy still."""
    lost, acked = await field.add("a"), await field.add("b")
    client = await field.client()
    client._writer.cleaner._retry_s = 0.02
    lost.faults.append(Fault.LOSE_ANSWER)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    lost.only = lambda envelope: envelope.tp == BinlogType.ROLLBACK
    lost.faults.extend([fault] * 3)
    await client.commit(100, 101)
    await until(lambda: not client.rollbacks_owed)
    assert len(lost.of(BinlogType.ROLLBACK)) == 4
    assert not lost.pending
    assert acked.commits == {100: 101}


async def test_cleanup_rollback_is_not_repeated_after_permanent_refusal(field: Field) -> None:
    lost, _acked = await field.add("a"), await field.add("b")
    client = await field.client()
    lost.faults.append(Fault.LOSE_ANSWER)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    lost.only = lambda envelope: envelope.tp == BinlogType.ROLLBACK
    lost.faults.append(Fault.INVALID)
    await client.commit(100, 101)
    await until(lambda: not client.rollbacks_owed)
    assert len(lost.of(BinlogType.ROLLBACK)) == 1


async def test_pump_that_acknowledged_second_try_gets_no_rollback(field: Field) -> None:
    """First answer lost, second try acknowledged, both on one pump: a rollback there would lose the transaction."""
    pump = await field.add("a")
    client = await field.client()
    pump.faults.append(Fault.LOSE_ANSWER)
    assert await client.write_prewrite(100, KEY, VALUE) == "a"
    await client.commit(100, 101)
    await asyncio.sleep(0.05)
    assert not pump.of(BinlogType.ROLLBACK)
    assert pump.commits == {100: 101}


async def test_failed_prewrite_is_rolled_back_on_every_pump_tried(field: Field) -> None:
    """No pump acknowledged: the transaction never commits, and every possible copy goes."""
    pumps = [await field.add(name) for name in ("a", "b")]
    client = await field.client(limits=replace(FAST, write_timeout_s=0.05))
    for pump in pumps:
        pump.only = lambda envelope: envelope.tp == BinlogType.PREWRITE
        pump.faults.extend([Fault.LOSE_ANSWER] * 1000)
    with pytest.raises(PrewriteFailed):
        await client.write_prewrite(100, KEY, VALUE)
    await until(lambda: not client.rollbacks_owed)
    assert all(not pump.pending and pump.tombstones == {100} for pump in pumps)


async def test_undelivered_commit_triggers_no_cleanup_rollback(field: Field) -> None:
    """Not settled: the copy elsewhere may be all that is left."""
    lost, acked = await field.add("a"), await field.add("b")
    client = await field.client(limits=replace(FAST, commit_budget_s=0.03))
    lost.faults.append(Fault.LOSE_ANSWER)
    await client.write_prewrite(100, KEY, VALUE)
    await acked.stop()
    with pytest.raises(CommitUndelivered):
        await client.commit(100, 101)
    assert client.rollbacks_owed == 0
    assert 100 in lost.pending
