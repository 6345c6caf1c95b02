"""The demo from start to end: start the programs, let the shop write, wait for the drainer, compare."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from binlog.runtime import log

from demo.compare import Comparison, compare_table
from demo.processes import DemoError, Program, drainer_program, etcd_program, pump_program
from demo.screen import Moment, Screen
from demo.shop import SCHEMA, Shop
from pumpclient.sdk import Service

PRODUCTS = 60
CRASH_DOWN_S = 4.0
CATCH_UP_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    seconds: float
    writers: int
    rate: float
    seed: int
    crash: bool


@dataclass
class Chain:
    """All programs of the demo. `status_addr` is the drainer's."""

    etcd: Program
    etcd_url: str
    pumps: list[Program]
    drainer: Program
    status_addr: str
    database: Path

    def status(self) -> dict[str, object]:
        """The drainer's status; empty while it does not answer."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://{self.status_addr}/status", timeout=2) as answer,
        ):
            found: dict[str, object] = json.load(answer)
            return found
        return {}


@contextlib.asynccontextmanager
async def started(options: Options, screen: Screen) -> AsyncIterator[Chain]:
    """etcd first, then the pumps, then the drainer; stopped in the opposite order."""
    directory = options.directory.resolve()
    if directory.exists() and any(directory.iterdir()) and not (directory / ".demo").exists():
        raise DemoError(f"{directory} is not empty and not a demo's: choose another with --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / ".demo").touch()
    etcd, url = etcd_program(directory)
    database = directory / "shop.sqlite"
    drainer, status_addr = drainer_program(directory, url, database)
    pumps = [pump_program(directory, f"pump-{n}", url) for n in (1, 2)]
    chain = Chain(etcd, url, pumps, drainer, status_addr, database)
    log.setup("info", str(directory / "writer.log"))
    try:
        screen.say("starting etcd and two pumps")
        etcd.start()
        for pump in pumps:
            pump.start()
        for pump in pumps:
            await asyncio.to_thread(pump.wait_ready, partial(_serving, pump), "serving")
        screen.say("starting the drainer on Spark")
        drainer.start()
        await asyncio.to_thread(drainer.wait_ready, lambda: drainer.said("drainer is running") > 0, "running")
        screen.say(f"the drainer's page: http://{status_addr}/")
        yield chain
    finally:
        drainer.kill()
        for pump in pumps:
            pump.kill()
        etcd.kill()


def _serving(pump: Program) -> bool:
    return pump.said("pump is serving") > 0


async def write(shop: Shop, options: Options, until: float) -> None:
    """`options.writers` tasks pick actions at random, `options.rate` a second in all, until the clock says stop."""
    rng = random.Random(options.seed)
    actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
        (shop.register, 3),
        (shop.place_order, 6),
        (shop.pay, 4),
        (shop.cancel, 1),
        (shop.swap_shelves, 2),
        (shop.log_visit, 2),
    ]
    pause_s = options.writers / options.rate
    choices, weights = [a for a, _ in actions], [w for _, w in actions]

    async def writer() -> None:
        due = time.monotonic() + rng.uniform(0, pause_s)
        while due < until:
            await asyncio.sleep(due - time.monotonic())
            await rng.choices(choices, weights)[0]()
            due = max(due + pause_s, time.monotonic() - 1)  # catches up after a stall, but not without bound

    async with asyncio.TaskGroup() as group:
        for _ in range(options.writers):
            group.create_task(writer())


async def interrupt(chain: Chain, shop: Shop, options: Options, screen: Screen) -> None:
    """An ALTER TABLE after a third of the time, a pump killed and restarted after a half."""
    await asyncio.sleep(options.seconds / 3)
    screen.say("ALTER TABLE orders ADD COLUMN note, while orders keep coming")
    await shop.add_note_column()
    if not options.crash:
        return
    await asyncio.sleep(options.seconds / 6)
    pump = chain.pumps[0]
    served = pump.said("pump is serving")
    screen.say(f"SIGKILL {pump.name}")
    pump.kill()
    await asyncio.sleep(CRASH_DOWN_S)
    pump.start()
    await asyncio.to_thread(pump.wait_ready, lambda: pump.said("pump is serving") > served, "serving again")
    screen.say(f"{pump.name} is serving again")


async def watch(chain: Chain, shop: Shop, options: Options, screen: Screen, phase: Callable[[], str]) -> None:
    """Draw what is going on four times a second until cancelled; DemoError when the drainer dies."""
    begin = time.monotonic()
    while True:
        if not chain.drainer.alive:
            raise DemoError(f"the drainer exited:\n{chain.drainer.tail()}")
        status = await asyncio.to_thread(chain.status)
        applied, lag = status.get("RowsApplied"), status.get("LagSeconds")
        screen.show(
            Moment(
                time.monotonic() - begin,
                options.seconds,
                phase(),
                shop.counts.transactions,
                shop.counts.rows,
                applied if isinstance(applied, int) else 0,
                float(lag) if isinstance(lag, int | float) else None,
                {pump.name: pump.alive for pump in chain.pumps},
            )
        )
        await asyncio.sleep(0.25)


async def caught_up(chain: Chain, commit_ts: int) -> None:
    """Wait until the drainer's position has reached `commit_ts`."""
    end = time.monotonic() + CATCH_UP_DEADLINE_S
    while True:
        position = (await asyncio.to_thread(chain.status)).get("LastTS")
        if isinstance(position, int) and position >= commit_ts:
            return
        if time.monotonic() > end:
            raise DemoError(
                f"the drainer is at {position}, the last commit is {commit_ts}, after {CATCH_UP_DEADLINE_S:.0f} s:\n"
                + chain.drainer.tail()
            )
        await asyncio.sleep(0.1)


