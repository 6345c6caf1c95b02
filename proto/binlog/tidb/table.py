"""TiDB's schema objects (model.TableInfo and its parts), read from and written to the JSON of jobs and the status port.

Fields that readers or writers of binlogs use are typed. Other values are kept in `rest` if they differ from TiDB's
default, and are written back in TiDB's key order. Unknown keys are dropped; absent keys are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from binlog.errors import DecodeError

from .column import ColumnInfo
from .document import OMIT, Document, Json, JsonObject, Layout, Reader, Typed, cistr, number_of, object_of, objects_of
from .index import IndexColumn, IndexInfo
from .partition import PartitionInfo
from .types import SchemaState

__all__ = [
    "ROWID",
    "ColumnInfo",
    "DBInfo",
    "IndexColumn",
    "IndexInfo",
    "PartitionInfo",
    "SchemaState",
    "TableInfo",
]

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

    @classmethod
    def from_json(cls, source: Document | bytes | str, what: str = "TableInfo") -> Self:
        """Read a table from a document or its text. Raises DecodeError with the name of an invalid field."""
        read = Reader.of(source, what)
        read.what = f"{what} {read.name('name')}".rstrip()
        found = cls(**_TABLE.read(read))
        found._check_offsets(read.what)
        return found

    def _check_offsets(self, what: str) -> None:
        for index in self.indexes:
            for part in index.columns:
                if not 0 <= part.offset < len(self.columns):
                    raise DecodeError(f"{what}.index_info {index.name}", offset=0, detail=f"no column {part.offset}")


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
