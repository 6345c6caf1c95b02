"""Read documents of one shape (json_shape.py) together: one step for each part of the shape, not for each document.

A step reads at one position of each document and advances the position. Documents that turn out to have another shape
are still read; their positions are then meaningless but are kept inside the buffer. Such documents are left out at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from binlog.tidb.json import Code

from drainer.changes.json_shape import Container, Leaf, Node

Octets = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_WORD: Final = 8
_NUMBERS: Final = {Leaf.INT64: "<i8", Leaf.UINT64: "<u8", Leaf.FLOAT64: "<f8"}


@dataclass(frozen=True, slots=True)
class Documents:
    """A column of at least one document: the bytes of all documents, some padding, and where each begins and ends."""

    data: Octets
    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, column: Any) -> Documents:
        """`column`: a `binary` array without NULLs."""
        _, offsets, data = column.buffers()
        places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        octets = np.zeros(int(places[-1]) + _WORD, np.uint8)
        octets[:-_WORD] = np.frombuffer(data or b"", np.uint8)[: places[-1]]
        return cls(octets, places[:-1], places[1:])


class Reading:
    """The leaves of documents that have a shape. `rows`: the documents that have the shape, in the order given.
    `leaves`: a pair of arrays for each leaf of the shape, for these documents. For numbers and for literals (0, 1, 2
    for null, true, false) only the first array counts. For texts: where they begin, and their lengths in bytes."""

    def __init__(self, documents: Documents, rows: Ints, shape: Container) -> None:
        self._data = documents.data
        self._leaves: list[tuple[Any, Any]] = []
        begins = documents.begins[rows]
        codes = self._data[begins]
        heads = self._heads(begins + 1, shape)
        alike = (codes == (Code.ARRAY if shape.names is None else Code.OBJECT)) & _same(heads, shape)
        if not alike.all():
            rows, heads = rows[alike], heads[alike]
        self._at: Ints = documents.begins[rows] + 1
        self._alike: Flags = np.ones(len(rows), np.bool_)
        self._container(shape, heads)
        # A position never decreases, so one at or before the document's end was never outside the document.
        self._alike &= self._at == documents.ends[rows]
        self.rows: Ints = rows
        self.leaves = self._leaves
        if not self._alike.all():
            self.rows = rows[self._alike]
            self.leaves = [(first[self._alike], second[self._alike]) for first, second in self._leaves]

    def _words_at(self, places: Ints, kind: str) -> Any:
        """Return a word of this numpy type at each position."""
        size = np.dtype(kind).itemsize
        count = len(self._data) - size + 1
        if count < 1:
            return np.zeros(len(places), kind)
        return np.ndarray((count,), kind, self._data, 0, (1,))[np.minimum(places, count - 1)]

    def _heads(self, places: Ints, shape: Container) -> Octets:
        """Return a matrix with a row for each position: the head, padded by a few bytes so that it can be compared by
        words.
        """
        width = -(-len(shape.head) // _WORD) * _WORD
        found: Octets = self._words_at(places, f"V{width}").view(np.uint8).reshape(len(places), width)
        return found

    def _container(self, shape: Container, heads: Octets) -> None:
        begins = self._at
        self._at = begins + len(shape.head)
        for place, child in zip(shape.entries, shape.children, strict=True):
            if child is Leaf.LITERAL:
                literals = heads[:, place]
                self._alike &= literals <= 2
                self._leaves.append((literals, literals))
            else:
                self._alike &= _uint32(heads, place) == self._at - begins
                self._value(child)
        self._alike &= _uint32(heads, 4) == self._at - begins

    def _value(self, node: Node) -> None:
        if isinstance(node, Container):
            heads = self._heads(self._at, node)
            self._alike &= _same(heads, node)
            self._container(node, heads)
        elif node is Leaf.TEXT:
            self._text()
        else:
            numbers = self._words_at(self._at, _NUMBERS[node])
            if node is Leaf.FLOAT64:
                self._alike &= np.isfinite(numbers)
            self._leaves.append((numbers, numbers))
            self._at = self._at + 8

    def _text(self) -> None:
        """Read a text. Its length is encoded with seven bits per byte, here in one or two bytes."""
        sizes: Ints = self._words_at(self._at, "<u2").astype(np.int64)
        lengths: Ints = sizes & 0xFF
        begins: Ints = self._at + 1
        two = lengths >= 0x80
        if two.any():
            high = sizes >> 8
            self._alike &= ~two | (high > 0) & (high < 0x80)
            lengths = np.where(two, lengths & 0x7F | high << 7, lengths)
            begins += two
        self._leaves.append((begins, lengths))
        self._at = begins + lengths


def _same(heads: Octets, shape: Container) -> Flags:
    """Return which heads have the bytes that are fixed in the shape."""
    width = heads.shape[1]
    expected, compared = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    expected[: len(shape.head)] = np.frombuffer(shape.head, np.uint8)
    compared[list(shape.fixed)] = 0xFF
    words = heads.view(np.uint64)
    differing = np.zeros(len(heads), np.uint64)
    for place, (word, mask) in enumerate(zip(expected.view(np.uint64), compared.view(np.uint64), strict=True)):
        differing |= (words[:, place] ^ word) & mask
    found: Flags = differing == 0
    return found


def _uint32(heads: Octets, place: int) -> Ints:
    count, width = heads.shape
    found: Ints = np.ndarray((count,), "<u4", heads, place, (width,)).astype(np.int64)
    return found
