"""Under which TableInfo the rows of named tables were written, for every schema version. Pure.

A reader of changes wants each row as it was when it was written, also of a table that was truncated, dropped or renamed
since; a SchemaView, in contrast, knows what a destination has at one moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo

from drainer.schema import job_effects, job_kinds
from drainer.schema.catalog import Catalog
from drainer.schema.history.base import JobHistory
from drainer.schema.unknown_column import public_version
from drainer.schema.view import retyped

Name = tuple[str, str]  # database, table, as they are spelled upstream


@dataclass(frozen=True, slots=True)
class Written:
    """From schema version `version` on, rows of a table id are rows of table `name` as `info` describes it; `name`
    None: of a table that nobody asked for."""

    version: int
    name: Name | None
    info: TableInfo


@dataclass(frozen=True, slots=True)
class Watched:
    """`ids`: table id → what its rows are, ascending by version; `newest`: each table that exists after the last known
    job; `version`: of that job; `heirs`: (table id, column id) → the id under which the column's values lie in rows
    from before its type was changed."""

    ids: Mapping[int, tuple[Written, ...]]
    newest: Mapping[Name, TableInfo]
    version: int
    heirs: Mapping[tuple[int, int], int]

    def ancestors(self, table_id: int, column_id: int) -> list[int]:
        """Ids that a column had before, the last one first."""
        found: list[int] = []
        earlier = self.heirs.get((table_id, column_id))
        while earlier is not None and earlier not in found:
            found.append(earlier)
            earlier = self.heirs.get((table_id, earlier))
        return found

    def at(self, table_id: int, schema_version: int) -> Written | None:
        """What a row of this table id and schema version is; None: the id never had a name that was asked for."""
        found = self.ids.get(table_id)
        return found[self._place(found, schema_version)] if found is not None else None

    def was(self, table_id: int, schema_version: int) -> Name | None:
        """The last name that was asked for and that the table had before it got its name of this version."""
        found = self.ids.get(table_id, ())
        earlier = found[: self._place(found, schema_version)] if found else ()
        return next((one.name for one in reversed(earlier) if one.name is not None), None)

    @staticmethod
    def _place(found: tuple[Written, ...], schema_version: int) -> int:
        return max(bisect_right(found, schema_version, key=lambda one: one.version) - 1, 0)


def watch(history: JobHistory, wanted: Iterable[Name]) -> Watched:
    """`wanted`: names, in any case, as TiDB compares them."""
    names = {_folded(name) for name in wanted}
    catalog = Catalog()
    found: dict[int, list[Written]] = {}
    heirs: dict[tuple[int, int], int] = {}
    for job in history:
        if not job_kinds.takes_effect(job) or job_kinds.is_skipped(job):
            continue
        version = public_version(job, history.version_before(job))
        for change in job_effects.apply(catalog, job, version):
            after = change.after
            if after is None:
                continue
            name = (after.schema, after.name)
            asked = _folded(name) in names
            known = found.get(after.table_id)
            if known is None:
                if not asked:
                    continue
                known = found[after.table_id] = []
                before = change.before
                if before is not None and before.table_id == after.table_id:
                    was = (before.schema, before.name)
                    known.append(Written(0, was if _folded(was) in names else None, before.info))
            if known:
                one_changed = job.type == ActionType.MODIFY_COLUMN
                pairs = retyped(known[-1].info, after.info, one_changed=one_changed, query=job.query)
                heirs.update(((after.table_id, new), old) for new, old in pairs)
            while known and known[-1].version >= version:
                known.pop()
            known.append(Written(version, name if asked else None, after.info))
    newest = {
        (table.schema, table.name): table.current
        for table in catalog.tables.values()
        if _folded((table.schema, table.name)) in names
    }
    ids = {table_id: tuple(each) for table_id, each in found.items()}
    return Watched(ids, newest, history.greatest_version, heirs)


def _folded(name: Name) -> Name:
    return name[0].lower(), name[1].lower()
