"""Finds the rows in a served binlog by the general readers, splits a large transaction into small ones, and leaves out
those that the drainer of the opposite direction wrote. Transactions of one row are read together (changes/scan.py)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from binlog import envelope
from binlog.errors import DecodeError
from binlog.tidb import mutation
from binlog.tidb.datum import Datum
from binlog.tidb.mutation import DELETE, INSERT, UPDATE
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.varint import decode_uvarint, encode_uvarint

from drainer.batch.work import Kind
from drainer.schema.view import MarkTables

# Splits a large transaction into small ones: binlogs with the same timestamps that contain its rows in its order.
#
# Applied one after another they have the effect of the complete transaction: upstream checks unique keys row by row,
# so every state between two rows satisfies the keys. The callers of this module see ordinary binlogs of a few MiB.
# The transaction is a view of a file, and at most one piece of it is copied at a time.

PIECE_BYTES_MAX = 4 << 20
RELEASE_BYTES = 8 << 20

# Protobuf wire types, and fields of PrewriteValue and TableMutation.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SCHEMA_VERSION, _MUTATIONS = 1, 2
_TABLE_ID, _SEQUENCE = 1, 7
_FIELD_OF_KIND = {INSERT: 2, UPDATE: 3, DELETE: 6}
_SEQUENCE_TAG = _SEQUENCE << 3
_U64 = (1 << 64) - 1


class _Field(NamedTuple):
    """One field of a message: its number and wire type, its offset, and the range of its value."""

    number: int
    wire: int
    at: int
    begin: int
    end: int


def pieces(
    binlog: memoryview, bytes_max: int = PIECE_BYTES_MAX, *, release: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """Served binlogs of about `bytes_max` bytes, at least one row each. DecodeError, naming the commit_ts, where the
    transaction is damaged; then nothing was given of the table in which it is. `release` is called now and then while
    much of the view is looked at: what was read may leave memory."""
    found = envelope.scan(binlog)  # type: ignore[arg-type]  # it only reads single bytes and slices
    try:
        yield from _Cutter(binlog, found, bytes_max, release).pieces()
    except DecodeError as error:
        raise error.within(f"binlog of commit_ts {found.commit_ts}") from None


def rows_of_tables(binlog: bytes | memoryview, table_ids: Container[int]) -> Iterator[tuple[int, int, int, bytes]]:
    """(schema_version, table id, kind, row) of the rows of these tables. The rows of other tables are not read.
    DecodeError for damage that is met."""
    view = memoryview(binlog)
    found = envelope.scan(view)  # type: ignore[arg-type]  # it only reads single bytes and slices
    version, spans = _tables(view, found)
    for begin, end in spans:
        if _table_id(view, begin, end) not in table_ids:
            continue
        table = _Table(view, begin, end, lambda: None)
        following = {kind: table.rows(kind) for kind in _FIELD_OF_KIND}
        for kind in table.sequence:
            row = next(following[kind])
            yield version, table.id, kind, bytes(view[row.begin : row.end])


def _tables(view: memoryview, found: envelope.Envelope) -> tuple[int, list[tuple[int, int]]]:
    """The schema version of a transaction, and where its TableMutations are."""
    version, spans = 0, []
    for field in _fields(view, found.value_at, found.value_end):
        if field.number == _SCHEMA_VERSION and field.wire == _VARINT:
            version = decode_uvarint(view, field.begin)[0]  # type: ignore[arg-type]
        elif field.number == _MUTATIONS and field.wire == _BYTES:
            spans.append((field.begin, field.end))
    return version, spans


def _table_id(view: memoryview, begin: int, end: int) -> int:
    ids = (field.begin for field in _fields(view, begin, end) if (field.number, field.wire) == (_TABLE_ID, _VARINT))
    at = next(ids, None)
    return 0 if at is None else decode_uvarint(view, at)[0]  # type: ignore[arg-type]


class _Cutter:
    """Walks the tables of one transaction. `_tables`: finished TableMutations of the piece that is being filled."""

    def __init__(self, view: memoryview, found: envelope.Envelope, bytes_max: int, release: Callable[[], None]) -> None:
        self._view = view
        self._release = release
        self._found = found
        self._bytes_max = bytes_max
        self._version = 0
        self._tables: list[bytes] = []
        self._size = 0

    def pieces(self) -> Iterator[bytes]:
        self._version, spans = _tables(self._view, self._found)
        for begin, end in spans:
            yield from self._table(_Table(self._view, begin, end, self._release))
        if self._tables:
            yield self._flush()

    def _table(self, table: _Table) -> Iterator[bytes]:
        """Do not split between two identical changes, up to a limit: while REORGANIZE PARTITION runs, TiDB writes a
        row's change twice in a row, and the code that removes the second must see both."""
        view, bytes_max = self._view, self._bytes_max
        rows = {kind: bytearray() for kind in _FIELD_OF_KIND}
        following = {kind: table.rows(kind) for kind in _FIELD_OF_KIND}
        sequence = bytearray()
        last = (0, 0)
        for kind in table.sequence:
            field = next(following[kind])
            if self._size >= bytes_max and (
                self._size >= 2 * bytes_max or view[last[0] : last[1]] != view[field.begin : field.end]
            ):
                self._close(table, rows, sequence)
                yield self._flush()
                rows = {kind: bytearray() for kind in _FIELD_OF_KIND}
                sequence = bytearray()
            rows[kind] += view[field.at : field.end]
            sequence.append(kind)
            self._size += field.end - field.at + 2
            last = (field.begin, field.end)
        self._close(table, rows, sequence)

    def _close(self, table: _Table, rows: dict[int, bytearray], sequence: bytearray) -> None:
        """The rows so far become a TableMutation of this piece."""
        if sequence:
            kinds = bytearray(2 * len(sequence))
            kinds[0::2] = bytes((_SEQUENCE_TAG,)) * len(sequence)
            kinds[1::2] = sequence
            self._tables.append(b"\x08" + encode_uvarint(table.id & _U64) + b"".join(rows.values()) + kinds)

    def _flush(self) -> bytes:
        found = self._found
        value = [b"\x08", encode_uvarint(self._version)]
        for table in self._tables:
            value += (b"\x12", encode_uvarint(len(table)), table)
        self._tables, self._size = [], 0
        return envelope.encode_binlog(
            tp=found.tp,
            start_ts=found.start_ts,
            commit_ts=found.commit_ts,
            prewrite_key=bytes(self._view[found.key_at : found.key_end]),
            prewrite_value=b"".join(value),
        )


