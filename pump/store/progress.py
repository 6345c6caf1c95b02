"""Saves the writer's progress in a thread: progress once a second, a checkpoint per CHECKPOINT_BYTES of the log.

A `Progress` runs between `start` and `stop`. Both ways of saving wait for the disk; no acknowledgement waits for them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from pump.index.checkpoint import Checkpoints
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import Head, ValueLog

CHECKPOINT_BYTES = 16 << 20  # of the value log; about as much is read again at a start after a crash

_log = get_logger("pump.store.progress")


class Reached(NamedTuple):
    """The writer's state between two batches: everything up to `head` is in the index, no prewrite before `handle` is
    pending, and `max_commit_ts` is resolved. `written_bytes`: bytes of binlogs written since the start."""

    head: Head
    handle: Pointer
    max_commit_ts: int
    written_bytes: int


class Progress:
    """Saves progress, as the module says. A failure breaks the log: the index accepts nothing more, and a restart
    rebuilds its missing entries."""

    def __init__(
        self, log: ValueLog, index: Index, checkpoints: Checkpoints, *, checkpoint_bytes: int = CHECKPOINT_BYTES
    ) -> None:
        self._log = log
        self._index = index
        self._checkpoints = checkpoints
        self._checkpoint_bytes = checkpoint_bytes
        # Guarded by the condition's lock
        self._ready = threading.Condition()
        self._reached: Reached | None = None
        self._stopping = False
        # Used only by the thread
        self._checked_bytes = 0
        self._thread = threading.Thread(target=self._run, name="pump-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, reached: Reached) -> None:
        """Have `reached`, or a later state, saved soon. Does not wait."""
        with self._ready:
            self._reached = reached
            self._ready.notify()

    def stop(self) -> None:
        """Save a checkpoint of the last offered state and end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        last: Reached | None = None
        while True:
            with self._ready:
                while self._reached is None and not self._stopping:
                    self._ready.wait()
                reached, self._reached, stopping = self._reached, None, self._stopping
            last = reached or last
            if last is not None and self._log.broken is None:
                try:
                    self._save(last, checkpoint=stopping)
                except (BinlogError, OSError) as error:
                    self._log.give_up(f"cannot save the progress of the index: {error}")
            if stopping:
                return

    def _save(self, reached: Reached, *, checkpoint: bool) -> None:
        self._index.save_progress(handle=reached.handle, max_commit_ts=reached.max_commit_ts)
        if checkpoint or reached.written_bytes - self._checked_bytes >= self._checkpoint_bytes:
            self._checkpoints.save(reached.head, reached.handle)
            self._checked_bytes = reached.written_bytes
