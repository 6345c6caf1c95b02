"""The schema of a moment, as a value: what a decoder needs to read rows, in any process.

A view never changes. It holds only the tables that are replicated; every other id is answered with why its rows
are left out, or with TableUnknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo

from drainer.ddl.column_pairs import changed_names
from drainer.schema.errors import TableUnknown

# Ids above 2^48 - 1 - 1000 belong to TiDB's own DDL tables (D-CO-06).
SYSTEM_TABLE_ID_MIN = (1 << 48) - 1 - 1000 + 1

# Versions kept per table. TiDB lets at most two adjacent versions of one table be in use, so a row can lag one
# job behind (28 rows of the capture `ddl` do); the rest is room for jobs that change nothing a row shows. A service
# that embeds the SDK may write through a handle of any age: the newer TableInfo reads such rows too, except those from
# before a change of type, so what stood before one is kept for longer.
VERSIONS_KEPT = 4
INHERITED_KEPT = 16


class Gone(Enum):
    """Why rows of a table id are left out, silently but counted."""

    TRUNCATED = "truncated"
    DROPPED = "dropped"
    FILTERED = "filtered"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TableVersions:
    """One table id: where it stands now, and its last TableInfos, oldest first, with the version of each job.

    `inherited`: (id of a column, id that it had before), where a change of type gave it a new one.
    """

    schema: str
    schema_id: int
    versions: tuple[int, ...]
    infos: tuple[TableInfo, ...]
    inherited: tuple[tuple[int, int], ...] = ()

    @property
    def current(self) -> TableInfo:
        return self.infos[-1]

    @property
    def name(self) -> str:
        return self.infos[-1].name

    def at(self, schema_version: int) -> int:
        """Index of the newest TableInfo not newer than `schema_version`; the oldest kept for older rows."""
        return max(bisect_right(self.versions, schema_version) - 1, 0)

    def add(self, version: int, info: TableInfo, *, one_changed: bool = False, query: str = "") -> TableVersions:
        """With one more TableInfo in its place by version (jobs on one table come in order; ties replace).
        `one_changed`: of a job that changed one column, perhaps in name and type. `query`: the job's text."""
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
    """The last VERSIONS_KEPT, and before them those whose columns the next one gave new ids. One that goes leaves its
    version to the next, which reads its rows as well."""
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
    """(id after, id before) of the columns to which one DDL gave a new id with another type. TiDB touches a column but
    once in a statement, so the name tells, or the CHANGE in the job's text; where a job changed but one column, it is
    the one that came for the one that went."""
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
    """A row's table: `at` decodes it and gives its defaults, `current` is what the destination has now (X-08).

    (`table_id`, `at_version`, `current_version`) identifies a compiled decoder. `inherited`: as of TableVersions, where
    `at` is not `current`.
    """

    table_id: int
    schema: str
    at: TableInfo
    current: TableInfo
    at_version: int
    current_version: int
    inherited: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stray:
    """A DDL took physical ids from a table, and rows of older versions may still come behind it: `info`, the table
    before it, tells where such a row lies, for rows carry the table's id and never a partition's."""

    before_version: int
    info: TableInfo


@dataclass(frozen=True, slots=True)
class Coming:
    """A column that a pending job makes public in a version that is not recorded with it: what rows hold in it before
    that, its default or the value of the column whose type changes (`heir_of`, 0: none)."""

    default: Datum
    heir_of: int

    def shows_nothing(self, value: Datum, row: Mapping[int, Datum]) -> bool:
        """Whether a row with this value can be from before that version: then the DDL gives the row the same."""
        return self.heir_of in row if self.heir_of else value == self.default


