"""TiDB-Binlog's file output: one record for each transaction and each DDL, in commit order. Read by reparo.

Files of records have a name (`D-FO-01`), and records a layout (`D-FO-02`):

magic u32 | size of the payload i64 | payload | CRC-32C of the payload u32        all little-endian

A program that is still writing, or that was killed, may leave a record that ends at the end of the file and is followed
by no complete record. In the last file this record is ignored silently. In any other file it is damage. Everything else
that is not a record is damage, including a wrong checksum (upstream: `D-FO-04`). The error names the offset. Reading
then stops there or continues at the next complete record.

A payload is a message `Binlog` of pb_binlog.proto.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from itertools import repeat
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

from binlog.errors import BinlogError, DecodeError
from binlog.pb import pb_binlog_pb2 as pb
from binlog.tidb.datum import decode_one, encode_float, encode_value
from binlog.tidb.job import ActionType
from binlog.tidb.types import Tp
from binlog.tidb.varint import VARINTS, field, signed
from google.protobuf.message import DecodeError as ProtobufError
from google_crc32c import extend
from google_crc32c import value as crc32c

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.texts import numbers_of
from drainer.changes.vector import Words
from drainer.protocol.column_text import texts_of
from drainer.protocol.errors import MessageError, converted
from drainer.protocol.event import Change, ColumnValue, RowEvent, Value, text_or_bytes
from drainer.row.column_type import ColumnType, TypeClass

MAGIC: Final = 471532804
HEAD: Final = Struct("<Iq")
TAIL: Final = Struct("<I")
OVERHEAD: Final = HEAD.size + TAIL.size
MAGIC_BYTES: Final = HEAD.pack(MAGIC, 0)[:4]
GZIP: Final = ".gz"
_NAME: Final = re.compile(r"binlog-([0-9]{1,20})(?:-[^-]*(?:-([0-9]+)(?:\.[^-]*)?)?)?")
_TEMPORARY: Final = (".lock", ".tmp", "checkpoint")


@dataclass(frozen=True, slots=True)
class FileName:
    """A parsed name. `first_ts`: the commit_ts of the first record if the name contains it, else 0."""

    text: str
    number: int
    first_ts: int = 0

    @property
    def is_compressed(self) -> bool:
        return self.text.endswith(GZIP)


def parse_name(text: str) -> FileName | None:
    """Parse a name. Return None if it is not the name of a file of records."""
    found = None if text.endswith(_TEMPORARY) else _NAME.fullmatch(text)
    return None if found is None else FileName(text, int(found[1]), int(found[2] or 0))


def file_name(number: int, now: datetime) -> str:
    """Return the name of a file. `now`: local time, as upstream uses it."""
    return f"binlog-{number:016d}-{now:%Y%m%d%H%M%S}"


def compressed_name(text: str, first_ts: int) -> str:
    """Return the name of a complete, compressed file. `first_ts`: the commit_ts of its first record."""
    return f"{text}-{first_ts}{GZIP}"


def record(parts: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Yield the bytes of a record whose payload has these parts, of `length` bytes together."""
    yield HEAD.pack(MAGIC, length)
    crc = 0
    for part in parts:
        yield part
        crc = extend(crc, part)
    yield TAIL.pack(crc)


# No transaction of TiDB is larger than its txn-total-size-limit, at most 1 TiB; protobuf ends at 2 GiB.
PAYLOAD_BYTES_MAX: Final = (1 << 31) - 1
_STEP: Final = 1 << 20
_NOT_READ: Final = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
_TORN: Final = "the record is cut off by the end of the file"


class RecordDamaged(BinlogError):
    """A part of a file that does not hold a record. `offset`: in bytes from the beginning of the uncompressed file."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {reason}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Record:
    """A record. `offset`: in bytes from the beginning of the uncompressed file. `read_bytes`: how many bytes of the
    file on disk, compressed if the file is, have been read so far."""

    payload: bytes
    offset: int
    read_bytes: int


Skipped = Callable[[RecordDamaged, int], None]  # the damage, and how many bytes were skipped


def records(path: Path, *, is_last: bool = False, skipped: Skipped | None = None) -> Iterator[Record]:
    """Yield the records of a file. `skipped`: called for each damaged range, which is then skipped. Without it, the
    first damaged range raises RecordDamaged. Raises OSError if the file cannot be read."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        is_compressed = path.name.endswith((GZIP, ".tgz"))
        data = _opened(raw, stack) if is_compressed else raw
        reader = _Reader(path, data, raw, is_last=is_last and not is_compressed)  # a compressed file is not appended to
        while True:
            found = reader.next()
            if isinstance(found, Record):
                yield found
            elif found is None:
                return
            else:
                if skipped is None:
                    raise found
                skipped(found, reader.resume() - found.offset)


