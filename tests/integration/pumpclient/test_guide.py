"""docs/sdk.md as its reader runs it: every block, and the outbox through crashes."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from binlog.cluster.published_jobs import PublishedJobs
from binlog.envelope import scan
from binlog.tidb.job import Job

from drainer.sink.sqlite.sink import SQLiteSink
from pumpclient import sdk
from tests.integration.pumpclient.conftest import Cluster
from tests.integration.sink.test_sdk_columns import drain
from tests.support.servers import ROOT, wait_until

PAGE = (ROOT / "docs" / "sdk.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
URL = "http://10.0.0.9:2379"


def outbox_source() -> str:
    (found,) = [block for block in BLOCKS if block.startswith("# outbox.py")]
    return found


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "outbox.py"
    file.write_text(outbox_source())
    spec = importlib.util.spec_from_file_location("outbox", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_every_error_and_every_type_is_in_its_table() -> None:
    errors = PAGE.split("## Errors")[1].split("## Closing")[0]
    types = PAGE.split("## Types")[1].split("## Errors")[0]
    for name in sdk.__all__:
        thing = getattr(sdk, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            assert re.search(rf"^\|[^|]*\b{name}\b[^|]*\|", errors, re.MULTILINE), name
        elif getattr(thing, "__module__", "") == "pumpclient.sdk.types":
            assert f"`{name}(" in types, name


@pytest.mark.integration
async def test_every_block_runs_as_it_stands(cluster: Cluster) -> None:
    """One after another in one namespace, as in a program with `await` at its top."""
    names: dict[str, Any] = {}
    ran = 0
    for block in BLOCKS:
        if block.startswith("# outbox.py"):
            continue
        source = block.replace(URL, cluster.url)
        code = compile(source, "docs/sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        awaited = eval(code, names)
        if awaited is not None:
            await awaited
        ran += 1
    assert ran >= 6
    assert await asyncio.to_thread(names["in_a_thread"]) == ("shop",)
    assert names["orders"].column_names == ("id", "reference", "amount", "state", "created_at", "pieces")


def order(number: int, customer: str = "c") -> dict[str, object]:
    return {"id": number, "customer": customer, "amount": f"{number}.50", "made_at": "2026-11-22 01:02:03"}


async def arrived(cluster: Cluster, path: Path) -> list[tuple[Any, ...]]:
    """What a drainer makes of the stream, in large batches, in SQLite. Dead relays' prewrites end by themselves."""
    async with await sdk.Service.connect(cluster.url) as service:
        jobs = [Job.from_json(text) for _, text in await PublishedJobs(service._etcd).all()]
        until_ts = await service._timestamps.get()
        payloads: list[bytes] = []
        for pump in cluster.pumps.values():
            payloads += await cluster.pull_payloads(pump, service.client.cluster_id, until_ts)
    payloads.sort(key=lambda payload: scan(payload).commit_ts)
    await asyncio.to_thread(drain, SQLiteSink(path), jobs, payloads, batch=1000)
    with sqlite3.connect(path) as connection:
        return connection.execute(
            'SELECT id, customer, amount, made_at FROM "outbox_shop.orders" ORDER BY id'
        ).fetchall()


def kept(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT id, customer, amount, made_at FROM orders ORDER BY id").fetchall()


@pytest.mark.integration
async def test_the_outbox_repeats_what_a_crash_cut_off(cluster: Cluster, outbox: ModuleType, tmp_path: Path) -> None:
    """Published and not yet taken out: the next relay publishes it again, and the rows are the same."""
    path = tmp_path / "shop.sqlite"
    local = outbox.connect_local(path)
    outbox.write(local, (1, order(1)), (2, order(2)))
    async with await sdk.Service.connect(cluster.url) as service:
        orders = await outbox.table(service)
        found = local.execute("SELECT changes FROM outbox").fetchone()
        await outbox.publish(service, orders, json.loads(found[0]))  # and dies here
    outbox.write(local, (1, order(1, "changed")), (2, None), (3, order(3)))
    with pytest.raises(KeyError):
        outbox.write(local, (4, order(4)), (5, {"id": 5}))  # the whole of it, or nothing
    await outbox.relay(cluster.url, path, until_empty=True)
    assert await arrived(cluster, tmp_path / "down.sqlite") == kept(path)
    assert [(row[0], row[1]) for row in kept(path)] == [(1, "changed"), (3, "c")]


@pytest.mark.integration
async def test_the_outbox_survives_kills_of_its_relay(cluster: Cluster, outbox: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    local = outbox.connect_local(path)
    numbers = itertools.count()

    def write(count: int) -> None:
        for number in itertools.islice(numbers, count):
            key = number % 7
            outbox.write(local, (key, None if number % 5 == 4 else order(key, f"c{number}")))

    def left() -> int:
        with sqlite3.connect(path) as connection:
            return int(connection.execute("SELECT count(*) FROM outbox").fetchone()[0])

    def killed() -> None:
        """Not before it has published something."""
        before = left()
        relay = subprocess.Popen([sys.executable, tmp_path / "outbox.py", cluster.url, path], cwd=ROOT)
        try:
            wait_until(lambda: left() < before - 10, deadline_s=60, what="a note to be published")
        finally:
            relay.send_signal(signal.SIGKILL)
            relay.wait()

    remained = []
    for _ in range(3):
        write(max(0, 300 - left()))
        await asyncio.to_thread(killed)
        remained.append(left())
    assert any(remained), "each relay had done everything before it was killed"
    await outbox.relay(cluster.url, path, until_empty=True)
    assert left() == 0
    assert await arrived(cluster, tmp_path / "down.sqlite") == kept(path)
