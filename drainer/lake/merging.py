"""Merges mirrors in a thread of its own, one table after another, every `interval_s` seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.lake.control import MirrorVersion
from drainer.lake.delta import txn_action
from drainer.lake.mirror import Range, merge
from drainer.lake.tables import Entry, Tables
from drainer.sink.errors import Fenced

_STOP_S: Final = 30.0
_TRIES: Final = 5
_log = get_logger(__name__)


class Merger:
    """`tables`: with a session of its own; `due`: returns the mirrors, and the position up to which they may be merged;
    `record`: stores versions of mirrors. `lock`: held while a table is merged."""

    def __init__(
        self,
        tables: Tables,
        due: Callable[[], tuple[Sequence[Entry], int]],
        record: Callable[[Sequence[MirrorVersion]], None],
        interval_s: float,
    ) -> None:
        self.lock = threading.Lock()
        self._tables = tables
        self._due = due
        self._record = record
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="merge", daemon=True)
        self._thread.start()

    def raise_error(self) -> None:
        """Raise the error that ended the thread."""
        if self._error is not None:
            raise self._error

    def merge(self, entry: Entry, until_ts: int) -> MirrorVersion | None:
        """Merge the changes that a mirror lacks up to `until_ts`; None: there are none. Call it with `lock` held."""
        tables = self._tables
        path, history, app = tables.mirror_path(entry), tables.history_path(entry), tables.app
        mirror = tables.delta.state(path)
        merged_ts = tables.delta.committed(path, app)
        if mirror is None or merged_ts >= until_ts or tables.delta.committed(history, app) <= merged_ts:
            return None
        begin_s = time.monotonic()
        for left in reversed(range(_TRIES)):
            try:
                merge(tables.delta, app, path, mirror, history, Range(merged_ts, until_ts))
                break
            except Fenced:  # OPTIMIZE may run beside us; another drainer not
                if not left or tables.delta.committed(path, app) != merged_ts:
                    raise
        crash_point("lake.merged")
        if tables.delta.committed(path, app) < until_ts:  # a statement without an effect commits nothing
            tables.delta.commit(path, [txn_action(app, until_ts)], app=app, after=merged_ts)
        version = tables.version(entry)
        _log.debug("mirror merged", table=".".join(entry.name), version=version, took_s=time.monotonic() - begin_s)
        return MirrorVersion(until_ts, entry.path, *entry.name, version)

    def round(self) -> None:
        """Merge all mirrors up to the position."""
        entries, until_ts = self._due()
        made = []
        for entry in entries:
            if self._stop.is_set():
                break
            with self.lock:  # a DDL may have come in between
                current, _ = self._due()
                if entry in current:
                    made.append(self.merge(entry, until_ts))
        found = [one for one in made if one is not None]
        if found:
            self._record(found)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.round()
            except Exception as error:  # noqa: BLE001  the next batch raises it
                if not self._stop.is_set():
                    self._error = error
                return

    def close(self) -> None:
        """End the thread; a merge that runs is waited for some seconds, and repeated by the next start otherwise."""
        self._stop.set()
        self._thread.join(_STOP_S)
