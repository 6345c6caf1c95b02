"""Fold changes to the last state of each key (rules 9, 10, 12 and 21), which are then the net rows of tables. Pure.

Keys are columns of the bytes by which they are compared (rules 9: what may be folded, and 10: equal keys).

A change is one or two events: a key's row appears (INSERT), remains (UPDATE) or disappears (DELETE). A change of the
key is a DELETE of the old key and an INSERT of the new one. The previous state of a key is not checked: an inserted row
replaces one under its key, and a deleted row may be missing.

A batch may be split anywhere into parts. The states of its parts are merged by the same rule: the later row, the
earlier beginning, and every image that was written or read before that row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Folded, Key, Kind, NetRow, TableShape
from drainer.changes.texts import as_binary, as_string, data_of, fixed_width, numbers_of, text_of
from drainer.changes.vector import Ints, Mask, Words
from drainer.row.codec import Format
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass
from drainer.row.layout import WITH_FRACTION, FoldKey, Same, trim_fraction

_SIGN = np.uint64(1 << 63)
_IDENTITY_BYTES: Final = 9  # of a whole number


def identities(key: FoldKey, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
    """Return layout.identity of each row's key, a binary array. `columns`: those of all targets; the key's columns
    must be present and without NULLs."""
    parts = zip(key.columns, key.same, strict=True)
    return _united([_compared(column_types[at], columns[at], same) for at, same in parts if same is not Same.CONSTANT])


def _united(columns: Sequence[Any]) -> Any:
    """Join a key's columns, as compared: whole numbers, or binary."""
    if len(columns) == 1:
        (column,) = columns
        return column if column.type == pa.binary() else _number_identities(column)
    shown = []
    for column in columns:
        if column.type != pa.binary():
            shown += [b"\x01", _number_identities(column), b""]
        else:
            text = column
            if (data_of(text) == 0).any():
                text = pc.replace_substring(text, b"\0", b"\0\xff")
            shown += [b"\x02", text, b"\0\0"]
    joined = [part if not isinstance(part, bytes) else pa.scalar(part, pa.binary()) for part in (*shown, b"")]
    return pc.binary_join_element_wise(*joined)


def _number_identities(column: Any) -> Any:
    values = column.to_numpy(zero_copy_only=False)
    # modulo 2^64; the first byte tells whether the sum reached 2^64
    shifted: Words = values.view(np.uint64) + _SIGN
    octets = np.zeros((len(values), _IDENTITY_BYTES), np.uint8)
    octets[:, 1:] = shifted.astype(">u8").view(np.uint8).reshape(-1, 8)
    if column.type != pa.int64():
        octets[:, 0] = values >= _SIGN
    return fixed_width(octets, column)


def _compared(column_type: ColumnType, column: Any, same: Same) -> Any:
    """Return one column of a key as it is compared: whole numbers, or binary."""
    if column_type.type_class in NUMBERS:
        return numbers_of(column_type, column)
    text = text_of(column_type, column)
    if same is Same.PADDED and column_type.type_class is TypeClass.TEXT:
        if (data_of(text) == ord(" ")).any():
            return as_binary(pc.ascii_rtrim(as_string(text), " "))
        return text
    if same is Same.TRIMMED and column_type.type_class in WITH_FRACTION:
        if column_type.type_class is not TypeClass.DECIMAL:
            pointed = column_type.kind.decimal > 0
        elif pc.all(pc.match_substring(as_string(text), ".")).as_py():
            pointed = True
        else:  # each row has its own number of digits
            trimmed = [None if value is None else trim_fraction(value) for value in text.to_pylist()]
            return pa.array(trimmed, pa.binary())
        if pointed:
            return as_binary(pc.ascii_rtrim(pc.ascii_rtrim(as_string(text), "0"), "."))
    return text


def ranks(table: Ints, identity: Any) -> Words:
    """Return a number for each key: within a table in the order of identities, equal for equal keys. Identities of nine
    bytes that begin with 0, those of whole numbers, are compared as numbers, which is several times faster."""
    plain = _plain(identity)
    if plain.all():
        return _numbers(identity)
    texts = np.isin(table, table[~plain])
    rank: Words = np.empty(len(table), np.uint64)
    coded = identity.filter(pa.array(texts)).dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    of_code: Words = np.empty(len(order), np.uint64)
    of_code[order] = np.arange(len(order), dtype=np.uint64)
    rank[texts] = of_code[coded.indices.to_numpy()]
    if not texts.all():
        rank[~texts] = _numbers(identity.filter(pa.array(~texts)))
    return rank


def _plain(identity: Any) -> Mask:
    """Return which identities are of nine bytes that begin with 0."""
    lengths = pc.binary_length(identity).to_numpy(zero_copy_only=False).astype(np.int64)
    found: Mask = lengths == _IDENTITY_BYTES
    begins = np.cumsum(lengths) - lengths
    found[found] = data_of(identity)[begins[found]] == 0
    return found


