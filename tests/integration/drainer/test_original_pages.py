"""What the original's drainer has beside its pages: metrics that are pushed. Without Spark."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from binlog.runtime.config import load

from drainer.config import PROGRAM, Config
from drainer.service.daemon import _serving
from drainer.service.status import PageSwitch, StartingPages
from tests.support.servers import free_port


def config(directory: Path, *argv: str) -> Config:
    file = directory / "drainer.toml"
    file.write_text(f'addr = "127.0.0.1:{free_port()}"\nnode-id = "d1"\nstatus-addr = ""\n')
    return load(PROGRAM, ["-config", str(file), *argv], environ={})


@contextlib.asynccontextmanager
async def serving(directory: Path, *argv: str) -> AsyncIterator[str]:
    """The address of a drainer that waits for its destination."""
    found = config(directory, *argv)
    async with _serving(found, PageSwitch(StartingPages(found.identity(), "nowhere"))):
        yield found.addr


async def test_metrics_are_pushed_before_destination_is_open(tmp_path: Path) -> None:
    """K-10: job `binlog`, the node's id as instance; no longer than the drainer runs."""
    pushed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def take_it(request: web.Request) -> web.Response:
        await pushed.put((f"{request.method} {request.path}", await request.text()))
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", take_it)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with serving(tmp_path, "-metrics-addr", f"127.0.0.1:{port}", "-metrics-interval", "1"):
            place, text = await asyncio.wait_for(pushed.get(), 60)
            assert [task for task in asyncio.all_tasks() if task.get_name() == "metrics"]
        assert place == "POST /metrics/job/binlog/instance/d1"
        assert "binlog_drainer_" in text
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "metrics"], "it ends with the drainer"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("argv", [(), ("-metrics-addr", "127.0.0.1:1", "-metrics-interval", "0")])
async def test_metrics_are_not_pushed_without_address_or_interval(tmp_path: Path, argv: tuple[str, ...]) -> None:
    async with serving(tmp_path, *argv):
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "metrics"]
