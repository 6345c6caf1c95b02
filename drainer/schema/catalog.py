"""The catalog: schema and table names by id, recent TableInfos of each table, and dropped ids. No rules of
replication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from binlog.tidb.table import TableInfo

from drainer.schema.steps import Located
from drainer.schema.view import Relocation, SkipReason, TableVersions

# TiDB 6.2 and later create this schema outside SQL, so there is no DDL job for it (D-IN-04).
MYSQL_SCHEMA_ID = 1
MYSQL_SCHEMA = "mysql"

# Rows of a dropped id come only shortly after its DDL, so only the last dropped ids are kept.
GONE_KEPT = 8192
DROPPED_SCHEMAS_KEPT = 64
RELOCATED_IDS_KEPT = 8192
RELOCATIONS_KEPT = 4


class Catalog:
    """The catalog at one schema version. Mutable; `copy` is cheap (tables are values), so a DDL can be tried first."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {MYSQL_SCHEMA_ID: MYSQL_SCHEMA}
        self.tables: dict[int, TableVersions] = {}
        self.gone: dict[int, SkipReason] = {}
        # Tables of dropped schemas by schema id: FLASHBACK DATABASE restores them with their ids.
        self.dropped_schemas: dict[int, dict[int, TableVersions]] = {}
        # Old id → new id where a DDL gave a table a new id and kept its rows (ALTER TABLE … PARTITION BY).
        self.renumbered: dict[int, int] = {}
        # See SchemaView.
        self.relocations: dict[int, tuple[Relocation, ...]] = {}
        self.relocated_ids: dict[int, int | None] = {}

    def copy(self) -> Catalog:
        twin = Catalog.__new__(Catalog)
        twin.schemas = dict(self.schemas)
        twin.tables = dict(self.tables)
        twin.gone = dict(self.gone)
        twin.dropped_schemas = dict(self.dropped_schemas)
        twin.renumbered = dict(self.renumbered)
        twin.relocations = dict(self.relocations)
        twin.relocated_ids = dict(self.relocated_ids)
        return twin

    def locate(self, table_id: int) -> Located | None:
        found = self.tables.get(table_id)
        return Located(table_id, found.schema, found.current) if found else None

    def named(self, schema_id: int, name: str) -> int | None:
        """The id of the table of this name, compared without case as in TiDB; None if there is none."""
        lowered = name.lower()
        for table_id, table in self.tables.items():
            if table.schema_id == schema_id and table.name.lower() == lowered:
                return table_id
        return None

    def put(self, schema_id: int, schema: str, version: int, info: TableInfo) -> None:
        """Add a table that is created or recovered."""
        self.tables[info.id] = TableVersions(schema, schema_id, (version,), (info,))
        self.gone.pop(info.id, None)

    def drop_table(self, table_id: int, why: SkipReason) -> TableVersions | None:
        """Remove a table; its rows are skipped from now on. Returns what was known of it, None for an unknown id."""
        found = self.tables.pop(table_id, None)
        self.gone.pop(table_id, None)
        self.gone[table_id] = why
        while len(self.gone) > GONE_KEPT:
            del self.gone[next(iter(self.gone))]
        return found

    def drop_schema(self, schema_id: int) -> dict[int, TableVersions]:
        """Remove a schema with all its tables, which are kept for FLASHBACK DATABASE. Returns the tables by id."""
        tables = {i: t for i, t in self.tables.items() if t.schema_id == schema_id}
        for table_id in tables:
            self.drop_table(table_id, SkipReason.DROPPED)
        self.schemas.pop(schema_id, None)
        self.dropped_schemas.pop(schema_id, None)
        self.dropped_schemas[schema_id] = tables
        while len(self.dropped_schemas) > DROPPED_SCHEMAS_KEPT:
            del self.dropped_schemas[next(iter(self.dropped_schemas))]
        return tables

    def renumber(self, old_id: int, new_id: int) -> None:
        """Give a table a new id; it keeps its TableInfos."""
        found = self.tables.pop(old_id)
        self.tables[new_id] = replace(found, infos=(*found.infos[:-1], replace(found.infos[-1], id=new_id)))
        self.gone.pop(new_id, None)

    def relocate(
        self, table_id: int, before_version: int, info: TableInfo, relocated_ids: Mapping[int, int | None]
    ) -> None:
        """Record a DDL that moved or dropped partitions. `relocated_ids`: physical id → id of the table that holds its
        rows since `before_version`, None where they were dropped; `info`: the table before the DDL."""
        known = (*self.relocations.pop(table_id, ()), Relocation(before_version, info))
        self.relocations[table_id] = tuple(sorted(known, key=lambda relocation: relocation.before_version))[
            -RELOCATIONS_KEPT:
        ]
        for physical_id, home in relocated_ids.items():
            self.relocated_ids.pop(physical_id, None)
            self.relocated_ids[physical_id] = home
        for entries, limit in ((self.relocated_ids, RELOCATED_IDS_KEPT), (self.relocations, RELOCATED_IDS_KEPT)):
            while len(entries) > limit:
                del entries[next(iter(entries))]

    def replicated(self, allows: Callable[[str, str], bool]) -> tuple[dict[int, TableVersions], dict[int, SkipReason]]:
        """For a view: the replicated tables by id, and for the other known ids why their rows are skipped."""
        tables: dict[int, TableVersions] = {}
        gone = dict(self.gone)
        for table_id, table in self.tables.items():
            if table.current.is_view or table.current.is_sequence:
                continue
            if allows(table.schema, table.name):
                tables[table_id] = table
            else:
                gone[table_id] = SkipReason.FILTERED
        for old_id, new_id in self.renumbered.items():
            if new_id in tables:
                tables.setdefault(old_id, tables[new_id])
            elif new_id in gone:
                gone.setdefault(old_id, gone[new_id])
        return tables, gone


def partition_ids(info: TableInfo) -> set[int]:
    """Physical ids of a table's partitions; empty for a table without partitions."""
    return {d.id for d in info.partition.definitions} if info.partition else set()
