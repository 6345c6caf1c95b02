"""One transaction: rows are collected in memory and leave as one prewrite and one commit binlog.

Open, then committing, then committed, rolled back or failed. Nothing is sent before it commits, so a rollback before
that sends nothing either (X-02).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from types import TracebackType
from typing import Self

from binlog.cluster.timestamp import TimestampSource
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.key import record_key
from binlog.tidb.mutation import PrewriteValue

from pumpclient.client import PumpsClient
from pumpclient.errors import ClientClosed, CommitUndelivered, TransactionRolledBack
from pumpclient.sdk.arguments import of_kind
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.delivered import begin, delivered, taken_back
from pumpclient.sdk.errors import RowRejected, TransactionEnded
from pumpclient.sdk.lease import Use, WriterLease
from pumpclient.sdk.places import Places
from pumpclient.sdk.report import OnTransaction, Outcome, TransactionReport, report
from pumpclient.sdk.rowids import RowIds
from pumpclient.sdk.rows import RowCodec, RowValues, StoredRow, codec_for
from pumpclient.sdk.table import Bound, Table
from pumpclient.sdk.underway import UnderWay


class Stage(Enum):
    """Where a transaction is. FAILED: `commit` raised, and its error says what that means for the rows."""

    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"


class Transaction:
    """Rows of any tables, committed as one. Not safe for concurrent use.

    It keeps, per table, the handle it is given: one taken before an ALTER is written with the TableInfo of then.
    Leaving `async with` commits; leaving it with an exception rolls back.

    This is a writer, not a database: it checks values against their columns, but no uniqueness, no locks and no
    earlier rows. Two transactions that write one key at once are both accepted; the later commit_ts wins.
    """

    def __init__(
        self,
        *,
        start_ts: int,
        client: PumpsClient,
        timestamps: TimestampSource,
        catalog: Catalog,
        rowids: RowIds,
        lease: WriterLease,
        under_way: UnderWay,
        places: Places,
        on_transaction: OnTransaction | None = None,
    ) -> None:
        self.start_ts = start_ts
        self.commit_ts: int | None = None
        self.stage = Stage.OPEN
        self._client = client
        self._timestamps = timestamps
        self._catalog = catalog
        self._rowids = rowids
        self._lease = lease
        self._under_way = under_way
        self._opened_version = catalog.version
        self._used: dict[tuple[int, int], Bound] = {}
        self._value = PrewriteValue(0)
        self._key: bytes | None = None
        self._rows = 0
        self._places = places
        self._on_transaction = on_transaction
        self._delivery: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()  # the delivery of its commit; or there will be none
        self._placed = False
        self._sent_s: float | None = None
        self._pump: str | None = None
        self._payload_bytes = 0
        self._queued_s = 0.0

    @property
    def row_count(self) -> int:
        """Rows written so far; an update that moves the clustered key counts twice."""
        return self._rows

    def insert(self, table: Table, row: RowValues) -> StoredRow:
        """Add a row; the whole row as it is stored. Columns left out get their default, or NULL.

        What it returns holds every column, `default=NOW` included, and can be given as the old row of an `update` or a
        `delete`. ValueRejected, RowRejected.
        """
        bound, codec = self._codec(table)
        encoded, stored = codec.insert_stored(row, rowid=self._rowids.next() if codec.needs_rowid else 0)
        self._take(bound, codec.key(encoded))
        self._value.insert(bound.info.id, encoded)
        return stored

    def insert_many(self, table: Table, rows: Iterable[RowValues]) -> list[StoredRow]:
        """As `insert`, row by row; rows before one that is refused stay in the transaction."""
        return [self.insert(table, row) for row in rows]

    def update(self, table: Table, *, old: RowValues, new: RowValues) -> None:
        """Change a row. `old` gives every column, `new` those that change: the others keep their old value.

        A row that stays as it is writes nothing (X-12). ValueRejected, RowRejected.
        """
        bound, codec = self._codec(table)
        update = codec.update(old, new)
        if update is None:
            return
        if update.moves:
            self._take(bound, codec.key(update.inserted))
            self._value.delete(bound.info.id, update.deleted)
            self._take(bound, None)
            self._value.insert(bound.info.id, update.inserted)
            return
        self._take(bound, None)
        self._value.update(bound.info.id, update.changed)

    def delete(self, table: Table, row: RowValues) -> None:
        """Remove a row, given with every column."""
        bound, codec = self._codec(table)
        encoded = codec.delete(row)
        self._take(bound, None)
        self._value.delete(bound.info.id, encoded)

    def _codec(self, table: Table) -> tuple[Bound, RowCodec]:
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        bound = of_kind("table", table, Table).bound
        if bound is None:
            raise RowRejected(
                f"table {table.name} is only declared: write through what create_table or table() returns"
            )
        return bound, codec_for(bound.schema, bound.info, bound.version)

    def _take(self, bound: Bound, key: bytes | None) -> None:
        used = (bound.info.id, bound.version)
        if used not in self._used:
            self._catalog.version_for([*self._used.values(), bound], preferred=self._opened_version)
            self._used[used] = bound
        if self._key is None:
            self._key = key or record_key(bound.info.id, 0)
        self._rows += 1

    # --- ending ---------------------------------------------------------------------------------------------

    async def commit(self) -> int:
        """Make it durable and visible; the commit_ts (start_ts when there was nothing to write).

        It is committed when its pump has stored the commit. After PrewriteFailed, NoPump, PayloadTooLarge,
        TransactionRolledBack, ClientClosed, EtcdError, TimestampUnavailable or Busy nothing will ever be visible. After
        CommitUndelivered, or when the caller is cancelled, it is not known whether the pump has stored it, or will:
        `outcome` tells. The commit is sent until the pump has answered, for `limits.commit_budget_s` at most, also when
        its caller has stopped waiting, after `limits.commit_wait_s`. What is not stored then the pumps roll back.
        """
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        if not self._rows:
            self.stage = Stage.COMMITTED
            self.commit_ts = self.start_ts
            return self.start_ts
        self.stage = Stage.COMMITTING
        self._value.schema_version = self._catalog.version_for(self._used.values(), preferred=self._opened_version)
        begun_s = time.monotonic()
        try:
            self.commit_ts = await self._send()
        except BaseException as error:
            self.stage = Stage.FAILED
            self._begun.set()
            self._report(begun_s, error)
            raise
        self.stage = Stage.COMMITTED
        self._report(begun_s, None)
        return self.commit_ts

    def _report(self, begun_s: float, error: BaseException | None) -> None:
        outcome = Outcome.COMMITTED
        if error is not None:
            known = self._delivery is None or isinstance(error, TransactionRolledBack)
            outcome = Outcome.FAILED if known else Outcome.UNKNOWN
        report(
            TransactionReport(
                self.start_ts,
                self.commit_ts,
                outcome,
                self._rows,
                self._payload_bytes,
                self._pump,
                time.monotonic() - begun_s,
                self._queued_s,
                error,
            ),
            self._on_transaction,
        )

    async def outcome(self) -> bool:
        """Whether it is committed, of one whose `commit` was cancelled or raised CommitUndelivered.

        True: its rows are visible. False: they are not, and never will be: make it again as a new transaction.
        CommitUndelivered once more where its pump still gives no answer within `limits.commit_wait_s`; ask again later.
        A pump that has not stored the commit when it is no longer sent rolls the transaction back within seconds, and
        then the answer is False.
        """
        if self.stage is Stage.COMMITTING:
            await self._begun.wait()
        if self._delivery is None:
            return self.stage is Stage.COMMITTED
        if self._delivery.done() and self._delivery.exception() is not None:
            if isinstance(self._delivery.exception(), TransactionRolledBack):
                return False
            self._deliver()
        try:
            await self._delivered(self._delivery)
        except TransactionRolledBack:
            return False
        except ClientClosed as error:  # of a commit that has been sent before it does not say that it failed
            assert self.commit_ts is not None and self._pump is not None
            raise CommitUndelivered(self.start_ts, self.commit_ts, pump=self._pump, tries=0, last=str(error)) from error
        self.stage = Stage.COMMITTED
        return True

    def _deliver(self) -> asyncio.Task[None]:
        assert self.commit_ts is not None
        self._sent_s = asyncio.get_running_loop().time()
        self._delivery = begin(self._client.commit(self.start_ts, self.commit_ts))
        self._begun.set()
        return self._delivery

    async def _send(self) -> int:
        use: Use | None = None
        try:
            with self._under_way.entered(f"transaction {self.start_ts}"):
                self._queued_s = await self._places.take(f"transaction {self.start_ts}")
                self._placed = True
                use = await self._lease.enter()
                value = self._value.serialize()
                self._payload_bytes = len(value)
                self._pump = await self._client.write_prewrite(
                    self.start_ts, self._key or b"", value, writer=use.writer.id
                )
                crash_point("sdk.after_prewrite")
                self.commit_ts = await self._commit_ts()
            with self._under_way.deciding():
                await self._delivered(self._deliver())
            return self.commit_ts
        finally:
            if use is not None:
                self._client.when_ended(self.start_ts, use.end)
            if self._placed:
                self._leave_place()

    async def _delivered(self, delivery: asyncio.Task[None]) -> None:
        assert self.commit_ts is not None and self._pump is not None
        limits = self._client.limits
        await delivered(delivery, limits, start_ts=self.start_ts, commit_ts=self.commit_ts, pump=self._pump)

    def _leave_place(self) -> None:
        """When nothing more is sent; but while a pump is away its transactions must not take the places of those that
        other pumps would store at once."""
        loop = asyncio.get_running_loop()

        def leave(*, decided: bool = False) -> None:
            over.cancel()
            if self._placed:
                self._placed = False
                self._places.leave()

        sent_s = loop.time() if self._sent_s is None else self._sent_s
        over = loop.call_at(sent_s + self._client.limits.commit_wait_s, leave)
        self._client.when_ended(self.start_ts, leave)

    async def _commit_ts(self) -> int:
        """Without one the transaction never commits, so its prewrite is taken back."""
        try:
            return await self._timestamps.get()
        except BaseException:
            # Cancelled or not, the pump must hear it; the delivery outlives this task.
            await taken_back(self._client.rollback(self.start_ts), self._client.limits)
            raise

    async def rollback(self) -> None:
        """Forget the rows. Nothing was sent, so nothing is sent."""
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        self.stage = Stage.ROLLED_BACK

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage is not Stage.OPEN:
            return
        if error is None:
            await self.commit()
        else:
            await self.rollback()


class Opening:
    """A transaction that begins with its block."""

    def __init__(self, begin: Callable[[], Awaitable[Transaction]]) -> None:
        self._begin = begin
        self._transaction: Transaction | None = None

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._begin()
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(kind, error, trace)
