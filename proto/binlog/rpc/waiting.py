"""Calls that wait for the memory budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Retries waiting calls once each, in order, in the next turn of the loop after memory was released.

    A call that still finds none registers again.
    """

    def __init__(self) -> None:
        self._retries: list[Callable[[], None]] = []
        self._scheduled = False

    def add(self, retry: Callable[[], None]) -> None:
        self._retries.append(retry)

    def budget_released(self) -> None:
        """Note that memory was released."""
        if self._retries and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        self._scheduled = False
        retries, self._retries = self._retries, []
        for retry in retries:
            retry()
