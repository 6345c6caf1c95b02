"""Encodes rows, DDLs and resolved timestamps in Open Protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.types import BLOBS

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.texts import as_binary, data_of
from drainer.changes.vector import Ints
from drainer.protocol.encoder import Ddl, DocumentTable, EncodedColumns, Encoder, Message, compress, take_rows
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import (
    Fragment,
    Parts,
    Rows,
    Slot,
    base64,
    constant,
    escaped,
    fragments_of,
    json_string,
    numbers,
    short_double,
    text,
    utf8_text,
)
from drainer.protocol.open.framing import frame, quote, single
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, RowChanges, Table
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.partition import PartitionUnknown, locator

# Where a row is stored upstream, according to the key of its event: its integer handle, and its physical partition.

Ids = Callable[[Columns], Any]


def row_ids(table: Table) -> Ids | None:
    """Return a function from an image to the handles of its rows, if the integer primary key is the handle. Otherwise
    None: binlogs do not contain the handle."""
    handle = table.info.handle_column
    if handle is None or handle.name not in table.column_indexes:  # a column selector may leave it out
        return None
    column_index = table.column_indexes[handle.name]

    def of(columns: Columns) -> Any:
        handles = columns[column_index]
        return handles.view(pa.int64()) if handles.type == pa.uint64() else handles

    return of


def partition_ids(table: Table) -> Ids | None:
    """Return a function from an image to the partition ids of its rows, NULL if the id cannot be computed (see
    drainer.row.partition). None if the table is not partitioned, or if no id can ever be computed."""
    if table.info.partition is None:
        return None
    try:
        locate = locator(table.info)
    except PartitionUnknown:
        return None

    def of(columns: Columns) -> Any:
        row = _Row(table, columns)
        found: list[int | None] = []
        for at in range(len(columns[0])):
            row.at = at
            try:
                found.append(locate(row))
            except PartitionUnknown:
                found.append(None)
        return pa.array(found, pa.int64())

    return of


class _Row(dict[int, Datum]):
    """The datums of the row at position `at`, by column id. A column is unpacked on first access."""

    at = 0

    def __init__(self, table: Table, columns: Columns) -> None:
        super().__init__()
        self._column_indexes = {column.info.id: column_index for column_index, column in enumerate(table.columns)}
        # The row has these columns, but a column selector leaves them out. Their values are unknown, unlike those of
        # columns that the row does not have.
        public = {column.id for column in table.info.public_columns if not column.is_virtual}
        self._left_out = public - self._column_indexes.keys()
        self._table = table
        self._columns = columns
        self._unpacked: dict[int, list[Datum]] = {}

    def __contains__(self, column_id: object) -> bool:
        return column_id in self._column_indexes or column_id in self._left_out

    def __getitem__(self, column_id: int) -> Datum:
        values = self._unpacked.get(column_id)
        if values is None:
            column_index = self._column_indexes[column_id]
            values = self._unpacked[column_id] = _datums(self._table.columns[column_index], self._columns[column_index])
        return values[self.at]


def _datums(column: Column, decoded_values: Any) -> list[Datum]:
    values: list[Datum] = decoded_values.to_pylist()
    if column.column_type.type_class is not TypeClass.DECIMAL:
        return values
    kind = column.column_type.kind
    return [None if v is None else Decimal(str(v), kind.flen, max(kind.decimal, 0)) for v in values]


def member(name: bytes, values: Any, *, omitted: int | None) -> Any:
    """Return `,"name":5` for each row, or nothing if the number is NULL or `omitted`."""
    text = pc.binary_join_element_wise(b',"' + name + b'":', values.cast(pa.string()).cast(pa.binary()), b"")
    if omitted is not None:
        text = pc.if_else(pc.equal(values, omitted), b"", text)
    return pc.fill_null(text, b"")


# Encodes rows of one version of a table as events of Open Protocol.
# Images of rows as JSON objects, `"name":{"t":3,"h":true,"f":11,"v":1},…`. What is the same for all rows of a table is
# built once for the table.
_NUMBERS: Final = frozenset({TypeClass.INT, TypeClass.FLOAT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT})
# What strconv.Quote does not escape.
_PLAIN: Final = bytes(set(range(32, 127)) - set(b'"\\<>&'))


def is_quoted(column_type: ColumnType) -> bool:
    """Return whether the column's values are JSON strings."""
    return column_type.type_class not in _NUMBERS