class _Table:
    """One TableMutation between two offsets. `sequence`: one byte per row. It has been checked that every kind is known
    and that there are as many rows of each kind as `sequence` lists."""

    def __init__(self, view: memoryview, begin: int, end: int, release: Callable[[], None]) -> None:
        self._view = view
        self._end = end
        self._release = release
        self.id = 0
        self.sequence = bytearray()
        self._first: dict[int, int] = {}
        self._counts = dict.fromkeys(_FIELD_OF_KIND.values(), 0)
        self._read(begin)
        self._check(begin)

    def _read(self, begin: int) -> None:
        view = self._view
        next_release = begin + RELEASE_BYTES
        for number, wire, at, value_at, value_end in _fields(view, begin, self._end):
            if at > next_release:
                self._release()
                next_release = at + RELEASE_BYTES
            if wire == _BYTES and number in self._counts:
                self._counts[number] += 1
                self._first.setdefault(number, at)
            elif number == _SEQUENCE and wire == _VARINT:
                self._add(decode_uvarint(view, value_at)[0])  # type: ignore[arg-type]
            elif number == _SEQUENCE and wire == _BYTES:  # packed
                offset = value_at
                while offset < value_end:
                    kind, offset = decode_uvarint(view, offset)  # type: ignore[arg-type]
                    self._add(kind)
            elif number == _TABLE_ID and wire == _VARINT:
                found = decode_uvarint(view, value_at)[0]  # type: ignore[arg-type]
                self.id = found - (1 << 64) if found >> 63 else found

    def _add(self, kind: int) -> None:
        if kind not in _FIELD_OF_KIND:
            raise DecodeError(
                f"mutations of table {self.id}", offset=len(self.sequence), detail=f"unknown mutation type {kind}"
            )
        self.sequence.append(kind)

    def _check(self, begin: int) -> None:
        for kind, number in _FIELD_OF_KIND.items():
            if self.sequence.count(kind) != self._counts[number]:
                detail = (
                    f"{self._counts[number]} rows of kind {kind}, but the sequence says {self.sequence.count(kind)}"
                )
                raise DecodeError(f"mutations of table {self.id}", offset=begin, detail=detail)

    def rows(self, kind: int) -> Iterator[_Field]:
        """The rows of one kind, in order."""
        number = _FIELD_OF_KIND[kind]
        for field in _fields(self._view, self._first.get(number, self._end), self._end):
            if field.number == number and field.wire == _BYTES:
                yield field


