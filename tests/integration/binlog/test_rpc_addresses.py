"""Where a server listens, and how many connections it takes."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from binlog.rpc.server import Server
from binlog.rpc.session import Settings
from grpc import aio

from tests.integration.binlog.rpc_server import WAIT_S, raw, running, until
from tests.unit.http2.peer import GREETING


async def test_connections_above_connections_max_are_closed() -> None:
    async with running(connections_max=2) as server, raw(server.port) as (_, one), raw(server.port) as (_, two):
        for writer in (one, two):
            writer.write(GREETING)
        await until(lambda: len(server.server._sessions) == 2)
        async with raw(server.port) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        one.transport.abort()
        await until(lambda: len(server.server._sessions) == 1)
        assert await server.unary("Echo")(b"x", timeout=WAIT_S) == b"x"


async def test_connections_max_leaves_file_descriptors_for_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit, expected in ((min(soft, 1000), min(soft, 1000) // 2), (soft, min(4096, soft // 2))):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            found = Server(Settings({}))._connections_max
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found == (4096 if limit == resource.RLIM_INFINITY else expected)


async def test_server_listens_on_unix_socket_and_replaces_stale_file(tmp_path: Path) -> None:
    """Beside the address; a file that a killed server left is no obstacle, and none is left."""
    path = tmp_path / "s"
    own = [("grpc.use_local_subchannel_pool", 1)]  # not the connection to the server before, which is still closing
    for _ in range(2):
        async with running() as server:
            await server.server.listen_unix(str(path))
            async with aio.insecure_channel(f"unix:{path}", options=own) as channel:
                call: Any = channel.unary_unary("/t/Echo")
                assert await call(b"x", timeout=WAIT_S, wait_for_ready=True) == b"x"
        assert not path.exists()
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
            left.bind(str(path))


@pytest.mark.parametrize("host", ["", "::", "localhost"])
async def test_server_listens_on_one_port_for_every_address_of_host(host: str) -> None:
    async with running() as server:
        port = await server.server.listen(host, 0)
        for address in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() and host == "::" else ("127.0.0.1",):
            async with aio.insecure_channel(f"{address}:{port}") as channel:
                call: Any = channel.unary_unary("/t/Echo")
                assert await call(b"x", timeout=WAIT_S, wait_for_ready=True) == b"x"
        again = Server(server.settings)
        with pytest.raises(OSError, match="already in use"):
            await again.listen("127.0.0.1", port)
