"""One transaction: rows are collected in memory and leave as one prewrite and one commit binlog.

Open, then committing, then committed, rolled back or failed. Nothing is sent before it commits, so a rollback before
that sends nothing either (X-02).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import Enum
from types import TracebackType
from typing import Self

from binlog.cluster.timestamp import TimestampSource
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.key import record_key
from binlog.tidb.mutation import PrewriteValue

from pumpclient.client import PumpsClient
from pumpclient.sdk.arguments import of_kind
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.errors import RowRejected, TransactionEnded
from pumpclient.sdk.lease import Use, WriterLease
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
        TransactionRolledBack, ClientClosed, EtcdError or TimestampUnavailable nothing will ever be visible. After
        CommitUndelivered, or when the caller is cancelled, it is not known whether the pump has stored it: see there.
        What has not been stored by then the pumps roll back within seconds.
        """
        if self.stage is not Stage.OPEN:
            raise TransactionEnded(f"transaction {self.start_ts} is {self.stage.value}")
        if not self._rows:
            self.stage = Stage.COMMITTED
            self.commit_ts = self.start_ts
            return self.start_ts
        self.stage = Stage.COMMITTING
        self._value.schema_version = self._catalog.version_for(self._used.values(), preferred=self._opened_version)
        try:
            self.commit_ts = await self._send()
        except BaseException:
            self.stage = Stage.FAILED
            raise
        self.stage = Stage.COMMITTED
        return self.commit_ts

    async def _send(self) -> int:
        use: Use | None = None
        try:
            with self._under_way.entered(f"transaction {self.start_ts}"):
                use = await self._lease.enter()
                value = self._value.serialize()
                await self._client.write_prewrite(self.start_ts, self._key or b"", value, writer=use.writer.id)
                crash_point("sdk.after_prewrite")
                self.commit_ts = await self._commit_ts()
            with self._under_way.deciding():
                await self._client.commit(self.start_ts, self.commit_ts)
            return self.commit_ts
        finally:
            if use is not None:
                self._client.when_ended(self.start_ts, use.end)

    async def _commit_ts(self) -> int:
        """Without one the transaction never commits, so its prewrite is taken back."""
        try:
            return await self._timestamps.get()
        except BaseException:
            # Cancelled or not, the pump must hear it; the delivery outlives this task.
            rollback = asyncio.ensure_future(self._client.rollback(self.start_ts))
            await asyncio.shield(rollback)
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
