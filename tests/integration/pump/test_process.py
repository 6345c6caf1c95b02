"""Pump processes on a real etcd: killed at every named place, asleep as the one that gives out timestamps, stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.timestamp import LEADER_KEY, OwnTimestamps, TimestampSource, own_cluster_id
from binlog.envelope import scan
from binlog.errors import TimestampUnavailable
from grpc import aio

from tests.integration.pump.rpc import Client, connected, until
from tests.support.servers import ROOT, Etcd, Server, free_port, python_module, wait_until
from tests.unit.pump.build import commit, prewrite

pytestmark = pytest.mark.integration

CRASH_POINTS = (
    "pump.before_append",
    "pump.mid_append",
    "pump.after_append",
    "pump.after_sync",
    "pump.after_index",
    "pump.after_ack",
)


def pump(directory: Path, etcd: Etcd, name: str, port: int, *more: str, **env: str) -> Server:
    args = ["-addr", f"127.0.0.1:{port}", "-pd-urls", etcd.endpoint, "-tso-source", "own"]
    args += ["-data-dir", str(directory / name), "-node-id", name, "-status-addr", "", "-drain-wait", "1"]
    return python_module("pump", *args, *more, output=directory / f"{name}.log", **env)


async def cluster_of(etcd: Etcd) -> int:
    client = connect_etcd([etcd.endpoint])
    try:
        return await own_cluster_id(client)
    finally:
        await client.close()


class Writer:
    """Writes transactions with timestamps of the cluster until the pump dies; remembers what was acknowledged."""

    def __init__(self, source: TimestampSource) -> None:
        self._source = source
        self.tried: dict[int, int] = {}  # start_ts → commit_ts, sent
        self.acked_prewrites: set[int] = set()
        self.acked_commits: dict[int, int] = {}

    async def run(self, client: Client, transactions: int) -> None:
        """Each transaction through the plain call, then one through batches."""
        for _ in range(transactions):
            start_ts = await self._source.get()
            await client.write(prewrite(start_ts))
            self.acked_prewrites.add(start_ts)
            await self._commit(client, start_ts)
            start_ts = await self._source.get()
            assert not (await client.write_batches([[prewrite(start_ts)]]))[0].errors
            self.acked_prewrites.add(start_ts)
            await self._commit(client, start_ts)

    async def _commit(self, client: Client, start_ts: int) -> None:
        self.tried[start_ts] = commit_ts = await self._source.get()
        assert not (await client.write_batches([[commit(start_ts, commit_ts)]]))[0].errors
        self.acked_commits[start_ts] = commit_ts

    async def finish(self, client: Client) -> dict[int, int]:
        """A client repeats what was not answered, in the same words: all of it is taken. What must be served then."""
        wanted = dict(self.acked_commits)
        for start_ts in self.acked_prewrites:
            wanted[start_ts] = commit_ts = self.tried.get(start_ts) or await self._source.get()
            for payload in (prewrite(start_ts), commit(start_ts, commit_ts), commit(start_ts, commit_ts)):
                (answer,) = await client.write_batches([[payload]])
                assert not answer.errors, answer.errors
        return wanted


async def served(client: Client, after_ts: int) -> list[tuple[int, int]]:
    mark = await client.watermark(after_ts)
    messages = await client.pull_range(after_ts, mark.resolved_ts)
    found = [scan(payload) for message in messages for payload in message.payloads]
    return [(envelope.start_ts, envelope.commit_ts) for envelope in found]


async def timestamps(etcd: Etcd) -> TimestampSource:
    return TimestampSource(OwnTimestamps(connect_etcd([etcd.endpoint])), wait_s=120)


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_killed_pump_serves_every_acknowledged_binlog_once_after_restart(
    tmp_path: Path, etcd: Etcd, point: str
) -> None:
    """SIGKILL at the named place, restart, and look: every acknowledged commit is served once, every acknowledged
    prewrite without a commit is pending, and what was under way is there whole or not at all."""
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port, "-fake-binlog-interval", "0", BINLOG_CRASH_POINT=f"{point}:8").start()
    server.wait_for_output("pump is serving")
    cluster_id = await cluster_of(etcd)
    source = await timestamps(etcd)
    writer = Writer(source)
    async with connected(f"127.0.0.1:{port}", cluster_id) as client:
        writing = asyncio.create_task(writer.run(client, 50))
        assert await asyncio.to_thread(server.wait) == -signal.SIGKILL

        async def lost() -> bool:
            return client.channel.get_state() is not grpc.ChannelConnectivity.READY

        await until(lost)
        writing.cancel()  # a call that began when the pump was gone waits for another pump
        (ended,) = await asyncio.gather(writing, return_exceptions=True)
    expected = (aio.AioRpcError, asyncio.InvalidStateError, ValueError, TimestampUnavailable, asyncio.CancelledError)
    assert isinstance(ended, expected), ended
    assert len(writer.acked_commits) >= 1

    server = pump(tmp_path, etcd, "p1", port)
    server.output = tmp_path / "again.log"
    server.start()
    try:
        server.wait_for_output("pump is serving", deadline_s=180)
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            pending = {entry.start_ts for entry in (await client.inspect(100)).pending}
            found = await served(client, 0)
            assert set(writer.acked_commits.items()) <= set(found), "an acknowledged commit is lost"
            assert writer.acked_prewrites <= pending | dict(found).keys(), "an acknowledged prewrite is lost"
            wanted = await writer.finish(client)
            for start_ts in pending - writer.acked_prewrites:  # stored, but its answer was lost: a client rolls it back
                await client.settle(start_ts)
            found = await served(client, 0)
            assert len(found) == len(set(found)), "a binlog is there twice"
            assert dict(found) == wanted
            assert (await client.inspect()).late_commit_count == 0
    finally:
        server.kill()
        await source.close()


async def test_rule_7_timestamps_rise_after_leader_was_stopped_by_sigstop(tmp_path: Path, etcd: Etcd) -> None:
    """It sleeps through its lease, its successor gives out more, it wakes: nothing it says then is taken or smaller."""
    ports = {"p1": free_port(), "p2": free_port()}
    servers = {name: pump(tmp_path, etcd, name, port).start() for name, port in ports.items()}
    store = connect_etcd([etcd.endpoint])
    source = await timestamps(etcd)
    try:
        for server in servers.values():
            server.wait_for_output("pump is serving")
        before = await source.get()
        name = ""

        async def led() -> bool:  # on a slow machine a lease may end, and nobody leads for a moment
            nonlocal name
            found = await store.get(LEADER_KEY)
            led_by = [name for name, port in ports.items() if found and found.value.endswith(str(port).encode())]
            name = led_by[0] if led_by else ""
            return bool(name)

        await until(led)
        sleeper = servers[name].process
        assert sleeper is not None
        sleeper.send_signal(signal.SIGSTOP)
        after = await source.get()
        assert after > before
        sleeper.send_signal(signal.SIGCONT)
        last = after
        for _ in range(200):
            ts = await source.get()
            assert ts > last
            last = ts
    finally:
        for server in servers.values():
            server.kill()
        await source.close()
        await store.close()


async def test_signal_stops_pump_with_paused_record_and_exit_code_0(tmp_path: Path, etcd: Etcd) -> None:
    """Each signal ends it with exit code 0 and a `paused` record; a second pump on the directory is refused."""
    store = connect_etcd([etcd.endpoint])
    port = free_port()
    for number in (signal.SIGTERM, signal.SIGQUIT):
        server = pump(tmp_path, etcd, "p1", port).start()
        server.wait_for_output("pump is serving")
        assert server.process is not None
        second = pump(tmp_path, etcd, "p1", free_port())
        second.output = tmp_path / "second.log"
        assert second.start().wait() == 2
        assert "already locked" in second.text()
        server.process.send_signal(number)
        assert server.wait() == 0
        record = await Registry(store).get("pumps", "p1")
        assert record is not None
        assert record.status.state is State.PAUSED
        assert record.status.final and record.status.max_commit_ts == 0, "fakes are nothing to wait for"
        server.output.unlink()
    await store.close()


async def test_rule_1_final_ts_is_written_only_by_clean_stop_without_pending(tmp_path: Path, etcd: Etcd) -> None:
    """`final` with the last commit's ts after a clean stop, taken back before the next life accepts anything; a pump
    with a pending prewrite, or one that was killed, promises nothing."""
    store = connect_etcd([etcd.endpoint])
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port).start()
    server.wait_for_output("pump is serving")
    cluster_id, source = await cluster_of(etcd), await timestamps(etcd)

    async def status() -> NodeStatus:
        record = await Registry(store).get("pumps", "p1")
        assert record is not None
        return record.status

    def again(number: int) -> Server:
        server = pump(tmp_path, etcd, "p1", port)
        server.output = tmp_path / f"p1-{number}.log"
        server.start().wait_for_output("pump is serving")
        return server

    try:
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            start_ts, commit_ts = await source.get(), await source.get()
            await client.write(prewrite(start_ts))
            await client.write(commit(start_ts, commit_ts))
        assert server.stop() == 0, server.tail()
        left = await status()
        assert (left.state, left.final, left.max_commit_ts) == (State.PAUSED, True, commit_ts)

        server = again(1)
        back = await status()
        assert (back.state, back.final) == (State.ONLINE, False)
        pending_ts = await source.get()
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            await client.write(prewrite(pending_ts))
        assert server.stop() == 0, server.tail()
        assert (await status()).state is State.PAUSING

        server = again(2)
        server.kill()
        assert (await status()).state is State.ONLINE and not (await status()).final

        server = again(3)
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            last_ts = await source.get()
            await client.write(commit(pending_ts, last_ts))
        assert server.stop() == 0, server.tail()
        left = await status()
        assert (left.state, left.final, left.max_commit_ts) == (State.PAUSED, True, last_ts)
    finally:
        server.kill()
        await source.close()
        await store.close()


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["-addr", "nonsense"], 1, "host:port"),
        (["-nonsense"], 2, "flag provided but not defined: -nonsense"),
        (["extra"], 2, "'extra' is not a valid flag"),
        (["-gc", "0"], 1, "must bigger than 0"),
        (["-advertise-addr", "0.0.0.0:8250"], 1, "invalid advertiseAddr host"),
        (["-pd-urls", "ftp://x:1"], 1, "URL scheme must be http, https, unix, or unixs"),
        (["-h"], 0, "-fake-binlog-interval"),
        (["-V"], 0, "Release Version"),
    ],
)
def test_pump_command_line_exits_with_code_and_text(tmp_path: Path, args: list[str], code: int, text: str) -> None:
    """One clear error; help that can be read."""
    server = python_module("pump", *args, output=tmp_path / "out.log").start()
    assert server.wait() == code
    assert text in server.text()
    assert "Traceback" not in server.text()


def binlogctl(etcd: Etcd, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pumpclient.ctl", *words, "-pd-urls", etcd.endpoint]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(("word", "state"), [("pause", State.PAUSED), ("offline", State.OFFLINE)])
async def test_binlogctl_pause_and_offline_stop_pump(tmp_path: Path, etcd: Etcd, word: str, state: State) -> None:
    """It finds the status page by the pump's label; a pump that is away is no success."""
    server = pump(tmp_path, etcd, "p1", free_port(), "-status-addr", f"127.0.0.1:{free_port()}").start()
    store = connect_etcd([etcd.endpoint])
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        asked = await asyncio.to_thread(binlogctl, etcd, f"{word}-pump", "-node-id", "p1")
        assert asked.returncode == 0, asked
        assert await asyncio.to_thread(server.wait) == 0, server.tail()
        record = await Registry(store).get("pumps", "p1")
        assert record is not None and record.status.state is state
        again = await asyncio.to_thread(binlogctl, etcd, f"{word}-pump", "-node-id", "p1")
        assert again.returncode == 5 and "does not answer" in again.stdout + again.stderr
    finally:
        server.kill()
        await store.close()


def test_status_port_is_addr_port_plus_1000(tmp_path: Path, etcd: Etcd) -> None:
    """`auto` is the port of addr + 1000, where that is a port."""
    port = free_port(also=1000)
    server = python_module(
        "pump",
        "-addr",
        f"127.0.0.1:{port}",
        "-pd-urls",
        etcd.endpoint,
        "-data-dir",
        str(tmp_path / "d"),
        output=tmp_path / "log",
    ).start()
    try:
        server.wait_for_output("status server is listening")
        wait_until(lambda: "pump is serving" in server.text(), what="pump serves")
    finally:
        server.kill()


def test_settings_of_the_original_without_effect_are_named_at_the_start(tmp_path: Path, etcd: Etcd) -> None:
    file = tmp_path / "pump.toml"
    file.write_text("[storage]\nkv_chan_cap = 100\n")
    server = pump(tmp_path, etcd, "p1", free_port(), "-config", str(file)).start()
    try:
        server.wait_for_output("pump is serving")
        assert "no effect here" in server.text()
        assert "storage.kv_chan_cap" in server.text()
        assert server.stop() == 0
    finally:
        server.kill()
