"""One of three pumps is slow, full, refusing, unreachable, or comes and goes: writers hardly notice, and every
transaction has one outcome.

What a TiDB waits for is the prewrite: it sends the commit beside its answer. So prewrites are timed. A commit
can go nowhere but to the pump that has the prewrite; it waits for that pump, here until the fault ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import TimestampSource, connect_timestamps

from pumpclient import writer
from pumpclient.client import PumpsClient
from pumpclient.options import upstream
from pumpclient.tracker import CleanUp
from pumpclient.writer import Limits
from tests.integration.pump.rpc import connected
from tests.integration.pumpclient.conftest import Cluster, Pump, leader_addr
from tests.support.counted import counting
from tests.support.link import Link, Way
from tests.support.servers import free_port, running_etcd
from tests.unit.pump.build import commit, prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

KEY, VALUE = b"t\x80key", b"\x08\x01"
WRITERS = 16
FAULT_S = 3.0
FLAP_S = 0.4
P99_S = 2.0
PACE_S = 0.025  # between two transactions of one writer: enough of them, and no fight for the processor
LIMITS = Limits(commit_retry_s=0.2)


@dataclass
class Linked(Cluster):
    """Pumps that others reach by way of links. It serves all tests of this module, one after another."""

    links: dict[str, Link] = field(default_factory=dict)

    def link(self, node_id: str, *options: str) -> Pump:
        listen = f"127.0.0.1:{free_port()}"
        link = self.links[node_id] = Link(listen)
        return self.add(node_id, *options, "-addr", listen, "-advertise-addr", link.addr)

    async def follower(self) -> str:
        """A pump that does not give out timestamps."""
        leader = await leader_addr(self.url)
        return next(name for name in sorted(self.links) if self.links[name].addr != leader)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with running_etcd() as etcd:
        made = Linked(etcd, tmp_path_factory.mktemp("linked"))
        try:
            for node_id in ("p1", "p2", "p3"):
                made.link(node_id)
            yield made
        finally:
            for pump in made.pumps.values():
                pump.server.kill()
            for link in made.links.values():
                link.close()


@dataclass
class Storm:
    """Writers that begin one transaction after another. `waits_s`: of each prewrite, in order of their ends."""

    client: PumpsClient
    timestamps: TimestampSource
    waits_s: list[float] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    pumps: dict[int, str] = field(default_factory=dict)
    ends: set[asyncio.Task[None]] = field(default_factory=set)
    slow: Counter[str] = field(default_factory=Counter)
    fallbacks: int = 0
    copies: int = 0  # that had to be rolled back
    stopped: bool = False

    def __post_init__(self) -> None:
        """Counts for each pump how often it was skipped: on a busy machine a healthy one may be, too."""
        found_slow = self.client._pool.found_slow

        def counted(node_id: str) -> bool:
            found = found_slow(node_id)
            self.slow[node_id] += found
            return found

        self.client._pool.found_slow = counted  # type: ignore[method-assign]
        falls_back = self.client._writer.falls_back

        def noted() -> None:
            self.fallbacks += 1
            falls_back()

        self.client._writer.falls_back = noted  # type: ignore[method-assign]
        add = self.client._writer.cleaner.add

        def added(work: CleanUp) -> None:
            self.copies += len(work.pumps)
            add(work)

        self.client._writer.cleaner.add = added  # type: ignore[method-assign]

    async def write(self) -> None:
        while not self.stopped:
            start_ts = await self.timestamps.get()
            begun_s = time.monotonic()
            self.pumps[start_ts] = await self.client.write_prewrite(start_ts, KEY, VALUE)
            self.waits_s.append(time.monotonic() - begun_s)
            end = asyncio.create_task(self.end(start_ts))
            self.ends.add(end)
            end.add_done_callback(self.ends.discard)
            await asyncio.sleep(PACE_S)

    async def end(self, start_ts: int) -> None:
        commit_ts = await self.timestamps.get()
        await self.client.commit(start_ts, commit_ts)
        self.told[start_ts] = commit_ts

    async def for_s(self, seconds: float) -> list[float]:
        """What prewrites waited that ended within so long; more of it on a machine that is slow."""
        before, until_s = len(self.waits_s), time.monotonic() + seconds
        async with asyncio.timeout(90):
            while time.monotonic() < until_s or len(self.waits_s) - before < 200:  # noqa: ASYNC110  counts of tasks
                await asyncio.sleep(0.05)
        return self.waits_s[before:]


@contextlib.asynccontextmanager
async def storm(linked: Linked, strategy: str) -> AsyncIterator[Storm]:
    """At its end everything is delivered, and looked at."""
    etcd = connect_etcd([linked.url])
    timestamps = await connect_timestamps(etcd, upstream(linked.url, tso_source="own"), None)
    client = await PumpsClient.connect(linked.url, strategy, tso_source="own", limits=LIMITS)
    made = Storm(client, timestamps)
    writers = [asyncio.create_task(made.write()) for _ in range(WRITERS)]
    try:
        yield made
        made.stopped = True
        async with asyncio.timeout(90):
            await asyncio.gather(*writers)
            while made.ends:
                await asyncio.gather(*made.ends)
            while client.rollbacks_owed:  # noqa: ASYNC110  answered by tasks of the client
                await asyncio.sleep(0.05)
        await one_outcome(linked, made)
    finally:
        for task in (*writers, *made.ends):
            task.cancel()
        await client.close()
        await timestamps.close()
        await etcd.close()


async def one_outcome(linked: Linked, made: Storm) -> None:
    """Each transaction is served once, by one pump, with the commit_ts that its writer was told; nothing is pending."""
    assert made.client.open_transactions == 0
    until_ts = await made.timestamps.get()
    served: dict[int, tuple[str, int]] = {}
    for pump in linked.pumps.values():
        state = await linked.inspect(pump, made.client.cluster_id)
        assert state.pending_count == 0, state
        assert state.late_commit_count == 0, state
        for envelope in await linked.pull(pump, made.client.cluster_id, until_ts):
            if envelope.start_ts in made.told:
                assert envelope.start_ts not in served, f"{envelope} is at {pump.node_id} too"
                served[envelope.start_ts] = (pump.node_id, envelope.commit_ts)
    assert served == {start_ts: (made.pumps[start_ts], commit_ts) for start_ts, commit_ts in made.told.items()}


class Control:
    """One writer for each healthy pump, beside the client: what it waits is the machine's doing. A pause of the
    machine keeps all writers waiting together, which are more than one prewrite in a hundred."""

    def __init__(self, linked: Linked, made: Storm, victim: str) -> None:
        self._storm = made
        self._addrs = [link.addr for name, link in linked.links.items() if name != victim]
        self._over = False
        self.longest_s = 0.0

    async def _write(self, addr: str) -> None:
        timestamps = self._storm.timestamps
        async with connected(addr, self._storm.client.cluster_id, timeout_s=90) as pump:
            while not self._over:
                start_ts = await timestamps.get()
                begun_s = time.monotonic()
                await pump.write(prewrite(start_ts))
                self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
                await pump.write(commit(start_ts, await timestamps.get()))
                await asyncio.sleep(PACE_S)

    async def __aenter__(self) -> Control:
        self._writers = [asyncio.create_task(self._write(addr)) for addr in self._addrs]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends when each writer's last transaction has."""
        self._over = True
        async with asyncio.timeout(180):
            await asyncio.gather(*self._writers)


