"""The interface of a DDL job source, the history of jobs read so far, and the TableInfos that it has of selected tables
at every schema version.

These are for the typed change stream, which decodes each row as it was written, also of a table that has since been
truncated, dropped or renamed. A SchemaView, in contrast, describes the destination at one position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import TableInfo

from drainer.schema.catalog import Catalog, apply_job
from drainer.schema.job_kinds import public_version
from drainer.schema.view import retyped

if TYPE_CHECKING:
    from drainer.schema.history.snapshot import SchemaSnapshot


class JobSource(Protocol):
    """A source of finished jobs. `complete`: a refresh that begins after a binlog was written returns every job that
    the binlog needs (a file, published jobs). Not so a status port: it lists only finished jobs, so one that is about
    to finish can be missing."""

    complete: bool
    size: int = 0  # of one that gets jobs without being read: how many it has

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """Jobs that are new or changed since the last call (others may be among them); all at the first call.

        `wanted` is a job id to look for in particular. Raises HistoryBroken, HistoryUnavailable.
        """
        ...

    def describe(self) -> str:
        """The file or URL, for messages."""
        ...

    async def table(self, table_id: int) -> TableInfo | None:
        """The current TableInfo; None if there is no table of this id, or the source has no tables."""
        return None

    def begin_after(self, snapshot: SchemaSnapshot | None) -> None:
        """Leave out the jobs whose effect `snapshot` has, where that is less to read; None: begin again, with the first
        job."""
        return


class JobHistory:
    """Jobs by id and by schema version. `begins_after`: the schema version of the snapshot from which on jobs are read,
    0: they are read from the first on."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.begins_after = 0
        self._by_id: dict[int, Job] = {}
        self._order: list[tuple[int, int]] = []
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> list[Job]:
        """Add jobs; returns the new or changed ones in version order."""
        fresh = []
        for job in jobs:
            known = self._by_id.get(job.id)
            if known is not None and known.schema_version == job.schema_version and known.state == job.state:
                continue
            if known is not None:
                self._order.remove((known.schema_version, known.id))
            self._by_id[job.id] = job
            insort(self._order, (job.schema_version, job.id))
            fresh.append(job)
        return sorted(fresh, key=lambda job: (job.schema_version, job.id))

    def get(self, job_id: int) -> Job | None:
        return self._by_id.get(job_id)

    def version_before(self, job: Job) -> int:
        """Schema version of the known job before this one, at least that of the snapshot; 0 for the first of all."""
        index = bisect_left(self._order, (job.schema_version, 0))
        return max(self._order[index - 1][0] if index else 0, self.begins_after)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        """In schema version order."""
        return (self._by_id[job_id] for _, job_id in self._order)

    @property
    def greatest_version(self) -> int:
        return max(self._order[-1][0] if self._order else 0, self.begins_after)


Name = tuple[str, str]  # database, table, as they are spelled upstream


@dataclass(frozen=True, slots=True)
class Written:
    """From schema version `version` on, rows of a table id belong to table `name` with TableInfo `info`. `name` None:
    a table that was not selected."""

    version: int
    name: Name | None
    info: TableInfo


@dataclass(frozen=True, slots=True)
class Watched:
    """Every TableInfo of the selected tables, by schema version. `ids`: table id → its versions, ascending;
    `newest`: the tables that exist after the last known job; `version`: schema version of that job; `old_column_ids`:
    (table id, column id) → the column's id in rows written before its type was changed."""

    ids: Mapping[int, tuple[Written, ...]]
    newest: Mapping[Name, TableInfo]
    version: int
    old_column_ids: Mapping[tuple[int, int], int]

    def ancestors(self, table_id: int, column_id: int) -> list[int]:
        """Earlier ids of a column, most recent first."""
        ids: list[int] = []
        earlier = self.old_column_ids.get((table_id, column_id))
        while earlier is not None and earlier not in ids:
            ids.append(earlier)
            earlier = self.old_column_ids.get((table_id, earlier))
        return ids

    def at(self, table_id: int, schema_version: int) -> Written | None:
        """The table version of a row of this table id and schema version; None: the id never had a selected name."""
        versions = self.ids.get(table_id)
        return versions[self._index_at(versions, schema_version)] if versions is not None else None

    def was(self, table_id: int, schema_version: int) -> Name | None:
        """The last selected name that the table had before its name of this version; None if it had none."""
        versions = self.ids.get(table_id, ())
        earlier = versions[: self._index_at(versions, schema_version)] if versions else ()
        return next((entry.name for entry in reversed(earlier) if entry.name is not None), None)

    @staticmethod
    def _index_at(versions: tuple[Written, ...], schema_version: int) -> int:
        return max(bisect_right(versions, schema_version, key=lambda entry: entry.version) - 1, 0)


def watch(history: JobHistory, wanted: Iterable[Name]) -> Watched:
    """Collect the versions of the tables named in `wanted` (compared without case) from all jobs of `history`."""
    names = {_folded(name) for name in wanted}
    catalog = Catalog()
    versions: dict[int, list[Written]] = {}
    old_column_ids: dict[tuple[int, int], int] = {}
    for job in history:
        version = public_version(job, history.version_before(job))
        for change in apply_job(catalog, job, version):
            after = change.after
            if after is None:
                continue
            name = (after.schema, after.name)
            selected = _folded(name) in names
            known = versions.get(after.table_id)
            if known is None:
                if not selected:
                    continue
                known = versions[after.table_id] = []
                before = change.before
                if before is not None and before.table_id == after.table_id:
                    was = (before.schema, before.name)
                    known.append(Written(0, was if _folded(was) in names else None, before.info))
            if known:
                one_changed = job.type == ActionType.MODIFY_COLUMN
                pairs = retyped(known[-1].info, after.info, one_changed=one_changed, query=job.query)
                old_column_ids.update(((after.table_id, new), old) for new, old in pairs)
            while known and known[-1].version >= version:
                known.pop()
            known.append(Written(version, name if selected else None, after.info))
    newest = {
        (table.schema, table.name): table.current
        for table in catalog.tables.values()
        if _folded((table.schema, table.name)) in names
    }
    ids = {table_id: tuple(each) for table_id, each in versions.items()}
    return Watched(ids, newest, history.greatest_version, old_column_ids)


def _folded(name: Name) -> Name:
    return name[0].lower(), name[1].lower()
