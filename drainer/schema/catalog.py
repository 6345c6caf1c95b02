"""The catalog: databases by id, recent TableInfos of each table, and dropped ids. No rules of
replication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from binlog.tidb.table import DBInfo, TableInfo

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

K = TypeVar("K")
V = TypeVar("V")


class Catalog:
    """The catalog at one schema version. Mutable; `copy` is cheap (tables are values), so a DDL can be tried first."""

    def __init__(self) -> None:
        self.schemas: dict[int, DBInfo] = {MYSQL_SCHEMA_ID: DBInfo(MYSQL_SCHEMA_ID, MYSQL_SCHEMA)}
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
        vars(twin).update((name, dict(entries)) for name, entries in vars(self).items())
        return twin

    def schema_name(self, schema_id: int) -> str:
        """The name of a schema, '' for an unknown id."""
        found = self.schemas.get(schema_id)
        return found.name if found else ""

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
        put_last(self.gone, table_id, why, GONE_KEPT)
        return found

    def drop_schema(self, schema_id: int) -> dict[int, TableVersions]:
        """Remove a schema with all its tables, which are kept for FLASHBACK DATABASE. Returns the tables by id."""
        tables = {i: t for i, t in self.tables.items() if t.schema_id == schema_id}
        for table_id in tables:
            self.drop_table(table_id, SkipReason.DROPPED)
        self.schemas.pop(schema_id, None)
        put_last(self.dropped_schemas, schema_id, tables, DROPPED_SCHEMAS_KEPT)
        return tables

    def renumber(self, old_id: int, new_id: int) -> None:
        """Give a table a new id; it keeps its TableInfos."""
        found = self.tables.pop(old_id)
        self.tables[new_id] = replace(found, infos=(*found.infos[:-1], replace(found.infos[-1], id=new_id)))
        self.gone.pop(new_id, None)

    def relocate(self, table_id: int, relocation: Relocation, relocated_ids: Mapping[int, int | None]) -> None:
        """Record a DDL that moved or dropped partitions. `relocated_ids`: physical id → id of the table that holds its
        rows since then, None where they were dropped."""
        known = (*self.relocations.get(table_id, ()), relocation)
        known = tuple(sorted(known, key=lambda relocation: relocation.before_version))[-RELOCATIONS_KEPT:]
        put_last(self.relocations, table_id, known, RELOCATED_IDS_KEPT)
        for physical_id, home in relocated_ids.items():
            put_last(self.relocated_ids, physical_id, home, RELOCATED_IDS_KEPT)

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


def put_last(entries: dict[K, V], key: K, value: V, most: int) -> None:
    """Set an entry, as the newest one, and remove the oldest ones above `most`."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > most:
        del entries[next(iter(entries))]


def partition_ids(info: TableInfo) -> set[int]:
    """Physical ids of a table's partitions; empty for a table without partitions."""
    return {d.id for d in info.partition.definitions} if info.partition else set()
