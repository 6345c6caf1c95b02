"""One table's keys within a segment. Pure: states in a dictionary, changes in upstream's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from drainer.batch.work import Key, Kind, NetRow, Row, TableShape
from drainer.row.codec import Codec
from drainer.row.key import identity
from drainer.row.program import UNUSUAL, Images

INSERT, UPDATE, DELETE = int(Kind.INSERT), int(Kind.UPDATE), int(Kind.DELETE)

# Of one key: first kind, its commit_ts and sequence, the last commit_ts and sequence, row (None: dead), image of the
# key as last written (None: the key itself), images written before that one.
State: TypeAlias = "tuple[int, int, int, int, int, Row | None, Images, tuple[Images, ...]]"

# One key's net state, ready to travel and to be merged with that of another part of the batch: identity, then as in
# State, but image and images as a destination takes them, and only those to delete.
NetState: TypeAlias = "tuple[bytes, int, int, int, int, int, Row | None, Key | None, tuple[Key, ...]]"
KINDS = tuple(Kind)


class TableFold:
    """Takes changes in the order of (commit_ts, sequence). What a change does not look at is what was there: a row that
    comes takes the place of one under its key, and one that goes may be missing (rule 21)."""

    __slots__ = ("key_row", "shape", "states")

    def __init__(self, codec: Codec) -> None:
        self.shape: TableShape = codec.shape
        self.key_row: Callable[[tuple[object, ...]], Key] = codec.key_row
        self.states: dict[object, State] = {}

    def insert(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        """The row b[at:end] of a transaction. DecodeError naming table and commit_ts, UnknownColumn."""
        try:
            found = codec.insert_program(b, at, end)
        except UNUSUAL:
            found = None
        key, image, row = found or codec.insert(b, at, end, commit_ts)
        last = self.states.get(key)
        if last is None:
            self.states[key] = (INSERT, commit_ts, sequence, commit_ts, sequence, row, image, ())
        else:
            self._put(key, last, image, row, commit_ts, sequence)

    def update(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        """A change of key is a delete of the old one and an insert of the new one."""
        try:
            found = codec.update_program(b, at, end)
        except UNUSUAL:
            found = None
        self._change(*(found or codec.update(b, at, end, commit_ts)), commit_ts, sequence)

    def _change(
        self, old_key: object, old_image: Images, key: object, image: Images, row: Row, commit_ts: int, sequence: int
    ) -> None:
        if old_key != key:
            self._remove(old_key, old_image, commit_ts, sequence)
            last = self.states.get(key)
            if last is None:
                self.states[key] = (INSERT, commit_ts, sequence, commit_ts, sequence, row, image, ())
            else:
                self._put(key, last, image, row, commit_ts, sequence)
            return
        last = self.states.get(key)
        if last is None:
            stale = _with((), old_image)
            self.states[key] = (UPDATE, commit_ts, sequence, commit_ts, sequence, row, image, stale)
            return
        self.states[key] = (*last[:3], commit_ts, sequence, row, image, _with(last[7], last[6], old_image))

    def delete(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        try:
            found = codec.delete_program(b, at, end)
        except UNUSUAL:
            found = None
        key, image = found or codec.delete(b, at, end, commit_ts)
        self._remove(key, image, commit_ts, sequence)

    def _put(self, key: object, last: State, image: Images, row: Row, commit_ts: int, sequence: int) -> None:
        """A new row under a key that the segment has touched before."""
        self.states[key] = (*last[:3], commit_ts, sequence, row, image, _with(last[7], last[6]))

    def _remove(self, key: object, image: Images, commit_ts: int, sequence: int) -> None:
        last = self.states.get(key)
        if last is None:
            self.states[key] = (DELETE, commit_ts, sequence, commit_ts, sequence, None, image, ())
            return
        self.states[key] = (*last[:3], commit_ts, sequence, None, image, _with(last[7], last[6]))

    def net_rows(self) -> list[NetRow]:
        """Every key's net row, by identity."""
        key_row, kinds = self.key_row, KINDS
        found: list[NetRow] = []
        for key, (first, _, _, _, _, row, image, stale) in self.states.items():
            gone: tuple[Key, ...] = ()
            if image is not None:
                gone = self._stale(row, image, stale)
            elif row is None:
                gone = (key_row(key if isinstance(key, tuple) else (key,)),)
            found.append(NetRow(identity(key), kinds[first], row, gone))
        found.sort()
        return found

    def net_states(self) -> list[NetState]:
        """Every key's state, in no order; see blob.py for what it is."""
        key_row = self.key_row
        found: list[NetState] = []
        for key, (first, first_ts, first_seq, ts, seq, row, image, stale) in self.states.items():
            written = None
            if image is not None:
                gone, written = self._stale(row, image, stale), key_row(image)
            elif row is None:
                gone = (key_row(key if isinstance(key, tuple) else (key,)),)
            else:
                gone = ()
            found.append((identity(key), first, first_ts, first_seq, ts, seq, row, written, gone))
        return found

    def _stale(self, row: Row | None, image: tuple[object, ...], stale: tuple[Images, ...]) -> tuple[Key, ...]:
        """All images to delete: not the one that is about to be written."""
        gone = [self.key_row(other) for other in stale if other is not None and other != image]
        if row is None:
            gone.append(self.key_row(image))
        return in_one_order(gone)


def in_one_order(images: Iterable[Key]) -> tuple[Key, ...]:
    """The same images give the same tuple, whichever way they were found."""
    return tuple(sorted(images, key=repr))


def _with(stale: tuple[Images, ...], *more: Images) -> tuple[Images, ...]:
    """Images, each once; tables whose keys have one image only keep none."""
    for image in more:
        if image is not None and image not in stale:
            stale = (*stale, image)
    return stale
