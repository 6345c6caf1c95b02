"""The last answer of a server that may hang: pages show it, with its age, instead of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from binlog.errors import BinlogError

WAIT_S = 0.5

T = TypeVar("T")


class LastAnswer(Generic[T]):
    """Asks in the background, one question at a time. `what`: who is asked, for the problem's text."""

    def __init__(self, what: str, ask: Callable[[], Awaitable[T]], nothing: T, wait_s: float = WAIT_S) -> None:
        """`nothing`: the answer while none has come."""
        self._what = what
        self._ask = ask
        self._wait_s = wait_s
        self._answer = nothing
        self._answered_s: float | None = None
        self._asked_s = 0.0
        self._asking: asyncio.Task[str] | None = None

    async def get(self) -> tuple[T, str]:
        """Return the newest answer, and "" or why it is not of now. Waits for at most `wait_s` seconds."""
        if self._asking is None or self._asking.done():
            self._asked_s = time.monotonic()
            self._asking = asyncio.ensure_future(self._answered())
        asking = self._asking
        await asyncio.wait((asking,), timeout=self._wait_s)
        if not asking.done():
            return (
                self._answer,
                f"{self._what} has not answered for {time.monotonic() - self._asked_s:.1f} s{self._age()}",
            )
        why = asking.result()
        return self._answer, f"{why}{self._age()}" if why else ""

    async def _answered(self) -> str:
        """Ask, and return "" or why there is no answer."""
        try:
            self._answer, self._answered_s = await self._ask(), time.monotonic()
        except BinlogError as error:
            return str(error)
        return ""

    def _age(self) -> str:
        return "" if self._answered_s is None else f"; as of {time.monotonic() - self._answered_s:.0f} s ago"
