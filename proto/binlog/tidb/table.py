"""TiDB's schema objects (model.TableInfo and its parts), read from and written to the JSON of jobs and the status port.

Fields that readers or writers of binlogs use are typed. Other values are kept in `rest` if they differ from TiDB's
default, and are written back in TiDB's key order. Unknown keys are dropped; absent keys are zero.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from binlog.errors import DecodeError

from .document import (
    OMIT,
    Document,
    Json,
    JsonObject,
    Layout,
    Reader,
    Typed,
    cistr,
    list_or_null,
    number_of,
    object_of,
    objects_of,
    parse_cistr,
)
from .types import UNSPECIFIED, FieldType, Flag, OpenEnum, SchemaState, Tp


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A part of an index. `offset`: in the table's columns. `length`: of the prefix, -1 for the full column."""

    name: str
    offset: int
    length: int = UNSPECIFIED


def _index_columns(read: Reader, key: str) -> tuple[IndexColumn, ...]:
    parts = [Reader(part, f"{read.what}.{key}") for part in read.documents(key)]
    return tuple(IndexColumn(p.name("name"), p.integer("offset"), p.integer("length")) for p in parts)


def _index_columns_json(columns: Sequence[IndexColumn]) -> Json:
    return [{"name": cistr(c.name), "offset": c.offset, "length": c.length} for c in columns]


_INDEX = Layout(
    Typed("id", Reader.integer),
    Typed("idx_name", Reader.name, cistr, "name"),
    ("tbl_name", cistr("")),
    Typed("idx_cols", _index_columns, _index_columns_json, "columns"),
    number_of("state", SchemaState),
    ("backfill_state", 0),
    Typed("comment", Reader.text),
    Typed("index_type", Reader.integer),
    Typed("is_unique", Reader.boolean, name="unique"),
    Typed("is_primary", Reader.boolean, name="primary"),
    Typed("is_invisible", Reader.boolean, name="invisible"),
    ("is_global", False),
    ("mv_index", False),
)


@dataclass(frozen=True, slots=True)
class IndexInfo(JsonObject):
    """An index of a table (model.IndexInfo)."""

    layout = _INDEX
    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    state: SchemaState = SchemaState.PUBLIC
    unique: bool = False
    primary: bool = False
    invisible: bool = False
    comment: str = ""
    index_type: int = 1

    @property
    def is_public(self) -> bool:
        return self.state == SchemaState.PUBLIC


_WRITABLE = frozenset({SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORGANIZATION})


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# The keys are Go's field names. flen and decimal are kept as they are (-1: unspecified).
_FIELD_TYPE = Layout(
    number_of("Tp", Tp, "tp"),
    Typed("Flag", Reader.integer, int, "flag"),
    Typed("Flen", Reader.integer, name="flen"),
    Typed("Decimal", Reader.integer, name="decimal"),
    Typed("Charset", Reader.text, name="charset"),
    Typed("Collate", Reader.text, name="collate"),
    Typed("Elems", Reader.texts, list_or_null, "elems"),
    Typed("ElemsIsBinaryLit", lambda read, key: tuple(map(bool, read.items(key))), list_or_null, "elems_binary"),
    Typed("Array", Reader.boolean, name="array"),
)


def _field_type(read: Reader, key: str) -> FieldType:
    return FieldType(**_FIELD_TYPE.read(Reader(read.child(key) or {}, f"{read.what}.{key}")))


_COLUMN = Layout(
    Typed("id", Reader.integer),
    Typed("name", Reader.name, cistr),
    Typed("offset", Reader.integer),
    Typed("origin_default", Reader.json),
    Typed("origin_default_bit", Reader.base64, _base64),
    Typed("default", Reader.json),
    Typed("default_bit", Reader.base64, _base64),
    Typed("default_is_expr", Reader.boolean),
    Typed("generated_expr_string", Reader.text, name="generated_expr"),
    Typed("generated_stored", Reader.boolean),
    ("dependences", None),
    Typed("type", _field_type, _FIELD_TYPE.write),
    number_of("state", SchemaState),
    Typed("comment", Reader.text),
    Typed("hidden", Reader.boolean),
    ("change_state_info", None),
    Typed("version", Reader.integer),
)


