"""The SDK for programs with threads: the same calls as `Service`, but blocking. Each call runs in an event loop in a
thread of the service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

from pumpclient.errors import CommitUndelivered
from pumpclient.options import PdUrls
from pumpclient.sdk.retry import AGAIN, WITHIN_S, Retry
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.service import CLOSE_WAIT_S, Service, ServiceOptions
from pumpclient.sdk.statements import AlterOptions
from pumpclient.sdk.table import Table
from pumpclient.sdk.transaction import Stage, Transaction
from pumpclient.sync import LoopThread


class SyncTransaction:
    """A Transaction with blocking calls. Use it from one thread at a time."""

    def __init__(self, inner: Transaction, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.insert = inner.insert
        self.insert_many = inner.insert_many
        self.update = inner.update
        self.delete = inner.delete

    @property
    def start_ts(self) -> int:
        """See Transaction.start_ts."""
        return self._inner.start_ts

    @property
    def commit_ts(self) -> int | None:
        """The commit_ts, or None until the transaction is committed."""
        return self._inner.commit_ts

    @property
    def row_count(self) -> int:
        """See Transaction.row_count."""
        return self._inner.row_count

    @property
    def stage(self) -> Stage:
        """The state of the transaction: open, being committed, committed, rolled back or failed."""
        return self._inner.stage

    def commit(self) -> int:
        """Commit the transaction and return its commit_ts. See Transaction.commit."""
        return self._loop.run(self._inner.commit())

    def outcome(self) -> bool:
        """Return whether the transaction is committed. See Transaction.outcome."""
        return self._loop.run(self._inner.outcome())

    def rollback(self) -> None:
        """Discard the rows. See Transaction.rollback."""
        self._loop.run(self._inner.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, trace))


class SyncService:
    """A Service with blocking calls. Any number of threads may use it at the same time. It raises the same errors as
    Service.
    """

    def __init__(self, inner: Service, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def connect(cls, pd_urls: PdUrls, **options: Unpack[ServiceOptions]) -> SyncService:
        """Connect to a cluster and return the service. See Service.connect. `on_transaction` is called in the service's
        thread.
        """
        loop = LoopThread("sdk")
        try:
            return cls(loop.run(Service.connect(pd_urls, **options)), loop)
        except BaseException:
            loop.stop()
            raise

    def refresh(self) -> None:
        """Apply all jobs that are published by now. See Service.refresh."""
        self._loop.run(self._inner.refresh())

    def begin(self) -> SyncTransaction:
        """Open a transaction. See Service.begin."""
        return SyncTransaction(self._loop.run(self._inner.begin()), self._loop)

    def transaction(self) -> SyncTransaction:
        """Open a transaction for `with svc.transaction() as txn:`. It is committed when the block ends, and rolled back
        when the block raises.
        """
        return self.begin()

    def run(self, work: Callable[[SyncTransaction], None], *, within_s: float = WITHIN_S) -> int:
        """Fill a transaction with `work`, commit it, retry while that is safe, and return the commit_ts. See
        Service.run. `work` is called in the caller's thread.
        """
        retry = Retry(within_s)
        while True:
            txn: SyncTransaction | None = None
            try:
                txn = self.begin()
                work(txn)
                return txn.commit()
            except (CommitUndelivered, *AGAIN) as error:
                if txn is not None and txn.stage is Stage.OPEN:  # `work` raised it, not this transaction
                    raise
                time.sleep(retry.pause_s(error))
                if txn is not None and isinstance(error, CommitUndelivered) and self._decided(txn, retry):
                    assert txn.commit_ts is not None
                    return txn.commit_ts

    @staticmethod
    def _decided(txn: SyncTransaction, retry: Retry) -> bool:
        while True:
            try:
                return txn.outcome()
            except CommitUndelivered as error:
                time.sleep(retry.pause_s(error))

    @property
    def in_flight(self) -> int:
        """The number of transactions that are being sent."""
        return self._inner.in_flight

    @property
    def queued(self) -> int:
        """The number of transactions that wait in `commit` for others to end."""
        return self._inner.queued

    def table(self, schema: str, name: str) -> Table:
        """Return the current handle of a table. See Service.table."""
        return self._loop.run(self._inner.table(schema, name))

    def databases(self) -> tuple[str, ...]:
        """Return the names of all published databases."""
        return self._loop.run(self._inner.databases())

    def tables(self, schema: str) -> tuple[str, ...]:
        """Return the names of all published tables of a database. See Service.tables."""
        return self._loop.run(self._inner.tables(schema))

    def create_database(self, schema: str, *, collate: str = "utf8mb4_bin", if_not_exists: bool = False) -> None:
        """Create a database. See Service.create_database."""
        self._loop.run(self._inner.create_database(schema, collate=collate, if_not_exists=if_not_exists))

    def drop_database(self, schema: str) -> None:
        """Drop a database and all its tables. See Service.drop_database."""
        self._loop.run(self._inner.drop_database(schema))

    def create_table(
        self, schema: str, table: Table, *, if_not_exists: bool = False, accept_added: bool = False
    ) -> Table:
        """Create a table and return its handle. See Service.create_table."""
        return self._loop.run(
            self._inner.create_table(schema, table, if_not_exists=if_not_exists, accept_added=accept_added)
        )

    def drop_table(self, table: Table) -> None:
        """Drop the table. See Service.drop_table."""
        self._loop.run(self._inner.drop_table(table))

    def truncate_table(self, table: Table) -> Table:
        """Remove all rows and return the new handle. See Service.truncate_table."""
        return self._loop.run(self._inner.truncate_table(table))

    def rename_table(self, table: Table, name: str, *, schema: str | None = None) -> Table:
        """Rename the table and return the new handle. See Service.rename_table."""
        return self._loop.run(self._inner.rename_table(table, name, schema=schema))

    def alter_table(self, table: Table, **changes: Unpack[AlterOptions]) -> Table:
        """Change the table with one ALTER TABLE and return the new handle. See Service.alter_table."""
        return self._loop.run(self._inner.alter_table(table, **changes))

    def create_index(
        self, table: Table, name: str, columns: Sequence[str | tuple[str, int]], *, unique: bool = False
    ) -> Table:
        """Add an index and return the new handle. See Service.create_index."""
        return self._loop.run(self._inner.create_index(table, name, columns, unique=unique))

    def drop_index(self, table: Table, name: str) -> Table:
        """Drop an index and return the new handle. See Service.drop_index."""
        return self._loop.run(self._inner.drop_index(table, name))

    def ddl(self, statement: str) -> Table | None:
        """Run a statement given as text and return the table's new handle, if any. See Service.ddl."""
        return self._loop.run(self._inner.ddl(statement))

    def write(self, table: Table, rows: Sequence[RowValues]) -> int:
        """Insert rows in one transaction and return its commit_ts. Raises as Transaction.insert and Transaction.commit
        do.
        """
        with self.transaction() as txn:
            txn.insert_many(table, list(rows))
        assert txn.commit_ts is not None
        return txn.commit_ts

    def close(self, *, wait_s: float = CLOSE_WAIT_S) -> None:
        """Refuse new calls, wait up to `wait_s` seconds for open ones, and disconnect. See Service.close."""
        try:
            self._loop.run(self._inner.close(wait_s=wait_s))
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
