"""Fold the rows between two DDLs, or any part of them: binlogs in, net rows out, as columns for tables that support
them.

order.fold.FoldBuilder folds the tables that have no key by which rows may be folded, those whose rows must be placed
one by one, and input that is too small to be worth arrays. Each part of a distributed batch decides this for itself;
states of both forms are merged (changes.slots).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger

from drainer.batch.work import Folded, SegmentWork, TableShape
from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.net import States, merge, net_of
from drainer.changes.net_rows import NetColumns
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.slots import pack
from drainer.changes.vector import Mask
from drainer.order.fold import FoldBuilder
from drainer.row.codec import Codec
from drainer.row.decode import Decoder
from drainer.row.format import Format, check_row
from drainer.row.key import choose_key
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView

# Fewer bytes of binlogs than this (some 500 rows) are folded one after another, at some 6 µs a row: arrays cost more
# than two milliseconds for each table, however few rows there are (python -m bench.columns).
COLUMNS_BYTES_MIN: Final = 160 << 10
# A table must have this many rows, else its rows are also folded one by one.
COLUMNS_ROWS_MIN: Final = 500
# Offsets in a buffer, and in the text made of it, which may be several times as long, are 32-bit numbers.
SHARE_BYTES_MAX: Final = 64 << 20
# The most bytes of binlogs added in order that are held before they are folded.
FLUSH_BYTES: Final = 4 << 20

_log = get_logger(__name__)


class _NoColumns(Exception):
    """These rows cannot be read as columns, but can be folded row by row: a number exceeds its column's type, an old
    value that is not needed is bad, or the text exceeds the size of an array."""


class SegmentDecoder:
    """Decodes the rows of one view for a destination that writes a given format. Caches decoders; not thread-safe."""

    def __init__(
        self,
        view: SchemaView,
        format_: Format,
        *,
        columns_bytes_min: int = COLUMNS_BYTES_MIN,
        columns_rows_min: int = COLUMNS_ROWS_MIN,
    ) -> None:
        self.view = view
        self.format = format_
        self.rows = Decoder(view)
        self.columns = ColumnDecoder(view, decoder=self.rows)
        self.columns_bytes_min = columns_bytes_min
        self.columns_rows_min = columns_rows_min
        self._covered: dict[int, bool] = {}

    def covers(self, table_id: int) -> bool:
        """Return whether rows that have this table id can become columns."""
        found = self._covered.get(table_id)
        if found is None:
            found = self._covered[table_id] = self._covers(table_id)
        return found

    def _covers(self, table_id: int) -> bool:
        view = self.view
        versions = view.tables.get(table_id)
        if versions is None or table_id in view.relocations or table_id in view.relocated_ids.values():
            return False
        return bool(choose_key(versions.current).columns)


@dataclass
class _Table:
    """The folded part of one table."""

    shape: TableShape
    states: list[States] = field(default_factory=list)


class SegmentBuilder:
    """Collects a segment's binlogs, then returns their net rows once: `finish` returns all, `slots` divides them for a
    shuffle.

    Binlogs may be added in any order; the result does not depend on it (rule 16). Binlogs that are added in order
    (`add_in_order`) are folded after every few MiB and not kept. If two rows have one key, the later one remains (rule
    21), as if a batch had ended between them."""

    def __init__(self, decoder: SegmentDecoder) -> None:
        self._decoder = decoder
        self._payloads: list[bytes] = []
        self._bytes = 0
        # Table id in rows → whether its rows are decoded as columns; decided when the id first occurs. The callback
        # below refers to this dict and not to the builder: in a reference cycle, the builder's binlogs would stay in
        # memory until the garbage collector runs.
        ways = self._ways = dict[int, bool]()
        self._rest = FoldBuilder(
            decoder.rows,
            decoder.format,
            is_folded_elsewhere=lambda table_id: ways.get(table_id, False),
        )
        self._tables: dict[int, _Table] = {}
        self._change_count = 0
        self._source_bytes = 0
        self._folded_ts = 0

    def add_all(self, payloads: Iterable[bytes]) -> None:
        """Add served binlogs in any order."""
        self._payloads.extend(payloads)

    def add_in_order(self, payloads: Iterable[bytes], size: int) -> None:
        """Add binlogs that come after all that were added before, as one pump serves them, of `size` bytes together.
        Only `slots` may follow. Raises as `finish`, and ValueError for binlogs that are out of order.

        All binlogs are folded immediately, except those of the last commit_ts, for which more may follow. The memory of
        a message is then reused for the next one: getting new memory from the kernel costs as much as decoding."""
        self._payloads.extend(payloads)
        self._bytes += size
        if self._bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Fold the binlogs that were added in order, except those of the last commit_ts."""
        payloads = self._payloads
        scanned = self._scan(payloads)
        last_ts = int(scanned.commit_ts.max())
        if int(scanned.commit_ts.min()) <= self._folded_ts:
            raise ValueError(f"binlog of commit_ts {int(scanned.commit_ts.min())} after that of {self._folded_ts}")
        earlier = scanned.before(last_ts)
        self._payloads = [payloads[at] for at in np.flatnonzero(scanned.commit_ts == last_ts).tolist()]
        self._bytes = sum(map(len, self._payloads))
        if len(earlier.commit_ts):
            self._folded_ts = int(earlier.commit_ts.max())
            self._fold(earlier, payloads, in_order=True)

    def finish(self, after_ts: int, until_ts: int) -> SegmentWork:
        """Return net rows by (table id, identity).

        Raises DecodeError, TableUnknown, UnknownColumn or TableUnverified, naming the table and commit_ts of the first
        bad row."""
        assert not self._folded_ts, "what was added in order can only be cut into slots"
        try:
            if sum(map(len, self._payloads)) < self._decoder.columns_bytes_min:
                return self._finish_rows(after_ts, until_ts)
            try:
                return self._finish(after_ts, until_ts)
            except _NoColumns:
                return self._finish_rows(after_ts, until_ts)
        except (DecodeError, SchemaError) as error:
            self._raise_first(self._payloads, error)  # the first bad row of all shares, however they were decoded
            raise

    def _finish_rows(self, after_ts: int, until_ts: int) -> SegmentWork:
        """Fold row by row."""
        self._tables.clear()
        self._rest = FoldBuilder(self._decoder.rows, self._decoder.format)
        self._rest.add_all(self._payloads)
        return self._rest.finish(after_ts, until_ts)

    def _finish(self, after_ts: int, until_ts: int) -> SegmentWork:
        commit_ts = []
        for payloads in _shares(self._payloads):
            scanned = self._scan(payloads)
            self._fold(scanned, payloads, in_order=False, for_slots=False)
            commit_ts.append(scanned.commit_ts)
        commits = len(np.unique(np.concatenate(commit_ts)))
        rest = self._rest.finish(after_ts, until_ts)
        folded = [*rest.folded]
        for table in self._tables.values():
            if table.states:
                folded.append(Folded(table.shape, NetColumns.of(_merged(table.states), self._decoder.format)))
        folded.sort(key=lambda one: one.shape.table_id)
        count, size = rest.change_count + self._change_count, rest.source_bytes + self._source_bytes
        return SegmentWork(after_ts, until_ts, tuple(folded), rest.ordered, count, size, commits)

    def slots(self, count: int) -> dict[int, bytes]:
        """Return slot → blob for `slots.merge_slot`, for slots that have rows. Raises as `finish`. The binlogs may be
        any part of a segment."""
        for payloads in _shares(self._payloads):
            self._fold(self._scan(payloads), payloads, in_order=bool(self._folded_ts))
        tables = {id_: (table.shape, merge(table.states)) for id_, table in self._tables.items() if table.states}
        return pack(self._rest.slots(count), tables, count, self._change_count, self._source_bytes)

    def _scan(self, payloads: list[bytes]) -> Scanned:
        try:
            return scan_all(payloads)
        except DecodeError as error:
            self._raise_first(payloads, error)
            raise

    def _fold(self, scanned: Scanned, payloads: list[bytes], *, in_order: bool, for_slots: bool = True) -> None:
        """Fold binlogs that follow those folded before. Without `for_slots`, raises _NoColumns if rows cannot be
        columns."""
        try:
            try:
                covered = self._columns(scanned.rows)
            except (DecodeError, SchemaError, pa.ArrowException) as error:
                self._raise_first(payloads, error)
                _log.warning("columnar decoding failed for these rows: they are decoded row by row", why=str(error))
                if not for_slots:
                    raise _NoColumns from error
                covered = self._no_columns(scanned.rows)
            others = np.unique(scanned.rows.binlog[~covered])
            if len(others):
                rest = [payloads[at] for at in others.tolist()]
                self._source_bytes -= sum(map(len, rest))
                if in_order:
                    self._rest.add_in_order(rest)
                else:
                    self._rest.add_all(rest)
            self._decoder.rows.check_verified()
        except (DecodeError, SchemaError) as error:
            self._raise_first(payloads, error)
            raise
        self._source_bytes += scanned.source_bytes

    def _no_columns(self, rows: Rows) -> Mask:
        """Fold every table row by row from here on; states that exist already are merged with them (changes.slots)."""
        self._ways.update(dict.fromkeys([*self._ways, *np.unique(rows.table_id).tolist()], False))
        return np.zeros(len(rows), np.bool_)

    def _columns(self, rows: Rows) -> Mask:
        """Fold the rows that can be columns: all of them, or none if an error is raised. Returns which rows these
        are."""
        ids, counts = np.unique(rows.table_id, return_counts=True)
        for table_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
            if table_id not in self._ways:
                enough = count >= self._decoder.columns_rows_min
                self._ways[table_id] = enough and self._decoder.covers(table_id)
        covered = np.isin(rows.table_id, [one for one in ids.tolist() if self._ways[one]])
        mine = rows if covered.all() else rows.take(covered)
        decoder = self._decoder.columns
        groups = [(decoder.codec(group), group) for group in decoder.groups(mine)]
        changes: dict[int, list[Changes]] = {}
        codecs: dict[int, Codec] = {}
        count = 0
        for codec, group in groups:
            if codec is not None:
                count += len(group)
                codecs.setdefault(codec.shape.table_id, codec)
                some = changes.setdefault(codec.shape.table_id, [])
                some += decoder.decode_group(codec, group, whole=False)
        found = [
            (codec.shape, net_of(codec.layout.key, changes[table_id], self._decoder.format))
            for table_id, codec in codecs.items()
        ]
        for shape, states in found:
            if states is not None:
                self._tables.setdefault(shape.table_id, _Table(shape)).states.append(states)
        self._change_count += count
        return covered

    def _raise_first(self, payloads: list[bytes], error: Exception) -> None:
        """Decode row by row, and raise the error of the first row that has one."""
        decoder = Decoder(self._decoder.view)
        try:
            for row in decoder.rows(payloads):
                check_row(self._decoder.format, *row[:5])
            decoder.check_verified()
        except (DecodeError, SchemaError) as first:
            raise first from error


def _merged(states: Sequence[States]) -> States:
    """Merge states. Raises _NoColumns if they are too large for one array."""
    try:
        return merge(states)
    except pa.ArrowException as error:
        raise _NoColumns from error


def _shares(payloads: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the payloads in shares of at most SHARE_BYTES_MAX, or of one larger payload. A transaction in two shares is
    folded twice, which changes only the counts."""
    begin = size = 0
    for at, payload in enumerate(payloads):
        if size and size + len(payload) > SHARE_BYTES_MAX:
            yield payloads[begin:at]
            begin, size = at, 0
        size += len(payload)
    if begin < len(payloads):
        yield payloads[begin:]
