"""Folds the changes of each key between two DDLs to its net state (rules 9, 10 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from drainer.batch.work import Folded, KeyChange, Kind, Literals, Ordered, SegmentWork
from drainer.order.blob import pack_slots
from drainer.order.collector import collector_paused
from drainer.order.key_states import TableFold
from drainer.row.codec import Codec
from drainer.row.decode import DecodedRow, Decoder, in_order
from drainer.row.format import Format, written_literals
from drainer.row.transaction import INSERTED, KIND_OF_TAG, UPDATED, Scanned, rows, scan, start_ts_of

Lane = tuple[Codec, TableFold | None]


class FoldBuilder:
    """Collects a segment's binlogs, then returns their net rows, once: all by `finish`, or divided for a shuffle by
    `slots`.

    Binlogs may come in any order; the result does not depend on it (rule 16), and rows are decoded at the end. Binlogs
    that are added in order (`add_in_order`) are decoded at once and not kept. Of two rows with one key the later one
    remains (rule 21), as if a batch had ended between them.
    """

    def __init__(
        self,
        decoder: Decoder,
        format_: Format,
        *,
        is_folded_elsewhere: Callable[[int], bool] = lambda table_id: False,
    ) -> None:
        """`is_folded_elsewhere`: whether drainer.changes.segment folds the rows of a table id."""
        self._decoder = decoder
        self._format = format_
        self._is_folded_elsewhere = is_folded_elsewhere
        self._found: list[Scanned] = []
        self._folds: dict[int, TableFold] = {}
        self._lanes: dict[tuple[int, int], Lane | None] = {}
        # (transaction's place, sequence, change, transaction's payload) of tables that stay in order; first as they
        # were decoded: (transaction's place, row, transaction's payload).
        self._ordered: list[tuple[int, int, KeyChange, bytes]] = []
        self._unwritten: list[tuple[int, DecodedRow, bytes]] = []
        self._change_count = 0
        self._places = 0
        self._source_bytes = 0
        self._folded_ts = 0

    def add(self, payload: bytes) -> None:
        """Add one served binlog. DecodeError for an invalid one."""
        self._found.append(scan(payload))

    def add_all(self, payloads: Iterable[bytes]) -> None:
        """As `add`, faster for many."""
        with collector_paused():
            self._found += [scan(payload) for payload in payloads]

    def add_in_order(self, payloads: Iterable[bytes]) -> None:
        """Add binlogs that come after all that were added before, as one pump serves them. Only `slots` may follow.
        Raises as `finish`, and ValueError for binlogs that do not come after.

        They are folded at once, except those of the last commit_ts, which may have more. The memory of a message is
        then reused for the next one: getting new memory from the kernel costs as much as decoding.
        """
        with collector_paused():
            found = in_order(self._found + [scan(payload) for payload in payloads])
            if not found:
                return
            if found[0][0] <= self._folded_ts:
                raise ValueError(f"binlog of commit_ts {found[0][0]} after that of {self._folded_ts}")
            last_ts, kept = found[-1][0], len(found) - 1
            while kept and found[kept - 1][0] == last_ts:
                kept -= 1
            self._found = found[kept:]
            if kept:
                self._folded_ts = found[kept - 1][0]
                self._fold(found[:kept])
                for fold in self._folds.values():
                    fold.write()
                self._write()

    def finish(self, after_ts: int, until_ts: int) -> SegmentWork:
        """Net rows by (table id, identity).

        Raises DecodeError, TableUnknown, UnknownColumn or TableUnverified, which name the table and commit_ts.
        """
        with collector_paused():
            return self._finish(after_ts, until_ts)

    def _finish(self, after_ts: int, until_ts: int) -> SegmentWork:
        assert not self._folded_ts, "what was added in order can only be cut into slots"
        transactions = in_order(self._found)
        commits = len({one[0] for one in transactions})
        self._fold(transactions)
        folded = tuple(Folded(fold.shape, tuple(fold.net_rows())) for _, fold in sorted(self._folds.items()))
        self._write()
        ordered = self._ordered_changes()
        return SegmentWork(after_ts, until_ts, folded, ordered, self._change_count, self._source_bytes, commits)

    def slots(self, count: int) -> dict[int, bytes]:
        """Slot → blob for `blob.merge_slot`, for slots that have rows. Raises as `finish`. The binlogs may be any part
        of a segment."""
        with collector_paused():
            self._fold(in_order(self._found))
            self._write()
            self._ordered.sort(key=lambda entry: entry[:2])
            ordered = [(start_ts_of(payload), change) for _, _, change, payload in self._ordered]
            tables = [(fold.shape, fold.net_states()) for _, fold in sorted(self._folds.items())]
            return pack_slots(count, tables, ordered, self._change_count, self._source_bytes)

    def _ordered_changes(self) -> Ordered:
        self._ordered.sort(key=lambda entry: entry[:2])
        return Ordered(tuple([change for _, _, change, _ in self._ordered]))

    def _lane(self, table_id: int, version: int, commit_ts: int) -> Lane | None:
        """The fold for rows of a table and schema_version; None: they are skipped."""
        codec = None if self._is_folded_elsewhere(table_id) else self._decoder.codec(table_id, version, commit_ts)
        lane = self._lane_of(codec)
        self._lanes[table_id, version] = lane
        return lane

    def _lane_of(self, codec: Codec | None) -> Lane | None:
        if codec is None:
            return None
        fold = None
        if codec.shape.foldable:
            fold = self._folds.get(codec.shape.table_id)
            if fold is None:
                fold = self._folds[codec.shape.table_id] = TableFold(codec, self._format)
        return codec, fold

    def _fold(self, transactions: list[Scanned]) -> None:
        """Fold transactions in order; they come after those folded before."""
        lane: Lane | None = None
        of = (-1, -1)
        for place, one in enumerate(transactions, self._places):
            commit_ts, payload, tag, version, table_id, at, end = one
            if not tag:
                self._fold_many(place, one)
                continue
            if table_id != of[0] or version != of[1]:
                of = (table_id, version)
                lane = self._lanes.get(of) or self._lane(table_id, version, commit_ts)
            if lane is None:
                if self._decoder.has_relocated_rows:
                    self._fold_many(place, one)
                continue
            codec, fold = lane
            self._change_count += 1
            if fold is None:
                kind = KIND_OF_TAG[tag]
                old, new = codec.images(kind, payload[at:end], commit_ts)
                self._unwritten.append((place, DecodedRow(codec, kind, old, new, commit_ts, 0), payload))
            elif tag == INSERTED:
                fold.insert(codec, payload, at, end, commit_ts, 0)
            elif tag == UPDATED:
                fold.update(codec, payload, at, end, commit_ts, 0)
            else:
                fold.delete(codec, payload, at, end, commit_ts, 0)
        self._places += len(transactions)
        self._source_bytes += sum([len(one[1]) for one in transactions])
        self._decoder.check_verified()

    def _write(self) -> None:
        """Make literals of the rows that stay in order. DecodeError, naming table and commit_ts, of one that cannot be
        written, not always the first one."""
        unwritten, self._unwritten = self._unwritten, []
        literals = _literals(self._format, [row for _, row, _ in unwritten])
        for (place, row, payload), (old, new) in zip(unwritten, literals, strict=True):
            change = KeyChange(row.codec.shape, row.kind, old, new, row.commit_ts, row.sequence)
            self._ordered.append((place, row.sequence, change, payload))

    def _fold_many(self, place: int, one: Scanned) -> None:
        """A transaction of any number of rows and tables."""
        commit_ts = one[0]
        for sequence, (version, table_id, kind, row) in enumerate(rows(one)):
            lane = self._lanes.get((table_id, version)) or self._lane(table_id, version, commit_ts)
            if lane is None and self._decoder.has_relocated_rows and not self._is_folded_elsewhere(table_id):
                lane = self._lane_of(self._decoder.codec_of_row(table_id, version, commit_ts, kind, row))
            if lane is None:
                continue
            codec, fold = lane
            self._change_count += 1
            if fold is None:
                old, new = codec.images(kind, row, commit_ts)
                self._unwritten.append((place, DecodedRow(codec, kind, old, new, commit_ts, sequence), one[1]))
            elif kind is Kind.INSERT:
                fold.insert(codec, row, 0, len(row), commit_ts, sequence)
            elif kind is Kind.UPDATE:
                fold.update(codec, row, 0, len(row), commit_ts, sequence)
            else:
                fold.delete(codec, row, 0, len(row), commit_ts, sequence)


def _literals(format_: Format, rows: Sequence[DecodedRow]) -> list[tuple[Literals | None, Literals | None]]:
    """(old, new) of each row, written together with those of the same codec."""
    places: dict[Codec, list[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        for image in (0, 1):
            if row[2 + image] is not None:
                places.setdefault(row.codec, []).append((place, image))
    found: list[list[Literals | None]] = [[None, None] for _ in rows]
    for codec, chosen in places.items():
        cells = [rows[place].image(image) for place, image in chosen]
        stamps = [rows[place].commit_ts for place, _ in chosen]
        for (place, image), one in zip(chosen, written_literals(format_, codec, cells, stamps), strict=True):
            found[place][image] = one
    return [(old, new) for old, new in found]
