"""Immutable snapshot of the schema, from which decoders read rows in any process.

It holds only replicated tables; for every other table id it returns why the rows are skipped, or raises TableUnknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo

from drainer.batch.work import Kind
from drainer.ddl.table_diff import changed_names
from drainer.schema.errors import TableUnknown
from drainer.schema.rules import AppliedRules

# Ids above 2^48 - 1 - 1000 belong to TiDB's own DDL tables (D-CO-06).
SYSTEM_TABLE_ID_MIN = (1 << 48) - 1 - 1000 + 1

# Versions kept per table. TiDB uses at most two adjacent versions of a table at once, so a row can be one job behind;
# the others allow for jobs that do not affect rows. A service that embeds the SDK may write with a table handle of any
# age: the newer TableInfo decodes such rows too, except across a change of type, so versions before one are kept
# longer.
VERSIONS_KEPT = 4
INHERITED_KEPT = 16


class SkipReason(Enum):
    """Why rows of a table id are skipped; skipped rows are counted."""

    TRUNCATED = "truncated"
    DROPPED = "dropped"
    FILTERED = "filtered"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TableVersions:
    """The names and recent TableInfos of one table id, oldest first, with the schema version of each.

    `inherited`: (new column id, old column id) of columns that got a new id by a change of type. `applied`: in a view,
    what rules make of the table; then `schema` and `current` are the destination's.
    """

    schema: str
    schema_id: int
    versions: tuple[int, ...]
    infos: tuple[TableInfo, ...]
    inherited: tuple[tuple[int, int], ...] = ()
    applied: AppliedRules | None = None

    @property
    def current(self) -> TableInfo:
        return self.infos[-1] if self.applied is None else self.applied.info

    @property
    def name(self) -> str:
        return self.current.name

    def at(self, schema_version: int) -> int:
        """Index of the newest TableInfo at or below `schema_version`; the oldest for older rows."""
        return max(bisect_right(self.versions, schema_version) - 1, 0)

    def add(self, version: int, info: TableInfo, *, one_changed: bool = False, query: str = "") -> TableVersions:
        """A copy with one more TableInfo, ordered by version; an equal version is replaced.

        `one_changed`: the job changed a single column, perhaps in name and type. `query`: the job's text."""
        keep = [(v, i) for v, i in zip(self.versions, self.infos, strict=True) if v != version]
        keep.append((version, info))
        keep.sort(key=lambda pair: pair[0])
        keep = _trimmed(keep)
        inherited = self.inherited
        if version > self.versions[-1]:
            found = retyped(self.current, info, one_changed=one_changed, query=query)
            inherited = (*inherited, *found)[-INHERITED_KEPT:]
        return replace(self, versions=tuple(v for v, _ in keep), infos=tuple(i for _, i in keep), inherited=inherited)

    def moved(self, schema: str, schema_id: int) -> TableVersions:
        return replace(self, schema=schema, schema_id=schema_id)


def _trimmed(keep: list[tuple[int, TableInfo]]) -> list[tuple[int, TableInfo]]:
    """The last VERSIONS_KEPT entries, and earlier ones after which columns got new ids. A removed entry passes its
    version to the next one, which then decodes its rows as well."""
    kept: list[tuple[int, TableInfo]] = []
    begins = 0
    recent = len(keep) - VERSIONS_KEPT
    for at, (version, info) in enumerate(keep):
        begins = begins or version
        if at >= recent or _ids_changed(info, keep[at + 1][1]):
            kept.append((begins if kept else version, info))
            begins = 0
    return kept[-(VERSIONS_KEPT + INHERITED_KEPT) :]


def _ids_changed(before: TableInfo, after: TableInfo) -> bool:
    old, new = before.columns_by_id.keys(), after.columns_by_id.keys()
    return bool(old - new and new - old)


def retyped(before: TableInfo, after: TableInfo, *, one_changed: bool, query: str = "") -> tuple[tuple[int, int], ...]:
    """(new id, old id) of the columns that got a new id by a change of type. A statement changes a column only once, so
    columns are matched by name, or by CHANGE in the job's text; where the job changed a single column (`one_changed`),
    the added one replaces the removed one."""
    old, new = before.columns_by_id, after.columns_by_id
    gone = {c.name.lower(): c.id for c in before.public_columns if c.id not in new and not c.is_generated}
    come = {c.name.lower(): c.id for c in after.public_columns if c.id not in old and not c.is_generated}
    if one_changed and len(gone) == len(come) == 1:
        return tuple(zip(come.values(), gone.values(), strict=True))
    was = {new.lower(): old.lower() for old, new in changed_names(query)} if gone and come else {}
    named = {column_id: was.get(name, name) for name, column_id in come.items()}
    return tuple((column_id, gone[name]) for column_id, name in named.items() if name in gone)


@dataclass(frozen=True, slots=True)
class TableAt:
    """A row's table: `at` decodes it and has its defaults, `current` is the table of the destination.

    (`table_id`, `at_version`, `current_version`) identifies a compiled decoder. `inherited`: as in TableVersions, where
    `at` is not `current`. `applied`: what rules make of its rows.
    """

    table_id: int
    schema: str
    at: TableInfo
    current: TableInfo
    at_version: int
    current_version: int
    inherited: tuple[tuple[int, int], ...] = ()
    applied: AppliedRules | None = None


