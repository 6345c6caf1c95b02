"""The SDK for threads: the same calls, blocking. Each runs in an event loop of the service's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from pumpclient.options import ConnectOptions, PdUrls
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.service import Service
from pumpclient.sdk.table import Column, Index, Table
from pumpclient.sdk.transaction import Transaction
from pumpclient.sync import LoopThread


class SyncTransaction:
    """A Transaction whose commit blocks. Use it from one thread at a time."""

    def __init__(self, inner: Transaction, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.insert = inner.insert
        self.insert_many = inner.insert_many
        self.update = inner.update
        self.delete = inner.delete

    @property
    def start_ts(self) -> int:
        return self._inner.start_ts

    @property
    def commit_ts(self) -> int | None:
        return self._inner.commit_ts

    def commit(self) -> int:
        return self._loop.run(self._inner.commit())

    def rollback(self) -> None:
        self._loop.run(self._inner.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, trace))


class SyncService:
    """A Service for threads; any number of them may use it at once. Raises what Service raises."""

    def __init__(self, inner: Service, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def connect(cls, pd_urls: PdUrls, *, strategy: str = "range", **options: Unpack[ConnectOptions]) -> SyncService:
        """As Service.connect."""
        loop = LoopThread("sdk")
        try:
            return cls(loop.run(Service.connect(pd_urls, strategy=strategy, **options)), loop)
        except BaseException:
            loop.stop()
            raise

    def begin(self) -> SyncTransaction:
        return SyncTransaction(self._loop.run(self._inner.begin()), self._loop)

    def transaction(self) -> SyncTransaction:
        """`with svc.transaction() as txn:`"""
        return self.begin()

    def table(self, schema: str, name: str) -> Table:
        return self._loop.run(self._inner.table(schema, name))

    def databases(self) -> tuple[str, ...]:
        return self._loop.run(self._inner.databases())

    def tables(self, schema: str) -> tuple[str, ...]:
        return self._loop.run(self._inner.tables(schema))

    def create_database(self, schema: str, *, collate: str = "utf8mb4_bin") -> None:
        self._loop.run(self._inner.create_database(schema, collate=collate))

    def drop_database(self, schema: str) -> None:
        self._loop.run(self._inner.drop_database(schema))

    def create_table(self, schema: str, table: Table) -> Table:
        return self._loop.run(self._inner.create_table(schema, table))

    def drop_table(self, table: Table) -> None:
        self._loop.run(self._inner.drop_table(table))

    def truncate_table(self, table: Table) -> Table:
        return self._loop.run(self._inner.truncate_table(table))

    def rename_table(self, table: Table, name: str, *, schema: str | None = None) -> Table:
        return self._loop.run(self._inner.rename_table(table, name, schema=schema))

    def alter_table(
        self,
        table: Table,
        *,
        add: Sequence[Column] = (),
        drop: Sequence[str] = (),
        add_unique: Sequence[Index] = (),
        add_index: Sequence[Index] = (),
        drop_index: Sequence[str] = (),
        after: str | None = None,
        first: bool = False,
    ) -> Table:
        return self._loop.run(
            self._inner.alter_table(
                table,
                add=add,
                drop=drop,
                add_unique=add_unique,
                add_index=add_index,
                drop_index=drop_index,
                after=after,
                first=first,
            )
        )

    def ddl(self, statement: str) -> Table | None:
        return self._loop.run(self._inner.ddl(statement))

    def write(self, table: Table, rows: Sequence[RowValues]) -> int:
        """Insert rows in one transaction; its commit_ts."""
        with self.transaction() as txn:
            txn.insert_many(table, list(rows))
        assert txn.commit_ts is not None
        return txn.commit_ts

    def close(self) -> None:
        try:
            self._loop.run(self._inner.close())
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
