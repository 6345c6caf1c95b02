"""A lake of Delta tables, exactly once. The methods are in the order of drainer/sink/base.py.

    executors, driver     write changes as Parquet files          history.py
    commit                one commit for each history, with the batch's until_ts (Delta's `txn`)
                          then one of the control table, with the position   control.py
    merging               every merge-interval, in a thread: mirrors         merging.py

Each history records up to which commit_ts it is complete. So no intent is recorded: after a crash between two commits
the next batches may be divided otherwise, and each table leaves out the changes that it has already.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from binlog.cluster import tso
from binlog.errors import ConfigError
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.lake import files
from drainer.lake.control import Control, MirrorVersion, control_path
from drainer.lake.delta import Delta, File, txn_action
from drainer.lake.fields import alters, type_name
from drainer.lake.history import ByTime, HistorySlotWriter, HistoryTable, files_of, write
from drainer.lake.merging import Merger
from drainer.lake.section import LakeSection
from drainer.lake.tables import Entry, Registry, Tables, replaced
from drainer.row.partition import PartitionUnknown
from drainer.schema import job_kinds
from drainer.schema.catalog import removed_partitions
from drainer.schema.steps import Ddl, TableChange
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    NO_QUESTION,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    TableLoad,
    TableName,
    Wants,
)
from drainer.sink.document_position import DocumentPositionStore
from drainer.sink.errors import DdlFailed, DestinationRefused, PositionMoved
from drainer.sink.position import DONE, JobMark, purge_old_jobs, refusal, take_over
from drainer.sink.settings import SyncerSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITTERS: Final = 8  # threads, each of which waits for one table's commit


@dataclass
class Written:
    """Files that have been written up to `until_ts` and are committed at `due_s` of time.monotonic() or later."""

    until_ts: int = 0
    schema_version: int = 0
    due_s: float = 0.0
    files: dict[TableName, list[File]] = field(default_factory=dict)


class LakeSink:
    """See base.ChangeSink and base.ParallelSink. `session`: returns Spark's session; set before `open`."""

    wants: Final = Wants.CHANGES
    slotting: Final = ByTime()
    stored_generated: Final = True
    advance_s: Final = 10.0
    retry_for_s: Final = 0.0
    derives_ddl: Final[Literal[True]] = True

    def __init__(self, to: LakeSection) -> None:
        self._to = to
        self._directory = files.place(to.dir)
        self.name = to.address()
        self.session: Callable[[], SparkSession] | None = None
        self._lock: int | None = None
        self._control_lock = threading.Lock()
        self._merger: Merger | None = None
        self._view: SchemaView | None = None
        self._epoch = 0
        self._is_loading = False
        self.commit_ts = 0
        self._written = Written()
        self._committers = ThreadPoolExecutor(_COMMITTERS, thread_name_prefix="commit")

    @property
    def parallel(self) -> LakeSink:
        return self

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        assert self.session is not None, "the session comes first"
        self._lock = files.claim(control_path(self._directory, identity.changefeed))
        try:
            session = self.session()
            app = f"tidb-binlog/{identity.cluster_id}/{identity.changefeed}"
            flags = (self._to.deletion_vectors, self._to.zero_dates == "fail")
            delta = Delta(session)
            self._tables = Tables(delta, self._directory, app, *flags)
            self._control = Control(delta, self._directory, identity)
            with self._transaction() as store:
                self._registry = Registry(store.document.notes)
                there = list(self._registry.tables)
                self._epoch, position = take_over(store, identity.node_id, initial_ts, first, there)
                self._is_loading = store.document.is_loading
            self.commit_ts = position.commit_ts
            self._written = Written(position.commit_ts, position.schema_version)
            merging = Tables(Delta(session, delta), self._directory, app, *flags)
            interval_s = self._to.merge_interval / timedelta(seconds=1)
            upkeep = ((self._control.path, self._control_lock), self._to.compaction_share, self._to.keep, self._to.kept)
            self._merger = Merger(merging, self._live, self._record_versions, interval_s, *upkeep)
        except BaseException:
            self.close(clean=False)
            raise
        return position

    def apply(self, segment: ChangeSegment, schema_version: int) -> None:
        self.apply_pieces(Pieces(segment.after_ts, segment.until_ts, lambda: (segment,)), schema_version)

    def apply_pieces(self, pieces: Pieces[ChangeSegment], schema_version: int) -> None:
        """All pieces become visible with one commit for each table."""
        self._check(pieces.after_ts, pieces.until_ts)
        load = None if pieces.loaded is None else (self._entry_to_load(pieces.loaded), pieces.loaded[-1])
        files: list[tuple[TableName, File]] = []
        for segment in pieces.works():
            files += write(segment, self._histories(_infos(segment)), str(pieces.until_ts))
        if load is None:
            self._hold(files, pieces.until_ts, schema_version)
        else:
            crash_point("lake.range_written")
            self._tables.add_range(*load, [file.action() for _, file in files])
            crash_point("lake.range_committed")

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        """Histories and mirrors get the tables' columns. What was written before is merged into a mirror first."""
        self._flush()
        self._check(self.commit_ts, step.commit_ts)
        versions: list[MirrorVersion] = []
        with self._merging().lock:
            if step.job.type == ActionType.FLASHBACK_CLUSTER:
                for mirror in (one for one in self._live()[0] if one.mirrored):
                    raise _failed(step, mirror.name, "a mirror cannot be brought back to an earlier state")
            self._registry.forget(step.commit_ts - tso.compose(self._to.keep // timedelta(milliseconds=1)))
            there = list(self._registry.tables.values())
            # Tables may exchange their names, also over a third one. A TRUNCATE that is repeated may be known already.
            known = {one.table_id: one for one in there}
            if step.job.type in job_kinds.TAKES_PARTITIONS:
                versions += self._take_rows(step, known)
            for change in step.changes:
                versions += self._changed(step, change, _known_of(change, known))
                known |= {one.table_id: one for one in self._registry.tables.values() if one.table_id in _ids(change)}
            versions += self._overwritten(there, step.commit_ts)
            if self._is_loading:  # an empty mirror is not upstream's state
                versions = []
            self._move(self.commit_ts, step.commit_ts, step.job.schema_version, versions, done=step.job.id)

    def advance(self, commit_ts: int, schema_version: int) -> None:
        self._merging().raise_error()
        if commit_ts != self._written.until_ts:
            self._hold([], commit_ts, schema_version)

    def job_done(self, job_id: int) -> bool:
        with self._transaction() as store:
            return store.job(job_id) is not None

    def loads(self) -> list[TableLoad]:
        """Each history records how many ranges it has, in the commit of their rows; the control table all the rest."""
        with self._transaction() as store:
            stored = store.loads()
        known = {one.table_id: one for one in self._registry.tables.values()}
        return [
            replace(one, loaded=max(one.loaded, self._tables.ranges(known[one.table_id])))
            if one.table_id in known and not one.is_complete
            else one
            for one in stored
        ]

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        """See base.ChangeSink. When the first load is complete, its rows are merged into the mirrors."""
        self._flush()
        versions: list[MirrorVersion] = []
        with self._merging().lock:
            before = self.loads()
            with self._transaction(versions) as store:
                store.put_loads(self._epoch, loads, done)
                if self._is_loading and not store.document.is_loading:
                    versions += self._loaded({one.table_id for one in before if not one.is_complete})
                    store.document.notes = self._registry.notes()
                    crash_point("lake.load_merged")
            self._is_loading = store.document.is_loading

    def check_tables(self, view: SchemaView) -> None:
        """Raise ConfigError for a column that a lake has no type for, and for merged tables."""
        for found in view.tables.values():
            name = f"{found.schema}.{found.current.name}"
            if found.applied is not None and found.applied.source_column:
                raise ConfigError(f"table {name}: tables cannot be merged in a lake; give each a name of its own")
            for column in found.current.public_columns:
                type_name(column.type, f"{name}.{column.name}")

    def prepare(self, view: SchemaView) -> None:
        """What the view's tables are, for `begin`."""
        self._view = view

    def begin(self, intent: Intent) -> HistorySlotWriter:
        """The intent is not recorded: each history records up to which commit_ts it is complete."""
        self._check(intent.after_ts, intent.until_ts)
        assert self._view is not None, "prepare() comes first"
        infos = {(one.schema, one.current.name): one.current for one in self._view.tables.values()}
        infos = {name: info for name, info in infos.items() if info.has_rows}
        return HistorySlotWriter(self._histories(infos), intent.until_ts)

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> None:
        self._hold(files_of(receipts), intent.until_ts, schema_version)

    def interrupt(self) -> None:
        """Do nothing: this destination never waits."""

    def release(self) -> None:
        """End everything that uses Spark's session."""
        if self._merger is not None:
            self._merger.close()
            self._merger = None

    def close(self, *, clean: bool) -> None:
        if clean and self._merger is not None:
            self._flush()
        self.release()
        self._committers.shutdown()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def merge_now(self) -> None:
        """Merge all mirrors up to the position."""
        self._flush()
        self._merging().round()

    def maintain_now(self) -> None:
        """See merging.Merger.maintain."""
        self._merging().maintain()

    @contextmanager
    def _transaction(self, versions: Sequence[MirrorVersion] = ()) -> Iterator[DocumentPositionStore]:
        with self._control_lock, self._control.transaction(versions) as store:
            yield store

    def _hold(self, files: Sequence[tuple[TableName, File]], until_ts: int, schema_version: int) -> None:
        """Commit the files that were written up to `until_ts`, or keep them for a later commit if the last one was less
        than `history-interval` ago. Readers do not see what is not committed; after a restart it is read again."""
        of = self._written
        for name, file in files:
            of.files.setdefault(name, []).append(file)
        of.until_ts, of.schema_version = until_ts, schema_version
        if time.monotonic() >= of.due_s:
            self._flush()

    def _flush(self) -> None:
        """Commit what has been written to the histories, then the position."""
        of = self._written
        if of.until_ts != self.commit_ts:
            self._commit_histories(of.files, of.until_ts)
            self._move(self.commit_ts, of.until_ts, of.schema_version)
            self._written.due_s = time.monotonic() + self._to.history_interval / timedelta(seconds=1)

    def _move(
        self,
        after_ts: int,
        until_ts: int,
        schema_version: int,
        versions: Sequence[MirrorVersion] = (),
        *,
        done: int = 0,
    ) -> None:
        """Store the position. `done`: the id of a job that has run."""
        with self._transaction(versions) as store:
            store.move(epoch=self._epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
            store.document.notes = self._registry.notes()
            if done:
                store.mark_job(JobMark(done, DONE, until_ts))
                purge_old_jobs(store, done, until_ts)
        self.commit_ts = until_ts
        self._written = Written(until_ts, schema_version, self._written.due_s)

    def _check(self, after_ts: int, until_ts: int) -> None:
        """Raise Fenced and PositionMoved before anything is written, and the error that ended merging."""
        self._merging().raise_error()
        with self._transaction() as store:
            stored = store.read()
            found = None if stored is None else (stored.epoch, stored.commit_ts, self._written.until_ts)
            if found != (self._epoch, self.commit_ts, after_ts):
                raise refusal(store, epoch=self._epoch, after_ts=after_ts, until_ts=until_ts)

    def _merging(self) -> Merger:
        assert self._merger is not None, "open() comes first"
        return self._merger

    def _live(self) -> tuple[list[Entry], int]:
        """Return the tables that exist upstream, but none that a first load fills, and the position."""
        return [] if self._is_loading else list(self._registry.tables.values()), self.commit_ts

    def _record_versions(self, versions: Sequence[MirrorVersion]) -> None:
        with self._transaction(versions) as store:
            store.hold(self._epoch)

    def _histories(self, infos: Mapping[TableName, TableInfo]) -> dict[TableName, HistoryTable]:
        """How rows of these tables are written. A table that was not created here has no mirror, because its earlier
        rows are not known."""
        tables = self._registry.tables
        unknown = [(n, info.id) for n, info in infos.items() if n not in tables or tables[n].table_id != info.id]
        if unknown:
            self._flush()  # what was written under a name belongs to the table that had it
        there = list(tables.values()) if unknown else []
        for name, table_id in unknown:
            self._registry.add(name, table_id, mirrored=False)
        found = {name: self._tables.history(tables[name], info) for name, info in infos.items()}
        if unknown and (versions := self._overwritten(there, self.commit_ts)):
            self._record_versions(versions)
        return found

    def _overwritten(self, there: Sequence[Entry], at_ts: int) -> list[MirrorVersion]:
        """End the tables that were `there` and whose names other tables have now. Upstream gave them names that are not
        replicated, so their rows are not known any more."""
        left = {one.path for one in (*self._registry.tables.values(), *self._registry.dropped.values())}
        lost = [one for one in there if one.path not in left]
        for one in lost:
            self._registry.drop(one, at_ts, is_known=False)
        return [MirrorVersion(at_ts, one.path, *one.name, -1) for one in lost if one.mirrored]

    def _entry_to_load(self, loaded: tuple[int, int, int]) -> Entry:
        """The table of a range, which must be the next one of its load."""
        table_id, _, number = loaded
        entry = next((one for one in self._registry.tables.values() if one.table_id == table_id), None)
        if entry is None:
            raise DestinationRefused(f"{self.name}: table {table_id} was not created; leave it out of the changefeed")
        if self._tables.ranges(entry) != number:
            raise PositionMoved(f"{self.name}: range {number} of {'.'.join(entry.name)} is not the next of its load")
        return entry

    def _loaded(self, unfinished: Collection[int]) -> list[MirrorVersion]:
        """Merge the rows of a first load into the mirrors, which have upstream's state at the position then; return
        their versions. `unfinished`: tables that upstream has dropped meanwhile, or that are not replicated any
        more."""
        found: list[MirrorVersion] = []
        for entry in [one for one in self._registry.tables.values() if one.mirrored]:
            if entry.table_id in unfinished:
                self._registry.tables[entry.name] = replace(entry, mirrored=False)
                continue
            self._tables.end_load(entry, self.commit_ts)
            crash_point("lake.load_ended")
            made = MirrorVersion(self.commit_ts, entry.path, *entry.name, self._tables.version(entry))
            found += self._merged(entry) or [made]
        return found

    def _commit_histories(self, files: dict[TableName, list[File]], until_ts: int) -> None:
        """One commit for each table, whose files are taken out of `files`. Raises Fenced if another drainer has
        committed to one."""
        crash_point("lake.histories_written")

        def commit(name: TableName) -> None:
            entry = self._registry.tables[name]
            table = self._tables.history_of(entry)
            actions = [txn_action(self._tables.app, until_ts), *(file.action() for file in files[name])]
            self._tables.delta.commit(table.directory, actions, app=self._tables.app, after=table.committed_ts)
            del files[name]
            self._tables.wrote(entry, until_ts)
            crash_point("lake.history_committed")

        if len(files) == 1:
            commit(*files)
        else:  # all of them end, also beside one that fails
            wait(done := [self._committers.submit(commit, name) for name in list(files)])
            for one in done:
                one.result()

    def _changed(self, step: Ddl, change: TableChange, known: Entry | None) -> list[MirrorVersion]:
        """Change a table's history and mirror as a DDL changes the table; return the mirror's new versions. `known`:
        the table before the DDL; None: there was none, or it is not known."""
        before, after, at_ts = change.before, change.after, step.commit_ts
        if after is None:
            if known is None:
                return []
            merged = self._merged(known)
            # What is done to it under a name that is not replicated is not seen.
            self._registry.drop(known, at_ts, is_known=step.job.type not in job_kinds.RENAMES)
            return [*merged, MirrorVersion(at_ts, known.path, *known.name, -1)] if known.mirrored else []
        name = (after.schema, after.name)
        if not after.info.has_rows:
            return []
        source = self._registry.truncated(after.table_id) if known is None else None
        if known is None:
            self._refuse_lost(step, name, after.table_id)
            known = self._registry.add(name, after.table_id, mirrored=before is None and self._wants_mirror(name))
            if self._is_loading:
                self._tables.refuse_rows(known)
        truncated = before if step.job.type == ActionType.TRUNCATE_TABLE else None
        entry = self._registry.moved(known, name, after.table_id)
        was_info = before.info if before is not None else None
        was = replaced(was_info, after.info, step.job.query, one_changed=step.job.type == ActionType.MODIFY_COLUMN)
        versions: list[MirrorVersion] = []
        same = was_info is not None and name == known.name and not alters(was_info, after.info)
        changes = entry.mirrored and (not same or truncated is not None or step.job.type in job_kinds.TAKES_PARTITIONS)
        if changes:
            versions += self._merged(known)
        self._tables.define_history(entry, after.info, was)
        crash_point("lake.history_defined")
        if changes:
            if truncated is not None:
                self._truncate(replace(known, table_id=truncated.table_id), entry, at_ts)
            version = self._tables.define_mirror(entry, was_info, after.info, was, at_ts)
            if source is not None:
                version = self._tables.restore(entry, source)
            versions.append(MirrorVersion(at_ts, entry.path, *name, version))
        return versions

    def _take_rows(self, step: Ddl, known: Mapping[int, Entry]) -> list[MirrorVersion]:
        """Delete or exchange the rows of partitions in mirrors. `known`: tables by id. Raises DdlFailed."""
        entries = (_known_of(change, known) for change in step.changes)
        mirrored = [one for one in entries if one is not None and one.mirrored]
        first = step.changes[0] if mirrored else None
        if first is None or first.before is None or first.after is None:
            return []
        parted = first.before.info
        lost = removed_partitions(parted, first.after.info)
        versions = [version for one in mirrored for version in self._merged(one)]
        try:
            if step.job.type != ActionType.EXCHANGE_TABLE_PARTITION:
                self._tables.remove(mirrored[0], parted, lost)
            elif len(mirrored) != 2:
                raise _failed(step, mirrored[0].name, "rows come from a table without a mirror")
            else:
                self._tables.exchange(mirrored[0], parted, lost, mirrored[1], step.job.id)
        except PartitionUnknown as error:
            raise _failed(step, mirrored[0].name, str(error)) from error
        return versions

    def _truncate(self, known: Entry, entry: Entry, at_ts: int) -> None:
        """Delete all rows of a mirror. Which version has them is stored before, for FLASHBACK TABLE."""
        if known.table_id not in self._registry.dropped:
            self._registry.truncate(known, at_ts, self._tables.version(known))
            with self._transaction() as store:
                store.document.notes = self._registry.notes()
                crash_point("lake.truncating")
        self._tables.truncate(entry, at_ts)

    def _refuse_lost(self, step: Ddl, name: TableName, table_id: int) -> None:
        """Raise DdlFailed if a table comes back whose rows the lake does not have."""
        returns = step.job.type in (ActionType.RECOVER_TABLE, ActionType.RECOVER_SCHEMA)
        if returns and table_id not in self._registry.dropped and self._wants_mirror(name):
            raise _failed(step, name, "its rows come back, and no mirror has them")

    def _merged(self, entry: Entry) -> list[MirrorVersion]:
        found = self._merging().merge(entry, self.commit_ts) if entry.mirrored else None
        return [] if found is None else [found]

    def _wants_mirror(self, name: TableName) -> bool:
        return self._to.mirrored is not None and self._to.mirrored.match(*name)


def _infos(segment: ChangeSegment) -> dict[TableName, TableInfo]:
    """The tables that have changes in a segment."""
    return {(one.shape.schema, one.shape.table): one.codec.at.current for one in segment.changes}


def _ids(change: TableChange) -> list[int]:
    return [one.table_id for one in (change.before, change.after) if one is not None]


def _known_of(change: TableChange, known: Mapping[int, Entry]) -> Entry | None:
    """The table that a DDL changes. `known`: by id; a DDL that is repeated may have given the new one already."""
    return next((known[one] for one in _ids(change) if one in known), None)


def _failed(step: Ddl, name: TableName, why: str) -> DdlFailed:
    text = f"DDL job {step.job.id} at {step.commit_ts}, table {'.'.join(name)}: {why}: {step.query!r}; leave the table "
    text += "out of syncer.to.mirror and begin anew, or out of the changefeed"
    return DdlFailed(text, job_id=step.job.id, commit_ts=step.commit_ts)


def make(to: LakeSection, syncer: SyncerSettings) -> LakeSink:
    """Return the sink, not opened yet."""
    return LakeSink(to)
