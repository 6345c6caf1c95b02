"""Locate the rows of many served binlogs, as arrays. This is the code on which the drainer spends the most time.

Transactions of one row, as TiDB writes them, are read together in their joined bytes. `drainer.row.transaction` reads
all others, and their rows are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from binlog.tidb import mutation

from drainer.batch.work import Kind
from drainer.changes.vector import Buffer, Ints, Mask, Words, packed_groups
from drainer.row.transaction import Scanned as Found
from drainer.row.transaction import may_repeat, prewrite_of, rows, scan

_U64 = np.uint64
_LOW7 = _U64(0x7F7F7F7F7F7F7F7F)
_MORE = _U64(0x8080808080808080)
_HEAD_BYTES = 24  # tp and two TSOs of nine bytes, each after its tag, then the tag and the length of the key
_TAIL = 0x00400038  # no DDL job: the end of a binlog of rows
# A source whose rows each have a binlog of their own writes above this bit of start_ts how rows of one commit_ts follow
# each other (drainer/ticdc/binlogs.py). A TSO reaches it in 2109.
RANK_BITS = _U64(60)
# Padding after a row. No column begins with these bytes, so a row that lacks its last columns is recognized.
_BETWEEN = b"\xff"
# A row's tag, the `sequence` field of a single row, and the tag of its kind.
_SINGLES = ((0x12, 0x0038, Kind.INSERT), (0x1A, 0x0138, Kind.UPDATE), (0x32, 0x0438, Kind.DELETE))
_KINDS = {mutation.INSERT: int(Kind.INSERT), mutation.UPDATE: int(Kind.UPDATE), mutation.DELETE: int(Kind.DELETE)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a buffer, in ascending order of `begin`; all arrays have one length. `kind`: see plan.Kind. `order`: the
    row's number in upstream's order, by (commit_ts, start_ts, sequence), among all rows that were scanned together.
    `binlog`: the index of its binlog there."""

    buffer: Buffer
    commit_ts: Words
    start_ts: Words
    sequence: Ints
    version: Ints
    table_id: Ints
    kind: Ints
    begin: Ints
    end: Ints
    order: Ints
    binlog: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, chosen: Ints | Mask) -> Rows:
        """Return the chosen rows; `chosen` must ascend."""
        return Rows(self.buffer, *(getattr(self, name)[chosen] for name in _PER_ROW))

    def row(self, number: int) -> bytes:
        """Return one row's bytes."""
        return self.buffer.data[self.begin[number] : self.end[number]]


_PER_ROW = tuple(field.name for field in fields(Rows) if field.name != "buffer")


@dataclass(frozen=True, slots=True)
class Scanned:
    """`commit_ts`, `sizes`: for each binlog, in the order given; `unique`: False for a binlog that is a duplicate."""

    rows: Rows
    commit_ts: Words
    sizes: Ints
    unique: Mask

    @property
    def source_bytes(self) -> int:
        return int(self.sizes[self.unique].sum())

    def before(self, commit_ts: int) -> Scanned:
        """Return the result without the binlogs from `commit_ts` on, as if they had not been given. Rows keep their
        `binlog`.
        """
        earlier = self.commit_ts < commit_ts
        rows = self.rows.take(self.rows.commit_ts < commit_ts)
        return Scanned(rows, self.commit_ts[earlier], self.sizes[earlier], self.unique[earlier])


def scan_all(payloads: Sequence[bytes]) -> Scanned:
    """Return every row of served binlogs, given in any order. Of a transaction that occurs twice (rule 19: one
    transaction on several pumps), one copy counts.

    Raises DecodeError for the first payload that is not a binlog, naming the commit_ts if it can be read."""
    single = _Singles(payloads)
    several = _Several()
    for number in np.flatnonzero(~single.found).tolist():
        several.add(number, payloads[number], single)
    commit_ts, start_ts = single.commit_ts, single.start_ts
    for number, (commit, start) in several.timestamps.items():
        commit_ts[number], start_ts[number] = commit, start
    rank, unique = _ranked(commit_ts, start_ts)
    chosen = np.flatnonzero(single.found & unique)
    found = _joined(payloads, single, chosen, several, unique)
    of = found.order  # until here the transaction's number
    order = rank[of]
    if len(several.rows):
        by_order = np.lexsort((found.sequence, order))
        order = np.empty(len(found), np.int64)
        order[by_order] = np.arange(len(found))
    sequence = found.sequence + (start_ts[of] >> RANK_BITS).view(np.int64)
    rows = Rows(
        found.buffer, commit_ts[of], start_ts[of], sequence, found.version, found.table_id, found.kind,
        found.begin, found.end, order, of,
    )  # fmt: skip
    return Scanned(rows, commit_ts, single.sizes, unique)


