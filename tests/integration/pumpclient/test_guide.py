"""docs/sdk.md as its reader runs it: every block, and the outbox through crashes."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from binlog.cluster.writers import PublishedJobs
from binlog.envelope import scan

from drainer.schema.history.sources import PublishedSource
from drainer.sink.sqlite.sink import SQLiteSink
from pumpclient import sdk
from tests.integration.pumpclient.conftest import Cluster
from tests.integration.sink.test_sdk_columns import drain
from tests.support.servers import ROOT, Server, free_port, wait_until

PAGE = (ROOT / "docs" / "sdk.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
URL = "http://10.0.0.9:2379"


PROGRAMS = ("# outbox.py", "# readings.py")  # blocks that are files of their own


def source_of(program: str) -> str:
    (found,) = [block for block in BLOCKS if block.startswith(f"# {program}")]
    return found


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "outbox.py"
    file.write_text(source_of("outbox.py"))
    spec = importlib.util.spec_from_file_location("outbox", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_sdk_page_lists_every_error_and_type() -> None:
    errors = PAGE.split("## Errors")[1].split("## Closing")[0]
    types = PAGE.split("## Types")[1].split("## Errors")[0]
    for name in sdk.__all__:
        thing = getattr(sdk, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            assert re.search(rf"^\|[^|]*\b{name}\b[^|]*\|", errors, re.MULTILINE), name
        elif getattr(thing, "__module__", "") == "pumpclient.sdk.types":
            assert f"`{name}(" in types, name


@pytest.mark.integration
async def test_sdk_page_code_blocks_run_in_order(cluster: Cluster) -> None:
    """One after another in one namespace, as in a program with `await` at its top."""
    names: dict[str, Any] = {}
    ran = 0
    for block in BLOCKS:
        if block.startswith(PROGRAMS):
            continue
        source = block.replace(URL, cluster.url)
        code = compile(source, "docs/sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        awaited = eval(code, names)
        if awaited is not None:
            await awaited
        ran += 1
    assert ran >= 9
    assert names["committed"] is True
    assert names["count"] == 250
    names["local"].execute("BEGIN IMMEDIATE")  # the last page is unlocked
    assert await asyncio.to_thread(names["in_a_thread"]) == ("shop",)
    assert names["orders"].column_names == ("id", "reference", "amount", "state", "created_at", "pieces")


def order(number: int, customer: str = "c") -> dict[str, object]:
    return {"id": number, "customer": customer, "amount": f"{number}.50", "made_at": "2026-11-22 01:02:03"}


async def arrived(cluster: Cluster, path: Path) -> list[tuple[Any, ...]]:
    """What a drainer makes of the stream, in large batches, in SQLite. Dead relays' prewrites end by themselves."""
    async with await sdk.Service.connect(cluster.url) as service:
        jobs = await PublishedSource(PublishedJobs(service._context.etcd)).refresh()
        until_ts = await service._context.timestamps.get()
        payloads: list[bytes] = []
        for pump in cluster.pumps.values():
            payloads += await cluster.pull_payloads(pump, service.client.cluster_id, until_ts)
    payloads.sort(key=lambda payload: scan(payload).commit_ts)
    sink = SQLiteSink(path)
    await asyncio.to_thread(drain, sink, jobs, payloads, batch=1000)
    sink.close(clean=True)
    with sqlite3.connect(path) as connection:
        return connection.execute(
            'SELECT id, customer, amount, made_at FROM "outbox_shop.orders" ORDER BY id'
        ).fetchall()