async def run(options: Options, screen: Screen) -> bool:
    """True when every table downstream equals what the shop wrote."""
    async with started(options, screen) as chain:
        async with await Service.connect(chain.etcd_url) as service:
            shop = Shop(service, random.Random(options.seed))
            await shop.create(PRODUCTS)
            screen.say("waiting for the first tables downstream")
            await caught_up(chain, shop.counts.last_commit_ts)
            phase = "writing"
            with screen.running(options.seconds):
                watcher = asyncio.create_task(watch(chain, shop, options, screen, lambda: phase))
                story = asyncio.create_task(interrupt(chain, shop, options, screen))
                try:
                    work = asyncio.create_task(write(shop, options, time.monotonic() + options.seconds))
                    await _all_or_first_failure(watcher, work, story)
                    phase = "catching up"
                    drained = asyncio.create_task(caught_up(chain, shop.counts.last_commit_ts))
                    await _all_or_first_failure(watcher, drained)
                finally:
                    for task in (watcher, story):
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError, DemoError):
                            await task
        code = await asyncio.to_thread(chain.drainer.stop, 60)
        if code != 0:
            raise DemoError(f"the drainer stopped with exit code {code}:\n{chain.drainer.tail()}")
        results: list[Comparison] = [compare_table(chain.database, SCHEMA, model) for model in shop.models.values()]
        screen.compare(results, chain.database)
        screen.say(
            f"{shop.counts.transactions:,} transactions, {shop.counts.rows:,} row changes: "
            + ", ".join(f"{name} {count:,}" for name, count in sorted(shop.counts.by_action.items()))
        )
        return all(result.ok for result in results)


async def _all_or_first_failure(watcher: asyncio.Task[None], *work: asyncio.Task[None]) -> None:
    """Wait for `work`; a failure of any of it, or of the watcher, ends all of it at once."""
    pending: set[asyncio.Task[None]] = {watcher, *work}
    try:
        while not all(task.done() for task in work):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    except BaseException:
        for task in work:
            task.cancel()
        raise
