"""The shop as a service of its own: it writes to running pumps, and compares a destination with the rows that it wrote.

    python -m demo.service --pd-urls http://etcd:2379 --compare mysql://reader:reader@mariadb:3306

Its database `shop` is dropped and created again at the start. Then, in rounds, it writes for --seconds, waits until
every table in the destination equals what it wrote, and reports this. Exit code 1 when they differ for longer than
--patience, 0 after --rounds rounds or a signal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import time

from binlog.errors import BinlogError
from binlog.runtime import log

from demo.compare import Comparison
from demo.mysql_tables import compare_tables, server_of
from demo.run import PRODUCTS, write
from demo.shop import SCHEMA, Shop
from pumpclient.sdk import Service

POLL_S = 0.5

_log = log.get_logger("shop")


def parse(argv: list[str]) -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(prog="python -m demo.service", description=about[0], epilog=about[2])
    parser.add_argument("--pd-urls", required=True, help="PD or etcd where the pumps are registered")
    parser.add_argument(
        "--compare", required=True, metavar="URL", help="the drainer's destination, as mysql://user:password@host:3306"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of writing in a round (default 60)")
    parser.add_argument("--rounds", type=int, default=0, help="rounds; 0: until a signal (default 0)")
    parser.add_argument("--rate", type=float, default=20.0, help="transactions a second, about (default 20)")
    parser.add_argument("--writers", type=int, default=8, help="concurrent writers (default 8)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default 1)")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds the destination may take to be equal (default 120)"
    )
    options = parser.parse_args(argv)
    try:
        server_of(options.compare)
    except ValueError as error:
        parser.error(f"--compare: {error}")
    return options


async def run(options: argparse.Namespace) -> bool:
    """Run the rounds. Return False if the destination stays different."""
    async with await Service.connect(options.pd_urls) as service:
        if SCHEMA in await service.databases():
            await service.drop_database(SCHEMA)
        shop = Shop(service, random.Random(options.seed))
        await shop.create(PRODUCTS)
        done = 0
        while not options.rounds or done < options.rounds:
            until = time.monotonic() + options.seconds
            await write(shop, until, writers=options.writers, rate=options.rate, seed=options.seed)
            if not await equal(shop, options):
                return False
            done += 1
    return True


async def equal(shop: Shop, options: argparse.Namespace) -> bool:
    """Wait until every table equals the shop's. On a timeout, report the differences and return False."""
    begin = time.monotonic()
    while True:
        found = await asyncio.to_thread(compare_tables, options.compare, SCHEMA, list(shop.models.values()))
        waited_s = round(time.monotonic() - begin, 1)
        if all(one.ok for one in found):
            rows = sum(one.written for one in found)
            _log.info("every table is equal", rows=rows, waited_s=waited_s, written=shop.counts.told())
            return True
        if waited_s > options.patience:
            for one in found:
                if not one.ok:
                    _log.error("a table differs", waited_s=waited_s, **_difference(one))
            return False
        await asyncio.sleep(POLL_S)


def _difference(one: Comparison) -> dict[str, object]:
    return {
        "table": one.table,
        "written": one.written,
        "found": one.found,
        "equal": one.equal,
        "problem": one.problem,
        "missing": [str(row) for row in one.missing],
        "unexpected": [str(row) for row in one.unexpected],
    }


async def until_signal(options: argparse.Namespace) -> bool:
    """Run `run`; SIGTERM and SIGINT end it as if its work were done."""
    work = asyncio.ensure_future(run(options))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await work
    return True


def main() -> int:
    options = parse(sys.argv[1:])
    log.setup("info", "")
    try:
        return 0 if asyncio.run(until_signal(options)) else 1
    except BinlogError as error:
        _log.error("the shop failed", kind=type(error).__name__, error=str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