def values_of(column_type: ColumnType, zone: tzinfo) -> Fragment:
    type_class = column_type.type_class
    if column_type.kind.tp in BLOBS:
        return base64
    if type_class is TypeClass.TEXT:
        return utf8_text
    if type_class is TypeClass.BYTES:
        return _binary
    if type_class is TypeClass.FLOAT:
        return _float(column_type)
    if type_class in _NUMBERS:
        return lambda column: as_binary(column.cast(pa.string()))
    return text(column_type, zone)


def _binary(column: Any) -> Any:
    data = data_of(column).tobytes()
    if not data.translate(None, _PLAIN):
        return column
    return escaped(pa.array([None if value is None else quote(value) for value in column.to_pylist()], pa.string()))


def _float(column_type: ColumnType) -> Fragment:
    """Return the fragment of a FLOAT or DOUBLE. A value that is not finite becomes 0, as in TiCDC."""
    digits = short_double(column_type)

    def run(column: Any) -> Any:
        finite = pc.is_finite(column)
        if not pc.all(finite).as_py() and len(column):
            column = pc.if_else(finite, column, pa.scalar(0.0))
        return digits(column)

    return run


def head_of(column: Column) -> str:
    """Return the text in front of a column's values. Readers parse the value by its flags, so the BINARY flag comes
    from the type under which the row was written, which may be older than the table's."""
    kind = column.column_type.kind
    flags = column.flags & ~ColumnFlag.BINARY | (ColumnFlag.BINARY if kind.charset == "binary" else 0)
    handle = '"h":true,' if column.in_handle else ""
    return f'{json_string(column.name)}:{{"t":{int(kind.tp)},{handle}"f":{int(flags)},"v":'


def _differ(left: Any, right: Any) -> Any:
    """Return which values differ. NULL equals only NULL."""
    same = pc.if_else(left.is_null(), right.is_null(), pc.fill_null(pc.equal(left, right), False))
    return pc.invert(same)


# The most bytes of decoded values that are encoded at a time. A byte may become six bytes of JSON, several copies of
# which are in memory.
PIECE_BYTES: Final = 16 << 20