def _numbers(identity: Any) -> Words:
    octets = data_of(identity).reshape(-1, _IDENTITY_BYTES)
    return np.ascontiguousarray(octets[:, 1:]).view(">u8").reshape(-1).astype(np.uint64)


IMAGES: Final = pa.list_(pa.binary())
_DELETE: Final = int(Kind.DELETE)


@dataclass(frozen=True, slots=True)
class KeyEvents:
    """Events, decoded together. `order`: of their changes, among all that are folded together; the two events of one
    change have different keys, and only events of one key are compared. `kind`: see work.Kind. `imaged`: the key can be
    written in several ways (FoldKey.imaged). `image`: the key as a destination matches it, of every event of an imaged
    key, and of every DELETE; else NULL. `read`: of an UPDATE of an imaged key, the key as it was before, else NULL;
    None if there are none. `rows`: from indexes of events to their rows, packed; it raises DecodeError for a value that
    cannot be written."""

    table: Ints
    identity: Any
    order: Ints
    commit_ts: Words
    sequence: Ints
    kind: Ints
    imaged: Mask
    image: Any
    read: Any | None
    rows: Callable[[Ints], Any]

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True)
class States:
    """The states of keys. Each key occurs once, in the order of (`table`, `identity`): table id and layout.identity.
    `first`: the kind of its first change, at (first_ts, first_sequence). `row`: its last row, packed, of (last_ts,
    last_sequence); NULL when the key is dead. `image`: the key as last written, if it can be written in several ways
    (FoldKey.imaged), else NULL. `gone`: the images to delete."""

    table: Ints
    identity: Any
    first: Ints
    first_ts: Words
    first_sequence: Ints
    last_ts: Words
    last_sequence: Ints
    row: Any
    image: Any
    gone: Any

    def __len__(self) -> int:
        return len(self.table)

    def take(self, chosen: Ints) -> States:
        """Return the chosen states; `chosen` must ascend."""
        of, columns = pa.array(chosen), (getattr(self, name) for name in STATES.names)
        return States(*(one[chosen] if isinstance(one, np.ndarray) else one.take(of) for one in columns))


# The columns of States as Arrow types; those of numbers are numpy arrays.
STATES: Final = pa.schema(
    [
        ("table", pa.int64()),
        ("identity", pa.binary()),
        ("first", pa.int64()),
        ("first_ts", pa.uint64()),
        ("first_sequence", pa.int64()),
        ("last_ts", pa.uint64()),
        ("last_sequence", pa.int64()),
        ("row", pa.binary()),
        ("image", pa.binary()),
        ("gone", IMAGES),
    ]
)
# nulls, because an array of Python values would load pandas (drainer.spark.startup.worker_imports).
NO_STATES: Final = States(
    *(np.zeros(0, str(of)) if pa.types.is_integer(of) else pa.nulls(0, of) for of in STATES.types)
)


class _Groups:
    """Elements grouped by key, keys in order. `key_of`: the key's number for each element; `first`, `last`: the first
    and last element of each key."""

    __slots__ = ("first", "key_of", "last")

    def __init__(self, table: Ints, rank: Words, *by: Any) -> None:
        """`by`: arrays by which the elements of one key are ordered, the least important first."""
        order = np.lexsort((*by, rank, table))
        tables, ranked = table[order], rank[order]
        begins = np.concatenate([[True], (ranked[1:] != ranked[:-1]) | (tables[1:] != tables[:-1])])
        starts = np.flatnonzero(begins)
        self.key_of: Ints = np.empty(len(order), np.int64)
        self.key_of[order] = np.cumsum(begins) - 1
        self.first: Ints = order[starts]
        self.last: Ints = order[np.append(starts[1:], len(order)) - 1]


