"""The SDK for programs with threads: the blocking calls run in an event loop in a thread of the service."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from pumpclient.options import PdUrls
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.service import CLOSE_WAIT_S, Page, Service, ServiceOptions, page_writer
from pumpclient.sdk.table import Table
from pumpclient.sdk.transaction import WITHIN_S, Retry, Stage, Transaction

P = ParamSpec("P")
T = TypeVar("T")
STOP_S = 10.0


class LoopThread:
    """An event loop in a daemon thread. It runs from construction until `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sdk-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result or raise. A KeyboardInterrupt cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call in the event loop's own thread would wait for itself")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()


class SyncTransaction:
    """A Transaction with blocking calls. Use it from one thread at a time."""

    def __init__(self, inner: Transaction, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.start_ts = inner.start_ts
        self.insert = inner.insert
        self.insert_many = inner.insert_many
        self.update = inner.update
        self.delete = inner.delete

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, trace))


def _blocking(
    call: Callable[Concatenate[Service, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncService, P], T]:
    """Return a call of Service as a method of SyncService that blocks."""

    @functools.wraps(call)
    def blocking(self: SyncService, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(call(self._inner, *args, **kwargs))

    return blocking


class SyncService:
    """A Service whose calls block, with the same parameters, results and errors. Threads may share it."""

    def __init__(self, inner: Service, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def connect(cls, pd_urls: PdUrls, **options: Unpack[ServiceOptions]) -> SyncService:
        """See Service.connect. `on_transaction` is called in the service's thread."""
        loop = LoopThread()
        try:
            return cls(loop.run(Service.connect(pd_urls, **options)), loop)
        except BaseException:
            loop.stop()
            raise

    refresh = _blocking(Service.refresh)
    table = _blocking(Service.table)
    databases = _blocking(Service.databases)
    tables = _blocking(Service.tables)
    create_database = _blocking(Service.create_database)
    drop_database = _blocking(Service.drop_database)
    create_table = _blocking(Service.create_table)
    drop_table = _blocking(Service.drop_table)
    truncate_table = _blocking(Service.truncate_table)
    rename_table = _blocking(Service.rename_table)
    alter_table = _blocking(Service.alter_table)
    create_index = _blocking(Service.create_index)
    drop_index = _blocking(Service.drop_index)
    ddl = _blocking(Service.ddl)

    def begin(self) -> SyncTransaction:
        """Open a transaction. See Service.begin."""
        return SyncTransaction(self._loop.run(self._inner.begin()), self._loop)

    def transaction(self) -> SyncTransaction:
        """Open a transaction for `with svc.transaction() as txn:`. See Service.transaction."""
        return self.begin()

    def run(self, work: Callable[[SyncTransaction], None], *, within_s: float = WITHIN_S) -> int:
        """See Service.run. `work` is called in the caller's thread."""
        retry = Retry(within_s)
        while True:
            inner = self._loop.run(retry.begun(self._inner.begin))
            work(SyncTransaction(inner, self._loop))
            if self._loop.run(retry.committed(inner)):
                assert inner.commit_ts is not None
                return inner.commit_ts

    def snapshot(self, table: Table, pages: Iterable[Page], *, within_s: float = WITHIN_S) -> int:
        """See Service.snapshot. Pages are taken in the caller's thread."""
        with contextlib.closing(pages) if isinstance(pages, Generator) else contextlib.nullcontext():
            write = self._loop.run(page_writer(self._inner, table, within_s))
            return sum(self._loop.run(write(page)) for page in pages)

    @property
    def in_flight(self) -> int:
        """The number of transactions that are being sent."""
        return self._inner.in_flight

    @property
    def queued(self) -> int:
        """The number of transactions that wait in `commit` for others to end."""
        return self._inner.queued

    def write(self, table: Table, rows: Sequence[RowValues]) -> int:
        """Insert rows in one transaction and return its commit_ts. See Transaction.insert, Transaction.commit."""
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

    def __exit__(self, *_: object) -> None:
        self.close()
