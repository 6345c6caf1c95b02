"""The secondary binlog (secondary_binlog.proto), which TiDB-Binlog's drainer writes to Kafka: one message for each
transaction and each DDL.

`encode_columns` is for rows whose transaction has no other row in their partition: each is a complete message.

`encode_joinable` is for all others. A value is a table's field `mutations` with one row; a key is the transaction's
start_ts; `around` are the table's fields in front of the mutations and those behind them. `frame_columns` joins
consecutive rows with equal commit_ts and start_ts to a message, and within it consecutive rows of one table. Messages
have no key.

Every nested message has its length in front, so all lengths are computed before any message is written. The field of
each type: `D-TR-08`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError
from binlog.pb import secondary_binlog_pb2 as pb
from binlog.tidb.types import FieldType, Flag, Tp
from binlog.tidb.varint import VARINTS, field, signed
from google.protobuf.message import DecodeError as ProtobufError

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.texts import numbers_of
from drainer.changes.vector import Ints, Words
from drainer.protocol.avro.blocks import Piece, byte_lengths, constant, fixed, joined, uvarints
from drainer.protocol.avro.blocks import beside as blocks_beside
from drainer.protocol.column_text import texts_of
from drainer.protocol.encoder import (
    Ddl,
    DdlScope,
    EncodedColumns,
    Message,
    OneRowMessages,
    TableEncoder,
    null_column,
    take_parts,
)
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, RowEvent, Value
from drainer.protocol.json_text import fragments_of
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, RowChanges, Table
from drainer.row.column_type import ColumnType, TypeClass

# Column: is_null=1, int64_value=2, uint64_value=3, double_value=4, bytes_value=5, string_value=6
_NULL: Final = b"\x08\x01"
_INT64, _UINT64, _DOUBLE, _BYTES, _STRING = b"\x10", b"\x18", b"\x21", b"\x2a", b"\x32"
_double = Struct("<d").pack
_COLUMNS: Final = b"\x0a"
_TABLES: Final = b"\x0a"
_DML: Final = b"\x08\x00\x10"  # the type; the tag of commit_ts
_DML_DATA: Final = b"\x1a"


class Sized(NamedTuple):
    """Bytes for each row: consecutive pieces (avro/blocks.py), and their total length in bytes."""

    pieces: list[Piece]
    lengths: Ints


def beside(*parts: Sized) -> Sized:
    return Sized([piece for part in parts for piece in part.pieces], np.sum([part.lengths for part in parts], axis=0))


def same(data: bytes, rows: int) -> Sized:
    """Return the same bytes in every row."""
    return Sized([pa.scalar(data, pa.binary())], np.full(rows, len(data)))


def field_of(tag: bytes, payload: Sized) -> Sized:
    """Return a field that holds bytes, text or a message."""
    rows, length = len(payload.lengths), uvarints(payload.lengths.view(np.uint64))
    lengths = payload.lengths + len(tag) + length.keep.sum(axis=1)
    return Sized([constant(tag, rows), length, *payload.pieces], lengths)


def cell(column_type: ColumnType, array: Any, zone: tzinfo) -> Sized:
    """Encode a column's decoded values (row/column_type.py), each as a field `columns` of a Row, with its tag and
    length. Raises DecodeError for a value that a column of its type cannot hold."""
    type_class, kind = column_type.type_class, column_type.kind
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        column = _text(_STRING if type_class is TypeClass.TEXT else _BYTES, array)
    elif type_class is TypeClass.INT and kind.tp is not Tp.YEAR:
        column = _number(_UINT64 if kind.is_unsigned else _INT64, array)
    elif type_class in (TypeClass.ENUM, TypeClass.SET):
        column = _number(_UINT64, numbers_of(column_type, array))
    elif type_class is TypeClass.FLOAT:
        column = _one_by_one([_NULL if value is None else _DOUBLE + _double(value) for value in _doubles(kind, array)])
    elif type_class is TypeClass.BIT:
        size = (max(kind.flen, 1) + 7) // 8
        head = _BYTES + VARINTS[size]
        bits = numbers_of(column_type, array).to_pylist()
        column = _one_by_one([_NULL if value is None else head + value.to_bytes(size, "big") for value in bits])
    else:
        column = _text(_BYTES if type_class is TypeClass.JSON else _STRING, texts_of(column_type, array, zone))
    return field_of(_COLUMNS, column)


def messages(commits: Words, head: bytes, mutation: Sized, tail: bytes) -> Any:
    """Return complete messages as `large_binary`. `mutation`: the field of `Table` between `head` and `tail`."""
    rows = len(commits)
    table = beside(same(head, rows), mutation, same(tail, rows))
    data = field_of(_DML_DATA, field_of(_TABLES, table))
    return joined([constant(_DML, rows), uvarints(commits), *data.pieces], rows)


def row(cells_of: Sequence[Sized], rows: int) -> Sized:
    """Return messages `Row`."""
    return beside(*cells_of) if cells_of else Sized([], np.zeros(rows, np.int64))


def _text(tag: bytes, array: Any) -> Sized:
    """Encode texts as messages `Column`. NULL has no text: the tag of is_null and the number 1 replace the text's tag
    and length."""
    sizes = byte_lengths(array)
    shown = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 1) if array.null_count else sizes
    lengths = uvarints(shown.view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), lengths), array], sizes + 1 + lengths.keep.sum(axis=1))


def _number(tag: bytes, array: Any) -> Sized:
    """Encode numbers as messages `Column`. Negative numbers have the ten bytes of their two's complement."""
    values = array.fill_null(1) if array.null_count else array
    numbers = uvarints(values.to_numpy(zero_copy_only=False).view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), numbers)], 1 + numbers.keep.sum(axis=1))


