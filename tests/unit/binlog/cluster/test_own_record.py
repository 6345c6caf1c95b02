"""A node's record while etcd loses answers: what is ours is recognised, and nothing else is (rule 2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from binlog.cluster.etcd import Compare, Put
from binlog.cluster.registry import ForeignRecord, NodeStatus, OwnRecord, Registry, State, key_of
from binlog.errors import EtcdError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lossy_etcd import LossyEtcd
from tests.support.memory_etcd import MemoryEtcd


def statuses(state: State = State.ONLINE) -> list[NodeStatus]:
    """Those of a node whose clock and position move on with every call of `pop`."""
    return [NodeStatus("p", "h:1", state, max_commit_ts=ts, update_ts=ts) for ts in range(500, 0, -1)]


async def taken(etcd: MemoryEtcd, values: list[NodeStatus]) -> OwnRecord:
    record = OwnRecord(Registry(etcd), "pumps", "p")
    await record.take(values.pop(), None)
    return record


@pytest.mark.parametrize("results", [["taken"], ["dropped"], ["taken", "taken"], ["taken", "dropped", "taken", "taken"],
                                   ["dropped", "taken", "dropped", "late", "late"]], ids=" ".join)  # fmt: skip
async def test_writes_whose_answers_were_lost_are_recognised(results: list[str]) -> None:
    """Two heartbeats in a row, or more: one change of etcd's leader."""
    etcd, values = LossyEtcd(), statuses()
    record = await taken(etcd, values)
    etcd.results = list(results)
    for _ in results:
        with pytest.raises(EtcdError):
            await record.write(values.pop)
    await record.write(values.pop)
    kept = await record.read()
    assert kept is not None
    assert kept.mod_revision == record.revision
    assert kept.status.update_ts == values[-1].update_ts - 1, "the record is as new as the last write"


@given(st.integers(0, 2**32))
async def test_lost_answers_make_no_record_foreign_and_foreign_records_are_noticed(seed: int) -> None:
    dice = random.Random(seed)
    etcd = LossyEtcd()
    record = await taken(etcd, statuses())
    state, ts = State.ONLINE, 1000
    for _ in range(dice.randrange(12)):
        etcd.results = dice.choices(["ok", "taken", "dropped", "late"], k=dice.randrange(4))
        state = dice.choice([state, state, State.PAUSING])
        ts += 1
        status = replace(statuses(state)[0], update_ts=ts)
        with suppress(EtcdError):
            await record.write(lambda status=status: status)  # type: ignore[misc]
    etcd.results = []
    await etcd.put(key_of("pumps", "p"), replace(statuses()[0], state=State.OFFLINE, update_ts=ts).to_json())
    with pytest.raises(ForeignRecord) as found:
        await record.write(lambda: replace(statuses(state)[0], update_ts=ts + 1))
    assert found.value.state == "offline"


async def test_own_record_keeps_few_open_values_in_long_outage() -> None:
    etcd, values = LossyEtcd(), statuses()
    record = await taken(etcd, values)
    etcd.results = ["dropped"] * 400
    for _ in range(400):
        with pytest.raises(EtcdError):
            await record.write(values.pop)
    assert len(record._open) == 1


async def test_unreadable_record_is_foreign() -> None:
    etcd, values = LossyEtcd(), statuses()
    record = await taken(etcd, values)
    await etcd.put(key_of("pumps", "p"), b"{")
    with pytest.raises(ForeignRecord, match="Expecting property name") as found:
        await record.write(values.pop)
    assert found.value.state == "unreadable"


async def test_uncertain_write_of_other_state_is_not_repeated() -> None:
    """`paused` and final must not be written as the `online` whose outcome is open, nor the other way round."""
    etcd, values = LossyEtcd(), statuses()
    record = await taken(etcd, values)
    etcd.results = ["dropped"]
    with pytest.raises(EtcdError):
        await record.write(values.pop)
    final = replace(statuses(State.PAUSED)[0], label={"final": "true"}, max_commit_ts=17)
    await record.write(lambda: final)
    kept = await record.read()
    assert kept is not None
    assert kept.status == final


class Overtaken(MemoryEtcd):
    """Holds the first write back until `others` have been made; `held`: it is."""

    others: asyncio.Event | None = None
    held: asyncio.Event

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        others, self.others = self.others, None
        if others is not None:
            self.held.set()
            await others.wait()
        return await super().txn(compares, puts, deletes)


async def test_own_write_overtaken_by_another_own_write_is_repeated() -> None:
    """The first fails because of the second, which is ours: neither is lost, and nobody else has written."""
    etcd, values = Overtaken(), statuses()
    record = await taken(etcd, values)
    slow, quick = values.pop(), values.pop()
    others = etcd.others = asyncio.Event()
    etcd.held = asyncio.Event()
    first = asyncio.ensure_future(record.write(lambda: slow))
    await asyncio.wait_for(etcd.held.wait(), 60)
    await record.write(lambda: quick)
    others.set()
    await asyncio.wait_for(first, 60)
    kept = await record.read()
    assert kept is not None
    assert kept.mod_revision == record.revision
    assert kept.status == slow