@dataclass(frozen=True, slots=True)
class SchemaView:
    """Frozen and picklable; its dictionaries belong to it alone.

    `ddl_due_version`: rows at or above it need a DDL to run first, so they do not belong to this view's segment
    (rule 14); 0 when no job is waiting. `settled_version`: rows above it need the history to be read again first.
    `column_verdicts`: (table id, column id) → the newest schema version up to which a row may carry that unknown
    column; None when the sources are complete and every unknown column may be left out. `strays`: table id → DDLs
    whose late rows must be placed one by one (`stray`), by version; `homes`: where the rows of a physical id belong
    since then, None where they are gone with it. `known_version`: of the newest known job. `verified`: table id →
    newest version up to which the table was seen to be as its newest job says; None when the sources are complete.
    `going` and `coming`: (table id, column id) of what pending jobs drop, and of what they add in a version that is
    not recorded with them.
    """

    tables: Mapping[int, TableVersions]
    gone: Mapping[int, Gone]
    ddl_due_version: int
    settled_version: int
    column_verdicts: Mapping[tuple[int, int], int] | None
    strays: Mapping[int, tuple[Stray, ...]] = field(default_factory=dict)
    homes: Mapping[int, int | None] = field(default_factory=dict)
    known_version: int = 0
    verified: Mapping[int, int] | None = None
    going: frozenset[tuple[int, int]] = frozenset()
    coming: Mapping[tuple[int, int], Coming] = field(default_factory=dict)

    def must_verify(self, table_id: int, schema_version: int) -> bool:
        """Whether it must be asked if a DDL is running on this table (drainer.schema.running_ddl)."""
        if self.verified is None or table_id not in self.tables:
            return False
        return schema_version > self.verified.get(table_id, 0)

    def stray(self, table_id: int, schema_version: int) -> Stray | None:
        """The first DDL behind this version that took physical ids from the table: each row says where it belongs."""
        return next((s for s in self.strays.get(table_id, ()) if schema_version < s.before_version), None)

    def rehomed(self, table_id: int, stray: Stray, physical_id: int | None, commit_ts: int) -> TableAt | Gone:
        """Where a stray row with this physical id belongs now. Raises TableUnknown."""
        home = self.homes.get(physical_id, table_id) if physical_id is not None else table_id
        if home is None:
            return Gone.TRUNCATED
        found = self.lookup(home, stray.before_version - 1, commit_ts)
        return found if isinstance(found, Gone) else replace(found, at=stray.info, at_version=stray.before_version - 1)

    def lookup(self, table_id: int, schema_version: int, commit_ts: int) -> TableAt | Gone:
        """The table of a row, or why the row is left out. Raises TableUnknown (ids and ts in the text)."""
        found = self.tables.get(table_id)
        if found is not None:
            index = found.at(schema_version)
            return TableAt(
                table_id=table_id,
                schema=found.schema,
                at=found.infos[index],
                current=found.infos[-1],
                at_version=found.versions[index],
                current_version=found.versions[-1],
                inherited=found.inherited if index != len(found.infos) - 1 else (),
            )
        gone = self.gone.get(table_id)
        if gone is not None:
            return gone
        if table_id >= SYSTEM_TABLE_ID_MIN:
            return Gone.SYSTEM
        raise TableUnknown(table_id=table_id, schema_version=schema_version, commit_ts=commit_ts)

    def leaves_out(self, table_id: int, column_id: int, schema_version: int) -> bool:
        """Whether a column id that the current TableInfo lacks is left out of a row: it is in a non-public state of
        a running DDL, or gone. Where this is False a decoder raises UnknownColumn."""
        if self.column_verdicts is None:
            return (table_id, column_id) not in self.coming
        return schema_version <= self.column_verdicts.get((table_id, column_id), -1)

    def belongs(self, schema_version: int) -> bool:
        """Whether a row of this version may be applied with this view."""
        due = self.ddl_due_version
        return schema_version <= self.settled_version and (not due or schema_version < due)

    def only(self, table_ids: Iterable[int]) -> SchemaView:
        """The same view with just these tables, for a smaller pickle."""
        wanted = set(table_ids)
        return replace(self, tables={i: t for i, t in self.tables.items() if i in wanted})
