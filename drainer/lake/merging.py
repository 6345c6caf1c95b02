"""A thread that merges mirrors every `interval_s` seconds, one table after another. In between it maintains the tables:
it replaces small files by larger ones, and removes the files of versions that are older than `keep`, and old changes of
histories that are not kept."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from binlog.cluster import tso
from binlog.runtime import metrics
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.lake.control import MirrorVersion, forget
from drainer.lake.delta import txn_action
from drainer.lake.fields import literal
from drainer.lake.files import Place, exists
from drainer.lake.mirror import Range, merge
from drainer.lake.tables import Entry, Tables
from drainer.schema.filter import TablePatterns
from drainer.sink.errors import DestinationError, Fenced

_STOP_S: Final = 30.0
_TRIES: Final = 5
_FILES_MIN: Final = 20  # a table with fewer new files is not compacted
_VACUUM_S: Final = 86_400.0
_MERGED = metrics.gauge("drainer_lake_merged_tso", "commit_ts up to which all mirrors are merged, physical ms")
_INTERVAL = metrics.gauge("drainer_lake_merge_interval_seconds", "how often mirrors are to be merged")
_NEW_FILES = metrics.gauge("drainer_lake_new_files", "files of all tables that have not been compacted")
_log = get_logger(__name__)


class Merger:
    """`tables`: with a session of its own; `due`: returns the tables, and the position up to which mirrors may be
    merged; `record`: stores versions of mirrors; `control`: the control table and its lock; `share`: of the time, for
    compaction; `keep`: how long earlier versions can be read; `kept`: patterns of tables whose history is kept longer.
    `lock`: held while a table is merged or compacted."""

    def __init__(
        self,
        tables: Tables,
        due: Callable[[], tuple[Sequence[Entry], int]],
        record: Callable[[Sequence[MirrorVersion]], None],
        interval_s: float,
        control: tuple[Place, threading.Lock],
        share: float,
        keep: timedelta,
        kept: TablePatterns | None,
    ) -> None:
        self.lock = threading.Lock()
        self._control, self._control_lock = control
        self._share = share
        self._keep = keep
        self._kept = kept
        self._began_s, self._compacted_s = time.monotonic(), 0.0
        self._vacuumed_s: dict[Place, float] = {}
        self._tables = tables
        self._due = due
        self._opened_ts = due()[1]
        self._record = record
        self._interval_s = interval_s
        _INTERVAL.set(interval_s)
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
        for entry in (one for one in entries if one.mirrored):
            if self._stop.is_set():
                break
            with self.lock:  # a DDL may have come in between
                current, _ = self._due()
                if entry in current:
                    made.append(self.merge(entry, until_ts))
        found = [one for one in made if one is not None]
        if found:
            self._record(found)
        if not self._stop.is_set():
            _MERGED.set(tso.physical_ms(until_ts))

    def maintain(self) -> None:
        """Compact the tables with most new files until the share of time for it is used up; then remove the old files
        of one table, of each once a day. Not before the position has moved: a DDL that a crash has interrupted may have
        changed a part of a mirror."""
        entries, until_ts = self._due()
        if until_ts == self._opened_ts:
            return
        paths, histories = [self._control], {}
        for entry in entries:
            paths += [self._tables.mirror_path(entry), self._tables.history_path(entry)]
            histories[paths[-1]] = entry
        files = self._tables.delta.new_files
        for path in sorted(paths, key=lambda path: -files.get(path, 0)):
            spent = self._compacted_s >= self._share * (time.monotonic() - self._began_s)
            if self._stop.is_set() or spent or files.get(path, 0) < _FILES_MIN:
                break
            self.compact(path)
        _NEW_FILES.set(sum(files.get(path, 0) for path in paths))
        due_s = time.monotonic() - _VACUUM_S
        paths.sort(key=lambda path: self._vacuumed_s.get(path, 0.0))
        due = next((path for path in paths if self._vacuumed_s.get(path, due_s) <= due_s and exists(path)), None)
        if due is not None and not self._stop.is_set():
            self._vacuum(due, histories.get(due), until_ts)

    def _vacuum(self, path: Place, history: Entry | None, until_ts: int) -> None:
        """Run VACUUM, and remove rows of the control table and old changes: what `at` needs for no TSO between the
        position minus `keep` and the position. `history`: the table whose history it is."""
        self._vacuumed_s[path] = time.monotonic()
        lag = timedelta(milliseconds=max(0, time.time() * 1000 - tso.physical_ms(until_ts)))
        oldest_ts = max(0, until_ts - tso.compose(self._keep // timedelta(milliseconds=1)))
        with self._attempt(path):
            if path == self._control:
                self._record([MirrorVersion(oldest_ts, "", "", "", -1)])
            with self._lock_of(path):  # it commits, too
                if path == self._control:
                    forget(self._tables.delta, path, oldest_ts)
                if history is not None and not (self._kept and self._kept.match(*history.name)):
                    self._forget(history, oldest_ts)
                self._record_version(path)
                self._tables.delta.vacuum(path, math.ceil((self._keep + lag) / timedelta(hours=1)))

    def compact(self, path: Place) -> None:
        """Replace a table's small files by larger ones, and record the version that a mirror has then."""
        begin_s = time.monotonic()
        with self._lock_of(path), self._attempt(path):
            self._tables.delta.compact(path)
            self._record_version(path)
        self._compacted_s += time.monotonic() - begin_s

    def _record_version(self, path: Place) -> None:
        """Record a mirror's version, which `at` reads from now on: files of those before are kept only for a while."""
        for entry in self._due()[0]:
            if entry.mirrored and path == self._tables.mirror_path(entry):
                merged_ts = self._tables.delta.committed(path, self._tables.app)
                self._record([MirrorVersion(merged_ts, entry.path, *entry.name, self._tables.version(entry))])

    def _forget(self, entry: Entry, until_ts: int) -> None:
        """Remove changes that are older than what is kept from a history. `at` needs none of them: the mirror has a
        version of that time with them, and earlier versions are not shown any more."""
        if entry.mirrored:
            rows = self._tables.delta.spark.read.format("delta").load(str(self._control))
            of_mirror = rows.where(f"path = {literal(entry.path)} AND version >= 0 AND until_ts <= {until_ts}")
            until_ts = of_mirror.selectExpr("max(until_ts)").collect()[0][0] or 0
        if until_ts > 0:
            self._tables.forget(entry, until_ts)
            _log.info("old changes removed from a history", table=".".join(entry.name), until_ts=until_ts)

    def _lock_of(self, path: Place) -> threading.Lock:
        return self._control_lock if path == self._control else self.lock

    @contextlib.contextmanager
    def _attempt(self, path: Place) -> Iterator[None]:
        """Log an error instead of raising it: tables are complete without maintenance, which is tried again later."""
        try:
            yield
        except DestinationError as error:
            if not self._stop.is_set():
                _log.warning(
                    "OPTIMIZE or VACUUM of a table failed and will be tried again", table=str(path), error=str(error)
                )

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.round()
                self.maintain()
            except Exception as error:  # noqa: BLE001  the next batch raises it
                if not self._stop.is_set():
                    self._error = error
                return

    def close(self) -> None:
        """End the thread; a merge that runs is waited for some seconds, and repeated by the next start otherwise."""
        self._stop.set()
        self._thread.join(_STOP_S)
