"""Logs a lasting failure: one line when it begins, one per minute, and one when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from binlog.runtime.log import Logger

EVERY_S = 60.0


@dataclass(slots=True, eq=False)
class Outage:
    """A failure that begins with `failed` and ends with `over`. Call `failed` at every failure and `over` at every
    success.

    `quiet_s`: a failure that lasts no longer than this is not logged as a warning; only `first`, if given, is logged
    when it begins. The end is logged with the duration if the beginning was logged.
    """

    _log: Logger
    _text: str
    _over: str
    _: KW_ONLY
    quiet_s: float = 0.0
    first: str = ""
    level: Literal["warning", "error"] = "warning"
    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    _since_s: float | None = None
    _told_s: float | None = None
    _is_told: bool = False

    @property
    def lasts_s(self) -> float:
        """Seconds since the failure began, or 0."""
        return 0.0 if self._since_s is None else self.clock() - self._since_s

    def failed(self, **facts: object) -> None:
        """Note a failure. `facts`: key=value pairs for the line, if one is logged."""
        now_s = self.clock()
        if self._since_s is None:
            self._since_s = now_s
            if self.first:
                self._is_told = True
                self._log.info(self.first, **facts)
        lasts_s = now_s - self._since_s
        if lasts_s < self.quiet_s or (self._told_s is not None and now_s - self._told_s < self.every_s):
            return
        if lasts_s > 0:
            facts["since_s"] = round(lasts_s, 1)
        self._told_s, self._is_told = now_s, True
        getattr(self._log, self.level)(self._text, **facts)

    def over(self, text: str = "", **facts: object) -> None:
        """Note a success. `text`: another message for the end."""
        if self._is_told:
            self._log.info(text or self._over, **facts, lasted_s=round(self.lasts_s, 1))
        self._since_s = self._told_s = None
        self._is_told = False

    @contextlib.contextmanager
    def catching(self, *kinds: type[Exception]) -> Iterator[None]:
        """Note an error of `kinds` in the block as a failure, and go on after the block; else note a success."""
        try:
            yield
        except kinds as error:
            self.failed(error=str(error))
        else:
            self.over()

    async def repeating(self, work: Callable[[], Awaitable[object]], pause_s: float, *kinds: type[Exception]) -> None:
        """Call `work` after every pause, until cancelled. An error of `kinds` is noted as a failure."""
        while True:
            await asyncio.sleep(pause_s)
            with self.catching(*kinds):
                await work()
