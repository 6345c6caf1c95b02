"""TiDB's schema objects (model.TableInfo and its parts), read from and written to the JSON of jobs and the status port.

Fields that readers or writers of binlogs use are typed. Other values are kept in `rest` if they differ from TiDB's
default, and are written back in TiDB's key order. Unknown keys are dropped; absent keys are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from binlog.errors import DecodeError

from .column import ColumnInfo
from .document import (
    OMIT,
    Document,
    Json,
    Order,
    Reader,
    cistr,
    expect_document,
    in_order,
    parse_document,
    unknown_rest,
)
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

_TABLE_ORDER: Order = (
    ("id", 0),
    ("name", None),
    ("charset", ""),
    ("collate", ""),
    ("cols", None),
    ("index_info", None),
    ("constraint_info", None),
    ("fk_info", None),
    ("state", 0),
    ("pk_is_handle", False),
    ("is_common_handle", False),
    ("common_handle_version", 0),
    ("comment", ""),
    ("auto_inc_id", 0),
    ("auto_inc_id_extra", OMIT),
    ("auto_id_cache", 0),
    ("auto_rand_id", 0),
    ("max_col_id", 0),
    ("max_idx_id", 0),
    ("max_fk_id", 0),
    ("max_cst_id", 0),
    ("update_timestamp", 0),
    ("old_schema_id", OMIT),
    ("ShardRowIDBits", 0),
    ("max_shard_row_id_bits", 0),
    ("auto_random_bits", 0),
    ("auto_random_range_bits", 0),
    ("pre_split_regions", 0),
    ("partition", None),
    ("compression", ""),
    ("view", None),
    ("sequence", None),
    ("Lock", None),
    ("version", 0),
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
class TableInfo:
    """A table, view or sequence at one schema version.

    The handle of a row is the integer primary key (`pk_is_handle`; it then has no IndexInfo), the columns of the
    clustered primary index (`is_common_handle`), or the hidden `_tidb_rowid` (neither).

    `upserts`: the table's writers check neither keys nor old rows, so of two changes of a key the later commit_ts wins.
    It is not part of TiDB's JSON; the code that reads the job sets it by the job's origin.
    """

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
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)
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
    def from_json(cls, source: Document | bytes | str, what: str = "TableInfo") -> TableInfo:
        """Read a table from a document or its text. Raises DecodeError with the name of an invalid field."""
        document = parse_document(source, what) if isinstance(source, bytes | str) else expect_document(source, what)
        read = Reader(document, what)
        name = read.name("name")
        partition = read.child("partition")
        known = cls(
            id=read.integer("id"),
            name=name,
            columns=tuple(
                ColumnInfo.from_json(c, f"{what} {name}.cols[{n}]") for n, c in enumerate(read.documents("cols"))
            ),
            indexes=tuple(IndexInfo.from_json(i, f"{what} {name}.index_info") for i in read.documents("index_info")),
            charset=read.text("charset"),
            collate=read.text("collate"),
            state=SchemaState(read.integer("state")),
            pk_is_handle=read.boolean("pk_is_handle"),
            is_common_handle=read.boolean("is_common_handle"),
            common_handle_version=read.integer("common_handle_version"),
            comment=read.text("comment"),
            auto_inc_id=read.integer("auto_inc_id"),
            max_column_id=read.integer("max_col_id"),
            max_index_id=read.integer("max_idx_id"),
            update_timestamp=read.integer("update_timestamp"),
            partition=None if partition is None else PartitionInfo.from_json(partition, f"{what} {name}.partition"),
            version=read.integer("version"),
        )
        known._check_offsets(what)
        rest = unknown_rest(_TABLE_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _check_offsets(self, what: str) -> None:
        for index in self.indexes:
            for part in index.columns:
                if not 0 <= part.offset < len(self.columns):
                    raise DecodeError(
                        f"{what} {self.name}.index_info {index.name}", offset=0, detail=f"no column {part.offset}"
                    )

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "name": cistr(self.name),
            "charset": self.charset,
            "collate": self.collate,
            "cols": [c.to_json() for c in self.columns] or None,
            "index_info": [i.to_json() for i in self.indexes] or None,
            "state": int(self.state),
            "pk_is_handle": self.pk_is_handle,
            "is_common_handle": self.is_common_handle,
            "common_handle_version": self.common_handle_version,
            "comment": self.comment,
            "auto_inc_id": self.auto_inc_id,
            "max_col_id": self.max_column_id,
            "max_idx_id": self.max_index_id,
            "update_timestamp": self.update_timestamp,
            "partition": None if self.partition is None else self.partition.to_json(),
            "version": self.version,
        }

    def to_json(self) -> dict[str, Json]:
        """Return the document with the keys of TiDB 7.6 to 8.5, in their order."""
        return in_order(_TABLE_ORDER, self._typed(), self.rest)


_DB_ORDER: Order = (
    ("id", 0),
    ("db_name", None),
    ("charset", ""),
    ("collate", ""),
    ("state", 0),
    ("policy_ref_info", None),
)


@dataclass(frozen=True, slots=True)
class DBInfo:
    """A database, without its tables."""

    id: int
    name: str
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    state: SchemaState = SchemaState.PUBLIC
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, source: Document | bytes | str, what: str = "DBInfo") -> DBInfo:
        document = parse_document(source, what) if isinstance(source, bytes | str) else expect_document(source, what)
        read = Reader(document, what)
        known = cls(
            id=read.integer("id"),
            name=read.name("db_name"),
            charset=read.text("charset"),
            collate=read.text("collate"),
            state=SchemaState(read.integer("state")),
        )
        rest = unknown_rest(_DB_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "db_name": cistr(self.name),
            "charset": self.charset,
            "collate": self.collate,
            "state": int(self.state),
        }

    def to_json(self) -> dict[str, Json]:
        return in_order(_DB_ORDER, self._typed(), self.rest)
