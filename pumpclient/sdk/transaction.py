"""A transaction: its rows are collected in memory and sent as one prewrite and one commit binlog.

A transaction is open, then being committed, then committed, rolled back or failed. Nothing is sent before `commit`, so
a rollback before that sends nothing either (X-02). `Retry` repeats a complete transaction.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Self

from binlog.errors import EtcdError, TimestampUnavailable
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.key import record_key
from binlog.tidb.mutation import PrewriteValue

from pumpclient.errors import ClientClosed, CommitUndelivered, NoPump, PrewriteFailed, TransactionRolledBack
from pumpclient.sdk.context import Outcome, ServiceContext, TransactionReport, begin, report
from pumpclient.sdk.errors import RowRejected, TransactionEnded, of_kind
from pumpclient.sdk.lease import Held
from pumpclient.sdk.rows import RowCodec, RowValues, StoredRow, codec_for
from pumpclient.sdk.table import Bound, Table


class Stage(Enum):
    """The state of a transaction. FAILED: `commit` raised; its error says whether the rows may be visible."""

    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"


class Transaction:
    """Rows of one or more tables that are committed together. Not safe for use by several tasks at the same time.

    `async with` commits the transaction at the end of the block, and rolls it back if the block raises.

    Each row is written with the TableInfo of the handle it is given: a handle from before an ALTER writes the old
    columns.

    A Transaction is not a database session. It checks values against their columns, but does not check uniqueness,
    takes no locks and reads no rows. If two transactions write the same key, both are accepted; the later commit_ts
    wins.
    """

    def __init__(self, start_ts: int, context: ServiceContext) -> None:
        self.start_ts = start_ts
        self.commit_ts: int | None = None
        self.stage = Stage.OPEN
        self._context = context
        self._opened_version = context.catalog.version
        self._used: dict[tuple[int, int], Bound] = {}
        self._value = PrewriteValue(0)
        self._key: bytes | None = None
        self._rows = 0
        self._delivery: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()  # set when the delivery of the commit has begun, or will never begin
        self._placed = False
        self._sent_s: float | None = None
        self._pump: str | None = None
        self._payload_bytes = 0
        self._queued_s = 0.0

    @property
    def row_count(self) -> int:
        """The number of rows written so far. An update that changes the clustered key counts as two."""
        return self._rows

    def insert(self, table: Table, row: RowValues) -> StoredRow:
        """Insert a row and return it as it is stored.

        Columns that `row` leaves out get their default, or NULL. The returned row contains every column, including
        those with `default=NOW`, and can be passed as the old row of an `update` or to `delete`. Raises ValueRejected,
        RowRejected, SchemaConflict or TransactionEnded.
        """
        bound, codec = self._codec(table)
        encoded, stored = codec.insert(row, rowid=next(self._context.rowids) if codec.needs_rowid else 0)
        self._take(bound, codec.key(encoded))
        self._value.insert(bound.info.id, encoded)
        return stored

    def insert_many(self, table: Table, rows: Iterable[RowValues]) -> list[StoredRow]:
        """Insert rows and return them as `insert` does. If one is rejected, the preceding ones stay."""
        return [self.insert(table, row) for row in rows]

    def update(self, table: Table, *, old: RowValues, new: RowValues) -> None:
        """Update a row. `old` contains every column; `new` contains the columns that change.

        An update that changes nothing writes nothing (X-12). Raises ValueRejected, RowRejected, SchemaConflict or
        TransactionEnded.
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
        """Delete a row; `row` contains every column. Raises as `update` does."""
        bound, codec = self._codec(table)
        encoded = codec.delete(row)
        self._take(bound, None)
        self._value.delete(bound.info.id, encoded)

    def _codec(self, table: Table) -> tuple[Bound, RowCodec]:
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        bound = of_kind("table", table, Table).bound
        if bound is None:
            raise RowRejected(f"table {table.name} is only declared: use the handle from create_table or table()")
        return bound, codec_for(bound)

    def _take(self, bound: Bound, key: bytes | None) -> None:
        used = (bound.info.id, bound.version)
        if used not in self._used:
            self._context.catalog.version_for([*self._used.values(), bound], preferred=self._opened_version)
            self._used[used] = bound
        if self._key is None:
            self._key = key or record_key(bound.info.id, 0)
        self._rows += 1

    async def commit(self) -> int:
        """Write the rows durably, make them visible, and return the commit_ts (the start_ts if there are no rows).

        The transaction is committed when its pump has stored the commit. After PrewriteFailed, NoPump, PayloadTooLarge,
        TransactionRolledBack, ClientClosed, EtcdError, TimestampUnavailable or Busy its rows will never be visible.
        After CommitUndelivered, or if the caller was cancelled, the outcome is unknown: call `outcome` to query it.

        The caller waits for the pump's answer for at most `limits.commit_wait_s`. The commit is retried in the
        background for up to `limits.commit_budget_s`. If the pump has not stored it by then, the pump rolls the
        transaction back.
        """
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        if not self._rows:
            self.stage = Stage.COMMITTED
            self.commit_ts = self.start_ts
            return self.start_ts
        self.stage = Stage.COMMITTING
        version_for = self._context.catalog.version_for
        self._value.schema_version = version_for(self._used.values(), preferred=self._opened_version)
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
            self._context.on_transaction,
        )

    async def outcome(self) -> bool:
        """Return whether the transaction is committed. For use after `commit` was cancelled or raised
        CommitUndelivered.

        True: the rows are visible. False: they are not and never will be; write them again in a new transaction. Raises
        CommitUndelivered if the pump does not answer within `limits.commit_wait_s`; call again later. A pump that has
        not stored the commit rolls the transaction back within seconds after the last attempt to send it; the result is
        then False.
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
        except ClientClosed as error:  # the commit may have been sent before; this error does not say that it failed
            assert self.commit_ts is not None and self._pump is not None
            raise CommitUndelivered(self.start_ts, self.commit_ts, pump=self._pump, tries=0, last=str(error)) from error
        self.stage = Stage.COMMITTED
        return True

    def _deliver(self) -> asyncio.Task[None]:
        assert self.commit_ts is not None
        self._sent_s = asyncio.get_running_loop().time()
        self._delivery = begin(self._context.client.commit(self.start_ts, self.commit_ts))
        self._begun.set()
        return self._delivery

    async def _send(self) -> int:
        use: Held | None = None
        try:
            with self._context.under_way.entered(f"transaction {self.start_ts}"):
                self._queued_s = await self._context.permits.take(f"transaction {self.start_ts}")
                self._placed = True
                use = await self._context.lease.enter()
                value = self._value.serialize()
                self._payload_bytes = len(value)
                self._pump = await self._context.client.write_prewrite(
                    self.start_ts, self._key or b"", value, writer=use.id
                )
                crash_point("sdk.after_prewrite")
                self.commit_ts = await self._context.commit_ts(self.start_ts)
            with self._context.under_way.deciding():
                await self._delivered(self._deliver())
            return self.commit_ts
        finally:
            if use is not None:
                self._context.client.when_ended(self.start_ts, use.end)
            if self._placed:
                self._leave_place()

    async def _delivered(self, delivery: asyncio.Task[None]) -> None:
        assert self.commit_ts is not None and self._pump is not None
        await self._context.delivered(delivery, start_ts=self.start_ts, commit_ts=self.commit_ts, pump=self._pump)

    def _leave_place(self) -> None:
        """Release the permit when nothing more is sent, or `commit_wait_s` after the commit was first sent.

        The time limit matters while a pump is unreachable: its transactions must not hold the permits of transactions
        that other pumps would store immediately.
        """
        loop = asyncio.get_running_loop()

        def leave(*, decided: bool = False) -> None:
            over.cancel()
            if self._placed:
                self._placed = False
                self._context.permits.leave()

        sent_s = loop.time() if self._sent_s is None else self._sent_s
        over = loop.call_at(sent_s + self._context.client.limits.commit_wait_s, leave)
        self._context.client.when_ended(self.start_ts, leave)

    async def rollback(self) -> None:
        """Discard the rows. Nothing was sent, so no pump is contacted. Raises TransactionEnded if it is not open."""
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        self.stage = Stage.ROLLED_BACK

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.stage is not Stage.OPEN:
            return
        if error is None:
            await self.commit()
        else:
            await self.rollback()


WITHIN_S = 30.0
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0

# After each of these errors the transaction is not visible and never will be, and another attempt may succeed.
AGAIN = (PrewriteFailed, NoPump, TransactionRolledBack, TimestampUnavailable, EtcdError)


class Retry:
    """The attempts of one call of `run`. The pause doubles each time and is then shortened at random, so that callers
    which failed at the same time do not retry at the same time.
    """

    def __init__(
        self, within_s: float, *, clock: Callable[[], float] = time.monotonic, dice: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._dice = dice or random.Random()
        self._end_s = clock() + within_s
        self._pause_s = PAUSE_FIRST_S

    def pause_s(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt. Raises `error` if no time is left, or the client is
        closed: it can query no pump.
        """
        if self._clock() >= self._end_s or isinstance(error.__cause__, ClientClosed):
            raise error
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_MAX_S)
        return pause_s * self._dice.uniform(0.5, 1.0)

    async def begun(self, begin: Callable[[], Awaitable[Transaction]]) -> Transaction:
        """Open a transaction."""
        while True:
            try:
                return await begin()
            except AGAIN as error:
                await asyncio.sleep(self.pause_s(error))

    async def committed(self, txn: Transaction) -> bool:
        """Commit a transaction and return whether it is committed; if not, it may be retried."""
        try:
            await txn.commit()
            return True
        except (CommitUndelivered, *AGAIN) as error:
            await asyncio.sleep(self.pause_s(error))
            if not isinstance(error, CommitUndelivered):
                return False
        while True:  # before a pump has answered whether it is committed, it must not be retried
            try:
                return await txn.outcome()
            except CommitUndelivered as error:
                await asyncio.sleep(self.pause_s(error))
