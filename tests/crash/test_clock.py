"""The wall clocks of pump processes jump forward and back under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.node import State
from binlog.cluster.registry import Registry
from binlog.cluster.tso import physical_ms
from binlog.cluster.upstream import LEADER_KEY

from tests.crash.pumps import Life
from tests.crash.through import Through, going
from tests.integration.pump.rpc import until
from tests.integration.pump.test_process import cluster_of, timestamps
from tests.support.servers import Etcd

pytestmark = pytest.mark.integration

HOUR_S, DAY_S = 3600, 86_400


class Clock:
    """Of one pump's process: shifted in Python, or for all of the process by libfaketime (Debian has it)."""

    def __init__(self, path: Path, library: Path | None) -> None:
        self._path = path
        self._library = library
        self.set(0)

    def set(self, ahead_s: int) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}")
        new.replace(self._path)

    @property
    def before(self) -> list[str]:
        return [] if self._library else ["tests.crash.shifted_clock", str(self._path)]

    def under(self, argv: Sequence[str]) -> Sequence[str]:
        if self._library is None:
            return argv
        settings = [f"LD_PRELOAD={self._library}", f"FAKETIME_TIMESTAMP_FILE={self._path}"]
        return ["env", *settings, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", *argv]


def faketime() -> Path:
    """libfaketime for programs with threads; skips where it is not installed."""
    for path in sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")):
        return path
    pytest.skip("libfaketime is not installed")


def ahead_s(through: Through) -> float:
    """How far the timestamps are ahead of the true time."""
    return physical_ms(through.last_ts) / 1000 - time.time()


@pytest.mark.parametrize("library", [lambda: None, faketime], ids=["python", "libfaketime"])
async def test_clocks_that_jump(tmp_path: Path, etcd: Etcd, library: Callable[[], Path | None]) -> None:
    """Timestamps rise through every jump and change of the allocator, do not follow a jump of days, and nobody loses
    its record; everything is served."""
    cluster_id = await cluster_of(etcd)
    clocks = {name: Clock(tmp_path / f"clock-{name}", library()) for name in ("p1", "p2")}
    lives = {name: Life(tmp_path, etcd, name, cluster_id, before=clock.before) for name, clock in clocks.items()}
    source, store = await timestamps(etcd), connect_etcd([etcd.endpoint])

    async def leader() -> str:
        found = await store.get(LEADER_KEY)
        addr = found.value.decode() if found else ""
        return next((name for name, life in lives.items() if addr.endswith(f":{life.port}")), "")

    async def elected(*, than: str = "") -> str:
        async def changed() -> bool:
            return await leader() not in ("", than)

        await until(changed)
        return await leader()

    try:
        for name, life in lives.items():
            life.start(under=clocks[name].under)
        for life in lives.values():
            await life.serving()
        async with going(list(lives.values()), source) as through:
            leads = await elected()
            for jump_s in (HOUR_S, -HOUR_S, HOUR_S):
                clocks[leads].set(jump_s)
                await through.goes_on()
            assert abs(ahead_s(through) - HOUR_S) < 600, "the allocator's clock is followed for an hour"
            clocks[leads].set(3 * DAY_S)
            await through.goes_on()
            await asyncio.to_thread(lives[leads].server.wait_for_output, "clock jumped far forward")  # type: ignore[union-attr]
            assert ahead_s(through) < HOUR_S + 600, "and for days it is not"
            clocks[leads].set(-3 * DAY_S)
            await through.goes_on()
            for name, clock in clocks.items():
                if name != leads:
                    clock.set(-HOUR_S)
        for life in lives.values():
            assert life.server is not None and life.server.alive
            assert "another process overwrote" not in life.server.text()
        records = (await Registry(store).list("pumps")).nodes
        assert {record.status.state for record in records} == {State.ONLINE}

        # The next allocator's clock is an hour behind the true time, and two behind what was given out.
        last_ts = through.last_ts
        lives[leads].kill()
        assert await elected(than=leads) != leads
        assert await source.get() > last_ts
        clocks[leads].set(0)
        lives[leads].start(under=clocks[leads].under)
        async with going(list(lives.values()), source) as through:
            through.last_ts = max(through.last_ts, last_ts)
    finally:
        for life in lives.values():
            life.kill()
        await source.close()
        await store.close()
