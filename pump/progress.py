"""Saves, beside the writer, how far it is: progress once a second, a checkpoint after every so many bytes of the log.

A `Progress` runs between `start` and `stop`. Both kinds of saving wait for the disk, which no acknowledgement does.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from pump.checkpoint import Checkpoints
from pump.index import Index
from pump.log import Head, ValueLog
from pump.record import Pointer

CHECKPOINT_BYTES = 16 << 20  # of the value log; what a start reads again after a crash

_log = get_logger("pump.progress")


class Reached(NamedTuple):
    """Seen by the writer between two batches: everything up to `head` is in the index, no older prewrite than the one
    at `handle` is pending, and `max_commit_ts` was resolved. `written_bytes` counts the log's bytes since the start."""

    head: Head
    handle: Pointer
    max_commit_ts: int
    written_bytes: int


class Progress:
    """See the module. A failure breaks the log: the index takes nothing more, and a restart builds what it lacks."""

    def __init__(
        self, log: ValueLog, index: Index, checkpoints: Checkpoints, *, checkpoint_bytes: int = CHECKPOINT_BYTES
    ) -> None:
        self._log = log
        self._index = index
        self._checkpoints = checkpoints
        self._checkpoint_bytes = checkpoint_bytes
        # Under the lock
        self._ready = threading.Condition()
        self._reached: Reached | None = None
        self._stopping = False
        # Of the thread
        self._checked_bytes = 0
        self._thread = threading.Thread(target=self._run, name="pump-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, reached: Reached) -> None:
        """Save this, or what is offered after it, soon. Waits for nothing."""
        with self._ready:
            self._reached = reached
            self._ready.notify()

    def stop(self) -> None:
        """Make a checkpoint of what was offered last, and end."""
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
