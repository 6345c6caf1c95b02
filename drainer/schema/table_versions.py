"""The TableInfo of selected tables at every schema version, for the typed change stream. Pure.

The change stream decodes each row as it was written, also of a table that has since been truncated, dropped or renamed.
A SchemaView, in contrast, describes the destination at one position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo

from drainer.schema.catalog import Catalog, apply_job
from drainer.schema.history.base import JobHistory
from drainer.schema.job_kinds import public_version
from drainer.schema.view import retyped

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