def _tags(tag: bytes, array: Any) -> Any:
    if not array.null_count:
        return constant(tag, len(array))
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return fixed(np.where(valid, tag[0], _NULL[0]).astype(np.uint8)[:, None])


def _one_by_one(columns: Sequence[bytes]) -> Sized:
    made = pa.array(columns, pa.binary())
    return Sized([made], byte_lengths(made))


def _doubles(kind: FieldType, array: Any) -> list[float | None]:
    """Encode doubles. A FLOAT is rounded to the 32-bit float that it is."""
    found: list[float | None] = array.to_pylist()
    if kind.tp is not Tp.FLOAT:
        return found
    singles = [0.0 if value is None else value for value in found]
    with np.errstate(over="ignore"):
        rounded = np.array(singles, np.float64).astype(np.float32).astype(np.float64)
    if not np.isfinite(rounded).all():
        raise DecodeError("float", offset=0, detail="a value does not fit 4 bytes")
    return pa.array(rounded, mask=np.array([value is None for value in found], bool)).to_pylist()  # type: ignore[no-any-return]


NAME: Final = "secondary-binlog"
_MUTATION_TYPES: Final = {Kind.INSERT: b"\x08\x00", Kind.UPDATE: b"\x08\x01", Kind.DELETE: b"\x08\x02"}


class SecondaryTable(TableEncoder):
    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options)
        self._cells = [partial(cell, column.column_type, zone=options.zone) for column in table.columns]
        self._before, self._behind = _described(table)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """The rows must meet the condition in the module's docstring."""
        count = len(changes)
        if not count:
            return []
        values = messages(changes.commit_ts, self._before, self._mutations(changes), self._behind)
        return [EncodedColumns(null_column(count), values, changes.commit_ts)]

    def encode_joinable(self, changes: RowChanges) -> list[EncodedColumns]:
        count = len(changes)
        if not count:
            return []
        starts = pa.array([start_ts.to_bytes(8, "big") for start_ts in changes.start_ts.tolist()], pa.large_binary())
        values = joined(self._mutations(changes).pieces, count)
        return [EncodedColumns(starts, values, changes.commit_ts, (self._before, self._behind))]

    def _mutations(self, changes: RowChanges) -> Sized:
        """Encode each row as a field `mutations` of its table."""
        first = field_of(b"\x12", self._row(changes, changes.image))
        parts = [same(_MUTATION_TYPES[changes.kind], len(changes)), first]
        if changes.kind is Kind.UPDATE:
            assert changes.old is not None
            parts.append(field_of(b"\x1a", self._row(changes, changes.old)))
        return field_of(b"\x22", beside(*parts))

    def _row(self, changes: RowChanges, columns: Columns) -> Sized:
        return row(fragments_of(changes, columns, self._cells, self._all), len(changes))


class SecondaryEncoder(OneRowMessages):
    """See encoder.Encoder. The limits of a batch are ignored: a transaction is never divided."""

    name = NAME
    ddl_scope = DdlScope.FIRST_PARTITION  # upstream uses no other
    joins_transactions = True
    table_class = SecondaryTable

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterable[Message]:
        return super().frame_columns(parts, chosen) if parts[0].around is None else _joined(parts, chosen)

    def ddl(self, ddl: Ddl) -> list[Message]:
        names = field(b"\x0a", ddl.schema.encode()) + field(b"\x12", ddl.table.encode())
        data = names + field(b"\x1a", ddl.query.encode())
        return [Message(None, b"\x08\x01\x10" + signed(ddl.commit_ts) + field(b"\x22", data), 0, ddl.commit_ts)]


def _joined(parts: Sequence[EncodedColumns], chosen: Ints) -> Iterator[Message]:
    """Yield a message for each transaction."""
    taken, back = take_parts(parts, chosen)
    rows = [
        (*row, part.around or (b"", b""))
        for part in taken
        for row in zip(part.keys.to_pylist(), part.values.to_pylist(), part.commit_ts.tolist(), strict=True)
    ]
    rows = rows if back is None else [rows[at] for at in back.tolist()]
    stamps = joined([uvarints(np.array([commit_ts for _, _, commit_ts, _ in rows], np.uint64))], len(rows)).to_pylist()
    begin = 0
    while begin < len(rows):
        start, mutation, commit_ts, around = rows[begin]
        end = begin + 1
        while end < len(rows) and rows[end][2] == commit_ts and rows[end][0] == start:
            end += 1
        if end == begin + 1:  # the case of most transactions: the same result as below, much faster
            table = around[0] + mutation + around[1]
            data = b"\x0a" + VARINTS[len(table)] + table
        else:
            tables = groupby(rows[begin:end], key=itemgetter(3))
            data = b"".join(
                field(b"\x0a", b"".join((before, *(row[1] for row in of_table), behind)))
                for (before, behind), of_table in tables
            )
        value = b"".join((b"\x08\x00\x10", stamps[begin], b"\x1a", VARINTS[len(data)], data))
        yield Message(None, value, end - begin, commit_ts)
        begin = end


