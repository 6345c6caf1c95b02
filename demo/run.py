"""The demo from start to end: start the programs, let the shop write, wait for the drainer, compare."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from binlog.runtime import log

from demo.command import Options
from demo.compare import Comparison, compare_table
from demo.processes import (
    DemoError,
    DrainerProgram,
    Program,
    drainer_program,
    etcd_program,
    into_sqlite,
    pump_program,
)
from demo.screen import Moment, Screen
from demo.shop import SCHEMA, Shop
from pumpclient.sdk import Service

PRODUCTS = 60
CRASH_DOWN_S = 4.0
CATCH_UP_DEADLINE_S = 180.0

Work = Coroutine[Any, Any, None]


@dataclass
class Chain:
    """All programs of the demo."""

    etcd: Program
    etcd_url: str
    pumps: list[Program]
    drainer: DrainerProgram
    directory: Path


@contextlib.asynccontextmanager
async def started(options: Options, screen: Screen, into: Callable[[Path], str]) -> AsyncIterator[Chain]:
    """Start etcd first, then the pumps, then the drainer. Stop them in the opposite order. `into`: the drainer's
    sections [syncer] and [syncer.to], given the demo's directory."""
    directory = emptied(options.directory)
    etcd, url = etcd_program(directory)
    drainer = drainer_program(directory, url, "drainer", into(directory))
    pumps = [pump_program(directory, f"pump-{n}", url) for n in (1, 2)]
    chain = Chain(etcd, url, pumps, drainer, directory)
    log.setup("info", str(directory / "writer.log"))
    try:
        screen.say("starting etcd and two pumps")
        await start_pumps(etcd, pumps)
        screen.say("starting the drainer on Spark")
        drainer.start()
        await asyncio.to_thread(drainer.wait_ready, partial(running, drainer), "running")
        screen.say(f"the drainer's page: http://{drainer.status_addr}/")
        yield chain
    finally:
        drainer.kill()
        for pump in pumps:
            pump.kill()
        etcd.kill()


def emptied(directory: Path) -> Path:
    """Return the demo's directory, absolute and emptied. Raises DemoError for a directory that is not a demo's."""
    directory = directory.resolve()
    if directory.exists() and any(directory.iterdir()) and not (directory / ".demo").exists():
        raise DemoError(f"{directory} is not empty and not a demo's: choose another with --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / ".demo").touch()
    return directory


async def start_pumps(etcd: Program, pumps: Sequence[Program]) -> None:
    """Start etcd and the pumps, and wait until the pumps serve."""
    etcd.start()
    for pump in pumps:
        pump.start()
    for pump in pumps:
        await asyncio.to_thread(pump.wait_ready, partial(serving, pump), "serving")


def serving(pump: Program) -> bool:
    return pump.said("pump is serving") > 0


def running(drainer: Program) -> bool:
    return drainer.said("drainer is running") > 0


async def write(shop: Shop, until: float, *, writers: int, rate: float, seed: int) -> None:
    """Run `writers` tasks that choose actions at random, `rate` a second in all, until the monotonic clock shows
    `until` seconds.
    """
    rng = random.Random(seed)
    actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
        (shop.register, 3),
        (shop.place_order, 6),
        (shop.pay, 4),
        (shop.cancel, 1),
        (shop.swap_shelves, 2),
        (shop.log_visit, 2),
    ]
    pause_s = writers / rate
    choices, weights = [a for a, _ in actions], [w for _, w in actions]

    async def writer() -> None:
        due = time.monotonic() + rng.uniform(0, pause_s)
        while due < until:
            await asyncio.sleep(due - time.monotonic())
            await rng.choices(choices, weights)[0]()
            due = max(due + pause_s, time.monotonic() - 1)  # catches up after a stall, up to a limit

    async with asyncio.TaskGroup() as group:
        for _ in range(writers):
            group.create_task(writer())


async def interrupt(
    pump: Program, shop: Shop, options: Options, say: Callable[[str], None], note: str | None = "none"
) -> None:
    """Run an ALTER TABLE after a third of the time, kill and restart `pump` after half of it. `note`: see
    Shop.add_note_column."""
    await asyncio.sleep(options.seconds / 3)
    say("ALTER TABLE orders ADD COLUMN note, while orders keep coming")
    await shop.add_note_column(note)
    if not options.crash:
        return
    await asyncio.sleep(options.seconds / 6)
    served = pump.said("pump is serving")
    say(f"SIGKILL {pump.name}")
    pump.kill()
    await asyncio.sleep(CRASH_DOWN_S)
    pump.start()
    await asyncio.to_thread(pump.wait_ready, lambda: pump.said("pump is serving") > served, "serving again")
    say(f"{pump.name} is serving again")


