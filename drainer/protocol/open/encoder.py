"""Encodes rows, DDLs and resolved timestamps in Open Protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.types import Tp

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.texts import as_binary, data_of
from drainer.changes.vector import Ints
from drainer.protocol.compression import compress
from drainer.protocol.encoded_columns import EncodedColumns, compressed, large_binary, rows_of, take_rows
from drainer.protocol.encoder import CompiledTables, Ddl, DdlScope, EncodedRow, Message
from drainer.protocol.errors import EncodeError, refused
from drainer.protocol.json_text import Fragment, base64, escaped, json_string, short_double, text, utf8_text
from drainer.protocol.open.framing import frame, frame_columns, single
from drainer.protocol.open.quote import quote
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Column, ColumnFlag, Table
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.partition.locate import PartitionUnknown, Values, locator

# Where a row is stored upstream, according to the key of its event: its integer handle, and its physical partition.

RowIds = Callable[[Columns], Any]
PartitionIds = Callable[[Columns], Any]


def row_ids(table: Table) -> RowIds | None:
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


def partition_ids(table: Table) -> PartitionIds | None:
    """Return a function from an image to the partition ids of its rows, NULL if the id cannot be computed (see
    drainer.row.partition). None if the table is not partitioned, or if no id can ever be computed."""
    if not table.is_partitioned:
        return None
    try:
        locate = locator(table.info)
    except PartitionUnknown:
        return None

    def one(values: Values) -> int | None:
        try:
            return locate(values)
        except PartitionUnknown:
            return None

    def of(columns: Columns) -> Any:
        row = _Row(table, columns)
        found = []
        for column_index in range(len(columns[0])):
            row.at = column_index
            found.append(one(row))
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


def member(name: bytes, numbers: Any, *, omitted: int | None) -> Any:
    """Return `,"name":5` for each row, or nothing if the number is NULL or `omitted`."""
    text = pc.binary_join_element_wise(
        pa.scalar(b',"' + name + b'":', pa.binary()),
        numbers.cast(pa.string()).cast(pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    if omitted is not None:
        text = pc.if_else(pc.equal(numbers, omitted), pa.scalar(b"", pa.binary()), text)
    return pc.fill_null(text, b"")


# Encodes rows of one version of a table as events of Open Protocol.
# Images of rows as JSON objects, `"name":{"t":3,"h":true,"f":11,"v":1},…`. What is the same for all rows of a table is
# built once for the table.
BASE64_TYPES: Final = frozenset({Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB})
_NUMBERS: Final = frozenset({TypeClass.INT, TypeClass.FLOAT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT})
# What strconv.Quote does not escape.
_PLAIN: Final = bytes(set(range(32, 127)) - set(b'"\\<>&'))


def is_quoted(column_type: ColumnType) -> bool:
    """Return whether the column's values are JSON strings."""
    return column_type.type_class not in _NUMBERS


def values_of(column_type: ColumnType, zone: tzinfo) -> Fragment:
    """Return the fragment of a column."""
    type_class = column_type.type_class
    if column_type.kind.tp in BASE64_TYPES:
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


def constant(text: bytes) -> Any:
    return pa.scalar(text, pa.binary())


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate the parts of each row. At least one part must be an array. NULL becomes `null`."""
    return pc.binary_join_element_wise(*parts, constant(b""), null_handling="replace", null_replacement="null")


@dataclass(frozen=True, slots=True)
class ColumnCode:
    """One column, compiled. `head`: the text in front of its values."""

    column_index: int
    head: bytes
    quoted: bool
    values: Fragment

    def of(self, changes: RowChanges, columns: Columns) -> Any:
        """Convert the column's values. Raises EncodeError naming table, column and commit_ts."""
        column = columns[self.column_index]
        try:
            return self.values(column)
        except DecodeError as error:
            where = f"open-protocol: {changes.table.column_name(self.column_index)}"
            raise refused(where, changes.commit_ts, [column], self.values, error) from error


def compiled(table: Table, zone: tzinfo) -> tuple[ColumnCode, ...]:
    """Return the compiled columns in the order in which they are written: by the bytes of their names."""
    order = sorted(range(len(table.columns)), key=lambda column_index: table.columns[column_index].name)
    return tuple(_code(column_index, table.columns[column_index], zone) for column_index in order)