def p99(waits_s: list[float]) -> float:
    return sorted(waits_s)[int(0.99 * len(waits_s))]


def bound_s(healthy_s: list[float], control: Control) -> float:
    """Two seconds, and what a machine needs that is busy with something else, before the fault or during it."""
    return P99_S + 5 * max(p99(healthy_s), control.longest_s)


def show(what: str, healthy_s: list[float], bad_s: list[float], made: Storm) -> None:
    print(
        f"{what}: p99 {p99(bad_s):.3f} s of {len(bad_s)} prewrites, longest {max(bad_s):.3f} s; before the fault "
        f"{p99(healthy_s):.3f} s of {len(healthy_s)}; skipped {made.slow.total()} times, "
        f"{made.copies} copies rolled back"
    )


@pytest.mark.parametrize(
    ("way", "strategy"),
    [(Way.SLOW, "range"), (Way.HOLE, "range"), (Way.HOLE, "score"), (Way.RESET, "range")],
    ids=["slow", "black-holed", "black-holed-by-score", "refusing"],
)
async def test_slow_unreachable_or_refusing_pump_does_not_delay_writers(
    linked: Linked, way: Way, strategy: str
) -> None:
    async with storm(linked, strategy) as made:
        victim = await linked.follower()
        healthy_s = await made.for_s(1.5)
        linked.links[victim].turn(way)
        begun_s = time.monotonic()
        try:
            async with Control(linked, made, victim) as control:
                bad_s = await made.for_s(FAULT_S)
        finally:
            linked.links[victim].turn(Way.GOOD)
        assert p99(bad_s) < bound_s(healthy_s, control)
        # Each pause until it is asked again is twice the one before, after 0, 1, 3 and 7 seconds: 6 in three of them.
        assert made.slow[victim] <= 2 + 2 * math.log2(1 + time.monotonic() - begun_s)
        assert not made.fallbacks
    show(way.name, healthy_s, bad_s, made)
    if way is Way.HOLE:
        assert made.slow[victim]
        assert made.copies, "prewrites that were on their way came late, and had to be rolled back"