def fold(parts: Sequence[KeyEvents]) -> States:
    """Return the states of the keys that some events touch. Raises as `KeyEvents.rows`."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_STATES
    table, order, kind, imaged = (_joined(parts, name) for name in ("table", "order", "kind", "imaged"))
    commit_ts, sequence = _joined(parts, "commit_ts"), _joined(parts, "sequence")
    identity, image = concatenated([part.identity for part in parts]), concatenated([part.image for part in parts])
    groups = _Groups(table, ranks(table, identity), order)
    first, last = groups.first, groups.last
    dead: Mask = kind[last] == _DELETE
    # Of a key that is written in only one way, the image matters only if the key is dead.
    chosen = imaged.copy()
    chosen[last[dead]] = True
    images, key_of = [image.filter(pa.array(chosen))], [groups.key_of[chosen]]
    begin = 0
    for part in parts:
        if part.read is not None:
            read = part.read.is_valid()
            images.append(part.read.filter(read))
            key_of.append(groups.key_of[begin : begin + len(part)][read.to_numpy(zero_copy_only=False)])
        begin += len(part)
    shown = image.take(pa.array(np.where(imaged[last], last, 0), mask=~imaged[last]))
    return States(
        table[last],
        identity.take(pa.array(last)),
        kind[first],
        commit_ts[first],
        sequence[first],
        commit_ts[last],
        sequence[last],
        _rows(parts, last, dead),
        shown,
        _gone(concatenated(images), np.concatenate(key_of), shown, dead),
    )


def merge(parts: Sequence[States]) -> States:
    """Merge the states of several parts of a batch."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NO_STATES
    table, first_ts, first_sequence = (_joined(parts, name) for name in ("table", "first_ts", "first_sequence"))
    last_ts, last_sequence = _joined(parts, "last_ts"), _joined(parts, "last_sequence")
    identity, row, image, gone = (
        pa.concat_arrays([getattr(part, name) for part in parts]) for name in ("identity", "row", "image", "gone")
    )
    rank = ranks(table, identity)
    groups = _Groups(table, rank, last_sequence, last_ts)
    last, begun = groups.last, _Groups(table, rank, first_sequence, first_ts).first
    of = pa.array(last)
    row, shown = row.take(of), image.take(of)
    written = image.is_valid()
    images = concatenated([image.filter(written), gone.flatten()])
    key_of = [groups.key_of[written.to_numpy(zero_copy_only=False)], groups.key_of[pc.list_parent_indices(gone)]]
    dead = row.is_null().to_numpy(zero_copy_only=False)
    return States(
        table[last],
        identity.take(of),
        _joined(parts, "first")[begun],
        first_ts[begun],
        first_sequence[begun],
        last_ts[last],
        last_sequence[last],
        row,
        shown,
        _gone(images, np.concatenate(key_of), shown, dead),
    )


def _joined(parts: Sequence[Any], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in parts])


