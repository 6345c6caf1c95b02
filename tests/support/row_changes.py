"""Tables and changes for tests of encoders, from plain values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag

from drainer.batch.work import Kind
from drainer.changes.decode import Changes
from drainer.protocol.table import RowChanges, Table, table_of
from drainer.row.codec import Codec
from drainer.row.column_type import ColumnType, DecodedValue
from drainer.schema.view import TableAt
from tests.support.row_case import view_of


def make_table(
    schema: str,
    name: str,
    columns: Sequence[tuple[str, FieldType]],
    *,
    primary: Sequence[str] = (),
    unique: Sequence[Sequence[str]] = (),
    table_id: int = 100,
    version: int = 1,
) -> Table:
    """An integer primary key of one column is the handle, any other one clustered; ids of unique keys count from 2."""
    infos = []
    for offset, (column, kind) in enumerate(columns):
        flag = kind.flag | (Flag.PRI_KEY | Flag.NOT_NULL if column in primary else 0)
        kind = FieldType(kind.tp, flag, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems)
        infos.append(ColumnInfo(id=offset + 1, name=column, offset=offset, type=kind))
    place = {info.name: info.offset for info in infos}

    def index(id_: int, name: str, parts: Sequence[str], *, is_primary: bool) -> IndexInfo:
        chosen = tuple(IndexColumn(part, place[part]) for part in parts)
        return IndexInfo(id_, name, chosen, unique=True, primary=is_primary)

    is_handle = len(primary) == 1 and ColumnType.of(infos[place[primary[0]]].type).type_class.value == "int"
    indexes = [index(1, "PRIMARY", primary, is_primary=True)] if primary and not is_handle else []
    indexes += [index(n + 2, f"uk{n}", parts, is_primary=False) for n, parts in enumerate(unique)]
    info = TableInfo(
        id=table_id,
        name=name,
        columns=tuple(infos),
        indexes=tuple(indexes),
        pk_is_handle=is_handle,
        is_common_handle=bool(primary) and not is_handle,
    )
    return table_of(schema, info, [(c.id, ColumnType.of(c.type)) for c in infos], version, version)


def make_changes(
    table: Table,
    kind: Kind,
    *,
    old: Sequence[Sequence[DecodedValue]] | None = None,
    new: Sequence[Sequence[DecodedValue]] | None = None,
    commit_ts: int | Sequence[int] = 415508856908021766,
) -> RowChanges:
    """`old` and `new`: rows of decoded values (drainer/row/column_type.py), parallel to the table's columns."""
    rows = new if new is not None else old
    assert rows is not None
    stamps = [commit_ts] * len(rows) if isinstance(commit_ts, int) else list(commit_ts)

    def columns(images: Sequence[Sequence[DecodedValue]] | None) -> tuple[pa.Array, ...] | None:
        if images is None:
            return None
        column_types = [column.column_type for column in table.columns]
        return tuple(
            pa.array([image[n] for image in images], column_type.decoded_type)
            for n, column_type in enumerate(column_types)
        )

    commits = np.array(stamps, np.uint64)
    return RowChanges(table, kind, commits, commits - np.uint64(1), np.arange(len(rows)), columns(old), columns(new))


def changes_of(events: RowChanges) -> Changes:
    """The same as decoding gives it."""
    table = events.table
    at = TableAt(table.id, table.schema, table.info, table.info, table.written_version, table.version)
    codec = Codec(at, table.version, view_of(table.info, schema=table.schema, settled=1 << 62), stored_generated=True)
    places = np.zeros(len(events), np.int64)
    return Changes(codec, events.kind, events.commit_ts, events.start_ts, places, events.order, events.old, events.new)