@dataclass(frozen=True, slots=True)
class Relocation:
    """A DDL that moved or dropped partitions of a table. Rows of versions below `before_version` may still arrive after
    it. Rows carry the id of the table, not of the partition, so `info`, the table before the DDL, is used to compute
    it. `finished_ts`: TiDB ends a DDL when no transaction uses the table as it was before (metadata locks), so a row
    that commits later is in the new partitions, whatever the version of its transaction; 0: not known."""

    before_version: int
    info: TableInfo
    finished_ts: int


@dataclass(frozen=True, slots=True)
class UpcomingColumn:
    """A column that a pending job makes public in a schema version that is not recorded. Before that version, rows hold
    its `default` in it, or the value of the column whose type changes (`old_column_id`, 0: none)."""

    default: Datum
    old_column_id: int

    def may_precede_ddl(self, value: Datum, row: Mapping[int, Datum]) -> bool:
        """Whether a row with this value may be older than that version; then running the DDL after it gives the same
        value."""
        return self.old_column_id in row if self.old_column_id else value == self.default


@dataclass(frozen=True, slots=True)
class MarkTables:
    """Upstream's tables of marks by id (row/transaction.py). Transactions with a row of `channel_id` in one of them are
    left out."""

    channel_id: int
    tables: Mapping[int, TableVersions]


@dataclass(frozen=True, slots=True)
class SchemaView:
    """Snapshot of the schema at one position; immutable and picklable, its dictionaries are not shared.

    `ddl_due_version`: rows at or above it need a DDL to run first, so they are not in this view's segment (rule 14: DDL
    before the rows that need it); 0: no pending job. `settled_version`: rows above it need the history to be read again
    first. `unknown_columns`: (table id, column id) → the newest schema version up to which a row may carry that unknown
    column; None when the sources are complete and every unknown column may be left out. `relocations`: table id → DDLs
    after which late rows need their partition computed (`relocation`), by version; `relocated_ids`: the table id that
    holds the rows of a physical id since then, None where they were dropped. `known_version`: of the newest known job.
    `verified`: table id → newest version up to which the status port showed the table as after its newest job; None
    when the sources are complete. `columns_being_dropped` and `upcoming_columns`: (table id, column id) of what pending
    jobs drop, and of what they add in a version that is not recorded with them. `ignored_kinds`: table id → kinds of
    changes that the event filter leaves out. `marks`: None without loopback-control.
    """

    tables: Mapping[int, TableVersions]
    gone: Mapping[int, SkipReason]
    ddl_due_version: int
    settled_version: int
    unknown_columns: Mapping[tuple[int, int], int] | None
    relocations: Mapping[int, tuple[Relocation, ...]] = field(default_factory=dict)
    relocated_ids: Mapping[int, int | None] = field(default_factory=dict)
    known_version: int = 0
    verified: Mapping[int, int] | None = None
    columns_being_dropped: frozenset[tuple[int, int]] = frozenset()
    upcoming_columns: Mapping[tuple[int, int], UpcomingColumn] = field(default_factory=dict)
    ignored_kinds: Mapping[int, frozenset[Kind]] = field(default_factory=dict)
    marks: MarkTables | None = None

    def must_verify(self, table_id: int, schema_version: int) -> bool:
        """Whether rows of this version need a check for a running DDL on the table (drainer.schema.provider)."""
        if self.verified is None or table_id not in self.tables:
            return False
        return schema_version > self.verified.get(table_id, 0)

    def relocation(self, table_id: int, schema_version: int, commit_ts: int) -> Relocation | None:
        """The first DDL that moved or dropped partitions of the table under a row of this version; None: no such
        DDL."""
        known = self.relocations.get(table_id, ())
        older = (s for s in known if schema_version < s.before_version)
        return next((s for s in older if commit_ts <= s.finished_ts or not s.finished_ts), None)

    def relocated(
        self, table_id: int, relocation: Relocation, physical_id: int | None, commit_ts: int
    ) -> TableAt | SkipReason:
        """The table of an older row of this physical id since that DDL, or why the row is skipped. Raises
        TableUnknown."""
        home = self.relocated_ids.get(physical_id, table_id) if physical_id is not None else table_id
        if home is None:
            return SkipReason.TRUNCATED
        found = self.lookup(home, relocation.before_version - 1, commit_ts)
        return (
            found
            if isinstance(found, SkipReason)
            else replace(found, at=relocation.info, at_version=relocation.before_version - 1)
        )

    def lookup(self, table_id: int, schema_version: int, commit_ts: int) -> TableAt | SkipReason:
        """The table of a row, or why the row is skipped. Raises TableUnknown."""
        found = self.tables.get(table_id)
        if found is not None:
            index = found.at(schema_version)
            return TableAt(
                table_id=table_id,
                schema=found.schema,
                at=found.infos[index],
                current=found.current,
                at_version=found.versions[index],
                current_version=found.versions[-1],
                inherited=found.inherited if index != len(found.infos) - 1 else (),
                applied=found.applied,
            )
        gone = self.gone.get(table_id)
        if gone is not None:
            return gone
        if table_id >= SYSTEM_TABLE_ID_MIN:
            return SkipReason.SYSTEM
        raise TableUnknown(table_id=table_id, schema_version=schema_version, commit_ts=commit_ts)

    def skips_column(self, table_id: int, column_id: int, schema_version: int) -> bool:
        """Whether a column id that the current TableInfo lacks may be skipped: a running DDL has not made it public, or
        it was dropped. Where this is False a decoder raises UnknownColumn."""
        if self.unknown_columns is None:
            return (table_id, column_id) not in self.upcoming_columns
        return schema_version <= self.unknown_columns.get((table_id, column_id), -1)