def _opened(raw: BinaryIO, stack: ExitStack) -> Any:
    """Return the content of a compressed file, also of one that was put into a tar archive before."""
    plain = stack.enter_context(gzip.GzipFile(fileobj=raw))
    try:
        start = plain.peek(len(MAGIC_BYTES))[: len(MAGIC_BYTES)]
        if start == MAGIC_BYTES[: len(start)]:
            return plain
        archive = stack.enter_context(tarfile.open(fileobj=plain, mode="r|"))  # noqa: SIM115  entered right here
        for member in archive:
            inner = archive.extractfile(member)
            if inner is not None:
                return inner
    except _NOT_READ:
        raw.seek(0)  # the reader gets the same error again and reports it
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    return io.BytesIO()


class _Reader:
    """Reads records. Reads ahead no further than the current record, except in `resume`."""

    def __init__(self, path: Path, file: Any, raw: BinaryIO, *, is_last: bool) -> None:
        self._path = path
        self._file = file
        self._raw = raw
        self._is_last = is_last
        self._held = bytearray()  # bytes read but not returned yet, from `_offset` on
        self._offset = 0
        self._ended = False
        self._broken = ""  # why no more can be read, if the reason is not the end of the file

    def next(self) -> Record | RecordDamaged | None:
        """Return the next record, the damage found in its place, or None at the end."""
        if self._ended:
            return None
        payload = self._payload()
        if isinstance(payload, str):
            return self._damaged(payload) if payload else self._at_end()
        offset = self._offset
        self._drop(len(payload) + OVERHEAD)
        return Record(payload, offset, self._raw.tell())

    def _payload(self) -> bytes | str:
        """Return the payload of the record that begins here, or why there is none: "" if the file ends before it."""
        if self._ensure(HEAD.size) < HEAD.size:
            return ""
        magic, size = HEAD.unpack_from(self._held)
        if magic != MAGIC:
            return f"magic number {magic:#010x} is not {MAGIC:#010x}"
        if not 0 <= size <= PAYLOAD_BYTES_MAX:
            return f"a record cannot have {size} bytes"
        if self._ensure(size + OVERHEAD) < size + OVERHEAD:
            return ""
        payload = bytes(memoryview(self._held)[HEAD.size : HEAD.size + size])
        (wanted,) = TAIL.unpack_from(self._held, HEAD.size + size)
        found = crc32c(payload)
        return payload if found == wanted else f"CRC-32C is {found:#010x}, not {wanted:#010x} as recorded"

    def resume(self) -> int:
        """Skip to the next complete record, or to the end of the file. Return the offset."""
        start = self._offset + 1
        self._drop(1)
        while True:
            at = self._held.find(MAGIC_BYTES)
            if at < 0:
                self._drop(max(len(self._held) - len(MAGIC_BYTES) + 1, 0))
                if not self._more():
                    self._drop(len(self._held))
                    self._ended = True
                    return max(self._offset, start)
                continue
            self._drop(at)
            if isinstance(self._payload(), bytes):
                return self._offset
            self._drop(1)

    def _at_end(self) -> RecordDamaged | None:
        """Return whether nothing more can be read and the buffered bytes do not hold a complete record."""
        if self._broken:
            return self._damaged(self._broken)
        if not self._held or (self._is_last and not self._followed()):
            return None
        return self._damaged(_TORN)

    def _followed(self) -> bool:
        """Return whether a complete record follows in the buffered bytes, which reach to the end of the file."""
        ahead = _Reader(self._path, io.BytesIO(bytes(self._held)), self._raw, is_last=True)
        ahead.resume()
        return bool(ahead._held)

    def _damaged(self, reason: str) -> RecordDamaged:
        return RecordDamaged(str(self._path), self._offset, reason)

    def _ensure(self, count: int) -> int:
        """Buffer at least `count` bytes, unless the file ends before. Return how many are buffered."""
        while len(self._held) < count and self._more(count - len(self._held)):
            pass
        return len(self._held)

    def _more(self, wanted: int = _STEP) -> bool:
        """Buffer more bytes, at most one step at a time, however large a size field claims the record to be."""
        if self._broken:
            return False
        try:
            data = self._file.read(min(max(wanted, 1 << 16), _STEP))
        except _NOT_READ as error:
            self._broken = f"the file cannot be decompressed: {error}"
            return False
        self._held += data
        return bool(data)

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._offset += count