async def test_pump_that_is_unreachable_repeatedly_does_not_delay_writers(linked: Linked) -> None:
    """Unreachable and back, again and again; each time it is back it may take writes whose commits then wait."""
    async with storm(linked, "range") as made:
        name = await linked.follower()
        victim = linked.links[name]
        healthy_s = await made.for_s(1.5)
        flapping = asyncio.create_task(flap(victim))
        try:
            async with Control(linked, made, name) as control:
                bad_s = await made.for_s(FAULT_S)
        finally:
            flapping.cancel()
            await asyncio.wait([flapping])
            victim.turn(Way.GOOD)
        assert p99(bad_s) < bound_s(healthy_s, control)
    show("FLAPPING", healthy_s, bad_s, made)


async def flap(link: Link) -> None:
    while True:
        for way in (Way.HOLE, Way.GOOD, Way.RESET, Way.GOOD):
            await asyncio.to_thread(link.turn, way)
            await asyncio.sleep(FLAP_S)


async def test_pump_with_full_disk_does_not_delay_writers(linked: Linked, tmp_path: Path) -> None:
    """A fourth pump, online, whose disk has less left than it must: it refuses by name, and its probe is refused."""
    settings = tmp_path / "full.toml"
    settings.write_text('[storage]\nstop-write-at-available-space = "8191 PiB"\n')
    async with storm(linked, "range") as made:
        healthy_s = await made.for_s(1.5)
    # What a writer sends to a pump that is registered and not serving yet may be stored, and a full pump refuses to
    # roll it back. So the second client begins when the pump serves.
    full = await asyncio.to_thread(linked.link, "full", "-config", str(settings))
    try:
        async with storm(linked, "range") as made:
            failed = counting(writer.TRIES_FAILED)
            async with Control(linked, made, "full") as control:
                bad_s = await made.for_s(FAULT_S)
            async with asyncio.timeout(90):  # it is asked, or this test shows nothing
                while failed() < 11:  # noqa: ASYNC110  counted by tasks of the client
                    await asyncio.sleep(0.05)
        assert "full" not in made.pumps.values()
        assert p99(bad_s) < bound_s(healthy_s, control)
    finally:
        await asyncio.to_thread(full.server.stop)
        del linked.pumps["full"]
        linked.links.pop("full").close()
    show("FULL", healthy_s, bad_s, made)
