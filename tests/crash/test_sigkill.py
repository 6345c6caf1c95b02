"""Pump processes that are killed at random moments under load.

CRASH_KILLS says how often (200 at a desk), CRASH_SEED repeats a run's choices: what the seed cannot repeat is what the
machine did meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.crash.pumps import Life
from tests.integration.pump.rpc import until
from tests.integration.pump.test_process import cluster_of, timestamps
from tests.support.servers import Etcd

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KILLS = int(os.environ.get("CRASH_KILLS", "6"))
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
LOADED_S = 0.6  # of a life, at most
STARTING_S = 1.5
KILLED_AT_START = 0.15
OPEN_MAX = 3  # prewrites that stay pending into the next life
DEADLINE_S = 240 + 30 * KILLS


@pytest.mark.timeout(DEADLINE_S + 60)
async def test_pumps_killed_at_random_moments_lose_nothing_acknowledged(tmp_path: Path, etcd: Etcd) -> None:
    """Two pumps under load, one of which allocates the timestamps; one of them is killed, comes back, and is looked at:
    what was acknowledged is served, what was pending is pending. Drainers read on through all of it."""
    print(f"CRASH_SEED={SEED} CRASH_KILLS={KILLS}")
    chance = random.Random(SEED)
    cluster_id, source = await cluster_of(etcd), await timestamps(etcd)
    lives = [Life(tmp_path, etcd, name, cluster_id) for name in ("p1", "p2")]
    try:
        async with asyncio.timeout(DEADLINE_S):
            for life in lives:
                life.start()
            for life in lives:
                await life.serving()
            for number in range(KILLS):
                killed = chance.choice(lives)
                await _under_load(lives, killed, source, chance)
                killed.start()
                if chance.random() < KILLED_AT_START:
                    await asyncio.sleep(chance.uniform(0, STARTING_S))
                    killed.kill()
                    killed.start()
                await killed.serving()
                for life in lives:
                    client = life.client()
                    await life.check(client, f"CRASH_SEED={SEED} kill {number} of {killed.name}")
                    await life.load(source, chance).finish(client, keep=OPEN_MAX)
                    await life.check(client, f"CRASH_SEED={SEED} kill {number} of {killed.name}, finished")
                    await client.close()
            for life in lives:
                client = life.client()
                await life.load(source, chance).finish(client)
                await life.check_streams(client, f"CRASH_SEED={SEED}")
                await client.close()
                written = len(life.journal.sent)
                print(f"{life.name}: {life.number} lives, {written} transactions, {len(life.streams[0].served)} served")
                assert written > KILLS
    finally:
        for life in lives:
            life.kill()
        await source.close()


async def _under_load(lives: list[Life], killed: Life, source: object, chance: random.Random) -> None:
    """Writers and readers of all pumps, until a random moment behind the first transactions; then `killed` is gone, and
    all of them have ended."""
    clients = [life.client() for life in lives]
    before = [len(life.journal.sent) for life in lives]
    tasks = []
    for life, client in zip(lives, clients, strict=True):
        tasks.append(asyncio.create_task(life.load(source, chance).run(client)))
        tasks += [asyncio.create_task(stream.follow(client)) for stream in life.streams]
    await until(lambda: _begun(lives, before), deadline_s=120)
    await asyncio.sleep(chance.uniform(0, LOADED_S))
    await asyncio.to_thread(killed.kill)
    for task in tasks:  # also of those that live: their calls end as if they had lost the answer
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if ended is not None and not isinstance(ended, asyncio.CancelledError):
            raise ended
    for client in clients:
        await client.close()


async def _begun(lives: list[Life], before: list[int]) -> bool:
    return all(len(life.journal.sent) > begun + 1 for life, begun in zip(lives, before, strict=True))