def _ranked(commit_ts: Words, start_ts: Words) -> tuple[Ints, Mask]:
    """Return the rank of every transaction in upstream's order, and whether it is the first copy."""
    count = len(commit_ts)
    unique = np.ones(count, np.bool_)
    if count < 2 or bool((commit_ts[1:] > commit_ts[:-1]).all()):
        return np.arange(count), unique
    by_order = np.lexsort((start_ts, commit_ts))
    commits, starts = commit_ts[by_order], start_ts[by_order]
    unique[by_order[1:]] = (commits[1:] != commits[:-1]) | (starts[1:] != starts[:-1])
    rank = np.empty(count, np.int64)
    rank[by_order] = np.arange(count)
    return rank, unique


class _Singles:
    """Transactions of one row. `found`: those in TiDB's usual form; the fields of the others are meaningless. `whole`:
    those with a PrewriteValue at its usual offset, with any number of rows: it is at `value_at` to `value_end`."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.sizes: Ints = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self.buffer = buffer = Buffer(payloads)
        self.base: Ints = np.cumsum(self.sizes) - self.sizes
        base = self.base
        stop = base + self.sizes
        # The head is 08 tp 10 start_ts 18 commit_ts 22 length. Of the nine bytes of a timestamp eight have the varint's
        # continuation bit, and are read as one word; the ninth has it not, and is read in one word with the tag behind
        # it: `middle` begins with the last byte of start_ts, `last` with that of commit_ts.
        # PAD has room for the head of a truncated binlog.
        start, commit = buffer.words(base + 3), buffer.words(base + 13)
        first, middle, last = buffer.words(base), buffer.words(base + 11), buffer.words(base + 21)
        key_size = (last >> _U64(16)) & _U64(0xFF)
        self.found: Mask = (
            (self.sizes > _HEAD_BYTES)
            & (first & _U64(0xFFFFFF) == _U64(0x100108))
            & (middle & _U64(0xFF80) == _U64(0x1800))
            & (last & _U64(0xFF80) == _U64(0x2200))
            & (key_size < _U64(128))
            & (start & commit & _MORE == _MORE)
        )
        self.start_ts: Words = packed_groups(start & _LOW7) | (middle & _U64(0x7F)) << _U64(56)
        self.commit_ts: Words = packed_groups(commit & _LOW7) | (last & _U64(0x7F)) << _U64(56)
        self._body(buffer.clip(base + _HEAD_BYTES + key_size.astype(np.int64)), stop)

    def _field(self, at: Ints, tag: int) -> tuple[Ints, Ints]:
        """Return (value of a varint field or length of a bytes field, position after it)."""
        buffer = self.buffer
        self.found &= buffer.octets[at] == tag
        value, size = buffer.uvarint(at + 1)
        # Larger than the buffer: neither a length nor an id that TiDB assigns.
        self.found &= (size > 0) & (value < _U64(1 << 62))
        return value.astype(np.int64), buffer.clip(at + 1 + size)

    def _body(self, at: Ints, stop: Ints) -> None:
        """Read the PrewriteValue of one TableMutation of one row."""
        buffer = self.buffer
        size, at = self._field(at, 0x2A)
        end = at + size
        self.found &= end + 4 == stop
        end = np.where(self.found, end, at)
        self.found &= buffer.words(end) & _U64(0xFFFFFFFF) == _U64(_TAIL)
        self.whole, self.value_at, self.value_end = self.found.copy(), at, end
        self.version, at = self._field(at, 0x08)
        size, at = self._field(at, 0x12)
        self.found &= at + size == end
        self.table_id, at = self._field(at, 0x08)
        tag = buffer.octets[at]
        size, self.begin = self._field(at, tag)  # type: ignore[arg-type]
        self.end: Ints = np.where(self.found, self.begin + size, self.begin)
        self.found &= self.end + 2 == end
        self.end = np.where(self.found, self.end, self.begin)
        sequence = buffer.words(self.end) & _U64(0xFFFF)
        self.kind = np.full(len(at), -1, np.int64)
        for of, says, kind in _SINGLES:
            self.kind[(tag == of) & (sequence == _U64(says))] = int(kind)
        self.found &= self.kind >= 0


class _Several:
    """The rows of all other transactions, one after another. For each run of rows: its transaction, version, table id
    and length."""

    def __init__(self) -> None:
        self.timestamps: dict[int, tuple[int, int]] = {}
        self.rows: list[bytes] = []
        self.kinds: list[int] = []
        self.runs: list[tuple[int, int, int, int]] = []

    def add(self, number: int, payload: bytes, single: _Singles) -> None:
        if single.whole[number]:
            base = int(single.base[number])
            at, end = int(single.value_at[number]) - base, int(single.value_end[number]) - base
            found = Found(int(single.commit_ts[number]), int(single.start_ts[number]), payload, at, end)
        else:
            found = scan(payload)
        self.timestamps[number] = found.commit_ts, found.start_ts
        if found.at == found.end:
            return
        prewrite = prewrite_of(found)
        if any(map(may_repeat, prewrite.mutations)):
            self._one_by_one(number, found)
            return
        for table in prewrite.mutations:
            self.runs.append((number, prewrite.schema_version, table.table_id, len(table.sequence)))
            self.kinds += map(_KINDS.__getitem__, table.sequence)
            if len(table.inserted) == len(table.sequence):
                self.rows += table.inserted
            else:
                self.rows += [row for _, _, row in table.rows()]

    def _one_by_one(self, number: int, found: Found) -> None:
        for version, table_id, kind, row in rows(found):
            self.rows.append(row)
            self.kinds.append(int(kind))
            self.runs.append((number, version, table_id, 1))

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return for each row: its transaction, version, table id, and its index in the transaction."""
        runs = np.array(self.runs, np.int64).reshape(-1, 4)
        lengths = runs[:, 3]
        of, version, table_id = (np.repeat(runs[:, at], lengths) for at in range(3))
        begins = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]])) if len(of) else np.zeros(0, np.int64)
        sizes = np.diff(np.append(begins, len(of)))
        # A row's index in its transaction is its index among all rows, less that of the transaction's first row.
        return of, version, table_id, np.arange(len(of)) - np.repeat(begins, sizes)


