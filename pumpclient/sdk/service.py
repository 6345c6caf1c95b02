"""The main class of the SDK: `Service`, which connects, runs DDL statements and opens transactions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from typing import Any, Self, Unpack

from binlog.cluster.etcd import connect_etcd, keep_in_thread
from binlog.cluster.timestamp import connect_timestamps
from binlog.cluster.writers import PublishedJobs
from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger
from binlog.tidb.job import Job
from binlog.tidb.types import UNSPECIFIED

from pumpclient.client import PumpsClient
from pumpclient.options import ConnectOptions, PdUrls, check_labels, check_strategy, upstream_of
from pumpclient.pool import NO_LABELS
from pumpclient.sdk import schema as shape
from pumpclient.sdk import statements
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.context import IN_FLIGHT_MAX, QUEUE_MAX, QUEUE_WAIT_S, OnTransaction, Permits, ServiceContext
from pumpclient.sdk.ddl import DdlRunner, MakeStatement
from pumpclient.sdk.errors import BadDeclaration, RowRejected, SchemaConflict, SchemaExists, of_kind
from pumpclient.sdk.lease import TTL_S, WriterLease
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.statements import AlterOptions, parse_ddl
from pumpclient.sdk.table import Bound, Index, Table, bound_table
from pumpclient.sdk.transaction import WITHIN_S, Retry, Transaction

log = get_logger(__name__)

Page = Sequence[RowValues]
RELOAD_S = 1.0
CLOSE_WAIT_S = 5.0
CLOSE_DRAIN_S = 1.0  # so that rollbacks of cancelled transactions can reach the pumps


class ServiceOptions(ConnectOptions, total=False):
    """Keyword arguments of `connect`. See Service.connect."""

    strategy: str
    lease_ttl_s: int
    in_flight_max: int
    queue_max: int
    queue_wait_s: float
    on_transaction: OnTransaction | None


class Service:
    """A connection to a cluster: it runs DDL statements and opens transactions.

        async with await Service.connect("http://127.0.0.1:2379") as svc:
            await svc.create_database("shop")
            orders = await svc.create_table("shop", Table("orders", Column("id", BigInt(), primary_key=True), ...))
            async with svc.transaction() as txn:
                txn.insert(orders, {"id": 1, ...})

    A Service writes changes to the pumps; it is not a database. It checks that values fit their columns. It does not
    check uniqueness, takes no locks and reads no rows: the program that embeds it holds the data.

    Use a Service in one event loop only, from `connect` until `close`.
    """

    def __init__(self, context: ServiceContext) -> None:
        """Make a service of what it uses; call `open` next."""
        self._context = context
        self.client, self.catalog = context.client, context.catalog
        self._jobs = PublishedJobs(context.etcd)
        self._ddl = DdlRunner(context, self._jobs, self.refresh, owner=f"{socket.gethostname()}:{os.getpid()}")
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
        """Connect to a cluster, load its schema and return the service.

        `pd_urls`: URLs or host:port of PD, or of etcd if there is no PD, as a list or separated by commas. `strategy`:
        how pumps are selected: range, hash, score or label. `options`: write_timeout_s, security, tso_source, pd_addr,
        limits, labels, labels_only, on_undelivered and on_expired; see `pumpclient.options.ConnectOptions`.

        `lease_ttl_s`: the pumps roll back this process's uncommitted transactions when it has ended, or was suspended
        or could not reach etcd for this many seconds. A separate thread renews it, so the event loop may be busy.

        At most `in_flight_max` transactions are sent at the same time. `queue_max` more wait in `commit`, each for at
        most `queue_wait_s` seconds; any other `commit` raises Busy. `on_transaction` is called in the event loop with a
        TransactionReport when the `commit` of a transaction with rows ends.

        Raises NoPump, EtcdError, TimestampUnavailable or TimestampSourceMismatch if a part of the cluster is missing,
        and ConfigError, BadDeclaration or TypeError if an argument is invalid.
        """
        check_strategy(strategy)
        permits = Permits(in_flight_max=in_flight_max, queue_max=queue_max, queue_wait_s=queue_wait_s)
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
            # Hidden row ids of tables without a clustered key, of which drainers need only that they are unique. Each
            # process has a range of its own: timestamps advance by 262,144 a millisecond, faster than it writes rows.
            rowids = itertools.count(await timestamps.get())
            context = ServiceContext(
                etcd=etcd,
                client=client,
                timestamps=timestamps,
                rowids=rowids,
                lease=lease,
                permits=permits,
                on_transaction=on_transaction,
            )
            service = cls(context)
            await service.open()
            made.pop_all()
            return service

    async def open(self) -> None:
        """Load the published jobs, start to follow the jobs of other services, and register this writer in etcd."""
        await self.refresh()
        await self._context.lease.ready()
        self._follower = asyncio.create_task(self._follow(), name="sdk-jobs")

    async def refresh(self) -> None:
        """Apply all jobs that are published by now to the catalog. Raises EtcdError."""
        listing, self._revision = await self._jobs.listing()
        self._apply(listing)

    def _apply(self, jobs: Sequence[tuple[int, bytes]]) -> None:
        for version, text in jobs:
            if version > self.catalog.version:
                self.catalog.apply(Job.from_json(text))

    async def _follow(self) -> None:
        outage = Outage(log, "published jobs cannot be read", "published jobs can be read again")
        while True:
            try:
                async for jobs in self._jobs.watch(self._revision):
                    self._apply(jobs)
            except BinlogError as error:
                outage.failed(error=str(error))
            await asyncio.sleep(RELOAD_S)
            with outage.catching(BinlogError):
                await self.refresh()

    async def begin(self) -> Transaction:
        """Open a transaction and give it a start_ts. Raises ClientClosed or TimestampUnavailable."""
        self._context.under_way.check("a transaction")
        return Transaction(await self._context.timestamps.get(), self._context)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction for `async with svc.transaction() as txn:`. See Transaction."""
        async with await self.begin() as transaction:
            yield transaction

    async def run(self, work: Callable[[Transaction], Awaitable[None] | None], *, within_s: float = WITHIN_S) -> int:
        """Fill a transaction with `work`, commit it, retry while that is safe, and return the commit_ts.

        Each attempt calls `work` with a new transaction. PrewriteFailed, NoPump, TransactionRolledBack,
        TimestampUnavailable and EtcdError are retried; CommitUndelivered only when the pumps have answered that the
        transaction is not committed. So rows are written once. After `within_s` seconds, the last of these errors is
        raised. Busy, PayloadTooLarge, errors in rows and exceptions of `work` itself are raised immediately.
        """
        retry = Retry(within_s)
        while True:
            txn = await retry.begun(self.begin)
            filled = work(txn)
            if filled is not None:
                await filled
            if await retry.committed(txn):
                assert txn.commit_ts is not None
                return txn.commit_ts

    async def snapshot(
        self, table: Table, pages: AsyncIterable[Page] | Iterable[Page], *, within_s: float = WITHIN_S
    ) -> int:
        """Write rows that the service has already, for drainers whose destinations lack them. Return their number.

        `pages`: an iterable, best a generator, plain or async, of sequences of complete rows. Every drainer gets the
        rows, as inserts: a destination's row with the same key is replaced, a missing one is inserted, others stay.

        A page is a transaction, sent and repeated as `run` does it, and its rows are those at its commit_ts: no other
        transaction may change them from before they are read until the page is committed, or an old row replaces a
        newer one. The next page is taken only then. So a generator that locks the rows around its `yield` keeps them
        locked for as long as needed, and what follows the `yield` is the place to record how far it is. If this call
        raises or is cancelled, the generator is closed at its `yield`: call again from the page that was not recorded.

        Raises what `run` raises (after PayloadTooLarge, make smaller pages), BadDeclaration for a table without a
        primary key or a unique key that is not nullable, RowRejected for a row that lacks a column, and SchemaConflict
        if the handle is out of date.
        """
        write = await page_writer(self, table, within_s)
        count = 0
        async with contextlib.aclosing(taken(pages)) as each:
            async for page in each:
                count += await write(page)
        return count

    @property
    def in_flight(self) -> int:
        """The number of transactions that are being sent."""
        return self._context.permits.in_flight

    @property
    def queued(self) -> int:
        """The number of transactions that wait in `commit` for others to end."""
        return self._context.permits.queued

    async def table(self, schema: str, name: str) -> Table:
        """Return the current handle of a table, whichever service created it. Raises SchemaNotFound."""
        await self.refresh()
        return self.catalog.table(schema, name)

    async def databases(self) -> tuple[str, ...]:
        """Return the names of all published databases, whichever service created them."""
        await self.refresh()
        return self.catalog.databases()

    async def tables(self, schema: str) -> tuple[str, ...]:
        """Return the names of all published tables of a database. Raises SchemaNotFound."""
        await self.refresh()
        return self.catalog.tables(schema)

    async def create_database(self, schema: str, *, collate: str = "utf8mb4_bin", if_not_exists: bool = False) -> None:
        """Create a database. Raises SchemaExists if it exists already. With `if_not_exists`, an existing database is
        accepted, whichever service created it; raises SchemaDiffers if its collation is not `collate`.
        """
        plan = statements.create_database(schema, collate)
        if not if_not_exists or schema.lower() not in map(str.lower, await self.databases()):
            try:
                await self._ddl.run(plan)
                return
            except SchemaExists:  # with `if_not_exists`: another service created it meanwhile
                if not if_not_exists:
                    raise
        shape.check_database(self.catalog.database(schema).info, collate)

    async def drop_database(self, schema: str) -> None:
        """Drop a database and all its tables. Raises SchemaNotFound."""
        await self._ddl.run(statements.drop_database(schema))

    async def create_table(
        self, schema: str, table: Table, *, if_not_exists: bool = False, accept_added: bool = False
    ) -> Table:
        """Create a table and return its handle, through which rows are written.

        With `if_not_exists`, return the handle of an existing table of that name, whichever service created it; raises
        SchemaDiffers if it is not as declared. Raises SchemaExists, SchemaNotFound (the database) or BadDeclaration.

        `accept_added`, for rolling deployments: the existing table may have further columns, nullable or with a
        default, and further keys that are not unique. Like a handle from before the ALTER, the returned one has the
        declared columns only.
        """
        plan = statements.create_table(schema, table)
        if not if_not_exists or table.name.lower() not in map(str.lower, await self.tables(schema)):
            try:
                return await self._run_for_table(plan)
            except SchemaExists:  # with `if_not_exists`: another service created it meanwhile
                if not if_not_exists:
                    raise
        return shape.declared_table(self.catalog.bound(schema, table.name), table, accept_added=accept_added)

    async def drop_table(self, table: Table) -> None:
        """Drop the table. Raises SchemaNotFound."""
        await self._ddl.run(statements.drop_table(*_place(table)))

    async def truncate_table(self, table: Table) -> Table:
        """Remove all rows and return the new handle. Drainers drop rows written later through the old one."""
        return await self._run_for_table(statements.truncate_table(*_place(table)))

    async def rename_table(self, table: Table, name: str, *, schema: str | None = None) -> Table:
        """Rename the table, and move it to the database `schema` if that is given. Return the new handle."""
        old_schema, old = _place(table)
        return await self._run_for_table(statements.rename_table(old_schema, old, schema or old_schema, name))

    async def alter_table(self, table: Table, **changes: Unpack[AlterOptions]) -> Table:
        """Make all these changes with one ALTER TABLE and return the new handle.

        `add` declares columns, `drop` names columns; `add_unique`, `add_index` declare keys, `drop_index` names keys.
        `modify` redeclares columns completely; `change` does the same under another name; `rename` changes only names.
        The new type must hold every value of the old one: INT to BIGINT, VARCHAR(20) to VARCHAR(40) or TEXT, DECIMAL
        with more digits, ENUM with more names, and so on. In a primary key, only an integer may get more bytes. `place`
        moves modified or changed columns: {"note": "id"} puts note after id, {"note": None} puts it first. `after` and
        `first` give the place of added columns. Raises BadDeclaration if a change is impossible.

        The old handle stays valid: its rows still arrive, under the new column names and types. They do not contain
        added columns. Downstream such a column gets its default, even if another writer has set it meanwhile. So let
        all writers switch to the new handle before any of them writes another value to an added column.
        """
        return await self._run_for_table(statements.alter_table(*_place(table), statements.alteration(**changes)))

    async def create_index(
        self, table: Table, name: str, columns: Sequence[str | tuple[str, int]], *, unique: bool = False
    ) -> Table:
        """Add an index over columns or (column, prefix length) pairs. Raises SchemaExists, BadDeclaration."""
        key = Index.over(name, columns, unique=unique)
        return await self.alter_table(table, add_unique=[key] if unique else [], add_index=[] if unique else [key])

    async def drop_index(self, table: Table, name: str) -> Table:
        """Drop an index and return the new handle of the table. Raises SchemaNotFound."""
        return await self.alter_table(table, drop_index=[name])

    async def ddl(self, statement: str) -> Table | None:
        """Run a statement given as text; return the table's new handle, or None if the statement leaves no table.

        Supported: CREATE and DROP DATABASE; DROP, TRUNCATE and RENAME TABLE; CREATE and DROP INDEX; ALTER TABLE … DROP.
        Others raise BadDeclaration: to declare columns, use the methods that accept a `Table` or a `Column`.
        """
        job = await self._ddl.run(parse_ddl(statement))
        return self._handle(job)

    async def _run_for_table(self, plan: MakeStatement) -> Table:
        found = self._handle(await self._ddl.run(plan))
        assert found is not None, "a statement on a table ends with a table"
        return found

    def _handle(self, job: Job) -> Table | None:
        if job.table_info is None or not job.table_info.state:
            return None
        return bound_table(Bound(job.schema_name, job.table_info, job.schema_version))

    async def close(self, *, wait_s: float = CLOSE_WAIT_S) -> None:
        """Refuse new calls, wait up to `wait_s` seconds for open ones, cancel the others, and disconnect.

        The caller of a cancelled transaction gets ClientClosed, and the transaction is rolled back. If a pump does not
        receive the rollback, it rolls back by itself shortly afterwards, because the writer's lease is revoked here.
        """
        context = self._context
        context.under_way.shut()
        if not await context.under_way.ended(wait_s):
            cancelled = context.under_way.cancel()
            log.warning(
                "service closed before all transactions and DDL statements had ended",
                still_running=len(context.under_way),
                cancelled=cancelled,
            )
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            self._follower = None
        await self.client.close(drain_s=CLOSE_DRAIN_S)
        await context.lease.close()
        await self._ddl.abandon()
        await context.under_way.ended(CLOSE_DRAIN_S)
        await context.timestamps.close()
        await context.etcd.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _place(table: Table) -> tuple[str, str]:
    bound = of_kind("table", table, Table).bound
    if bound is None:
        raise BadDeclaration(f"table {table.name} is only declared: use the handle from create_table or table()")
    return bound.schema, bound.info.name