class OpenTableEncoder(DocumentTable):
    """See drainer.protocol.encoder.TableEncoder. Behind the image of an update is the old image, or the text of
    its values that changed."""

    BY_NAME = True
    FIRST_VALUE = 0

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options, partial(values_of, zone=options.zone))
        self._options = options
        self._has_old = options.output_old_value
        self._heads = [head_of(column) for column in table.columns]
        self._quoted = [is_quoted(column.column_type) for column in table.columns]
        self._location = _names(table.schema, table.name).encode()
        self._row_ids = row_ids(table)
        self._partition_ids = partition_ids(table)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        delete_handle = changes.kind is Kind.DELETE and self._options.delete_only_output_handle_key_columns
        column_indexes = self._handle(changes) if delete_handle else self._all
        return [part for piece in _pieces(changes) for part in self._encode(piece, column_indexes)]

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        name, count = "d" if kind is Kind.DELETE else "u", len(column_indexes)
        old: Parts = [',"p":{', *self._members(column_indexes, count), "}"]
        if kind is not Kind.UPDATE or not self._has_old:
            old = []
        elif self._options.only_output_updated_columns:
            old = [Slot(count)]
        return [f'{{"{name}":{{', *self._members(column_indexes, 0), "}", *old, "}"]

    def _before_image(self, changes: RowChanges, claims: Sequence[str] | None) -> list[Any]:
        return []

    def _behind_image(self, changes: RowChanges, column_indexes: tuple[int, ...], image: list[Any]) -> list[Any]:
        if changes.kind is Kind.UPDATE and self._has_old and self._options.only_output_updated_columns:
            return [self._changed(changes, column_indexes)]
        return super()._behind_image(changes, column_indexes, image)

    def _member(self, index: int, slot: int) -> Parts:
        return [self._heads[index], Slot(slot, quoted=self._quoted[index]), "}"]

    def _changed(self, changes: RowChanges, column_indexes: Sequence[int]) -> Any:
        """Return an object with only the old values that changed for each row: `,"p":{…}`, or nothing if none did."""
        old, new = changes.old, changes.new
        assert old is not None and new is not None
        found = []
        for column_index in column_indexes:
            changed = _differ(old[column_index], new[column_index])
            if pc.any(changed).as_py():
                values = fragments_of(changes, old, self._values, [column_index])
                found.append(pc.if_else(changed, Rows([*self._member(column_index, 0), ","]).join(values), b""))
        if not found:
            return constant(b"", len(changes))
        members = pc.binary_join_element_wise(*found, b"")
        some = pc.binary_join_element_wise(b',"p":{', pc.binary_slice(members, 0, -1), b"}", b"")
        return pc.if_else(pc.equal(pc.binary_length(members), 0), b"", some)

    def _keys(self, changes: RowChanges, image: list[Any], mark: str, claims: Sequence[str] | None) -> Any:
        parts: list[Any] = [b'{"ts":', numbers(changes.commit_ts), self._location]
        if self._row_ids is not None:
            parts.append(member(b"rid", self._row_ids(changes.image), omitted=0))
        if self._partition_ids is not None:
            parts.append(member(b"ptn", self._partition_ids(changes.image), omitted=None))
        end: Any = b',"t":1,"ohk":true}' if mark else b',"t":1}'
        if claims is not None:
            end = pa.array([f',"t":1,"ccl":{json_string(claim)}}}'.encode() for claim in claims], pa.binary())
        return pc.binary_join_element_wise(*parts, end, b"").cast(pa.large_binary())


def _pieces(changes: RowChanges) -> Iterator[RowChanges]:
    """Split the changes into parts that are encoded at a time."""
    rows = len(changes)
    images = [image for image in (changes.old, changes.new) if image is not None]
    size = sum(column.nbytes for image in images for column in image) + rows * 32 * sum(map(len, images))
    if rows < 2 or size <= PIECE_BYTES:
        yield changes
        return
    half = rows // 2
    yield from _pieces(changes.slice(0, half))
    yield from _pieces(changes.slice(half, rows - half))


def _names(schema: str, table: str) -> str:
    return "".join(f',"{member}":{json_string(name)}' for member, name in (("scm", schema), ("tbl", table)) if name)


ROW, DDL, RESOLVED, ADMIN = 1, 2, 3, 4


class OpenEncoder(Encoder):
    name = "open-protocol"
    table_class = OpenTableEncoder

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterator[Message]:
        return frame(take_rows(parts, chosen), self.options.max_message_bytes, self.options.max_batch_size)

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL. Raises EncodeError if its query is not valid Unicode."""
        try:
            key = f'{{"ts":{ddl.commit_ts}{_names(ddl.schema, ddl.table)},"t":{DDL}}}'.encode()
            value = f'{{"q":{json_string(ddl.query)},"t":{ddl.type_code}}}'.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(
                f"open-protocol: the DDL of `{ddl.schema}`.`{ddl.table}` at commit_ts {ddl.commit_ts} is not UTF-8 at "
                f"character {error.start}"
            ) from None
        return [single(key, compress(value, self.options.large_message_handle_compression), ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        return [single(f'{{"ts":{commit_ts},"t":{RESOLVED}}}'.encode(), b"", commit_ts)]

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        """Return an Admin event, an extension of this project: no protocol of TiCDC has it."""
        key, value = f'{{"ts":{commit_ts},"t":{ADMIN}}}', f'{{"partition":{partitions}}}'
        return [single(key.encode(), value.encode(), commit_ts)]
