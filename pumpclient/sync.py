"""The pump client for programs with threads: blocking calls, with an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from pumpclient.client import PumpsClient
from pumpclient.options import ConnectOptions, PdUrls
from pumpclient.payload import DdlFields

T = TypeVar("T")
STOP_S = 10.0


class LoopThread:
    """An event loop in a daemon thread. It runs from construction until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, wait, and return its result or raise its exception. A KeyboardInterrupt cancels
        it.
        """
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


class SyncPumpsClient:
    """A PumpsClient with blocking calls. Any number of threads may use it at the same time. It raises the same
    errors.
    """

    def __init__(self, inner: PumpsClient, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def connect(cls, pd_urls: PdUrls, strategy: str = "range", **options: Unpack[ConnectOptions]) -> SyncPumpsClient:
        """Connect and return the client. See PumpsClient.connect."""
        loop = LoopThread("pumpclient")
        try:
            return cls(loop.run(PumpsClient.connect(pd_urls, strategy, **options)), loop)
        except BaseException:
            loop.stop()
            raise

    def write_prewrite(self, start_ts: int, prewrite_key: bytes, prewrite_value: bytes) -> str:
        return self._loop.run(self._inner.write_prewrite(start_ts, prewrite_key, prewrite_value))

    def write_ddl_prewrite(self, start_ts: int, prewrite_key: bytes, ddl: DdlFields) -> str:
        return self._loop.run(self._inner.write_ddl_prewrite(start_ts, prewrite_key, ddl))

    def commit(self, start_ts: int, commit_ts: int, ddl: DdlFields | None = None) -> None:
        self._loop.run(self._inner.commit(start_ts, commit_ts, ddl))

    def rollback(self, start_ts: int) -> None:
        self._loop.run(self._inner.rollback(start_ts))

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
