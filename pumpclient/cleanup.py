"""Rolls back copies of settled transactions on pumps that may hold one, until each has answered (correctness rule 5:
clean-up rollbacks).

`tracker` decides which pumps get rollbacks; they are sent here. If a rollback overtakes the delayed prewrite, the pump
stores it and refuses the prewrite when it arrives. There is one task per pump with unanswered rollbacks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from pumpclient import metrics
from pumpclient.answer import Answer, Outcome, not_sent
from pumpclient.payload import rollback_payload
from pumpclient.tracker import CleanUp

log = get_logger(__name__)

OWED_MAX = 100_000  # per pump
RETRY_S = 1.0

Write = Callable[[str, bytes], Awaitable[Answer]]
Exists = Callable[[str], bool]


class Cleaner:
    """Sends clean-up rollbacks. `write` sends a payload to a pump; `exists` says whether the pump is registered and not
    offline.
    """

    def __init__(self, write: Write, exists: Exists) -> None:
        self._write = write
        self._exists = exists
        self._retry_s = RETRY_S
        self._owed: dict[str, deque[tuple[int, bytes]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def owed(self) -> int:
        """The number of rollbacks that are not answered yet."""
        return sum(len(queue) for queue in self._owed.values())

    def add(self, work: CleanUp) -> None:
        for pump in work.pumps:
            queue = self._owed.setdefault(pump, deque())
            if len(queue) >= OWED_MAX:
                self._abandon(pump, queue.popleft()[0], "too many rollbacks are queued for this pump")
            queue.append((work.start_ts, work.prewrite_key))
            metrics.ROLLBACKS_OWED.inc()
            if pump not in self._tasks:
                task = asyncio.create_task(self._serve(pump), name=f"pumpclient-cleanup-{pump}")
                self._tasks[pump] = task

    async def _serve(self, pump: str) -> None:
        queue = self._owed[pump]
        while queue:
            if not self._exists(pump):
                while queue:
                    self._abandon(pump, queue.popleft()[0], "the pump is offline or no longer registered")
                break
            start_ts, key = queue[0]
            try:
                answer = await self._write(pump, rollback_payload(start_ts, key))
            except BinlogError as error:  # unusable settings, such as a TLS file: retry as for an unreachable pump
                answer = not_sent(str(error))
            if not answer.heard or answer.passes:  # an abandoned copy would hold back every drainer
                await asyncio.sleep(self._retry_s)
                continue
            if queue and queue[0][0] == start_ts:
                queue.popleft()
            metrics.ROLLBACKS_OWED.dec()
            if answer.outcome is Outcome.CONFLICT:
                # This pump has a commit of the transaction, too. The two differ; drainers drop the second (rule 19: one
                # transaction on several pumps).
                log.error("a copy of a prewrite was committed instead of rolled back", pump=pump, start_ts=start_ts)
            elif not answer.acked:
                log.warning("a pump refused a clean-up rollback", pump=pump, start_ts=start_ts, detail=answer.detail)
        del self._owed[pump], self._tasks[pump]

    def _abandon(self, pump: str, start_ts: int, why: str) -> None:
        metrics.ROLLBACKS_OWED.dec()
        log.error(
            "clean-up rollback abandoned; settle the prewrite with binlogctl settle",
            pump=pump,
            start_ts=start_ts,
            why=why,
        )

    async def drained(self) -> None:
        """Wait until every rollback is answered."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Stop. Unanswered rollbacks are logged with their start_ts."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for pump, queue in self._owed.items():
            for start_ts, _ in queue:
                self._abandon(pump, start_ts, "the client was closed before the pump answered")
        self._owed.clear()
        self._tasks.clear()