def _fields(view: memoryview, at: int, end: int) -> Iterator[_Field]:
    """The fields between two offsets. DecodeError where one does not end within them."""
    while at < end:
        begin = at
        try:
            tag = view[at]
            at += 1
            if tag > 127:
                tag, at = decode_uvarint(view, begin)  # type: ignore[arg-type]
            wire = tag & 7
            if wire == _BYTES:
                size = view[at]
                value_at = at + 1
                if size > 127:
                    size, value_at = decode_uvarint(view, at)  # type: ignore[arg-type]
                at = value_at + size
            elif wire == _VARINT:
                value_at = at
                at = decode_uvarint(view, at)[1]  # type: ignore[arg-type]
            elif wire in (_FIXED64, _FIXED32):
                value_at = at
                at += 8 if wire == _FIXED64 else 4
            else:
                raise DecodeError("PrewriteValue", offset=begin, detail=f"a field has wire type {wire}")
        except IndexError:
            at = end + 1
            value_at = begin
        if at > end or tag >> 3 == 0:
            raise DecodeError("PrewriteValue", offset=begin, detail="unexpected EOF in a field")
        yield _Field(tag >> 3, wire, begin, value_at, at)


_KINDS = {mutation.INSERT: Kind.INSERT, mutation.UPDATE: Kind.UPDATE, mutation.DELETE: Kind.DELETE}
_ROWID = b"\x08\x01\x08"  # column id -1 and the flag of its value, which ends a row without a clustered key
_ROWID_BYTES_MAX = len(_ROWID) + 10


class Scanned(NamedTuple):
    """One served binlog. payload[at:end] is the PrewriteValue with its rows, empty for a DDL. Sorts into upstream's
    order."""

    commit_ts: int
    start_ts: int
    payload: bytes
    at: int
    end: int


def scan(payload: bytes) -> Scanned:
    """DecodeError when the payload is no binlog."""
    found = envelope.scan(payload)
    at, end = (0, 0) if found.ddl_job_id else (found.value_at, found.value_end)
    return Scanned(found.commit_ts, found.start_ts, payload, at, end)


def prewrite_of(found: Scanned) -> mutation.Prewrite:
    """A PrewriteValue taken apart. DecodeError naming the commit_ts where it is damaged."""
    try:
        return mutation.parse_prewrite(found.payload[found.at : found.end])
    except DecodeError as err:
        raise err.within(f"binlog of commit_ts {found.commit_ts}") from None


def may_repeat(found: mutation.Mutation) -> bool:
    """Whether a table's rows may be in the transaction twice (see `rows`): they have a rowid, and not all are
    inserts."""
    return any(some and _ROWID in some[0][-_ROWID_BYTES_MAX:] for some in (found.updated, found.deleted))


