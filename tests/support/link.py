"""A TCP address in front of a server, whose network a test makes good or bad while connections are open."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Self

from tests.support.servers import free_port


class Way(Enum):
    """What becomes of bytes. Those that a HOLE held back arrive when it ends, as what TCP repeats does."""

    GOOD = "forwarded"
    SLOW = "answers take 1.5 s, one piece after another"
    HOLE = "accepted, and not forwarded"
    RESET = "connections are reset, old and new"


SLOW_S = 1.5


class Link:
    """Listens on `addr` and forwards to `target`, both host:port, in a thread of its own until it is closed."""

    def __init__(self, target: str) -> None:
        self.addr = f"127.0.0.1:{free_port()}"
        self._target = target.rsplit(":", 1)
        self._way = Way.GOOD
        self._loop = asyncio.new_event_loop()
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accepted, "127.0.0.1", int(self.addr.rsplit(":", 1)[1])))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def turn(self, way: Way) -> None:
        """From now on."""
        self._run(self._turn(way))

    async def _turn(self, way: Way) -> None:
        self._way = way
        if way is Way.HOLE:
            self._forwards.clear()
        else:
            self._forwards.set()
        if way is Way.RESET:
            for writer in list(self._open):
                writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._way is Way.RESET:
                return
            await self._forwards.wait()
            there_reader, there = await asyncio.open_connection(self._target[0], int(self._target[1]))
            self._open.add(there)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._forward(reader, there, answers=False))
                    both.create_task(self._forward(there_reader, writer, answers=True))
            finally:
                self._open.discard(there)
                there.transport.abort()
        except (OSError, ExceptionGroup):
            pass  # one of them has gone: so goes the other
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await source.read(1 << 16):
            if answers and self._way is Way.SLOW:
                await asyncio.sleep(SLOW_S)
            await self._forwards.wait()
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError

    async def _stop(self) -> None:
        self._server.close()
        await self._turn(Way.RESET)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
