"""Rows of TiCDC's messages as columns, without binlogs between, for sinks that need net rows.

Only plain rows become columns: rows of tables with a key that have all their columns in one JSON message. All others,
and invalid ones, are made into binlogs (binlogs.py), which names the row, the column and the reason.
A row that comes twice is two equal changes of its key here, which the fold makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.flatten import INTEGER_BITS
from binlog.tidb.types import Tp

from drainer.batch.work import Kind
from drainer.changes.decode import Changes, ColumnDecoder, Columns, by_rules, wanted_of_old
from drainer.protocol.canal import canal_value_of
from drainer.protocol.encoder import decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Value
from drainer.protocol.json_read import loads
from drainer.protocol.open.decoder import STRINGS, value_of_code
from drainer.protocol.open.framing import LENGTH_BYTES, row_keys
from drainer.protocol.registry import PROTOCOLS, Compression, ProtocolOptions
from drainer.protocol.simple.decoder import VERSION
from drainer.protocol.simple.decoder import value_of as simple_value_of
from drainer.protocol.table import ColumnFlag
from drainer.row.codec import Codec
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.errors import SchemaError
from drainer.schema.filter import OWN_SCHEMA
from drainer.ticdc.binlogs import RANK_BITS, RANKS, RowEncoder
from drainer.ticdc.tables import NamedTable, NamedTables

_KINDS: Final = {"INSERT": Kind.INSERT, "UPDATE": Kind.UPDATE, "DELETE": Kind.DELETE}
_RANK_OF: Final = {Kind[change.name]: rank for change, rank in RANKS.items()}

_Cells = dict[str, Any]  # by column; each as the message has it


class NotPlain(Exception):
    """Rows must become binlogs first: their table has no key, a column is missing, or a value is invalid."""


# What invalid cells and tables raise while arrays are made of them.
_INVALID: Final = (
    KeyError, ValueError, TypeError, AttributeError, OverflowError,
    pa.ArrowException, DecodeError, SchemaError, MessageError,
)  # fmt: skip


class PlainRow(NamedTuple):
    """A row of a message."""

    kind: Kind
    commit_ts: int
    schema: str
    table: str
    old: _Cells | None
    new: _Cells | None


_plain_row = partial(tuple.__new__, PlainRow)  # half the time of PlainRow(...)

# From a message's key and value. None: it has something else than plain rows.
PlainReader = Callable[[bytes | None, bytes | None], Sequence[PlainRow] | None]


def plain_reader(options: ProtocolOptions) -> PlainReader | None:
    """Return what reads the plain rows of messages with these options; None if such messages have none."""
    package, how = PROTOCOLS[options.protocol.lower()], options.large_message_handle_compression
    if package == "simple" and options.encoding_format != "json":
        return None
    if package == "open":
        return None if options.open_varchar_base64 else _guarded(lambda key, value: _open(key, value, how))
    read = {"canal": _canal, "simple": _simple}.get(package)
    return read and _guarded(lambda _, value: read(loads(decompress(value or b"", how))))


def _guarded(read: PlainReader) -> PlainReader:
    def plain(key: bytes | None, value: bytes | None) -> Sequence[PlainRow] | None:
        try:
            found = read(key, value)
            for row in found or ():
                if type(row.commit_ts) is not int:
                    return None
            return found or None
        except (KeyError, ValueError, TypeError, AttributeError, MessageError):
            return None

    return plain


def _canal(message: _Cells) -> Sequence[PlainRow] | None:
    kind = _KINDS.get(message["type"])
    if kind is None or message["isDdl"] or len(message["_tidb"]) != 1:  # it also says where the values are
        return None
    (new,), old = message["data"], None
    if kind is Kind.UPDATE:
        (old,) = message["old"]
    elif kind is Kind.DELETE:
        old, new = new, None
    return (_plain_row((kind, message["_tidb"]["commitTs"], message["database"], message["table"], old, new)),)


def _simple(message: _Cells) -> Sequence[PlainRow] | None:
    kind = _KINDS.get(message["type"])
    if kind is None or message["version"] != VERSION or message.get("handleKeyOnly"):
        return None
    old = None if kind is Kind.INSERT else message["old"]
    new = None if kind is Kind.DELETE else message["data"]
    return (_plain_row((kind, message["commitTs"], message["database"], message["table"], old, new)),)


def _open(key: bytes | None, value: bytes | None, how: Compression) -> Sequence[PlainRow] | None:
    found, at, data = [], 0, value or b""
    for row in row_keys(key or b""):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "big")
        body = loads(decompress(data[begin:at], how))
        new, old, deleted = body.get("u"), body.get("p"), body.get("d")
        if bool(new) == bool(deleted) or (old is not None and not (old and new)):
            return None
        kind = Kind.DELETE if deleted else Kind.INSERT if old is None else Kind.UPDATE
        ts, schema, table = row.group("ts", "schema", "table")
        found.append(_plain_row((kind, int(ts), schema.decode(), table.decode(), deleted or old, new)))
    return found if at == len(data) else None


class PlainRows:
    """Makes changes of the plain rows of one partition. `decoder`: of the view with which they are applied;
    `encoder_of`: what makes binlogs of a table's rows, and knows its columns."""

    def __init__(
        self,
        options: ProtocolOptions,
        tables: NamedTables,
        decoder: ColumnDecoder,
        encoder_of: Callable[[NamedTable], RowEncoder],
    ) -> None:
        self._package = PROTOCOLS[options.protocol.lower()]
        self._is_utc = str(options.zone) == "UTC"
        self._tables, self._decoder, self._encoder_of = tables, decoder, encoder_of

    def changes(self, rows: Sequence[PlainRow]) -> list[Changes]:
        """Return the changes of rows. Raises NotPlain."""
        try:
            return self._changes(rows)
        except _INVALID as error:
            raise NotPlain from error

    def _changes(self, rows: Sequence[PlainRow]) -> list[Changes]:
        groups: dict[tuple[str, str, Kind], list[int]] = {}
        for number, (kind, _, schema, name, _, _) in enumerate(rows):
            groups.setdefault((schema, name, kind), []).append(number)
        commit_ts = np.array([*map(itemgetter(1), rows)], np.uint64)
        rank = np.empty(len(rows), np.int64)
        for (_, _, kind), numbers in groups.items():
            rank[numbers] = _RANK_OF[kind]
        order = np.empty(len(rows), np.int64)
        order[np.lexsort((rank, commit_ts))] = np.arange(len(rows))
        found: list[Changes] = []
        for (schema, name, kind), numbers in groups.items():
            if schema.lower() == OWN_SCHEMA:
                continue
            of_name = np.array(numbers)
            for table, its in self._tables.stretches(schema, name, commit_ts[of_name]):
                at = of_name[its]
                if table is None:
                    raise NotPlain
                codec = self._codec(table, int(commit_ts[at[0]]))
                if codec is None or kind in codec.ignored_kinds:
                    continue
                old, new = self._images(codec, self._encoder_of(table), [rows[number] for number in at.tolist()])
                start_ts = rank[at].astype(np.uint64) << np.uint64(RANK_BITS)
                found += by_rules(Changes(codec, kind, commit_ts[at], start_ts, rank[at], order[at], old, new))
        return found

    def _codec(self, table: NamedTable, commit_ts: int) -> Codec | None:
        """Return the codec that decodes the rows of a table; None: its rows are skipped. Raises NotPlain."""
        if not self._encoder_of(table).is_keyed:
            raise NotPlain
        decoder, (table_id, version, _) = self._decoder.decoder, table
        codec = decoder.codec(table_id, version, commit_ts)
        if not codec.shape.foldable if codec is not None else decoder.relocates(table_id, version):
            raise NotPlain
        return codec

    def _images(
        self, codec: Codec, encoder: RowEncoder, rows: Sequence[PlainRow]
    ) -> tuple[Columns | None, Columns | None]:
        kind, every = rows[0].kind, range(len(codec.layout.targets))
        old = new = None
        if kind is not Kind.DELETE:
            new = self._image(codec, encoder, [row.new or {} for row in rows], every)
        if kind is not Kind.INSERT:  # old values of an update may be those that changed
            whole = [(row.new or {}) | (row.old or {}) for row in rows]
            old = self._image(codec, encoder, whole, wanted_of_old(codec, whole=False))
        return old, new

    def _image(self, codec: Codec, encoder: RowEncoder, rows: Sequence[_Cells], wanted: Sequence[int]) -> Columns:
        (names,) = set(map(tuple, rows))  # fails if rows differ in their columns
        found: dict[int, tuple[Sequence[Any], Callable[[object], Any]]] = {}
        for name, cells in zip(names, zip(*[row.values() for row in rows], strict=True), strict=True):
            column_id, cast = encoder.columns[name.lower()]
            found[column_id] = cells, cast
        if not encoder.needed.keys() <= found.keys():
            raise NotPlain
        columns: list[Any] = [None] * len(codec.layout.targets)
        for at in wanted:
            target = codec.layout.targets[at]
            if target.old_column_id is not None:
                raise NotPlain
            if target.id in found:
                columns[at] = self._array(*found[target.id], target.column_type)
            else:
                columns[at] = pa.repeat(pa.scalar(target.default, target.column_type.decoded_type), len(rows))
        return tuple(columns)

    def _array(self, cells: Sequence[Any], cast: Callable[[object], Any], of: ColumnType) -> Any:
        kind, values = of.kind, cells
        if self._package == "open":
            values = [*map(itemgetter("v"), cells)]
            code, flags = cells[0]["t"], cells[0].get("f", 0)
            if {*map(itemgetter("t"), cells)} != {code} or {cell.get("f", 0) for cell in cells} != {flags}:
                raise NotPlain
            value_of: Callable[[Any], Value] = lambda value: value_of_code(code, flags, value, False)  # noqa: E731
            is_text = code in STRINGS and not flags & ColumnFlag.BINARY  # that of binary strings is quoted
        else:
            value_of = (canal_value_of if self._package == "canal" else simple_value_of)(kind.mysql_name)
            is_text = True
            if self._package == "simple" and kind.tp is Tp.TIMESTAMP:
                values, value_of = [None if cell is None else value_of(cell) for cell in cells], str
        fast = None if of.type_class is TypeClass.TEXT and not is_text else _FAST.get(of.type_class)
        if fast is not None and (self._is_utc or kind.tp is not Tp.TIMESTAMP):
            try:
                array = fast(values, of)
                if array is not None:
                    return array
            except pa.ArrowException:
                pass
        known: dict[Any, Any] = {}
        # 1 and true are equal: numbers of several types are not looked up.
        is_looked_up = _types(values) in ({str}, {int})
        for value in values if is_looked_up else ():
            if value is not None and value not in known:
                known[value] = of.decoded_value(cast(value_of(value)))
        convert = known.__getitem__ if is_looked_up else lambda value: of.decoded_value(cast(value_of(value)))
        array = pa.array([None if value is None else convert(value) for value in values], of.decoded_type)
        return pc.add(array, 0.0) if of.type_class is TypeClass.FLOAT else array  # binlogs have no -0


