"""The health check of a container, against a real server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from binlog.runtime.http import StatusServer, ready_response


@pytest.mark.parametrize(("lacks", "code"), [("", 0), ("the value log is broken: EIO", 1)])
async def test_probe_exit_code_follows_ready_response(lacks: str, code: int) -> None:
    async def ready() -> object:
        return ready_response(lacks)

    server = StatusServer("127.0.0.1:0", {"/ready": ready})  # type: ignore[dict-item]
    await server.start()
    try:
        ran = await probe(f"http://{server.addr}/ready")
    finally:
        await server.close()
    assert (ran.returncode, ran.stderr.strip()) == (code, lacks)


async def test_probe_without_server_or_valid_address_fails_with_reason() -> None:
    assert (await probe("http://127.0.0.1:1/ready")).returncode == 1
    ran = await probe("not-a-url")
    assert ran.returncode == 1 and "not-a-url" in ran.stderr
    ran = await probe()
    assert ran.returncode == 2 and "usage" in ran.stderr


async def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    import asyncio

    command = [sys.executable, "-m", "binlog.runtime.probe", *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=240, check=False)
