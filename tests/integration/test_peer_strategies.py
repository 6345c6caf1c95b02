"""Strategies `score` and `label` of the pump client with a pump of the original beside one of ours (docs/operations.md,
"Which pump gets a write"). A desk test: skipped without PEER_BIN, in CI too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.node import NodeStatus
from binlog.cluster.registry import Registry

from pumpclient.client import PumpsClient
from pumpclient.errors import NoPump
from pumpclient.options import upstream
from pumpclient.writer import Limits
from tests.peer.cluster import Peer, PumpPlace, peer_bin, running_peer
from tests.peer.marks import desk_test
from tests.support.servers import Server, answers, wait_until
from tests.support.transactions import write

BINARIES = peer_bin()

pytestmark = desk_test(600)

OURS, GO = "ours", "original"
PATIENT = Limits(patience_s=10.0, write_timeout_s=30.0)  # who is chosen, not who is quick: the machine may be slow


@dataclass
class Mixed:
    """A pump of the original and one of ours, with the label zone=a."""

    peer: Peer
    place: PumpPlace
    ours: Server

    async def statuses(self) -> dict[str, NodeStatus]:
        etcd = connect_etcd([self.peer.pd_url])
        try:
            return {record.status.node_id: record.status for record in (await Registry(etcd).list("pumps")).nodes}
        finally:
            await etcd.close()

    async def written(self, client: PumpsClient, count: int) -> Counter[str]:
        return await write(client, upstream(self.peer.pd_url), self.peer.pd_url, count)

    async def client(self, strategy: str, **options: Any) -> PumpsClient:
        return await PumpsClient.connect(self.peer.pd_url, strategy, limits=PATIENT, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    assert BINARIES is not None
    with running_peer(BINARIES, tmp_path_factory.mktemp("strategies")) as peer:
        place = peer.place(OURS)
        ours = peer.our_pump(place, "-labels=zone=a")
        peer.go_pump(peer.place(GO))
        yield Mixed(peer, place, ours)


async def test_score_strategy_weighs_go_pump_without_score_as_mean(mixed: Mixed) -> None:
    """With one other, that is the same weight: half of the writes each, by dice."""
    found = await mixed.statuses()
    assert found[GO].score == 0 and not found[GO].label
    assert 1 <= found[OURS].score <= 1000 and (found[OURS].label or {})["zone"] == "a"
    async with await mixed.client("score") as client:
        ours, go = client._pool.weights([OURS, GO])
        assert ours == go
        chosen = await mixed.written(client, 200)
    assert sum(chosen.values()) == 200
    assert 50 <= chosen[OURS] <= 150, "seven times the deviation"


async def test_label_strategy_ignores_go_pump_without_labels(mixed: Mixed) -> None:
    async with await mixed.client("label", labels={"zone": "a"}) as client:
        assert await mixed.written(client, 40) == {OURS: 40}
        assert client.counts.outside == 0
    async with await mixed.client("label", labels={"zone": "a"}, labels_only=True) as client:
        assert await mixed.written(client, 10) == {OURS: 10}


async def test_label_strategy_with_unmatched_label_uses_any_pump_or_fails(mixed: Mixed) -> None:
    """Any pump, the original's too, with a count; or none."""
    async with await mixed.client("label", labels={"zone": "z"}) as client:
        chosen = await mixed.written(client, 60)
        assert set(chosen) == {OURS, GO} and client.counts.outside == 60
    async with await mixed.client("label", labels={"zone": "z"}, labels_only=True) as client:
        with pytest.raises(NoPump):
            await mixed.written(client, 1)


async def test_label_strategy_uses_go_pump_only_while_labelled_pump_is_down(mixed: Mixed) -> None:
    """And gives them back."""
    async with await mixed.client("label", labels={"zone": "a"}) as client:
        assert await asyncio.to_thread(mixed.ours.stop) == 0, mixed.ours.tail()
        async with asyncio.timeout(60):
            while client.available_pumps != (GO,):  # noqa: ASYNC110  the registry says so
                await asyncio.sleep(0.05)
        assert await mixed.written(client, 10) == {GO: 10}
        assert client.counts.outside == 10
        mixed.ours.start()
        await asyncio.to_thread(wait_until, lambda: answers(mixed.place.port), what="it answers")
        async with asyncio.timeout(120):
            while OURS not in client.available_pumps:  # noqa: ASYNC110  the registry says so
                await asyncio.sleep(0.05)
        assert await mixed.written(client, 10) == {OURS: 10}
