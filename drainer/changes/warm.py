"""Use each Arrow kernel once, on a handful of rows, because its first use costs some milliseconds."""

from __future__ import annotations

from binlog.envelope import encode_binlog
from binlog.tidb.datum import Datum
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.changes.decode import ColumnDecoder, view_of_table
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.row.format import Format

_ROWS = 48
_COLUMNS = (
    FieldType(Tp.LONGLONG, Flag.NOT_NULL | Flag.PRI_KEY, 20, 0),
    FieldType(Tp.VARCHAR, 0, 20, 0, "utf8mb4", "utf8mb4_general_ci"),
)


def warm_up(format_: Format) -> None:
    """Convert rows of a table that does not exist from binlogs to slots and back."""
    columns = tuple(ColumnInfo(id=n + 1, name=f"c{n}", offset=n, type=kind) for n, kind in enumerate(_COLUMNS))
    info = TableInfo(id=1, name="t", columns=columns, pk_is_handle=True)
    decoder = SegmentDecoder(view_of_table(info, "d"), format_, columns_bytes_min=0, columns_rows_min=0)
    payloads = []
    decoder.columns = ColumnDecoder(decoder.view, vector_rows_min=1, decoder=decoder.rows)
    for number in range(_ROWS):
        value = PrewriteValue(1)
        row: dict[int, Datum] = {1: number, 2: b"it's"}
        other: dict[int, Datum] = {1: number, 2: None}
        value.insert(1, encode_insert(info, row))
        value.update(1, encode_update(info, row, other))
        value.delete(1, encode_delete(info, other))
        payloads.append(encode_binlog(tp=1, start_ts=1, commit_ts=2 + number, prewrite_value=value.serialize()))
    builder = SegmentBuilder(decoder)
    builder.add_all(payloads)
    builder.finish(0, 1)
    builder = SegmentBuilder(decoder)
    builder.add_all(payloads)
    merge_slot(builder.slots(2).values(), format_)