def _types(values: Sequence[Any]) -> set[type]:
    """Return the types of values that are not NULL."""
    return {*map(type, values)} - {NoneType}


# What makes an array of all values together. Each may raise ArrowException or return None for values that are to be
# converted one by one.
def _integers(values: Sequence[Any], of: ColumnType) -> Any | None:
    bits, kind, types = INTEGER_BITS.get(of.kind.tp), of.decoded_type, _types(values)
    if bits is None or types not in ({str}, {int}):  # Arrow cuts off the fractions of floats
        return None
    array = pa.array(values, pa.string() if str in types else kind)
    if str in types:
        if pc.any(pc.match_substring_regex(array, "[xX]")).as_py():  # Arrow reads hexadecimal numbers
            return None
        array = array.cast(kind)
    low, high = (0, (1 << bits) - 1) if of.kind.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    bounds = pc.min_max(array)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return array if least is None or (low <= least and most <= high) else None


def _decimals(values: Sequence[Any], of: ColumnType) -> Any | None:
    """Texts that are as they are decoded: with exactly the digits of the column."""
    array, digits = pa.array(values, pa.string()), max(of.kind.decimal, 0)
    fraction = rf"\.[0-9]{{{digits}}}" if digits else ""
    whole = of.kind.flen - digits
    number = rf"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole > 0 else "0"
    plain = pc.match_substring_regex(array, rf"^-?{number}{fraction}$")
    zero = pc.match_substring_regex(array, r"^-0(\.0*)?$")
    return array if pc.all(plain).as_py() is not False and not pc.any(zero).as_py() else None