def _joined(payloads: Sequence[bytes], single: _Singles, chosen: Ints, several: _Several, unique: Mask) -> Rows:
    """Join the rows of both; `order` is the index of each row's transaction."""
    none = np.zeros(0, _U64)
    alone = Rows(
        single.buffer, none, none, np.zeros(len(chosen), np.int64), single.version[chosen], single.table_id[chosen],
        single.kind[chosen], single.begin[chosen], single.end[chosen], chosen, chosen,
    )  # fmt: skip
    if not several.rows:
        return alone
    of, version, table_id, sequence = several.arrays()
    kept = unique[of]
    sizes = np.fromiter(map(len, several.rows), np.int64, len(several.rows))
    whole = Buffer([single.buffer.data, *several.rows], _BETWEEN) if len(chosen) else Buffer(several.rows, _BETWEEN)
    # In the new buffer a byte of padding follows every part: the buffer of the single rows, then each of these rows.
    begin = np.cumsum(sizes + 1) - sizes - 1 + (len(single.buffer.data) + 1 if len(chosen) else 0)
    fields = (sequence, version, table_id, np.array(several.kinds, np.int64), begin, begin + sizes, of, of)
    more = Rows(whole, none, none, *(one[kept] for one in fields))
    if not len(chosen):
        return more
    names = ("sequence", "version", "table_id", "kind", "begin", "end", "order", "binlog")
    both = {name: np.concatenate([getattr(alone, name), getattr(more, name)]) for name in names}
    return Rows(whole, none, none, **both)