@dataclass(frozen=True, slots=True)
class ColumnInfo(JsonObject):
    """A column of a table (model.ColumnInfo). `origin_default`: the value of rows that are older than the column.

    `*_bit`: the bytes of a BIT's default. In jobs of the SDK also those of a BINARY or VARBINARY default that is not
    UTF-8.
    """

    layout = _COLUMN
    id: int
    name: str
    offset: int
    type: FieldType
    state: SchemaState = SchemaState.PUBLIC
    origin_default: Json = None
    origin_default_bit: bytes | None = None
    default: Json = None
    default_bit: bytes | None = None
    default_is_expr: bool = False
    generated_expr: str = ""
    generated_stored: bool = False
    comment: str = ""
    hidden: bool = False
    version: int = 2

    @property
    def is_public(self) -> bool:
        return self.state == SchemaState.PUBLIC

    @property
    def is_writable(self) -> bool:
        """Whether inserts and updates contain the column: it is public, or is being added."""
        return self.state in _WRITABLE

    @property
    def is_generated(self) -> bool:
        return self.generated_expr != ""

    @property
    def is_virtual(self) -> bool:
        return self.generated_expr != "" and not self.generated_stored

    @property
    def is_unsigned(self) -> bool:
        return bool(self.type.flag & Flag.UNSIGNED)

    @property
    def is_not_null(self) -> bool:
        return bool(self.type.flag & Flag.NOT_NULL)

    @property
    def is_primary(self) -> bool:
        return bool(self.type.flag & Flag.PRI_KEY)


class PartitionType(OpenEnum):
    """The kind of partitioning."""

    NONE = 0
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4
    SYSTEM_TIME = 5


def _in_values(read: Reader, key: str) -> tuple[tuple[str, ...], ...]:
    return tuple(Reader({key: row}, read.what).texts(key) for row in read.items(key))