def concatenated(arrays: Sequence[Any]) -> Any:
    """Return one array of all; there is at least one."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _rows(parts: Sequence[KeyEvents], last: Ints, dead: Mask) -> Any:
    """Return each key's last row, packed; NULL if the key is dead. `last`: each key's last event."""
    # Events are numbered through all parts; the part of an event is the first whose end is above its number. The keys
    # are grouped by part, so that each part packs its rows at once; `row_of` then leads from a key to its packed row.
    ends = np.cumsum([len(part) for part in parts])
    live = np.flatnonzero(~dead)
    of = np.searchsorted(ends, last[live], side="right")
    by_part = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[by_part], np.arange(len(parts) + 1))
    row_of = np.full(len(last), -1, np.int64)
    found = []
    for number, part in enumerate(parts):
        mine = live[by_part[bounds[number] : bounds[number + 1]]]
        if mine.size:
            found.append(part.rows(last[mine] - (ends[number] - len(part))))
            row_of[mine] = np.arange(bounds[number], bounds[number + 1])
    if not found:
        return pa.nulls(len(last), pa.binary())
    rows = concatenated(found)
    if len(found) == 1 and len(rows) == len(last):
        return rows
    return rows.take(pa.array(row_of, mask=dead))


def _gone(images: Any, key_of: Ints, last: Any, dead: Mask) -> Any:
    """Return for each key the images to delete: those of `images`, whose keys are `key_of`, that differ from the one
    that is written last; all of them if the key is dead. `last`: of each key, NULL if it is written in only one way."""
    found: dict[int, set[bytes]] = {}
    if len(images):
        other = pc.fill_null(pc.not_equal(images, last.take(pa.array(key_of))), False)
        goes = other.to_numpy(zero_copy_only=False) | dead[key_of]
        for key, image in zip(key_of[goes].tolist(), images.filter(pa.array(goes)).to_pylist(), strict=True):
            found.setdefault(key, set()).add(image)
    lengths = np.zeros(len(dead) + 1, np.int32)
    values: list[bytes] = []
    for key in sorted(found):
        values += sorted(found[key])
        lengths[key + 1] = len(found[key])
    return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), pa.array(values, pa.binary()))


_KINDS = tuple(Kind)
_COMMA = 1


@dataclass(eq=False, slots=True)
class Tuples(Sequence[bytes]):
    """The texts of VALUES tuples, stored in one buffer one after another, each followed by a comma. `_offsets`: the
    offset of each tuple, and the end offset of the last one."""

    _data: memoryview
    _offsets: Ints

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Tuples: ...

    def __getitem__(self, at: int | slice) -> bytes | Tuples:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "neighbours alone lie behind one another"
            return Tuples(self._data, self._offsets[begin : max(begin, end) + 1])
        index = range(len(self))[at]
        return bytes(self._data[self._offsets[index] : self._offsets[index + 1] - _COMMA])

    def lines(self) -> memoryview:
        """Return all texts, each followed by a comma, without copying."""
        return self._data[self._offsets[0] : self._offsets[-1]]

    def joined(self) -> bytes:
        """Return all texts, separated by commas: the body of a statement."""
        return bytes(self._data[self._offsets[0] : self._offsets[-1] - _COMMA]) if len(self) else b""


@dataclass(eq=False, slots=True)
class NetColumns(Sequence[NetRow]):
    """The net rows of one table, in the order of their identities. The arrays are as in States, `_gone` None if there
    are no images to delete; the sequence has those from `_begin` to `_end` (-1: all that follow)."""

    _format: Format
    _identity: Any
    _first: Ints
    _rows: Any
    _gone: Any | None = None
    _begin: int = 0
    _end: int = -1

    def __post_init__(self) -> None:
        self._end = len(self._identity) if self._end < 0 else self._end

    def __len__(self) -> int:
        return self._end - self._begin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    @overload
    def __getitem__(self, at: int) -> NetRow: ...

    @overload
    def __getitem__(self, at: slice) -> NetColumns: ...

    def __getitem__(self, at: int | slice) -> NetRow | NetColumns:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "neighbours alone are a part of it"
            begin, end = self._begin + begin, self._begin + max(begin, end)
            return NetColumns(self._format, self._identity, self._first, self._rows, self._gone, begin, end)
        index = range(len(self))[at]
        (row,) = self[index : index + 1]
        return row

    def __iter__(self) -> Iterator[NetRow]:
        count = len(self)
        identities, rows = (one.slice(self._begin, count).to_pylist() for one in (self._identity, self._rows))
        kinds = self._first[self._begin : self._end].tolist()
        gone = [None] * count if self._gone is None else self._gone.slice(self._begin, count).to_pylist()
        unpack = self._format.unpack
        for identity, kind, row, images in zip(identities, kinds, rows, gone, strict=True):
            keys = self._keys(images) if images else ()
            yield NetRow(identity, _KINDS[kind], None if row is None else unpack(row), keys)

    def _keys(self, images: Sequence[bytes]) -> tuple[Key, ...]:
        """Return keys from packed images, in an order that depends on nothing but the images."""
        return tuple(sorted(map(self._format.unpack, images), key=repr))

    def live(self) -> Tuples:
        """The texts of the rows that are alive, for a destination of the MySQL family. A dead row has length 0, so the
        texts of the others are adjacent."""
        rows = self._rows.slice(self._begin, len(self))
        _, bounds, data = rows.buffers()
        offsets = np.frombuffer(bounds, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
        if rows.null_count:
            alive = rows.is_valid().to_numpy(zero_copy_only=False)
            assert (np.diff(offsets)[~alive] == 0).all(), "a dead row has no text"
            offsets = np.append(offsets[:-1][alive], offsets[-1])
        return Tuples(memoryview(data if data is not None else b""), offsets)

    def stale(self) -> list[Key]:
        """The images to delete for all keys, in order."""
        if self._gone is None:
            return []
        offsets = self._gone.offsets.to_numpy()[self._begin : self._end + 1]
        with_images = self._begin + np.flatnonzero(np.diff(offsets))
        return [key for images in self._gone.take(pa.array(with_images)).to_pylist() for key in self._keys(images)]

    @property
    def sizes(self) -> Ints:
        """The length of each row's text; 0 for a dead row."""
        texts = self._rows.slice(self._begin, len(self))
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(self) + 1]
        return np.maximum(np.diff(offsets.astype(np.int64)) - _COMMA, 0)


def tables_of(table: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (table id, begin, end) of each run of rows of one table. `table`: the table id of each row."""
    begins = np.flatnonzero(np.diff(table, prepend=table[:1] - 1)).tolist()
    yield from zip(table[begins].tolist(), begins, [*begins[1:], len(table)], strict=bool(begins))


def folded_of(shapes: Mapping[int, TableShape], states: States, format_: Format) -> tuple[Folded, ...]:
    """Return the net rows of each table. `shapes`: by table id."""
    offsets = states.gone.offsets.to_numpy() if len(states) else []
    found = []
    for table_id, begin, end in tables_of(states.table):
        gone = states.gone if offsets[begin] < offsets[end] else None
        rows = NetColumns(format_, states.identity, states.first, states.row, gone, begin, end)
        found.append(Folded(shapes[table_id], rows))
    return tuple(found)


def columns_of(folded: Folded) -> NetColumns:
    """The net rows of a table as `folded_of` makes them, for a destination that writes their texts."""
    assert isinstance(folded.rows, NetColumns)
    return folded.rows


def joined(tuples: Sequence[bytes], between: bytes) -> bytes:
    """Join texts with a separator."""
    return tuples.joined() if isinstance(tuples, Tuples) and between == b"," else between.join(tuples)