def _code(column_index: int, column: Column, zone: tzinfo) -> ColumnCode:
    """Compile a column. Readers parse the value by its flags, so the BINARY flag comes from the type under which the
    row was written, which may be older than the table's."""
    kind = column.column_type.kind
    flags = column.flags & ~ColumnFlag.BINARY | (ColumnFlag.BINARY if kind.charset == "binary" else 0)
    handle = '"h":true,' if column.in_handle else ""
    head = f'{json_string(column.name)}:{{"t":{int(kind.tp)},{handle}"f":{int(flags)},"v":'
    return ColumnCode(column_index, head.encode(), is_quoted(column.column_type), values_of(column.column_type, zone))


def image_parts(
    changes: RowChanges, codes: Sequence[ColumnCode], columns: Columns, begin: bytes, end: bytes
) -> list[Any]:
    """Return the parts from which `joined` builds an object. `begin` and `end`: the texts that open and close it."""
    parts: list[Any] = []
    before = begin
    for code in codes:
        values = code.of(changes, columns)
        quoted = code.quoted and not values.null_count
        if code.quoted and values.null_count:
            values = pc.binary_join_element_wise(constant(b'"'), values, constant(b'"'), constant(b""))
        parts += [constant(before + code.head + b'"' if quoted else before + code.head), values]
        before = b'"},' if quoted else b"},"
    return [*parts, constant(before.removesuffix(b",") + end)]


def changed_parts(changes: RowChanges, codes: Sequence[ColumnCode], old: Columns, new: Columns) -> list[Any]:
    """Return the parts of an object with only the old values that changed: `,"p":{…}`, or nothing if none changed.

    No row's parts are all NULL: Arrow 26 loses such rows if it is told to skip NULLs.
    """
    found = []
    for code in codes:
        changed = _differ(old[code.column_index], new[code.column_index])
        if pc.any(changed).as_py():
            whole = joined([*image_parts(changes, [code], old, b"", b""), constant(b",")])
            found.append(pc.if_else(changed, whole, constant(b"")))
    if not found:
        return []
    members = joined(found)
    some = joined([constant(b',"p":{'), pc.binary_slice(members, 0, -1), constant(b"}")])
    return [pc.if_else(pc.equal(pc.binary_length(members), 0), constant(b""), some)]


def _differ(left: Any, right: Any) -> Any:
    """Return which values differ. NULL equals only NULL."""
    same = pc.if_else(left.is_null(), right.is_null(), pc.fill_null(pc.equal(left, right), False))
    return pc.invert(same)


# The most bytes of decoded values that are encoded at a time. A byte may become six bytes of JSON, several copies of
# which are in memory.
PIECE_BYTES: Final = 16 << 20
_WHOLE: Final = b',"t":1}'
_HANDLE_ONLY: Final = b',"t":1,"ohk":true}'


