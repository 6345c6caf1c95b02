"""Saves the writer's progress: progress once a second, a checkpoint per CHECKPOINT_BYTES of the log.

Both ways of saving wait for the disk, in a thread; no acknowledgement waits for them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from binlog.errors import BinlogError

from pump.index.checkpoint import Checkpoints
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import Head, ValueLog

CHECKPOINT_BYTES = 16 << 20  # of the value log; about as much is read again at a start after a crash


class Reached(NamedTuple):
    """The writer's state between two batches: everything up to `head` is in the index, no prewrite before `handle` is
    pending, and `max_commit_ts` is resolved. `written_bytes`: bytes of binlogs written since the start."""

    head: Head
    handle: Pointer
    max_commit_ts: int
    written_bytes: int


@dataclass(slots=True, eq=False)
class Progress:
    """Saves progress, as the module says. A failure breaks the log: the index accepts nothing more, and a restart
    rebuilds its missing entries. Use it only on the event loop."""

    _log: ValueLog
    _index: Index
    _checkpoints: Checkpoints
    checkpoint_bytes: int = CHECKPOINT_BYTES
    _saving: asyncio.Future[None] | None = None
    _checked_bytes: int = 0  # used only by the thread that saves

    def offer(self, reached: Reached) -> bool:
        """Have `reached` saved, without waiting. Return False if an earlier state is still being saved: nothing is
        done then."""
        if self._saving is not None and not self._saving.done():
            return False
        self._saving = asyncio.get_running_loop().run_in_executor(None, self._save, reached, False)
        return True

    async def stop(self, reached: Reached) -> None:
        """Save a checkpoint of the last state."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        await asyncio.to_thread(self._save, reached, True)

    def _save(self, reached: Reached, checkpoint: bool) -> None:
        if self._log.broken is not None:
            return
        try:
            self._index.save_progress(handle=reached.handle, max_commit_ts=reached.max_commit_ts)
            if checkpoint or reached.written_bytes - self._checked_bytes >= self.checkpoint_bytes:
                self._checkpoints.save(reached.head, reached.handle)
                self._checked_bytes = reached.written_bytes
        except (BinlogError, OSError) as error:
            self._log.give_up(f"cannot save the progress of the index: {error}")
