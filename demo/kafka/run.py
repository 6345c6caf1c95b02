"""The Kafka demo from start to end: start the programs, let the shop write, read both streams back, compare."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from binlog.runtime import log

from demo.command import Options
from demo.compare import compare_table
from demo.kafka.events import EventsSeen
from demo.kafka.feeds import Feed, feeds
from demo.kafka.screen import FeedMoment, KafkaScreen
from demo.kafka.servers import Broker, Registry, broker, registry
from demo.processes import DemoError, DrainerProgram, Program, etcd_program, pump_program
from demo.run import (
    PRODUCTS,
    caught_up,
    emptied,
    interrupt,
    running,
    start_pumps,
    stopped,
    written,
)
from demo.screen import Moment
from demo.shop import SCHEMA, Shop
from pumpclient.sdk import Service

READ_DEADLINE_S = 180.0


@dataclass
class Stream:
    """One changefeed: its drainer, and the program that reads its topics while it runs."""

    feed: Feed
    drainer: DrainerProgram
    printer: Program
    seen: EventsSeen

    def has_printed(self) -> bool:
        self.seen.poll(time.monotonic())
        return bool(self.seen.topics)

    def moment(self) -> FeedMoment:
        lag = self.drainer.status().get("LagSeconds")
        self.seen.poll(time.monotonic())
        return FeedMoment(
            self.feed.name, self.feed.title, float(lag) if isinstance(lag, int | float) else None, self.seen
        )


@dataclass
class Chain:
    """All programs of the demo. `readers`: those that read everything back; `is_over`: no further program may be
    started.
    """

    directory: Path
    etcd_url: str
    pumps: list[Program]
    streams: list[Stream]
    readers: list[Program] = field(default_factory=list)
    is_over: bool = False


@contextlib.asynccontextmanager
async def started(options: Options, screen: KafkaScreen) -> AsyncIterator[Chain]:
    """Start broker, registry, etcd and pumps, then the drainers. Stop them in the opposite order."""
    directory = emptied(options.directory)
    kafka, schemas = await asyncio.to_thread(broker, directory), registry(directory)
    etcd, url = etcd_program(directory)
    pumps = [pump_program(directory, f"pump-{n}", url) for n in (1, 2)]
    streams = []
    for feed in feeds(kafka.address, schemas.url):
        printer = feed.printer(directory)
        assert printer.output is not None, "a printer writes to a file"
        streams.append(Stream(feed, feed.drainer(directory, url), printer, EventsSeen(printer.output)))
    log.setup("info", str(directory / "writer.log"))
    chain = Chain(directory, url, pumps, streams)
    try:
        screen.say("starting a Kafka broker, a schema registry, etcd and two pumps")
        kafka.program.start()
        schemas.program.start()
        await start_pumps(etcd, pumps)
        await _ready(kafka, schemas)
        screen.say(f"Kafka is at {kafka.address}, the schema registry at {schemas.url}")
        screen.say("starting two drainers on Spark")
        for stream in streams:
            stream.drainer.start()
        for stream in streams:
            await asyncio.to_thread(stream.drainer.wait_ready, partial(running, stream.drainer), "running")
            screen.say(f"the drainer's page for {stream.feed.name}: http://{stream.drainer.status_addr}/")
        yield chain
    finally:
        chain.is_over = True  # readers are awaited in a thread, which cannot be interrupted
        for reader in chain.readers:
            reader.kill()
        for stream in streams:
            stream.printer.kill()
            stream.drainer.kill()
        for pump in pumps:
            pump.kill()
        etcd.kill()
        schemas.program.kill()
        kafka.program.kill()


async def _ready(kafka: Broker, schemas: Registry) -> None:
    await asyncio.to_thread(kafka.program.wait_ready, kafka.ready, "answering")
    await asyncio.to_thread(schemas.program.wait_ready, schemas.ready, "answering")
    await asyncio.to_thread(schemas.require_compatibility)


async def watch(chain: Chain, shop: Shop, options: Options, screen: KafkaScreen, phase: Callable[[], str]) -> None:
    """Draw the state twice a second until cancelled. Raises DemoError when a program dies."""
    begin = time.monotonic()
    while True:
        for stream in chain.streams:
            for program in (stream.drainer, stream.printer):
                if not program.alive:
                    raise DemoError(f"{program.name} exited:\n{program.tail()}")
        moments = [await asyncio.to_thread(stream.moment) for stream in chain.streams]
        screen.show_feeds(
            Moment(
                time.monotonic() - begin,
                options.seconds,
                phase(),
                shop.counts.transactions,
                shop.counts.rows,
                0,
                None,
                {pump.name: pump.alive for pump in chain.pumps},
            ),
            moments,
        )
        await asyncio.sleep(0.5)


async def printed(chain: Chain, commit_ts: int) -> None:
    """Wait until the printers have printed everything up to `commit_ts`; `watch` reads their output."""
    end = time.monotonic() + READ_DEADLINE_S
    while not all(stream.seen.has_all(commit_ts) for stream in chain.streams):
        if time.monotonic() > end:
            late = ", ".join(stream.feed.name for stream in chain.streams if not stream.seen.has_all(commit_ts))
            raise DemoError(f"{late}: not known to be completely in Kafka after {READ_DEADLINE_S:.0f} s")
        await asyncio.sleep(0.2)


async def run(options: Options, screen: KafkaScreen) -> bool:
    """Run the demo. Return True if the order of both streams is correct, and their tables equal what the shop wrote."""
    async with started(options, screen) as chain:
        async with await Service.connect(chain.etcd_url) as service:
            shop = Shop(service, random.Random(options.seed))
            await shop.create(PRODUCTS)
            screen.say("waiting for the first tables in Kafka")
            await _caught_up(chain, shop.counts.last_commit_ts)
            for stream in chain.streams:
                stream.printer.start()
            for stream in chain.streams:
                await asyncio.to_thread(stream.printer.wait_ready, stream.has_printed, "reading")
            # Without a default, because a message carries a row: rows that are not changed after the ALTER would not
            # show it.
            interruptions = interrupt(chain.pumps[0], shop, options, screen.say, note=None)
            with screen.running(options.seconds):
                watching = partial(watch, chain, shop, options, screen)
                waits = [("catching up", partial(_caught_up, chain)), ("reading to the end", partial(printed, chain))]
                await written(shop, options, watching, interruptions, waits)
        await asyncio.gather(*(stopped(stream.drainer) for stream in chain.streams))
        screen.say("the drainers have stopped; reading everything back, as a read-committed consumer")
        reading = (asyncio.to_thread(read_back, chain, one.feed, screen.say) for one in chain.streams)
        good = await asyncio.gather(*reading)
        equal = [shown(chain, stream, shop, screen, ok=ok) for stream, ok in zip(chain.streams, good, strict=True)]
        screen.say(shop.counts.told())
        if swaps := shop.counts.by_action.get("swap", 0):
            screen.say(
                f"Each swap changes a unique key, which is two row events, a delete and an insert: {swaps:,} more."
            )
        return all(good) and all(equal)


async def _caught_up(chain: Chain, commit_ts: int) -> None:
    await asyncio.gather(*(caught_up(stream.drainer, commit_ts) for stream in chain.streams))


def read_back(chain: Chain, feed: Feed, say: Callable[[str], None]) -> bool:
    """Read a changefeed back. Return whether all rules of order hold. Raises DemoError if topics cannot be read."""
    programs = (feed.consumer(chain.directory), feed.checker(chain.directory))
    done = (f"{feed.name}: its tables are made again", f"{feed.name}: its order is checked")
    codes = []
    try:
        for program in programs:
            chain.readers.append(program)
            program.start()
            if chain.is_over:
                raise DemoError(f"{program.name} was started when the demo was over")
        for program, text in zip(programs, done, strict=True):
            codes.append(program.finished(READ_DEADLINE_S))
            say(text)
    finally:
        for program in programs:
            program.kill()
    for program, code, most in zip(programs, codes, (0, 1), strict=True):
        if code > most:
            raise DemoError(f"{program.name} ended with exit code {code}:\n{program.tail()}")
    return codes[1] == 0


def shown(chain: Chain, stream: Stream, shop: Shop, screen: KafkaScreen, *, ok: bool) -> bool:
    """Print the result. Return whether the tables equal the shop's."""
    feed = stream.feed
    output = feed.checker(chain.directory).output
    assert output is not None
    screen.checked(FeedMoment(feed.name, feed.title, None, stream.seen), output.read_text(), ok=ok)
    database = feed.database(chain.directory)
    results = [compare_table(database, SCHEMA, model, made_by_rows=True) for model in shop.models.values()]
    screen.compare_feed(feed.name, results, database)
    return all(result.ok for result in results)
