"""The source of timestamps is chosen once, recorded, and never silently changed (correctness rule 7)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from binlog.cluster.timestamp import (
    CLUSTER_ID_KEY,
    SOURCE_KEY,
    choose_source,
    cluster_id,
    connect_timestamps,
    own_cluster_id,
)
from binlog.errors import ConfigError, TimestampSourceMismatch, TimestampUnavailable
from binlog.runtime.fields import UpstreamSection
from grpc import aio

from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import free_port
from tests.support.stub_pd import StubPD


def section(addr: str, source: str = "auto") -> UpstreamSection:
    return UpstreamSection.model_validate({"pd-urls": f"http://{addr}", "tso-source": source})


async def plain_server() -> tuple[aio.Server, str]:
    """A gRPC server that knows no service, as a plain etcd does not know PD's."""
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def test_auto_takes_pd_where_it_answers(closing: AsyncExitStack) -> None:
    pd, etcd = await StubPD.start(cluster_id=5), MemoryEtcd()
    closing.push_async_callback(pd.close)
    cfg = section(pd.addr)
    assert await choose_source(etcd, cfg) == "pd"
    found = await etcd.get(SOURCE_KEY)
    assert found is not None
    assert found.value == b"pd"
    assert await cluster_id(etcd, cfg) == 5
    source = await connect_timestamps(etcd, cfg)
    assert await source.get() < await source.get()
    await source.close()


async def test_auto_takes_own_where_a_plain_etcd_answers(closing: AsyncExitStack) -> None:
    server, addr = await plain_server()
    closing.push_async_callback(server.stop, None)
    etcd = MemoryEtcd()
    assert await choose_source(etcd, section(addr)) == "own"
    ids = await asyncio.gather(*(cluster_id(etcd, section(addr)) for _ in range(5)))
    assert len(set(ids)) == 1
    assert 1 << 62 <= ids[0] < 1 << 63


async def test_choose_source_auto_fails_if_no_server_answers() -> None:
    etcd, cfg = MemoryEtcd(), section(f"127.0.0.1:{free_port()}")
    with pytest.raises(TimestampUnavailable, match=r"no server at http://127.0.0.1:.* answered whether it is a PD"):
        await choose_source(etcd, cfg)
    assert await etcd.get(SOURCE_KEY) is None
    await etcd.put(SOURCE_KEY, b"pd")
    assert await choose_source(etcd, cfg) == "pd"


async def test_pd_addr_is_asked_instead_of_pd_urls(closing: AsyncExitStack) -> None:
    pd = await StubPD.start(cluster_id=8)
    closing.push_async_callback(pd.close)
    cfg = UpstreamSection(pd_urls=("http://127.0.0.1:1",), pd_addr=pd.addr)
    assert await cluster_id(MemoryEtcd(), cfg) == 8


@pytest.mark.parametrize(("recorded", "source"), [("pd", "own"), ("own", "pd"), ("own", "auto")])
async def test_choose_source_other_than_recorded_one_names_key_to_delete(
    closing: AsyncExitStack, recorded: str, source: str
) -> None:
    pd, etcd = await StubPD.start(), MemoryEtcd()
    closing.push_async_callback(pd.close)
    await etcd.put(SOURCE_KEY, recorded.encode())
    with pytest.raises(TimestampSourceMismatch, match=f'takes its timestamps from "{recorded}".*delete the key'):
        await choose_source(etcd, section(pd.addr, source))


async def test_choose_source_of_two_concurrent_programs_lets_one_continue(closing: AsyncExitStack) -> None:
    """One configured own and one pd, at the same moment: exactly one of them may go on."""
    pd, etcd = await StubPD.start(), MemoryEtcd()
    closing.push_async_callback(pd.close)
    results = await asyncio.gather(
        *(choose_source(etcd, section(pd.addr, source)) for source in ("own", "pd")), return_exceptions=True
    )
    assert sorted(type(r).__name__ for r in results) == ["TimestampSourceMismatch", "str"]


async def test_invalid_source_or_cluster_id_in_etcd_is_named() -> None:
    etcd = MemoryEtcd()
    await etcd.put(SOURCE_KEY, b"moon")
    with pytest.raises(TimestampSourceMismatch, match="tso/source holds b'moon'"):
        await choose_source(etcd, section("127.0.0.1:1"))
    await etcd.put(CLUSTER_ID_KEY, b"0")
    with pytest.raises(ConfigError, match="cluster_id holds b'0'"):
        await own_cluster_id(etcd)