def kept(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT id, customer, amount, made_at FROM orders ORDER BY id").fetchall()


@pytest.mark.integration
async def test_outbox_relay_repeats_publication_cut_off_by_crash(
    cluster: Cluster, outbox: ModuleType, tmp_path: Path
) -> None:
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
async def test_snapshot_makes_destination_equal_while_rows_change(
    cluster: Cluster, outbox: ModuleType, tmp_path: Path
) -> None:
    """Rows that the destination has, has differently or lacks, because the pumps no longer have their records. The
    relay offers pages between records that another connection writes meanwhile; it fails once and continues."""
    path, down = tmp_path / "shop.sqlite", tmp_path / "down.sqlite"
    local = outbox.connect_local(path)
    outbox.write(local, *((number, order(number)) for number in range(20)))
    await outbox.relay(cluster.url, path, until_empty=True)
    await arrived(cluster, down)
    outbox.write(local, *((number, order(number, "lost")) for number in range(10, 60)))
    local.execute("DELETE FROM outbox")
    recorded = -1

    def others() -> None:
        connection = outbox.connect_local(path)
        for number in range(120):
            key = number * 2 % 80  # odd ones stay as they are
            outbox.write(connection, (key, None if number % 5 == 4 else order(key, f"c{number}")))

    async def pages(fails_at: int = 1000) -> AsyncIterator[list[dict[str, object]]]:
        nonlocal recorded
        query = "SELECT id, customer, amount, made_at FROM orders WHERE id > ? ORDER BY id LIMIT 7"
        while found := local.execute(query, (recorded,)).fetchall():
            if found[-1][0] > fails_at:
                raise ZeroDivisionError
            yield [dict(zip(outbox.COLUMNS, row, strict=True)) for row in found]
            recorded = found[-1][0]
            await outbox.relay_one(local, service, orders)

    async with await sdk.Service.connect(cluster.url) as service:
        orders = await outbox.table(service)
        writing = asyncio.create_task(asyncio.to_thread(others))
        with pytest.raises(ZeroDivisionError):
            await service.snapshot(orders, pages(fails_at=30))
        assert 0 < recorded <= 30
        await service.snapshot(orders, pages())
        await writing
    await outbox.relay(cluster.url, path, until_empty=True)
    assert await arrived(cluster, down) == kept(path)
    assert {row[1] for row in kept(path)} >= {"lost", "c118"}, "rows of both"


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
        """Not before it has published something, and soon after that: not wait_until, whose pauses grow to a quarter of
        a second, in which a quick machine publishes everything."""
        before, ends_s = left(), time.monotonic() + 240
        relay = subprocess.Popen([sys.executable, tmp_path / "outbox.py", cluster.url, path], cwd=ROOT)
        try:
            while left() >= before - 10:
                assert time.monotonic() < ends_s, "no note was published"
                time.sleep(0.005)
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


# --- the web service --------------------------------------------------------------------------------------------------


class Web:
    """The page's web service, as uvicorn runs it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        (directory / "readings.py").write_text(source_of("readings.py"))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.server = Server(
            [sys.executable, "-m", "uvicorn", "readings:app", "--port", self.url.rsplit(":", 1)[1]],
            directory / "web.log",
            {"BINLOG_URL": cluster.url, "PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}{os.pathsep}{directory}"},
        )

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer, JSON where it is."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, text.decode() if path == "/metrics" else json.loads(text)


@pytest.fixture
def web(cluster: Cluster, tmp_path: Path) -> Iterator[Web]:
    made = Web(cluster, tmp_path)
    made.server.start()
    made.server.wait_for_output("Application startup complete", deadline_s=180)
    yield made
    made.server.kill()


def reading(number: int, celsius: str = "21.50") -> dict[str, str]:
    return {"device": f"d{number}", "at": f"2026-11-22T01:02:{number % 60:02}.250Z", "celsius": celsius}


@pytest.mark.integration
async def test_web_service_writes_readings_and_exposes_metrics(cluster: Cluster, web: Web) -> None:
    status, answer = await asyncio.to_thread(web.ask, "/readings", [reading(1), reading(2)])
    assert status == 201, answer
    again, repeated = await asyncio.to_thread(web.ask, "/readings", [reading(1), reading(2)])
    assert again == 201
    assert repeated["commit_ts"] > answer["commit_ts"]
    for wrong, text in ((reading(3, "123456.00"), "celsius"), (reading(4) | {"device": "d" * 41}, "device")):
        status, refused = await asyncio.to_thread(web.ask, "/readings", [wrong])
        assert (status, text in refused["error"]) == (422, True), refused
    many = await asyncio.gather(*(asyncio.to_thread(web.ask, "/readings", [reading(n)]) for n in range(10, 40)))
    assert {status for status, _ in many} == {201}
    assert (await asyncio.to_thread(web.ask, "/ready"))[0] == 200
    _, metrics = await asyncio.to_thread(web.ask, "/metrics")
    assert 'binlog_sdk_transactions_total{outcome="committed"} 32.0' in metrics
    assert "binlog_sdk_rows_total 34.0" in metrics
    assert "binlog_sdk_in_flight 0.0" in metrics
    assert await asyncio.to_thread(web.server.stop) in (0, -signal.SIGTERM), "uvicorn ends by the signal it was sent"
    assert "Application shutdown complete" in web.server.text(), web.server.tail()
    told = {answer["commit_ts"], repeated["commit_ts"], *(done["commit_ts"] for _, done in many)}
    async with await sdk.Service.connect(cluster.url) as service:
        until_ts = await service._context.timestamps.get()
        found = [
            envelope.commit_ts
            for pump in cluster.pumps.values()
            for envelope in await cluster.pull(pump, service.client.cluster_id, until_ts)
            if not envelope.ddl_job_id
        ]
    assert sorted(found) == sorted(told)


@pytest.mark.integration
async def test_web_service_answers_503_while_pumps_are_down_and_recovers(cluster: Cluster, web: Web) -> None:
    """It says so within its ten seconds and a little, is not ready, and writes again when they are back."""
    leader = await cluster.leader()
    other = next(pump for name, pump in cluster.pumps.items() if name != leader)
    await asyncio.to_thread(other.server.stop)
    await asyncio.to_thread(cluster.pumps[leader].server.stop)
    status, refused = await asyncio.to_thread(web.ask, "/readings", [reading(1)])
    assert status == 503, refused
    assert refused["error"] == "it was not written: send it again"
    assert (await asyncio.to_thread(web.ask, "/ready"))[0] == 503
    await asyncio.gather(*(asyncio.to_thread(pump.start) for pump in cluster.pumps.values()))

    def written() -> bool:
        return web.ask("/readings", [reading(1)])[0] == 201

    await asyncio.to_thread(wait_until, written, deadline_s=90, what="a reading to be written")
