"""The wall clocks of pump processes jump forward and back under load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry, State
from binlog.cluster.timestamp import LEADER_KEY
from binlog.cluster.tso import physical_ms

from tests.crash.pumps import Life
from tests.crash.through import Through, going
from tests.integration.pump.rpc import until
from tests.integration.pump.test_process import cluster_of, timestamps
from tests.support.servers import Etcd

pytestmark = [pytest.mark.slow, pytest.mark.integration]

HOUR_S, DAY_S = 3600, 86_400
LEASE_S = "12"  # a busy machine must not make another pump the leader while the clock of this one is days off


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
async def test_timestamps_rise_through_clock_jumps_of_pumps(
    tmp_path: Path, etcd: Etcd, library: Callable[[], Path | None]
) -> None:
    """Timestamps rise through every jump and change of the allocator, do not follow a jump of days, and nobody loses
    its record; everything is served."""
    cluster_id = await cluster_of(etcd)
    clocks = {name: Clock(tmp_path / f"clock-{name}", library()) for name in ("p1", "p2")}
    lives = {
        name: Life(tmp_path, etcd, name, cluster_id, before=clock.before, env={"CRASH_LEASE_S": LEASE_S})
        for name, clock in clocks.items()
    }
    source, store = await timestamps(etcd), connect_etcd([etcd.endpoint])

    async def term() -> tuple[str, int]:
        """Who allocates timestamps, "" for nobody, and since which revision."""
        found = await store.get(LEADER_KEY)
        addr, revision = (found.value.decode(), found.mod_revision) if found else ("", 0)
        return next((name for name, life in lives.items() if addr.endswith(f":{life.port}")), ""), revision

    async def elected(*, than: str = "") -> tuple[str, int]:
        found = ("", 0)

        async def changed() -> bool:
            nonlocal found
            found = await term()
            return found[0] not in ("", than)

        await until(changed, deadline_s=120)
        return found

    async def follows(jump_s: int) -> None:
        """Whoever leads, and on a slow machine that changes, gives out timestamps by a clock that has jumped."""

        async def followed() -> bool:
            clocks[(await elected())[0]].set(jump_s)
            return abs(ahead_s(through) - jump_s) < 600

        await until(followed, deadline_s=120)

    try:
        for name, life in lives.items():
            life.start(under=clocks[name].under)
        for life in lives.values():
            await life.serving()
        async with going(list(lives.values()), source) as through:
            for jump_s in (HOUR_S, -HOUR_S, HOUR_S):
                clocks[(await elected())[0]].set(jump_s)
                await through.goes_on()
            await follows(HOUR_S)

            jumped = await elected()
            leads = jumped[0]
            clocks[leads].set(3 * DAY_S)
            await through.goes_on()

            async def noticed() -> bool:
                server = lives[leads].server
                assert server is not None
                return "clock jumped far forward" in server.text() or await term() != jumped

            await until(noticed, deadline_s=120)
            ahead = ahead_s(through)
            if await term() == jumped:  # who begins to lead has not seen a clock jump
                assert ahead < HOUR_S + 600, "the allocator's clock is followed for an hour, and for days it is not"
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

        # The next allocator's clock is an hour behind the true time, and two behind what was given out; where the other
        # one has come to lead meanwhile, it is three days behind.
        last_ts = through.last_ts
        leads, _ = await elected()
        lives[leads].kill()
        assert (await elected(than=leads))[0] != leads
        assert await source.get() > last_ts
        clocks[leads].set(0)
        lives[leads].start(under=clocks[leads].under)
        await lives[leads].serving()
        async with going(list(lives.values()), source) as through:
            through.last_ts = max(through.last_ts, last_ts)
    finally:
        for life in lives.values():
            life.kill()
        await source.close()
        await store.close()