def _described(table: Table) -> tuple[bytes, bytes]:
    """Return the fields of `Table` in front of the mutations, and those after them."""
    columns = [field(b"\x1a", _column_info(column)) for column in table.columns]
    before = field(b"\x0a", table.schema.encode()) + field(b"\x12", table.name.encode()) + b"".join(columns)
    behind = [
        field(
            b"\x2a",
            field(b"\x0a", index.name.encode())
            + b"".join(field(b"\x12", part.name.encode()) for part in index.columns),
        )
        for index in table.info.unique_indexes()
    ]
    return before, b"".join(behind)


def _column_info(column: Column) -> bytes:
    kind = column.column_type.kind
    is_primary = b"\x01" if column.info.type.flag & Flag.PRI_KEY else b"\x00"
    texts = field(b"\x0a", column.name.encode()) + field(b"\x12", kind.mysql_name.encode())
    return texts + b"\x18" + is_primary + b"\x20" + signed(kind.flen) + b"\x28" + signed(kind.decimal)


_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}
_FIELDS: Final = ("int64_value", "uint64_value", "double_value", "bytes_value", "string_value")


def commit_ts_of(value: bytes) -> int:
    """Return the commit_ts of a message. Raises MessageError."""
    return _parsed(value).commit_ts


def _parsed(value: bytes) -> pb.Binlog:
    binlog = pb.Binlog()
    try:
        binlog.ParseFromString(value)
    except ProtobufError as error:
        raise MessageError(f"{NAME}: {error}") from error
    if not binlog.HasField("type") or not binlog.HasField("commit_ts"):
        raise MessageError(f"{NAME}: the message has no type or no commit_ts")
    return binlog


class SecondaryDecoder:
    """See encoder.Decoder. Events have no start_ts, because messages do not contain it. No option has an effect."""

    def __init__(self, options: ProtocolOptions | None = None) -> None:
        pass

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        binlog = _parsed(value or b"")
        try:
            if not binlog.HasField("ddl_data" if binlog.type == pb.DDL else "dml_data"):
                raise MessageError(f"{NAME}: the message of commit_ts {binlog.commit_ts} has no data")
            if binlog.type == pb.DDL:
                data = binlog.ddl_data
                return [DdlEvent(binlog.commit_ts, data.schema_name, data.table_name, data.ddl_query.decode())]
            tables = binlog.dml_data.tables
            return [event for table in tables for event in _rows(table, binlog.commit_ts)]
        except (UnicodeDecodeError, DecodeError) as error:
            raise MessageError(f"{NAME}: {error}") from error


def _rows(table: pb.Table, commit_ts: int) -> list[Event]:
    names = [info.name for info in table.column_info]
    if len(set(names)) != len(names):
        raise MessageError(f"{NAME}: two columns of {table.schema_name}.{table.table_name} have one name")
    found: list[Event] = []
    for mutation in table.mutations:
        change = _CHANGES[mutation.type]
        image = _image(table, mutation.row)
        if mutation.HasField("change_row") != (change is Change.UPDATE):
            raise MessageError(f"{NAME}: an update alone has a change_row ({table.schema_name}.{table.table_name})")
        old = _image(table, mutation.change_row) if change is Change.UPDATE else None
        if change is Change.DELETE:
            old, image = image, None  # type: ignore[assignment]
        found.append(RowEvent(change, commit_ts, table.schema_name, table.table_name, old, image))
    return found


def _image(table: pb.Table, row: pb.Row) -> Image:
    infos: Sequence[Any] = table.column_info
    if len(row.columns) != len(infos):
        raise MessageError(
            f"{NAME}: a row of {table.schema_name}.{table.table_name} has {len(row.columns)} columns, and the table "
            f"{len(infos)}"
        )
    return {info.name: _value(info, column) for info, column in zip(infos, row.columns, strict=True)}


def _value(info: pb.ColumnInfo, column: pb.Column) -> ColumnValue:
    flags = int(ColumnFlag.PRIMARY_KEY) if info.is_primary_key else 0
    given = [name for name in _FIELDS if column.HasField(name)]
    if len(given) + column.is_null != 1:
        raise MessageError(f"{NAME}: column {info.name} has {len(given)} values, is_null {column.is_null}")
    value: Value = getattr(column, given[0]) if given else None
    if isinstance(value, bytes) and info.mysql_type == "bit":
        value = int.from_bytes(value, "big")
    elif isinstance(value, bytes) and info.mysql_type == "json":
        value = value.decode()
    return ColumnValue(value, flags=flags, type_name=info.mysql_type)
