"""A writer to be killed: `python writer_child.py URL TTL_S` creates a database and a table, or writes one row, and
dies where BINLOG_CRASH_POINT says."""

from __future__ import annotations

import asyncio
import sys

from pumpclient.sdk import BigInt, Column, Service, Table


async def main(url: str, ttl_s: int) -> None:
    async with await Service.connect(url, tso_source="own", lease_ttl_s=ttl_s) as service:
        if not await service.databases():
            await service.create_database("shop")
        table = await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
        async with service.transaction() as txn:
            txn.insert(table, {"id": 1})


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