def sorted_files(directory: Path, parse: Callable[[str], FileName | None]) -> list[FileName]:
    """Return the files of records, ordered by number. Of one that is there both compressed and not, the uncompressed
    one is returned: its compression is not complete, or it is about to be removed. Raises OSError."""
    found: dict[int, FileName] = {}
    for path in sorted(directory.iterdir()):
        name = parse(path.name)
        if name is not None and (name.number not in found or not name.is_compressed):
            found[name.number] = name
    return [found[number] for number in sorted(found)]


# Encodes complete columns as datums in value form, as in TiDB-Binlog's files (`D-TR-09`). Pure.
NULL: Final = b"\x00"
_single = Struct("<f")


def datums(column_type: ColumnType, array: Any, zone: tzinfo) -> list[bytes]:
    """Encode decoded values (row/column_type.py). Dates, times, DECIMAL and JSON are text, a TIMESTAMP in `zone`.
    ENUM, SET and BIT are unsigned numbers. Raises DecodeError for a value that a column of its type cannot hold."""
    type_class = column_type.type_class
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return _texts(array.to_pylist())
    if type_class in (TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT, TypeClass.FLOAT):
        return _each(_number(column_type), numbers_of(column_type, array).to_pylist())
    return _texts(texts_of(column_type, array, zone).to_pylist())


def _texts(values: list[bytes | None]) -> list[bytes]:
    return [NULL if value is None else b"\x02" + VARINTS[2 * len(value)] + value for value in values]


def _each(encode: Callable[[Any], bytes], values: list[Any]) -> list[bytes]:
    """Encode each distinct value once."""
    known = {value: encode(value) for value in set(values) if value}
    known |= {0: encode(0), None: NULL}
    return [known[value] for value in values]


def _number(column_type: ColumnType) -> Callable[[Any], bytes]:
    kind, type_class = column_type.kind, column_type.type_class
    if type_class is TypeClass.FLOAT:
        return _as_single if kind.tp is Tp.FLOAT else lambda value: b"\x05" + encode_float(value)
    if type_class is TypeClass.INT and (kind.tp is Tp.YEAR or not kind.is_unsigned):
        return encode_value
    return lambda value: b"\x09" + VARINTS[value]


def _as_single(value: float) -> bytes:
    try:
        return b"\x05" + encode_float(_single.unpack(_single.pack(value))[0])
    except OverflowError:
        raise DecodeError("float", offset=0, detail=f"{value} does not fit 4 bytes") from None


_TYPES: Final = {Kind.INSERT: b"\x18\x00", Kind.UPDATE: b"\x18\x01", Kind.DELETE: b"\x18\x02"}


class EventEncoder:
    """Encodes rows of one version of a table. `columns`: name and type of each, in the order of the images. Inserts and
    deletes have their values in the field `value`, updates the old one there and the new one in `changed_value`."""

    def __init__(self, schema: str, table: str, columns: Sequence[tuple[str, ColumnType]], zone: tzinfo) -> None:
        self._table = f"`{schema}`.`{table}`"
        self._head = field(b"\x0a", schema.encode()) + field(b"\x12", table.encode())
        self._columns = [(name, column_type, _described(name, column_type)) for name, column_type in columns]
        self._zone = zone

    def encode(self, kind: Kind, commit_ts: Words, old: Columns | None, new: Columns | None) -> list[bytes]:
        """Encode each row as a field `events` of DMLData. Raises EncodeError naming table, column and commit_ts."""
        images = [
            self._cells(index, commit_ts, None if old is None else old[index], None if new is None else new[index])
            for index in range(len(self._columns))
        ]
        heads = repeat(self._head + _TYPES[kind], len(commit_ts))
        return [b"\x0a" + VARINTS[len(event)] + event for event in map(b"".join, zip(heads, *images, strict=True))]

    def _cells(self, index: int, commit_ts: Words, old: Any, new: Any) -> list[bytes]:
        """Encode one column's fields `row`, each a message `Column`."""
        name, column_type, described = self._columns[index]
        where, convert = f"{self._table}.`{name}`", partial(datums, column_type, zone=self._zone)
        values = [converted(where, commit_ts, convert, image) for image in (old, new) if image is not None]
        if len(values) == 1:
            heads = _Heads(described)
            return [heads[len(value)] + value for value in values[0]]
        return [
            b"\x22" + VARINTS[len(described) + len(before) + len(after)] + described + before + after
            for before, after in zip(
                [b"\x22" + VARINTS[len(value)] + value for value in values[0]],
                [b"\x2a" + VARINTS[len(value)] + value for value in values[1]],
                strict=True,
            )
        ]


class _Heads(dict[int, bytes]):
    """Maps the length of a value in bytes to what is written in front of the value."""

    def __init__(self, described: bytes) -> None:
        super().__init__()
        self._described = described

    def __missing__(self, size: int) -> bytes:
        before = self._described + b"\x22" + VARINTS[size]
        found = self[size] = b"\x22" + VARINTS[len(before) + size] + before
        return found