class OpenTableEncoder:
    """See drainer.protocol.encoder.TableEncoder."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._table = table
        self._options = options
        self._all = compiled(table, options.zone)
        self._handle = tuple(code for code in self._all if table.columns[code.column_index].in_handle)
        name = f',"tbl":{json_string(table.name)}' if table.name else ""
        schema = f',"scm":{json_string(table.schema)}' if table.schema else ""
        self._names = (schema + name).encode()
        self._row_ids = row_ids(table)
        self._partition_ids = partition_ids(table)

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        return rows_of(self.encode_columns(changes))

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """See drainer.protocol.encoder.TableEncoder."""
        delete_handle = changes.kind is Kind.DELETE and self._options.delete_only_output_handle_key_columns
        codes = self._handle_codes(changes) if delete_handle else self._all
        return [self._columns(piece, codes, constant(_WHOLE)) for piece in _pieces(changes) if len(piece)]

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        codes = self._handle_codes(changes)
        if claims is None:
            return self._columns(changes, codes, constant(_HANDLE_ONLY)).rows() if len(changes) else []
        ends = [f',"t":1,"ccl":{json_string(claim)}}}'.encode() for claim in claims]
        return self._columns(changes, codes, pa.array(ends, pa.binary())).rows() if len(changes) else []

    def _handle_codes(self, changes: RowChanges) -> tuple[ColumnCode, ...]:
        if not self._handle:
            table, kind = self._table, changes.kind.name.lower()
            raise EncodeError(
                f"open-protocol: not found handle key columns for the {kind} event: `{table.schema}`.`{table.name}`, "
                f"commit_ts {int(changes.commit_ts[0]) if len(changes) else 0}"
            )
        return self._handle

    def _columns(self, changes: RowChanges, codes: Sequence[ColumnCode], key_end: Any) -> EncodedColumns:
        values = large_binary(joined(self._value_parts(changes, codes)))
        values = compressed(values, self._options.large_message_handle_compression)
        return EncodedColumns(large_binary(joined(self._key_parts(changes, key_end))), values, changes.commit_ts)

    def _value_parts(self, changes: RowChanges, codes: Sequence[ColumnCode]) -> list[Any]:
        old, new = changes.old, changes.new
        if new is None:
            assert old is not None
            return image_parts(changes, codes, old, b'{"d":{', b"}}")
        if old is None or not self._options.output_old_value:
            return image_parts(changes, codes, new, b'{"u":{', b"}}")
        image = image_parts(changes, codes, new, b'{"u":{', b"}")
        if not self._options.only_output_updated_columns:
            return [*image, *image_parts(changes, codes, old, b',"p":{', b"}}")]
        return [*image, *changed_parts(changes, codes, old, new), constant(b"}")]

    def _key_parts(self, changes: RowChanges, end: Any) -> list[Any]:
        stamps = pa.array(changes.commit_ts).cast(pa.string()).cast(pa.binary())
        parts = [constant(b'{"ts":'), stamps, constant(self._names)]
        if self._row_ids is not None:
            parts.append(member(b"rid", self._row_ids(changes.image), omitted=0))
        if self._partition_ids is not None:
            parts.append(member(b"ptn", self._partition_ids(changes.image), omitted=None))
        return [*parts, end]


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


ROW, DDL, RESOLVED, ADMIN = 1, 2, 3, 4


class OpenEncoder:
    """See drainer.protocol.encoder.Encoder."""

    name: Final = "open-protocol"
    ddl_scope: Final = DdlScope.ALL_PARTITIONS
    joins_transactions: Final = False

    def __init__(self, options: ProtocolOptions) -> None:
        self._options = options
        self._tables = CompiledTables[OpenTableEncoder]()

    def table(self, table: Table) -> OpenTableEncoder:
        return self._tables.get(table.key, lambda: OpenTableEncoder(table, self._options))

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        return frame(rows, self._options.max_message_bytes, self._options.max_batch_size)

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterator[Message]:
        return frame_columns(take_rows(parts, chosen), self._options.max_message_bytes, self._options.max_batch_size)

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL. Raises EncodeError if its query is not valid Unicode."""
        names = "".join(
            f',"{member}":{json_string(name)}' for member, name in (("scm", ddl.schema), ("tbl", ddl.table)) if name
        )
        try:
            key = f'{{"ts":{ddl.commit_ts}{names},"t":{DDL}}}'.encode()
            value = f'{{"q":{json_string(ddl.query)},"t":{ddl.type_code}}}'.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(
                f"open-protocol: the DDL of `{ddl.schema}`.`{ddl.table}` at commit_ts {ddl.commit_ts} is not UTF-8 at "
                f"character {error.start}"
            ) from None
        return [single(key, compress(value, self._options.large_message_handle_compression), ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        return [single(f'{{"ts":{commit_ts},"t":{RESOLVED}}}'.encode(), b"", commit_ts)]

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        """Return an Admin event, an extension of this project: no protocol of TiCDC has it."""
        key, value = f'{{"ts":{commit_ts},"t":{ADMIN}}}', f'{{"partition":{partitions}}}'
        return [single(key.encode(), value.encode(), commit_ts)]


def make_encoder(options: ProtocolOptions) -> OpenEncoder:
    """Return the encoder. Raises ProtocolConfigError if the time zone is not known."""
    assert options.zone
    return OpenEncoder(options)