async def watch(chain: Chain, shop: Shop, options: Options, screen: Screen, phase: Callable[[], str]) -> None:
    """Draw the state four times a second until cancelled. Raises DemoError when the drainer dies."""
    begin = time.monotonic()
    while True:
        if not chain.drainer.alive:
            raise DemoError(f"the drainer exited:\n{chain.drainer.tail()}")
        status = await asyncio.to_thread(chain.drainer.status)
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


async def caught_up(drainer: DrainerProgram, commit_ts: int) -> None:
    """Wait until the drainer's position has reached `commit_ts`."""
    end = time.monotonic() + CATCH_UP_DEADLINE_S
    while True:
        position = (await asyncio.to_thread(drainer.status)).get("LastTS")
        if isinstance(position, int) and position >= commit_ts:
            return
        if not drainer.alive:
            raise DemoError(f"{drainer.name} exited:\n{drainer.tail()}")
        if time.monotonic() > end:
            raise DemoError(
                f"{drainer.name} is at {position}, the last commit is {commit_ts}, after {CATCH_UP_DEADLINE_S:.0f} s:\n"
                + drainer.tail()
            )
        await asyncio.sleep(0.1)


async def stopped(drainer: DrainerProgram) -> None:
    """Stop the drainer. Raises DemoError unless it ends with exit code 0."""
    code = await asyncio.to_thread(drainer.stop)
    if code != 0:
        raise DemoError(f"{drainer.name} stopped with exit code {code}:\n{drainer.tail()}")


async def run(options: Options, screen: Screen) -> bool:
    """Run the demo. Return True if every table downstream equals what the shop wrote."""
    async with started(options, screen, lambda directory: into_sqlite(_database(directory))) as chain:
        shop = await shop_downstream(chain, options, screen)
        database = _database(chain.directory)
        results: list[Comparison] = [compare_table(database, SCHEMA, model) for model in shop.models.values()]
        screen.compare(results, f"SQLite file: {database}")
        screen.say(shop.counts.told())
        return all(result.ok for result in results)


def _database(directory: Path) -> Path:
    return directory / "shop.sqlite"


async def shop_downstream(
    chain: Chain, options: Options, screen: Screen, merged: Callable[[Shop], Work] | None = None
) -> Shop:
    """Let a shop write, wait until the drainer has everything, then for `merged`, and stop the drainer. Return the
    shop."""
    async with await Service.connect(chain.etcd_url) as service:
        shop = Shop(service, random.Random(options.seed))
        await shop.create(PRODUCTS)
        screen.say("waiting for the first tables downstream")
        await caught_up(chain.drainer, shop.counts.last_commit_ts)
        with screen.running(options.seconds):
            watching = partial(watch, chain, shop, options, screen)
            interruptions = interrupt(chain.pumps[0], shop, options, screen.say)
            waits: list[tuple[str, Callable[[int], Work]]] = [("catching up", partial(caught_up, chain.drainer))]
            if merged is not None:
                waits.append(("merging", lambda _: merged(shop)))
            await written(shop, options, watching, interruptions, waits)
    await stopped(chain.drainer)
    return shop


async def written(
    shop: Shop,
    options: Options,
    watching: Callable[[Callable[[], str]], Work],
    interruptions: Work,
    waits: Sequence[tuple[str, Callable[[int], Work]]],
) -> None:
    """Let the shop write while `interruptions` (a kill, a DDL) run; then run each of `waits` with the last commit_ts,
    which returns when everything up to it has arrived. `watching` runs the whole time; its argument returns the name of
    the current phase."""
    phase = "writing"
    watcher, interrupting = asyncio.create_task(watching(lambda: phase)), asyncio.create_task(interruptions)
    try:
        until = time.monotonic() + options.seconds
        writing = write(shop, until, writers=options.writers, rate=options.rate, seed=options.seed)
        await _all_or_first_failure(watcher, asyncio.create_task(writing), interrupting)
        for name, wait in waits:
            phase = name
            await _all_or_first_failure(watcher, asyncio.create_task(wait(shop.counts.last_commit_ts)))
    finally:
        for task in (watcher, interrupting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, DemoError):
                await task


async def _all_or_first_failure(watcher: asyncio.Task[None], *work: asyncio.Task[None]) -> None:
    """Wait for `work`. If any of it or the watcher fails, cancel all of it immediately."""
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