def _described(name: str, column_type: ColumnType) -> bytes:
    """Encode the fields of `Column` in front of its values."""
    kind = column_type.kind
    return field(b"\x0a", name.encode()) + field(b"\x12", bytes([kind.tp])) + field(b"\x1a", kind.mysql_name.encode())


def dml_head(commit_ts: int, length: int) -> bytes:
    """Return what precedes the events of a transaction. `length`: the length of the events in bytes."""
    return b"\x08\x00\x10" + signed(commit_ts) + b"\x1a" + VARINTS[length]


def ddl_binlog(commit_ts: int, query: str) -> bytes:
    """Return a complete message `Binlog` for a DDL."""
    return b"\x08\x01\x10" + signed(commit_ts) + field(b"\x22", query.encode())


def ddl_text(schema: str, query: str, type_code: int) -> str:
    """Return the text of a DDL in files. It selects the database first, unless the DDL creates a database."""
    query = query.rstrip("; \t\r\n")
    if not schema:
        return query
    if type_code == ActionType.CREATE_SCHEMA:
        return f"{query};"
    quoted = schema.replace("`", "``")
    return f"use `{quoted}`; {query};"


_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}


@dataclass(frozen=True, slots=True)
class FileBinlog:
    """A transaction, or a DDL if `query` is not None."""

    commit_ts: int
    query: str | None = None
    _events: tuple[pb.Event, ...] = ()

    def names(self) -> list[tuple[str, str]]:
        """Return (database, table) of each row."""
        return [(event.schema_name, event.table_name) for event in self._events]

    def events(self) -> Iterator[RowEvent]:
        """Yield the rows in upstream's order. Each is decoded when it is requested. Text that is not UTF-8 is returned
        as bytes. Raises MessageError naming the table."""
        for event in self._events:
            yield _event(event, self.commit_ts)


def decode(payload: bytes) -> FileBinlog:
    """Parse a payload. Values are decoded when they are requested. Raises MessageError if it is not a Binlog."""
    binlog = pb.Binlog()
    try:
        binlog.ParseFromString(payload)
        if not binlog.HasField("tp") or not binlog.HasField("commit_ts"):
            raise MessageError("the record has no type or no commit_ts")
        if binlog.commit_ts < 0:
            raise MessageError(f"commit_ts {binlog.commit_ts} is negative")
        if binlog.tp == pb.DDL:
            return FileBinlog(binlog.commit_ts, binlog.ddl_query.decode())
        return FileBinlog(binlog.commit_ts, None, tuple(binlog.dml_data.events))
    except (ProtobufError, UnicodeDecodeError) as error:
        raise MessageError(f"the record is not a binlog: {error}") from error


def _event(event: pb.Event, commit_ts: int) -> RowEvent:
    table, change = f"`{event.schema_name}`.`{event.table_name}`", _CHANGES[event.tp]
    try:
        columns = [_column(raw) for raw in event.row]
        image = new = {column.name: _cell(column, column.value) for column in columns}
        if change is Change.UPDATE:
            new = {column.name: _cell(column, column.changed_value) for column in columns}
    except (ProtobufError, UnicodeDecodeError, DecodeError, MessageError) as error:
        raise MessageError(f"a row of {table}: {error}") from error
    if len(image) != len(columns):
        raise MessageError(f"a row of {table} has two columns of one name")
    return RowEvent(
        change,
        commit_ts,
        event.schema_name,
        event.table_name,
        old=None if change is Change.INSERT else image,
        new=None if change is Change.DELETE else new,
    )


def _column(raw: bytes) -> pb.Column:
    column = pb.Column()
    column.ParseFromString(raw)
    if not column.name or len(column.tp) != 1:
        raise MessageError(f"column {column.name!r} has no name, or its type is {column.tp!r}")
    if not isinstance(column.mysql_type, str):  # protobuf returns text that is not UTF-8 as bytes
        raise MessageError(f"column {column.name!r} has the type {column.mysql_type!r}")
    return column


def _cell(column: pb.Column, raw: bytes) -> ColumnValue:
    value, end = decode_one(raw)
    if end != len(raw):
        raise MessageError(f"column {column.name} has {len(raw) - end} bytes after its value")
    return ColumnValue(_text(column.mysql_type, value), column.tp[0], type_name=column.mysql_type)


def _text(type_name: str, value: Value) -> Value:
    """Text and binary strings are both bytes in a file; the type says which they are."""
    if not isinstance(value, bytes) or "blob" in type_name or "binary" in type_name:
        return value
    return text_or_bytes(value)
