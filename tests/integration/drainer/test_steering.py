"""A running drainer that binlogctl pauses, resumes, delays, ends at a commit_ts, and lets skip a transaction."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.cluster import tso
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry, State

from tests.integration.drainer.test_pumps_away import World, running_world
from tests.support.servers import ROOT, Etcd, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DELAY_S = 4


@pytest.fixture
def world(etcd: Etcd, java: None, tmp_path: Path) -> Iterator[World]:
    with running_world(etcd, tmp_path, "p1") as made:
        yield made


def binlogctl(world: World, command: str, *flags: str) -> None:
    steer(world, f"{command}-changefeed", *flags)


def steer(world: World, command: str, *flags: str) -> None:
    words = (command, "-node-id", "d1", "-pd-urls", world.cluster.url, *flags)
    subprocess.run([sys.executable, "-m", "pumpclient.ctl", *words], cwd=ROOT, check=True, timeout=240)


def drainer_state(world: World) -> State:
    async def read() -> State:
        etcd = connect_etcd([world.cluster.url])
        try:
            found = await Registry(etcd).get("drainers", "d1")
        finally:
            await etcd.close()
        assert found is not None
        return found.status.state

    return asyncio.run(read())


def boundary(world: World) -> int:
    """A ts above every commit so far and below every later one; the pump has resolved it."""
    ts = tso.compose(int(time.time() * 1000) + 5)
    wait_until(lambda: world.status()["PumpPos"]["p1"] > ts, what="the pump resolves it")
    return ts


def test_drainer_is_paused_resumed_delayed_and_ended_at_a_ts(world: World) -> None:
    drainer = world.drainer()
    try:
        world.write(5)
        world.arrived(drainer, world.everything)
        binlogctl(world, "pause")
        applied = world.everything()
        world.write(5)
        with world.service.transaction() as skipped:
            skipped.insert(world.table, {"id": -1})
        steer(world, "decide-transaction", "-commit-ts", str(skipped.commit_ts), "-skip", "-yes")
        boundary(world)
        found = world.status()
        assert found["SkipTransactions"] == [skipped.commit_ts]
        assert found["Paused"] and found["PausedBy"] == "127.0.0.1"
        assert world.rows() == applied and drainer_state(world) is State.ONLINE
        binlogctl(world, "resume")
        world.arrived(drainer, world.everything)
        wait_until(lambda: not world.status()["SkipTransactions"], what="the position passes the transaction")
        assert world.rows() == world.everything()
        states = [json.loads(line) for line in (world.directory / "drainer/skipped.jsonl").read_text().splitlines()]
        assert [(line["state"], line["tables"]) for line in states] == [
            ("skipping", {"k.t": {"insert": 1}}),
            ("skipped", {"k.t": {"insert": 1}}),
        ]

        binlogctl(world, "update", "-delay", f"{DELAY_S}s")
        began_s = time.time()
        world.write(5)
        world.arrived(drainer, world.everything)
        assert time.time() - began_s >= DELAY_S and world.status()["DelaySeconds"] == DELAY_S

        binlogctl(world, "pause")
        world.write(5)
        last, end_ts = world.everything(), boundary(world)
        world.write(5)
        binlogctl(world, "update", "-delay", "0", "-stop-at", str(end_ts))
        assert world.status()["StopAt"] == end_ts
        binlogctl(world, "resume")
        assert drainer.wait(deadline_s=240) == 0, drainer.tail()
        assert world.rows() == last and f"position={end_ts}" in drainer.text()
        for words in ("changefeed paused", "changefeed resumed", "changefeed updated", "who=127.0.0.1"):
            assert words in drainer.text()
    finally:
        drainer.kill()