_DEFINITION = Layout(
    Typed("id", Reader.integer),
    Typed("name", Reader.name, cistr),
    Typed("less_than", Reader.texts, list_or_null),
    Typed("in_values", _in_values, lambda rows: [list(row) for row in rows] or None),
    ("policy_ref_info", None),
    ("comment", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionDefinition(JsonObject):
    """One partition. `id`: the physical table id in KV keys (rows in binlogs have the table's own id)."""

    layout = _DEFINITION
    id: int
    name: str
    less_than: tuple[str, ...] = ()
    in_values: tuple[tuple[str, ...], ...] = ()


def _column_names(read: Reader, key: str) -> tuple[str, ...]:
    return tuple(parse_cistr(name, f"{read.what}.{key}") for name in read.items(key))


_PARTITION = Layout(
    number_of("type", PartitionType),
    Typed("expr", Reader.text),
    Typed("columns", _column_names, lambda names: [cistr(name) for name in names] or None),
    Typed("enable", Reader.boolean),
    ("is_empty_columns", OMIT),
    objects_of("definitions", PartitionDefinition.from_json),
    ("adding_definitions", None),
    ("dropping_definitions", None),
    ("NewPartitionIDs", OMIT),
    ("states", None),
    Typed("num", Reader.integer),
    ("ddl_state", 0),
    ("new_table_id", OMIT),
    ("ddl_type", OMIT),
    ("ddl_expr", OMIT),
    ("ddl_columns", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionInfo(JsonObject):
    """The partitioning of a table (model.PartitionInfo). `expr`: the expression of RANGE, HASH or LIST. `columns`: the
    names of RANGE COLUMNS, LIST COLUMNS or KEY."""

    layout = _PARTITION
    type: PartitionType
    expr: str = ""
    columns: tuple[str, ...] = ()
    enable: bool = True
    definitions: tuple[PartitionDefinition, ...] = ()
    num: int = 0


ROWID = -1  # column id of the hidden `_tidb_rowid`

_TABLE = Layout(  # of TiDB 7.6 to 8.5
    Typed("id", Reader.integer),
    Typed("name", Reader.name, cistr),
    Typed("charset", Reader.text),
    Typed("collate", Reader.text),
    objects_of("cols", ColumnInfo.from_json, "columns"),
    objects_of("index_info", IndexInfo.from_json, "indexes"),
    ("constraint_info", None),
    ("fk_info", None),
    number_of("state", SchemaState),
    Typed("pk_is_handle", Reader.boolean),
    Typed("is_common_handle", Reader.boolean),
    Typed("common_handle_version", Reader.integer),
    Typed("comment", Reader.text),
    Typed("auto_inc_id", Reader.integer),
    ("auto_inc_id_extra", OMIT),
    ("auto_id_cache", 0),
    ("auto_rand_id", 0),
    Typed("max_col_id", Reader.integer, name="max_column_id"),
    Typed("max_idx_id", Reader.integer, name="max_index_id"),
    ("max_fk_id", 0),
    ("max_cst_id", 0),
    Typed("update_timestamp", Reader.integer),
    ("old_schema_id", OMIT),
    ("ShardRowIDBits", 0),
    ("max_shard_row_id_bits", 0),
    ("auto_random_bits", 0),
    ("auto_random_range_bits", 0),
    ("pre_split_regions", 0),
    object_of("partition", PartitionInfo.from_json),
    ("compression", ""),
    ("view", None),
    ("sequence", None),
    ("Lock", None),
    Typed("version", Reader.integer),
    ("tiflash_replica", None),
    ("is_columnar", False),
    ("temp_table_type", 0),
    ("cache_table_status", 0),
    ("policy_ref_info", None),
    ("stats_options", None),
    ("exchange_partition_info", None),
    ("ttl_info", None),
    ("revision", 0),
)


@dataclass(frozen=True, slots=True)
class TableInfo(JsonObject):
    """A table, view or sequence at one schema version.

    The handle of a row is the integer primary key (`pk_is_handle`; it then has no IndexInfo), the columns of the
    clustered primary index (`is_common_handle`), or the hidden `_tidb_rowid` (neither).

    `upserts`: the table's writers check neither keys nor old rows, so of two changes of a key the later commit_ts wins.
    It is not part of TiDB's JSON; the code that reads the job sets it by the job's origin.
    """

    layout = _TABLE
    id: int
    name: str
    columns: tuple[ColumnInfo, ...] = ()
    indexes: tuple[IndexInfo, ...] = ()
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    state: SchemaState = SchemaState.PUBLIC
    pk_is_handle: bool = False
    is_common_handle: bool = False
    common_handle_version: int = 0
    comment: str = ""
    auto_inc_id: int = 0
    max_column_id: int = 0
    max_index_id: int = 0
    update_timestamp: int = 0
    partition: PartitionInfo | None = None
    version: int = 5
    upserts: bool = False

    @property
    def is_view(self) -> bool:
        return self.rest.get("view") is not None

    @property
    def is_sequence(self) -> bool:
        return self.rest.get("sequence") is not None

    @property
    def is_temporary(self) -> bool:
        """A GLOBAL TEMPORARY table exists only in TiDB, and its rows are in no binlog."""
        return self.rest.get("temp_table_type") not in (None, 0)

    @property
    def has_rows(self) -> bool:
        """Whether binlogs may have rows of it."""
        return not (self.is_view or self.is_sequence or self.is_temporary)

    @property
    def view(self) -> Mapping[str, Json] | None:
        found = self.rest.get("view")
        return found if isinstance(found, dict) else None

    @property
    def sequence(self) -> Mapping[str, Json] | None:
        found = self.rest.get("sequence")
        return found if isinstance(found, dict) else None

    @property
    def foreign_keys(self) -> tuple[Json, ...]:
        """`fk_info` in TiDB's form."""
        found = self.rest.get("fk_info")
        return tuple(found) if isinstance(found, list) else ()

    @property
    def public_columns(self) -> tuple[ColumnInfo, ...]:
        return tuple(c for c in self.columns if c.state == SchemaState.PUBLIC)

    @property
    def columns_by_id(self) -> dict[int, ColumnInfo]:
        return {c.id: c for c in self.columns}

    @property
    def handle_column(self) -> ColumnInfo | None:
        """The integer primary key column that is the handle, or None."""
        if not self.pk_is_handle:
            return None
        return next((c for c in self.columns if c.is_primary), None)

    def primary_index(self) -> IndexInfo | None:
        """Return the primary key, or None. For an integer handle, an IndexInfo is made from the column."""
        column = self.handle_column
        if column is not None:
            part = IndexColumn(column.name, column.offset)
            return IndexInfo(id=0, name="PRIMARY", columns=(part,), unique=True, primary=True)
        return next((i for i in self.indexes if i.primary), None)

    def unique_indexes(self) -> tuple[IndexInfo, ...]:
        """Return the primary key (also one without an IndexInfo), then every public unique index."""
        primary = self.primary_index()
        others = tuple(i for i in self.indexes if i.unique and not i.primary and i.is_public)
        return ((primary, *others)) if primary is not None and primary.is_public else others

    def index_columns(self, index: IndexInfo) -> tuple[ColumnInfo, ...]:
        """Return the columns of an index of this table, in the index's order."""
        return tuple(self.columns[part.offset] for part in index.columns)

    def takes_null(self, index: IndexInfo) -> bool:
        """Return whether a column of this unique index may be NULL, so that the index does not identify every row."""
        return not index.primary and not all(column.is_not_null for column in self.index_columns(index))

    @classmethod
    def from_json(cls, source: Document | bytes | str, what: str = "TableInfo") -> Self:
        """Read a table from a document or its text. Raises DecodeError with the name of an invalid field."""
        read = Reader.of(source, what)
        read.what = f"{what} {read.name('name')}".rstrip()
        found = cls(**_TABLE.read(read))
        for index in found.indexes:
            for part in index.columns:
                if not 0 <= part.offset < len(found.columns):
                    what = f"{read.what}.index_info {index.name}"
                    raise DecodeError(what, offset=0, detail=f"no column {part.offset}")
        return found


_DATABASE = Layout(
    Typed("id", Reader.integer),
    Typed("db_name", Reader.name, cistr, "name"),
    Typed("charset", Reader.text),
    Typed("collate", Reader.text),
    number_of("state", SchemaState),
    ("policy_ref_info", None),
)


@dataclass(frozen=True, slots=True)
class DBInfo(JsonObject):
    """A database, without its tables."""

    layout = _DATABASE
    id: int
    name: str
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    state: SchemaState = SchemaState.PUBLIC
