"""Pumps whose host is gone without a word: no FIN, no RST, nothing. And such that hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from binlog.envelope import encode_fake
from binlog.errors import PumpUnavailable
from binlog.runtime.security import Security

from drainer.pumps.go_pump import GoPump
from drainer.pumps.pull import pull
from drainer.pumps.watermark import BatchLimits, PumpMark, PumpRange
from tests.integration.drainer.vanishing_child import BASE
from tests.support.servers import wait_until
from tests.support.stub_pump import StubPump

CHILD = Path(__file__).with_name("vanishing_child.py")
ROOT = Path(__file__).parents[3]
SILENCE_S = 1.5


@contextmanager
def pump_process(kind: str, address: str = "127.0.0.1", *prefix: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its host:port. `prefix`: what runs it, as `ip netns exec NAME`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*prefix, sys.executable, str(CHILD), address, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def machine() -> Iterator[tuple[str, str, Callable[[str], None]]]:
    """A network namespace: its name, its address, and a switch ("up", "down") of the cable to it."""
    name = f"vanish{os.getpid()}"
    outer, inner = f"vo{os.getpid() % 100_000}", f"vi{os.getpid() % 100_000}"
    network = f"10.213.{os.getpid() % 250}"
    try:
        ip("netns", "add", name)
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        ip("addr", "add", f"{network}.1/24", "dev", outer)
        ip("link", "set", outer, "up")
        ip("-n", name, "addr", "add", f"{network}.2/24", "dev", inner)
        ip("-n", name, "link", "set", inner, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        with suppress(OSError, subprocess.CalledProcessError):
            ip("netns", "del", name)
        pytest.skip(f"no network namespace can be made here (it needs root and iproute2): {error}")
    try:
        yield name, f"{network}.2", lambda state: ip("-n", name, "link", "set", inner, state)
    finally:
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", outer)
        ip("netns", "del", name)


async def marked(pump: GoPump, above_ts: int) -> PumpMark:
    """The first mark above a ts that is believed."""
    async with asyncio.timeout(120):
        while True:
            with suppress(PumpUnavailable):
                found = await pump.mark(after_ts=BASE, limits=BatchLimits(1 << 20))
                if found.resolved_ts > above_ts:
                    return found
            await asyncio.sleep(0.02)


async def disbelieved(pump: GoPump) -> str:
    """Why, as soon as it is not believed."""
    async with asyncio.timeout(120):
        while True:
            try:
                await pump.mark(after_ts=BASE, limits=BatchLimits(1 << 20))
            except PumpUnavailable as error:
                return str(error)
            await asyncio.sleep(0.02)


async def vanishes_and_returns(host: str, vanish: Callable[[], None], come_back: Callable[[], None]) -> None:
    pump = GoPump("go", host, cluster_id=1, security=Security(), silence_max_s=SILENCE_S)
    try:
        before = await marked(pump, BASE + 10)
        vanish()
        gone_s = time.monotonic()
        assert "nothing came for 1.5 s" in await disbelieved(pump)
        assert time.monotonic() - gone_s < 60  # TCP alone: a quarter of an hour
        come_back()
        assert (await marked(pump, before.resolved_ts)).batch_count == 1
    finally:
        await pump.close()


async def test_go_pump_with_vanished_host_is_unavailable_until_it_returns() -> None:
    """The cable is cut: nothing tells the drainer's TCP, which would go on believing for a quarter of an hour."""
    with machine() as (name, address, cable), pump_process("go", address, "ip", "netns", "exec", name) as (_, host):
        await vanishes_and_returns(host, lambda: cable("down"), lambda: cable("up"))


async def test_go_pump_that_hangs_is_unavailable_until_it_continues() -> None:
    """Its kernel still answers for it."""
    with pump_process("go") as (child, host):
        await vanishes_and_returns(
            host, lambda: child.send_signal(signal.SIGSTOP), lambda: child.send_signal(signal.SIGCONT)
        )


@pytest.mark.slow
async def test_pings_do_not_make_idle_server_close_connection() -> None:
    """A Go server, and grpc's own with its defaults, closes a connection that is pinged too often between messages."""
    stub = StubPump(extension=False)
    pump = GoPump("go", stub.host, cluster_id=1, security=Security(), silence_max_s=24)
    try:
        for number in range(2):
            stub.put(encode_fake(BASE + number + 1))
            await marked(pump, BASE + number)
            # Its fakes are that far apart, in which a ping is sent: there is nothing to wait for. A machine that stands
            # still for ten seconds must not make it a silence.
            await asyncio.sleep(13)
        assert not pump.interrupted
        assert stub.streams == [BASE]
    finally:
        await pump.close()
        await asyncio.to_thread(stub.stop)


def is_stopped(pid: int) -> bool:
    """A signal is sent before it is acted on, and a thread on another core may answer in between."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "go"])
def test_pull_from_hanging_pump_ends_with_pump_unavailable(kind: str) -> None:
    """Executors pull over a connection that stands; keep-alive ends it long before the deadline of ten minutes."""
    with pump_process(kind) as (child, host):
        part = PumpRange("p", host, kind == "ours", BASE, BASE + 10)
        wanted = list(pull(part, cluster_id=1, security=Security()))
        assert len(wanted) == 1
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(child.pid), what="every thread of the pump stands still")
        began_s = time.monotonic()
        with pytest.raises(PumpUnavailable, match=r"pump p \("):
            list(pull(part, cluster_id=1, security=Security()))
        assert time.monotonic() - began_s < 60
        child.send_signal(signal.SIGCONT)

        def serves_again() -> bool:
            try:
                return list(pull(part, cluster_id=1, security=Security())) == wanted
            except PumpUnavailable:  # the connection that keep-alive gave up may still be closing
                return False

        wait_until(serves_again, what="the pump that goes on serves the same binlogs")