def _times(values: Sequence[Any], of: ColumnType) -> Any | None:
    """Times without the zero date, which Arrow does not have, and with no more digits than the column."""
    when = pa.array(values, pa.string()).cast(pa.timestamp("us"))
    micros = when.cast(pa.int64()).fill_null(0).to_numpy()
    days, clock = np.divmod(micros, 86_400_000_000)
    seconds, micro = np.divmod(clock, 1_000_000)
    fsp = 0 if of.type_class is TypeClass.DATE else max(of.kind.fsp, 0)
    if (micro % 10 ** (6 - fsp)).any() or (of.type_class is TypeClass.DATE and clock.any()):
        return None
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    month = months.astype(np.int64)  # since 1970
    ymd = ((month // 12 + 1970) * 13 + month % 12 + 1) << 5 | (
        (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    )
    hms = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    packed = ((ymd << 17 | hms) << 24 | micro).astype(np.uint64)
    return pa.array(packed, mask=when.is_null().to_numpy(zero_copy_only=False))


_FAST: Final[Mapping[TypeClass, Callable[[Sequence[Any], ColumnType], Any | None]]] = {
    TypeClass.INT: _integers,
    TypeClass.TEXT: lambda values, _: pa.array(values, pa.string()).cast(pa.binary()),
    TypeClass.DECIMAL: _decimals,
    TypeClass.DATE: _times,
    TypeClass.DATETIME: _times,
}
