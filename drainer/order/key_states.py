"""Folds one table's changes within a segment to the state of each key, row by row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from binlog.errors import DecodeError

from drainer.batch.work import Key, Kind, NetRow, Row, TableShape
from drainer.row.codec import Codec
from drainer.row.decoded_value import DecodedValue
from drainer.row.fast_path import Cells
from drainer.row.format import Format, written
from drainer.row.key import identity

INSERT, UPDATE, DELETE = int(Kind.INSERT), int(Kind.UPDATE), int(Kind.DELETE)

# Of one key: first kind, its commit_ts and sequence, the last commit_ts and sequence, what is there (None: dead; a list
# of decoded values where it is not written yet), image of the key as last written (None: the key itself), images
# written before that one, and what decoded what is there.
State: TypeAlias = "tuple[int, int, int, int, int, Row | list[DecodedValue] | None, Key | None, tuple[Key, ...], Codec]"

# One key's net state, ready to travel and to be merged with that of another part of the batch: identity, then as in
# State, but only those images that are to be deleted.
NetState: TypeAlias = "tuple[bytes, int, int, int, int, int, Row | None, Key | None, tuple[Key, ...]]"
KINDS = tuple(Kind)


class TableFold:
    """Takes changes in the order of (commit_ts, sequence). The previous state of a key is not checked: an inserted row
    replaces one under its key, and a deleted row may be missing (rule 21).

    Rows are kept as decoded and converted to the destination's format together, at the end: only the last row of each
    key is converted."""

    __slots__ = ("_column_types", "_format", "_images", "_unwritten", "shape", "states")

    def __init__(self, codec: Codec, format_: Format) -> None:
        self.shape: TableShape = codec.shape
        self.states: dict[object, State] = {}
        self._format = format_
        self._column_types = [codec.column_types[at] for at in codec.shape.key]
        # Of each codec what writes a key, where two keys may be the same and yet be written differently.
        self._images: dict[Codec, Callable[[Cells], Key]] | None = {} if codec.layout.key.imaged else None
        self._unwritten: list[object] = []

    def insert(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        """The row b[at:end] of a transaction. DecodeError naming table and commit_ts, UnknownColumn."""
        cells = codec.insert(b, at, end, commit_ts)
        try:
            key = codec.key_of(cells)
        except DecodeError as error:
            codec.fail(error, commit_ts)
        self._put(key, codec, cells, commit_ts, sequence)

    def update(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        """An update that changes the key is folded as a delete of the old key and an insert of the new one. Raises what
        `insert` raises."""
        old, new = codec.update(b, at, end, commit_ts)
        try:
            old_key, key = codec.key_of(old), codec.key_of(new)
        except DecodeError as error:
            codec.fail(error, commit_ts)
        self._change(old_key, key, codec, old, new, commit_ts, sequence)

    def delete(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        cells = codec.delete(b, at, end, commit_ts)
        try:
            key = codec.key_of(cells)
        except DecodeError as error:
            codec.fail(error, commit_ts)
        self._remove(key, codec, cells, commit_ts, sequence)

    def _change(
        self,
        old_key: object,
        key: object,
        codec: Codec,
        old: list[DecodedValue],
        new: list[DecodedValue],
        commit_ts: int,
        sequence: int,
    ) -> None:
        if old_key != key:
            self._remove(old_key, codec, old, commit_ts, sequence)
            self._put(key, codec, new, commit_ts, sequence)
            return
        last = self.states.get(key)
        stale: tuple[Key, ...] = ()
        image = None
        if self._images is not None:
            image, before = self._image(codec, new, commit_ts), self._image(codec, old, commit_ts)
            stale = _with((), before) if last is None else _with(last[7], last[6], before)
        self._unwritten.append(key)
        if last is None:
            self.states[key] = (UPDATE, commit_ts, sequence, commit_ts, sequence, new, image, stale, codec)
        else:
            self.states[key] = (last[0], last[1], last[2], commit_ts, sequence, new, image, stale, codec)

    def _put(self, key: object, codec: Codec, cells: list[DecodedValue], commit_ts: int, sequence: int) -> None:
        """Store a new row, whether or not its key has one."""
        image = None if self._images is None else self._image(codec, cells, commit_ts)
        self._unwritten.append(key)
        last = self.states.get(key)
        if last is None:
            self.states[key] = (INSERT, commit_ts, sequence, commit_ts, sequence, cells, image, (), codec)
            return
        stale = () if image is None else _with(last[7], last[6])
        self.states[key] = (last[0], last[1], last[2], commit_ts, sequence, cells, image, stale, codec)

    def _remove(self, key: object, codec: Codec, cells: list[DecodedValue], commit_ts: int, sequence: int) -> None:
        image = None if self._images is None else self._image(codec, cells, commit_ts)
        last = self.states.get(key)
        if last is None:
            self.states[key] = (DELETE, commit_ts, sequence, commit_ts, sequence, None, image, (), codec)
            return
        stale = () if image is None else _with(last[7], last[6])
        self.states[key] = (last[0], last[1], last[2], commit_ts, sequence, None, image, stale, codec)

    def _image(self, codec: Codec, cells: Cells, commit_ts: int) -> Key:
        """The key as a destination matches it."""
        images = self._images
        assert images is not None
        write = images.get(codec)
        if write is None:
            write = images[codec] = self._format.key_writer([codec.column_types[at] for at in self.shape.key])
        try:
            return write([cells[at] for at in self.shape.key])
        except DecodeError as error:
            codec.fail(error, commit_ts)

    def key_row(self, key: object) -> Key:
        """A key, as compared, as a destination matches it."""
        return self._format.compared_key(self._column_types, key if isinstance(key, tuple) else (key,))

    def write(self) -> None:
        """Convert the current rows to the destination's format. DecodeError naming table and commit_ts."""
        states = self.states
        for key, row in self._written().items():
            state = states[key]
            states[key] = (*state[:5], row, *state[6:])

    def _written(self) -> dict[object, Row]:
        """The rows, by key, that have not been converted yet."""
        unwritten, self._unwritten = self._unwritten, []
        found: dict[Codec, dict[object, State]] = {}
        for key in unwritten:
            state = self.states[key]
            if type(state[5]) is list:
                codec = state[8]
                of = found.get(codec)
                if of is None:
                    of = found[codec] = {}
                of[key] = state
        rows: dict[object, Row] = {}
        for codec, states in found.items():
            cells, stamps = [s[5] for s in states.values()], [s[3] for s in states.values()]
            rows.update(zip(states, written(self._format, codec, cells, stamps), strict=True))  # type: ignore[arg-type]
        return rows

    def net_rows(self) -> list[NetRow]:
        """Every key's net row, by identity. Callable once: the result is not kept."""
        kinds = KINDS
        found = [NetRow(state[0], kinds[state[1]], state[6], state[8]) for state in self.net_states()]
        found.sort()
        return found

    def net_states(self) -> list[NetState]:
        """Every key's state, in no order; its form is in blob.py. Callable once."""
        written_now = self._written()
        found: list[NetState] = []
        for key, (first, first_ts, first_seq, ts, seq, row, image, stale, _) in self.states.items():
            shown = written_now[key] if isinstance(row, list) else row
            gone: tuple[Key, ...] = ()
            if image is not None:
                gone = _gone(shown, image, stale)
            elif row is None:
                gone = (self.key_row(key),)
            found.append((identity(key), first, first_ts, first_seq, ts, seq, shown, image, gone))
        return found


def _gone(row: object, image: Key, stale: tuple[Key, ...]) -> tuple[Key, ...]:
    """All images to delete, without the one that will be written."""
    gone = [other for other in stale if other != image]
    if row is None:
        gone.append(image)
    return in_one_order(gone)


def in_one_order(images: Iterable[Key]) -> tuple[Key, ...]:
    """Sorts images, so that the same images give the same tuple."""
    return tuple(sorted(images, key=repr))


def _with(stale: tuple[Key, ...], *more: Key | None) -> tuple[Key, ...]:
    """Add an image, once; tables whose keys have only one image keep none."""
    for image in more:
        if image is not None and image not in stale:
            stale = (*stale, image)
    return stale
