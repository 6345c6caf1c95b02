"""The public interface of the SDK: connect, run DDL, open transactions.

    async with await Service.connect("http://127.0.0.1:2379") as svc:
        await svc.create_database("shop")
        orders = await svc.create_table("shop", Table("orders", Column("id", BigInt(), primary_key=True), ...))
        async with svc.transaction() as txn:
            txn.insert(orders, {"id": 1, ...})

It is an embedded writer, not a database. It checks that values fit their columns; it does not check uniqueness, takes
no locks and reads no rows: the embedding service holds the data, and the SDK writes its changes to the pumps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.keepalive import keep_in_thread
from binlog.cluster.kv import Etcd
from binlog.cluster.published_jobs import PublishedJobs
from binlog.cluster.timestamp import TimestampSource, connect_timestamps
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage
from binlog.tidb.job import Job

from pumpclient.client import PumpsClient
from pumpclient.options import ConnectOptions, PdUrls, check_labels, check_strategy, upstream_of
from pumpclient.pool import NO_LABELS
from pumpclient.sdk import compare, statements
from pumpclient.sdk.arguments import of_kind
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.ddl import DdlRunner, Plan
from pumpclient.sdk.errors import BadDeclaration, SchemaExists
from pumpclient.sdk.lease import TTL_S, WriterLease
from pumpclient.sdk.parse import parse_ddl
from pumpclient.sdk.places import IN_FLIGHT_MAX, QUEUE_MAX, QUEUE_WAIT_S, Places
from pumpclient.sdk.report import OnTransaction
from pumpclient.sdk.retry import WITHIN_S, run
from pumpclient.sdk.rowids import RowIds
from pumpclient.sdk.statements import NO_CHANGE, NO_PLACE, NO_RENAME
from pumpclient.sdk.table import Column, Index, Table, bound_table
from pumpclient.sdk.transaction import Opening, Transaction
from pumpclient.sdk.underway import UnderWay

log = get_logger(__name__)

RELOAD_S = 1.0
CLOSE_WAIT_S = 5.0
CLOSE_DRAIN_S = 1.0  # for what is cancelled, to tell the pumps


class Service:
    """Connected from `connect` until `close`. One event loop."""

    def __init__(
        self,
        *,
        etcd: Etcd,
        client: PumpsClient,
        timestamps: TimestampSource,
        rowids: RowIds,
        lease: WriterLease | None = None,
        places: Places | None = None,
        on_transaction: OnTransaction | None = None,
    ) -> None:
        """From parts already made; `open` loads the schema. Most callers want `connect`.

        `lease`: by default one that is renewed in this event loop.
        """
        self._lease = lease or WriterLease(etcd)
        self._under_way = UnderWay()
        self._places = places or Places()
        self._on_transaction = on_transaction
        self._etcd = etcd
        self.client = client
        self._timestamps = timestamps
        self._rowids = rowids
        self._jobs = PublishedJobs(etcd)
        self.catalog = Catalog()
        self._ddl = DdlRunner(
            etcd=etcd,
            jobs=self._jobs,
            client=client,
            timestamps=timestamps,
            catalog=self.catalog,
            refresh=self.refresh,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            lease=self._lease,
            under_way=self._under_way,
        )
        self._revision = 0
        self._follower: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        pd_urls: PdUrls,
        *,
        strategy: str = "range",
        lease_ttl_s: int = TTL_S,
        in_flight_max: int = IN_FLIGHT_MAX,
        queue_max: int = QUEUE_MAX,
        queue_wait_s: float = QUEUE_WAIT_S,
        on_transaction: OnTransaction | None = None,
        **options: Unpack[ConnectOptions],
    ) -> Service:
        """Reach etcd (or PD), at least one pump and the source of timestamps, and load the published schema.

        `lease_ttl_s`: when this process has ended, or stood still or been without etcd for that many seconds, the pumps
        roll back what it has not committed. A thread of its own renews the lease, so a busy event loop does not end it.

        `in_flight_max` transactions are sent at once; `queue_max` more wait in `commit`, `queue_wait_s` seconds at
        most, and others get Busy. `on_transaction` is called in the event loop as each `commit` of rows ends.

        NoPump, EtcdError, TimestampUnavailable or TimestampSourceMismatch say what is missing; ConfigError and
        TypeError name an argument that cannot be.
        """
        check_strategy(strategy)
        places = Places(in_flight_max=in_flight_max, queue_max=queue_max, queue_wait_s=queue_wait_s)
        section, security = upstream_of(pd_urls, options), options.get("security")
        check_labels(strategy, options.get("labels", NO_LABELS), only=options.get("labels_only", False))
        async with contextlib.AsyncExitStack() as made:
            etcd = connect_etcd(section.pd_urls, security)
            made.push_async_callback(etcd.close)
            client = await PumpsClient.over(etcd, section, strategy, options)
            made.push_async_callback(client.close)
            timestamps = await connect_timestamps(etcd, section, security)
            made.push_async_callback(timestamps.close)
            lease = WriterLease(etcd, ttl_s=lease_ttl_s, keep=keep_in_thread(section.pd_urls, security))
            made.push_async_callback(lease.close)
            rowids = RowIds(await timestamps.get())
            service = cls(
                etcd=etcd,
                client=client,
                timestamps=timestamps,
                rowids=rowids,
                lease=lease,
                places=places,
                on_transaction=on_transaction,
            )
            await service.open()
            made.pop_all()
            return service

    async def open(self) -> None:
        """Load the published jobs, follow those of other services, and be known to the pumps."""
        await self.refresh()
        await self._lease.ready()
        self._follower = asyncio.create_task(self._follow(), name="sdk-jobs")

    async def refresh(self) -> None:
        """Take in every job that is published by now."""
        listing, self._revision = await self._jobs.listing()
        self._apply(listing)

    def _apply(self, jobs: Sequence[tuple[int, bytes]]) -> None:
        for version, text in jobs:
            if version > self.catalog.version:
                self.catalog.apply(Job.from_json(text))

    async def _follow(self) -> None:
        outage = Outage(log, "published jobs cannot be read", "published jobs are read again")
        while True:
            try:
                async for jobs in self._jobs.watch(self._revision):
                    self._apply(jobs)
            except BinlogError as error:
                outage.failed(error=str(error))
            await asyncio.sleep(RELOAD_S)
            try:
                await self.refresh()
                outage.over()
            except BinlogError as error:
                outage.failed(error=str(error))

    # --- rows -----------------------------------------------------------------------------------------------

    async def begin(self) -> Transaction:
        """An open transaction with its start_ts. ClientClosed once the service is closed."""
        self._under_way.check("a transaction")
        return self._transaction(await self._timestamps.get())

    def transaction(self) -> Opening:
        """`async with svc.transaction() as txn:`; commits when the block ends, rolls back when it raises."""
        return Opening(self.begin)

    def _transaction(self, start_ts: int) -> Transaction:
        return Transaction(
            start_ts=start_ts,
            client=self.client,
            timestamps=self._timestamps,
            catalog=self.catalog,
            rowids=self._rowids,
            lease=self._lease,
            under_way=self._under_way,
            places=self._places,
            on_transaction=self._on_transaction,
        )

    async def run(self, work: Callable[[Transaction], Awaitable[None] | None], *, within_s: float = WITHIN_S) -> int:
        """The commit_ts of a transaction that `work` fills with rows, made again while that is harmless.

        `work` is called once for each attempt, with a new transaction. It is made again after an error that says that
        nothing will be visible, and after CommitUndelivered once the pumps have said that it is not committed: so rows
        are written once. Busy, errors of rows and `work`'s own errors are raised at once; others, CommitUndelivered
        among them, when `within_s` seconds have passed.
        """
        return await run(self.begin, work, within_s)

    @property
    def in_flight(self) -> int:
        """Transactions being sent now."""
        return self._places.in_flight

    @property
    def queued(self) -> int:
        """Transactions that wait in `commit` for others to end."""
        return self._places.queued

    # --- schema ---------------------------------------------------------------------------------------------

    async def table(self, schema: str, name: str) -> Table:
        """The current handle of a table, whoever made it. SchemaNotFound."""
        await self.refresh()
        return self.catalog.table(schema, name)

    async def databases(self) -> tuple[str, ...]:
        """Names of the databases that are published by now, whoever made them."""
        await self.refresh()
        return self.catalog.databases()

    async def tables(self, schema: str) -> tuple[str, ...]:
        """Names of a database's tables that are published by now. SchemaNotFound."""
        await self.refresh()
        return self.catalog.tables(schema)

    async def create_database(self, schema: str, *, collate: str = "utf8mb4_bin", if_not_exists: bool = False) -> None:
        """SchemaExists when it is there. With `if_not_exists` that is as good, whoever made it; SchemaDiffers when it
        has another collation."""
        plan = statements.create_database(schema, collate)
        if if_not_exists and schema.lower() in map(str.lower, await self.databases()):
            compare.check_database(self.catalog.database(schema).info, collate)
            return
        try:
            await self._ddl.run(plan)
        except SchemaExists:
            if not if_not_exists:
                raise
            compare.check_database(self.catalog.database(schema).info, collate)  # another service was faster

    async def drop_database(self, schema: str) -> None:
        """Drop it and every table in it. SchemaNotFound."""
        await self._ddl.run(statements.drop_database(schema))

    async def create_table(self, schema: str, table: Table, *, if_not_exists: bool = False) -> Table:
        """The handle to write through. SchemaExists, SchemaNotFound (no such database), BadDeclaration.

        With `if_not_exists` the handle of a table of that name that is there already, whoever made it; SchemaDiffers,
        naming the difference, when that is not what `table` declares.
        """
        plan = statements.create_table(schema, table)
        if if_not_exists and table.name.lower() in map(str.lower, await self.tables(schema)):
            return self._as_declared(schema, table)
        try:
            return await self._run_for_table(plan)
        except SchemaExists:
            if not if_not_exists:
                raise
            return self._as_declared(schema, table)  # another service was faster

    def _as_declared(self, schema: str, table: Table) -> Table:
        compare.check_table(self.catalog.bound(schema, table.name), table)
        return self.catalog.table(schema, table.name)

    async def drop_table(self, table: Table) -> None:
        """Drop the table. SchemaNotFound."""
        await self._ddl.run(statements.drop_table(*_place(table)))

    async def truncate_table(self, table: Table) -> Table:
        """The new handle: rows written through the old one from now on are dropped downstream."""
        return await self._run_for_table(statements.truncate_table(*_place(table)))

    async def rename_table(self, table: Table, name: str, *, schema: str | None = None) -> Table:
        """The new handle; into another database with `schema`."""
        old_schema, old = _place(table)
        return await self._run_for_table(statements.rename_table(old_schema, old, schema or old_schema, name))

    async def alter_table(
        self,
        table: Table,
        *,
        add: Sequence[Column] = (),
        drop: Sequence[str] = (),
        add_unique: Sequence[Index] = (),
        add_index: Sequence[Index] = (),
        drop_index: Sequence[str] = (),
        modify: Sequence[Column] = (),
        change: Mapping[str, Column] = NO_CHANGE,
        rename: Mapping[str, str] = NO_RENAME,
        place: Mapping[str, str | None] = NO_PLACE,
        after: str | None = None,
        first: bool = False,
    ) -> Table:
        """One ALTER TABLE with all these changes; the new handle.

        `modify` declares columns anew, whole; `change` does so under another name, `rename` changes the name alone.
        A type may become one that holds every value of the old (INT to BIGINT, VARCHAR(20) to VARCHAR(40) or TEXT,
        DECIMAL with more digits, ENUM with more names, …); in a primary key only an integer may get more bytes.
        `place` moves columns that are modified or changed: {"note": "id"} puts note behind id, {"note": None} first.
        BadDeclaration says what cannot be.

        The old handle stays valid: its rows keep arriving, under the columns' new names and types. They do not know
        added columns, which keep their default downstream even where another writer has set them since. So let every
        writer change handles before any gives such a column another value. `after` and `first` place added columns.
        """
        change_of = statements.alteration(
            add=add, drop=drop, add_unique=add_unique, add_index=add_index, drop_index=drop_index,
            modify=modify, change=change, rename=rename, place=place, after=after, first=first,
        )  # fmt: skip
        return await self._run_for_table(statements.alter_table(*_place(table), change_of))

    async def create_index(
        self, table: Table, name: str, columns: Sequence[str | tuple[str, int]], *, unique: bool = False
    ) -> Table:
        """Add an index over columns, or over (column, prefix length); the new handle. SchemaExists, BadDeclaration."""
        key = Index.over(name, columns, unique=unique)
        return await self.alter_table(table, add_unique=[key] if unique else [], add_index=[] if unique else [key])

    async def drop_index(self, table: Table, name: str) -> Table:
        """The new handle. SchemaNotFound."""
        return await self.alter_table(table, drop_index=[name])

    async def ddl(self, statement: str) -> Table | None:
        """A statement as text: CREATE or DROP DATABASE, DROP, TRUNCATE or RENAME TABLE, DROP INDEX, ALTER TABLE … DROP.

        What declares columns takes a `Table` or `Column` instead. The table's new handle where there is one.
        BadDeclaration for anything else.
        """
        job = await self._ddl.run(parse_ddl(statement))
        return self._handle(job)

    async def _run_for_table(self, plan: Plan) -> Table:
        found = self._handle(await self._ddl.run(plan))
        assert found is not None, "a statement on a table ends with a table"
        return found

    def _handle(self, job: Job) -> Table | None:
        if job.table_info is None or not job.table_info.state:
            return None
        return bound_table(job.schema_name, job.table_info, job.schema_version)

    # --- ending ---------------------------------------------------------------------------------------------

    async def close(self, *, wait_s: float = CLOSE_WAIT_S) -> None:
        """Take nothing new, wait at most `wait_s` for what is under way, cancel the rest (0: at once), and disconnect.

        A transaction that is cancelled ends with ClientClosed in its own caller and is rolled back. What the pumps
        could not be told they roll back by themselves at once, for the writer's lease ends here.
        """
        self._under_way.shut()
        if not await self._under_way.ended(wait_s):
            cancelled = self._under_way.cancel()
            log.warning("closed while transactions were open", under_way=len(self._under_way), cancelled=cancelled)
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            self._follower = None
        await self.client.close(drain_s=CLOSE_DRAIN_S)
        await self._lease.close()
        await self._ddl.abandon()
        await self._under_way.ended(CLOSE_DRAIN_S)
        await self._timestamps.close()
        await self._etcd.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _place(table: Table) -> tuple[str, str]:
    bound = of_kind("table", table, Table).bound
    if bound is None:
        raise BadDeclaration(f"table {table.name} is only declared: use what create_table or table() returns")
    return bound.schema, bound.info.name