# The rows that a service has, written again for destinations that lack them: what `Service.snapshot` does.
#
# Each row is an INSERT with all its columns. Drainers write the rows of a service so that the later commit_ts wins
# (rule 21: one outcome wherever a stream is cut): an INSERT replaces every row with one of its unique values, and
# readers of Kafka and files get the kind of event that a first load gives them. An UPDATE would not do: whatever runs
# it as an UPDATE finds no missing row. Neither would DELETE and INSERT: readers of events would see deletions that
# never happened.
def _check_key(table: Table) -> None:
    """Raise BadDeclaration if no key makes a row replace itself: a table without one would have each row twice."""
    parts = {(column.name, UNSPECIFIED) for column in table.columns if not column.is_nullable}
    keys = (table.primary_key, *(key for key in table.keys if key.unique))
    if not any(key.columns and parts.issuperset(key.columns) for key in keys):
        raise BadDeclaration(
            f"{table.name}: a snapshot needs a primary key, or a unique key of whole, NOT NULL columns"
        )


async def taken(pages: AsyncIterable[Page] | Iterable[Page]) -> AsyncGenerator[Page]:
    """Yield the pages. A generator is closed when this is, so that what it holds at a `yield` is released."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(pages, AsyncGenerator):
            stack.push_async_callback(pages.aclose)
        elif isinstance(pages, Generator):
            stack.callback(pages.close)
        if isinstance(pages, AsyncIterable):
            async for page in pages:
                yield page
        else:
            for page in pages:
                yield page


async def page_writer(service: Service, table: Table, within_s: float) -> Callable[[Page], Coroutine[Any, Any, int]]:
    """Return a function that writes one page and returns the number of its rows. Raises as Service.snapshot does."""
    _check_key(of_kind("table", table, Table))
    await service.refresh()

    async def write(page: Page) -> int:
        rows = list(page)
        await service.run(lambda txn: _insert(txn, service.catalog, table, rows), within_s=within_s)
        return len(rows)

    return write


def _insert(txn: Transaction, catalog: Catalog, table: Table, rows: Sequence[RowValues]) -> None:
    """Insert complete rows. Raises RowRejected for a row that lacks a column, whose default would replace the value
    that a destination has; SchemaConflict if the table was altered, truncated or dropped since the handle was made."""
    for row in rows:
        missing = txn.insert(table, row).keys() - row.keys()
        if missing:
            raise RowRejected(f"{table.name}.{min(missing)}: missing; a row of a snapshot must contain every column")
    if table.bound is not None and catalog.good_until(table.bound) < catalog.version:
        raise SchemaConflict(f"{table.name} has changed since version {table.bound.version}: get the handle again")
