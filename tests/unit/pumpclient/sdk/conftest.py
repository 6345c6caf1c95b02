"""A service on an etcd in memory, stub pumps and counted timestamps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from binlog.cluster.writers import PublishedJobs
from binlog.envelope import Envelope
from binlog.errors import TimestampUnavailable
from binlog.tidb.job import Job

from pumpclient.client import PumpsClient
from pumpclient.sdk import BigInt, Column, Table, Transaction
from pumpclient.sdk.context import OnTransaction, Permits, ServiceContext
from pumpclient.sdk.lease import WriterLease
from pumpclient.sdk.service import Service
from pumpclient.writer import Limits
from tests.support.keep_alive_task import KeepAliveTask
from tests.unit.pumpclient.conftest import FAST, Field


class Counted:
    """Timestamps 1000, 1001, …; `fail` makes the next requests fail. One for all services of a test."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1000)
        self.fail = 0

    async def get(self) -> int:
        await asyncio.sleep(0)
        if self.fail:
            self.fail -= 1
            raise TimestampUnavailable("no timestamp today")
        return next(self._numbers)

    async def close(self) -> None:
        return


class Shop(Field):
    """A field with timestamps and services."""

    def __init__(self) -> None:
        super().__init__()
        self.timestamps = Counted()
        self.services: list[Service] = []

    async def service(
        self,
        limits: Limits = FAST,
        lease: WriterLease | None = None,
        permits: Permits | None = None,
        on_transaction: OnTransaction | None = None,
    ) -> Service:
        client: PumpsClient = await self.client(limits=limits)
        context = ServiceContext(
            etcd=self.etcd,
            client=client,
            timestamps=self.timestamps,
            rowids=itertools.count(7),
            lease=lease or WriterLease(self.etcd, keep=KeepAliveTask),
            permits=permits or Permits(),
            on_transaction=on_transaction,
        )
        service = Service(context)
        await service.open()
        self.services.append(service)
        return service

    async def jobs(self) -> list[Job]:
        return [Job.from_json(text) for _, text in await PublishedJobs(self.etcd).all()]

    def received(self) -> list[Envelope]:
        return [envelope for pump in self.pumps.values() for envelope in pump.received if envelope.start_ts]

    async def close(self) -> None:
        for service in self.services:
            if service._follower is not None:
                service._follower.cancel()
            await service._context.lease.close()
        await super().close()


async def table_of(service: Service) -> Table:
    """A table `t` in a new database `shop`; its only column is its key, `id`."""
    await service.create_database("shop")
    return await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))


async def opened(shop: Shop, **options: Any) -> tuple[Service, Table]:
    """A service with these options of Shop.service, and its table."""
    service = await shop.service(**options)
    return service, await table_of(service)


async def begun(service: Service, table: Table, number: int = 1) -> Transaction:
    """A transaction that has inserted the row `number` and is not committed."""
    txn = await service.begin()
    txn.insert(table, {"id": number})
    return txn


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    await made.add("a")
    yield made
    await made.close()
