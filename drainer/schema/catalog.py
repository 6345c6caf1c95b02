"""Where every table stands: names by id, the last TableInfos of each, and the ids that are gone. No rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from binlog.tidb.table import TableInfo

from drainer.schema.steps import Located
from drainer.schema.view import Gone, Stray, TableVersions

# TiDB 6.2 and later create this schema outside SQL, so no job tells of it (D-IN-04).
MYSQL_SCHEMA_ID = 1
MYSQL_SCHEMA = "mysql"

# Rows of a dropped id can follow its DDL only closely, so old ones need not be known by name for ever.
GONE_KEPT = 8192
BURIED_KEPT = 64
HOMES_KEPT = 8192
STRAYS_KEPT = 4


class Catalog:
    """Ids and names of one moment. Mutable; `copy` is cheap (tables are values), so a DDL can be tried first."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {MYSQL_SCHEMA_ID: MYSQL_SCHEMA}
        self.tables: dict[int, TableVersions] = {}
        self.gone: dict[int, Gone] = {}
        # Tables of dropped schemas, which FLASHBACK DATABASE returns with their ids.
        self.buried: dict[int, dict[int, TableVersions]] = {}
        # Old id → new id where a DDL gave a table a new id and kept its rows (ALTER TABLE … PARTITION BY).
        self.renumbered: dict[int, int] = {}
        # See SchemaView.
        self.strays: dict[int, tuple[Stray, ...]] = {}
        self.homes: dict[int, int | None] = {}

    def copy(self) -> Catalog:
        twin = Catalog.__new__(Catalog)
        twin.schemas = dict(self.schemas)
        twin.tables = dict(self.tables)
        twin.gone = dict(self.gone)
        twin.buried = dict(self.buried)
        twin.renumbered = dict(self.renumbered)
        twin.strays = dict(self.strays)
        twin.homes = dict(self.homes)
        return twin

    def locate(self, table_id: int) -> Located | None:
        found = self.tables.get(table_id)
        return Located(table_id, found.schema, found.current) if found else None

    def named(self, schema_id: int, name: str) -> int | None:
        """The id of the table of this name; names ignore case as TiDB's do."""
        lowered = name.lower()
        for table_id, table in self.tables.items():
            if table.schema_id == schema_id and table.name.lower() == lowered:
                return table_id
        return None

    def put(self, schema_id: int, schema: str, version: int, info: TableInfo) -> None:
        """A table that begins, or begins again, here."""
        self.tables[info.id] = TableVersions(schema, schema_id, (version,), (info,))
        self.gone.pop(info.id, None)

    def bury(self, table_id: int, why: Gone) -> TableVersions | None:
        """Take a table away; its rows are left out from now on."""
        found = self.tables.pop(table_id, None)
        self.gone.pop(table_id, None)
        self.gone[table_id] = why
        while len(self.gone) > GONE_KEPT:
            del self.gone[next(iter(self.gone))]
        return found

    def bury_schema(self, schema_id: int) -> dict[int, TableVersions]:
        """Take a schema away with all its tables, which stay known for FLASHBACK DATABASE."""
        tables = {i: t for i, t in self.tables.items() if t.schema_id == schema_id}
        for table_id in tables:
            self.bury(table_id, Gone.DROPPED)
        self.schemas.pop(schema_id, None)
        self.buried.pop(schema_id, None)
        self.buried[schema_id] = tables
        while len(self.buried) > BURIED_KEPT:
            del self.buried[next(iter(self.buried))]
        return tables

    def renumber(self, old_id: int, new_id: int) -> None:
        """A table goes on under a new id with its TableInfos."""
        found = self.tables.pop(old_id)
        self.tables[new_id] = replace(found, infos=(*found.infos[:-1], replace(found.infos[-1], id=new_id)))
        self.gone.pop(new_id, None)

    def rehome(self, table_id: int, before_version: int, info: TableInfo, homes: Mapping[int, int | None]) -> None:
        """Physical ids of a table go elsewhere, or away (None), for rows of `before_version` and later; `info`: the
        table as older rows know it."""
        known = (*self.strays.pop(table_id, ()), Stray(before_version, info))
        self.strays[table_id] = tuple(sorted(known, key=lambda stray: stray.before_version))[-STRAYS_KEPT:]
        for physical_id, home in homes.items():
            self.homes.pop(physical_id, None)
            self.homes[physical_id] = home
        for kept, most in ((self.homes, HOMES_KEPT), (self.strays, HOMES_KEPT)):
            while len(kept) > most:
                del kept[next(iter(kept))]

    def replicated(self, allows: Callable[[str, str], bool]) -> tuple[dict[int, TableVersions], dict[int, Gone]]:
        """What a view shows: tables whose rows count, and why the rows of the other ids do not."""
        tables: dict[int, TableVersions] = {}
        gone = dict(self.gone)
        for table_id, table in self.tables.items():
            if table.current.is_view or table.current.is_sequence:
                continue
            if allows(table.schema, table.name):
                tables[table_id] = table
            else:
                gone[table_id] = Gone.FILTERED
        for old_id, new_id in self.renumbered.items():
            if new_id in tables:
                tables.setdefault(old_id, tables[new_id])
            elif new_id in gone:
                gone.setdefault(old_id, gone[new_id])
        return tables, gone


def partition_ids(info: TableInfo) -> set[int]:
    """The physical ids of a table's partitions."""
    return {d.id for d in info.partition.definitions} if info.partition else set()
