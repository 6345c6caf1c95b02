"""A service with many transactions under way at any moment, to be stopped in any way: `service_child.py URL TTL_S`.

It writes a line for each transaction, `committed START COMMIT` or `KIND START` with the error's class, and ends with
its standard input: then it closes its service and writes `closed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys

from binlog.errors import BinlogError

from pumpclient.sdk import BigInt, Column, SchemaExists, Service, Table

UNDER_WAY = 64


def say(*words: object) -> None:
    print(*words, flush=True)


async def write(service: Service, table: Table, numbers: itertools.count[int]) -> None:
    while True:
        txn = await service.begin()
        txn.insert(table, {"id": next(numbers)})
        try:
            say("committed", txn.start_ts, await txn.commit())
        except BinlogError as error:
            say(type(error).__name__, txn.start_ts)


async def main(url: str, ttl_s: int) -> None:
    async with await Service.connect(url, tso_source="own", lease_ttl_s=ttl_s) as service:
        with contextlib.suppress(SchemaExists):
            await service.create_database("shop")
            await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
        table = await service.table("shop", "t")
        numbers = itertools.count(1)
        writers = [asyncio.create_task(write(service, table, numbers)) for _ in range(UNDER_WAY)]
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
        await ended.wait()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    say("closed")


# Jobs that a shell starts in the background ignore it, and so would this child of theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