def rows(found: Scanned) -> Iterator[tuple[int, int, Kind, bytes]]:
    """Yield (schema_version, table_id, kind, row) in the order of the transaction (W-02): table by table, rows by
    `sequence`.

    While REORGANIZE PARTITION runs, TiDB writes a row to the old and to the new partition, and the binlog has both
    changes. So an update or a delete is skipped if the change before it in the table is identical, rowid included. In
    tables with a key, folding removes such duplicates.

    Raises DecodeError, naming the commit_ts, if the PrewriteValue is damaged.
    """
    if found.at == found.end:
        return
    prewrite = prewrite_of(found)
    version = prewrite.schema_version
    last, of = b"", 0  # rowids are counted in each table: another one's row may look the same
    for number, kind, row in prewrite.rows():
        if row == last and number == of and kind != mutation.INSERT and _ROWID in row[-_ROWID_BYTES_MAX:]:
            continue
        last, of = row, number
        yield version, number, _KINDS[kind], row


CHANNEL = "channel_id"


# Such a drainer, in two-way replication with loopback-control, updates a row of its channel in the table of marks in
# every transaction that it writes. A drainer with the same channel id leaves these transactions out as a whole;
# otherwise two clusters that replicate into each other would write them to each other for ever. DDL has no marks:
# sync-ddl decides which direction replicates it.


class LoopbackFilter:
    """Leaves out the transactions of one channel. `left_out`: how many."""

    def __init__(self, marks: MarkTables | None) -> None:
        """`marks`: None: nothing is left out."""
        self.left_out = 0
        self._tables = marks.tables if marks is not None else {}
        self._channel_id = marks.channel_id if marks is not None else 0
        # A TableMutation contains its table's id. Searching for it is so quick that only the few transactions that may
        # have a mark are read here.
        self._ids = tuple(b"\x08" + encode_uvarint(table_id) for table_id in self._tables)

    def keep(self, payloads: Iterable[bytes]) -> Iterable[bytes]:
        """The served binlogs without those that are left out."""
        if not self._ids:
            return payloads
        kept = []
        for payload in payloads:
            for table_id in self._ids:
                if table_id in payload and self.is_marked(payload):
                    self.left_out += 1
                    break
            else:
                kept.append(payload)
        return kept

    def is_marked(self, payload: bytes | memoryview) -> bool:
        """Whether a row of the channel is anywhere in the transaction. False if it is damaged: decoding its rows raises
        the error."""
        if not self._ids:
            return False
        try:
            return any(self._channel_of(*row) == self._channel_id for row in rows_of_tables(payload, self._tables))
        except DecodeError:
            return False

    def _channel_of(self, version: int, table_id: int, kind: int, row: bytes) -> Datum:
        """The row's channel, after the change; None if it has none."""
        table = self._tables[table_id]
        info = table.infos[table.at(version)]
        column = next((column for column in info.columns if column.name.lower() == CHANNEL), None)
        if column is None:
            return None
        if kind == INSERT:
            return decode_insert(info, row)[1].get(column.id)
        values = decode_delete(info, row) if kind == DELETE else decode_update(row)[1]
        return values.get(column.id)


class PayloadCollector(LoopbackFilter):
    """Collects served binlogs without those of the channel, and uses those that come in order up whenever they have
    `flush_bytes`: the memory of a message is then reused for the next one."""

    def __init__(self, marks: MarkTables | None, flush_bytes: int) -> None:
        super().__init__(marks)
        self._payloads: list[bytes] = []
        self._bytes = 0  # of the binlogs added in order
        self._flush_bytes = flush_bytes

    def add_all(self, payloads: Iterable[bytes]) -> None:
        """Add served binlogs, in any order. If a transaction is added twice, one copy is used (rule 19)."""
        self._payloads.extend(self.keep(payloads))

    def add_in_order(self, payloads: Iterable[bytes], size: int) -> None:
        """Add binlogs that come after all that were added before, as one pump serves them, of `size` bytes together.
        Raises as `cut` of the subclass, and may raise ValueError for binlogs that are out of order."""
        self.add_all(payloads)
        self._bytes += size
        if self._bytes >= self._flush_bytes and self._payloads:
            self._flush()

    def _flush(self) -> None:
        """Use the collected binlogs up."""
        raise NotImplementedError
