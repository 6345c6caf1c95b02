"""Convert a column of binary JSON to text. Documents of one shape are read together, the others one by one.

A document's shape is everything except its numbers, texts and literals:

    {"tags": ["a", "b"], "n": 7}   →   shape {"tags": [text, text], "n": int64}

Documents of one shape differ only in their values, and are read one leaf of all documents at a time. Only documents
with TiDB's layout have a shape: a container's values are stored one after another in the order of its entries. See
`binlog.tidb.json` for the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.json import Code, decode_text, float_text, quote

from drainer.changes.vector import Ints, Mask

LEAVES_MAX: Final = 256
DEPTH_MAX: Final = 20
_BODIES: Final = struct.Struct("<II")
_KEY: Final = struct.Struct("<IH")
_VALUE: Final = struct.Struct("<BI")


class Leaf(Enum):
    """The kind of a value that is not a container."""

    LITERAL = auto()
    INT64 = auto()
    UINT64 = auto()
    FLOAT64 = auto()
    TEXT = auto()


LEAVES: Final[dict[int, Leaf]] = {
    Code.LITERAL: Leaf.LITERAL,
    Code.INT64: Leaf.INT64,
    Code.UINT64: Leaf.UINT64,
    Code.FLOAT64: Leaf.FLOAT64,
    Code.STRING: Leaf.TEXT,
}


@dataclass(frozen=True, slots=True)
class Container:
    """An array or object. `head`: the bytes in front of its values. `fixed`: the positions in `head` whose bytes are
    equal in every document of the shape. `entries`: the position in `head` of the offset of each child; a literal is
    stored there itself. `names`: the members' names as quoted text; None for an array."""

    head: bytes
    fixed: tuple[int, ...]
    entries: tuple[int, ...]
    children: tuple[Node, ...]
    names: tuple[str, ...] | None


Node: TypeAlias = "Leaf | Container"


def shape_of(document: bytes) -> Container | None:
    """Return the document's shape. None if the document is not an array or object, has no leaves, has a leaf of another
    type (a time, bytes), has another layout, is damaged, or is larger than the limits `LEAVES_MAX` and `DEPTH_MAX`."""
    if not document or document[0] not in (Code.OBJECT, Code.ARRAY):
        return None
    try:
        found, end = _container(document, 1, document[0], 0)
    except (_NoShapeError, struct.error, IndexError):
        return None
    leaves = sum(1 for _ in leaves_of(found))
    return found if end == len(document) and 0 < leaves <= LEAVES_MAX else None


def leaves_of(node: Node) -> Iterator[Leaf]:
    """Yield the leaves in the order of the document."""
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from leaves_of(child)


def text_parts(node: Node) -> list[str | Leaf]:
    """Return the document's text as TiDB writes it, in parts, with the leaves in their places. The quotes around a text
    are parts of their own.
    """
    if node is Leaf.TEXT:
        return ['"', node, '"']
    if isinstance(node, Leaf):
        return [node]
    found: list[str | Leaf] = ["[" if node.names is None else "{"]
    for at, child in enumerate(node.children):
        separator = ", " if at else ""
        found.append(separator if node.names is None else f"{separator}{node.names[at]}: ")
        found += text_parts(child)
    return [*found, "]" if node.names is None else "}"]


class _NoShapeError(Exception):
    pass


def _need(condition: bool) -> None:
    if not condition:
        raise _NoShapeError


def _container(document: bytes, at: int, code: int, depth: int) -> tuple[Container, int]:
    """Return the container and the position after it."""
    _need(depth < DEPTH_MAX)
    count, size = _BODIES.unpack_from(document, at)
    _need(count <= LEAVES_MAX and at + size <= len(document))
    is_object = code == Code.OBJECT
    keys = 8 if is_object else 0
    entries = 8 + (6 * count if is_object else 0)
    end = entries + 5 * count
    names = []
    for n in range(count if is_object else 0):
        offset, length = _KEY.unpack_from(document, at + keys + 6 * n)
        _need(offset == end)
        names.append(quote(document[at + end : at + end + length].decode("utf-8", "surrogateescape")))
        end += length
    variable = {*range(4, 8)} | {entries + 5 * n + byte for n in range(count) for byte in range(1, 5)}
    children, behind = [], at + end
    for n in range(count):
        child, offset = _VALUE.unpack_from(document, at + entries + 5 * n)
        _need(child == Code.LITERAL or at + offset == behind)
        node, behind = _node(document, behind, child, depth)
        children.append(node)
    _need(behind == at + size)
    head = document[at : at + end]
    fixed = tuple(n for n in range(end) if n not in variable)
    offsets = tuple(entries + 5 * n + 1 for n in range(count))
    return Container(head, fixed, offsets, tuple(children), tuple(names) if is_object else None), behind


def _node(document: bytes, at: int, code: int, depth: int) -> tuple[Node, int]:
    if code in (Code.OBJECT, Code.ARRAY):
        return _container(document, at, code, depth + 1)
    leaf = LEAVES.get(code)
    if leaf is None:
        raise _NoShapeError
    if leaf is Leaf.LITERAL:
        return leaf, at
    if leaf is Leaf.TEXT:
        length, start = document[at], at + 1
        if length >= 0x80:
            _need(0 < document[start] < 0x80)
            length, start = length & 0x7F | document[start] << 7, start + 1
        return leaf, start + length
    return leaf, at + 8


# Read documents of one shape together: one step for each part of the shape, not for each document. A step reads at one
# position of each document and advances the position. Documents that turn out to have another shape are still read;
# their positions are then meaningless but are kept inside the buffer. Such documents are left out at the end.
Octets = npt.NDArray[np.uint8]

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
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        octets = np.zeros(int(bounds[-1]) + _WORD, np.uint8)
        octets[:-_WORD] = np.frombuffer(data or b"", np.uint8)[: bounds[-1]]
        return cls(octets, bounds[:-1], bounds[1:])


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
        self._alike: Mask = np.ones(len(rows), np.bool_)
        self._container(shape, heads)
        # A position never decreases, so one at or before the document's end was never outside the document.
        self._alike &= self._at == documents.ends[rows]
        self.rows: Ints = rows
        self.leaves = self._leaves
        if not self._alike.all():
            self.rows = rows[self._alike]
            self.leaves = [(first[self._alike], second[self._alike]) for first, second in self._leaves]

    def _words_at(self, offsets: Ints, kind: str) -> Any:
        """Return a word of this numpy type at each offset."""
        size = np.dtype(kind).itemsize
        count = len(self._data) - size + 1
        if count < 1:
            return np.zeros(len(offsets), kind)
        return np.ndarray((count,), kind, self._data, 0, (1,))[np.minimum(offsets, count - 1)]

    def _heads(self, offsets: Ints, shape: Container) -> Octets:
        """Return a matrix with a row for each offset: the head, padded by a few bytes so that it can be compared by
        words.
        """
        width = -(-len(shape.head) // _WORD) * _WORD
        found: Octets = self._words_at(offsets, f"V{width}").view(np.uint8).reshape(len(offsets), width)
        return found

    def _container(self, shape: Container, heads: Octets) -> None:
        begins = self._at
        self._at = begins + len(shape.head)
        for entry, child in zip(shape.entries, shape.children, strict=True):
            if child is Leaf.LITERAL:
                literals = heads[:, entry]
                self._alike &= literals <= 2
                self._leaves.append((literals, literals))
            else:
                self._alike &= _uint32(heads, entry) == self._at - begins
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


def _same(heads: Octets, shape: Container) -> Mask:
    """Return which heads have the bytes that are fixed in the shape."""
    width = heads.shape[1]
    expected, compared = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    expected[: len(shape.head)] = np.frombuffer(shape.head, np.uint8)
    compared[list(shape.fixed)] = 0xFF
    words = heads.view(np.uint64)
    differing = np.zeros(len(heads), np.uint64)
    for number, (word, mask) in enumerate(zip(expected.view(np.uint64), compared.view(np.uint64), strict=True)):
        differing |= (words[:, number] ^ word) & mask
    found: Mask = differing == 0
    return found


def _uint32(heads: Octets, offset: int) -> Ints:
    count, width = heads.shape
    found: Ints = np.ndarray((count,), "<u4", heads, offset, (width,)).astype(np.int64)
    return found


Escape = Callable[[Sequence[str]], list[str]]

# Look for another shape while at least TOGETHER_MIN documents are left, and stop after RARE_SHAPES_MAX shapes that few
# documents had.
TOGETHER_MIN: Final = 32
RARE_SHAPES_MAX: Final = 3
_RARE: Final = 16  # fewer than one document in this many
# Texts that are longer than this on average are copied one by one: an index for each of their bytes costs more.
_SHORT_BYTES_MAX: Final = 32
# From buffers: pyarrow would import pandas, for a second of CPU, at an array of Python values.
_LITERALS: Final = pa.Array.from_buffers(
    pa.binary(), 3, [None, pa.py_buffer(np.array([0, 4, 8, 13], np.int32)), pa.py_buffer(b"nulltruefalse")]
)
# What JSON text escapes: ASCII characters, control characters, U+2028 and U+2029, whose UTF-8 begins with _SEPARATORS.
_ESCAPED: Final = (b'"', b"\\", b"<", b">", b"&")
_SEPARATORS: Final = b"\xe2\x80"
ESCAPED_REGEX: Final = '["\\\\\x00-\x1f<>&\u2028\u2029]'


def json_texts(column: Any, escape: Escape = list) -> Any:
    """Return `decode_text` of each document as a `binary` array, NULL for NULL. `escape` is applied to all of the text,
    in pieces of any size. It may change only control characters, `"`, `\\`, `<`, `>`, `&`, U+2028 and U+2029. Raises
    DecodeError for a value that is not a document, as `decode_text` does."""
    if column.null_count:
        texts = json_texts(column.drop_null(), escape)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return texts.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))
    alone = np.ones(len(column), np.bool_)
    indexes: list[Ints] = []
    found: list[Any] = []
    for rows, texts in _together(column, escape):
        alone[rows] = False
        indexes.append(rows)
        found.append(texts)
    if len(found) == 1 and not alone.any():
        return found[0]
    left = np.flatnonzero(alone)
    texts = [decode_text(value)[0] for value in column.take(pa.array(left)).to_pylist()]
    found.append(pa.array(escape(texts), pa.string()).cast(pa.binary()))
    order = np.empty(len(column), np.int64)
    order[np.concatenate([*indexes, left])] = np.arange(len(column))
    return pa.concat_arrays(found).take(pa.array(order)) if indexes else found[0]


def _together(column: Any, escape: Escape) -> Iterator[tuple[Ints, Any]]:
    """Yield for each shape the indexes of its documents in the column, in order, and their texts."""
    if len(column) < TOGETHER_MIN:
        return
    documents = Documents.of(column)
    left = np.arange(len(column))
    rare = 0
    while len(left) >= TOGETHER_MIN and rare < RARE_SHAPES_MAX:
        shape = shape_of(column[int(left[0])].as_py())
        if shape is None:
            left, rare = left[1:], rare + 1
            continue
        reading = Reading(documents, left, shape)
        if len(reading.rows) >= TOGETHER_MIN:
            yield reading.rows, _joined(shape, reading.leaves, documents.data, escape)
        if len(reading.rows) == len(left):
            return
        if _RARE * len(reading.rows) < len(left):
            rare += 1
        left = np.setdiff1d(left[1:], reading.rows, assume_unique=True)


def _joined(shape: Container, leaves: Sequence[tuple[Ints, Ints]], data: Octets, escape: Escape) -> Any:
    pieces: list[Any] = []
    constant = ""
    columns = iter(leaves)
    for part in text_parts(shape):
        if isinstance(part, str):
            constant += part
            continue
        if constant:
            pieces.append(escape([constant])[0].encode())
        constant = ""
        pieces.append(_shown(part, *next(columns), data, escape))
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        raise AssertionError("a shape without leaves")
    return pc.binary_join_element_wise(*pieces, escape([constant])[0].encode(), b"")


def _shown(leaf: Leaf, first: Any, second: Any, data: Octets, escape: Escape) -> Any:
    if leaf is Leaf.TEXT:
        return _escaped(_slices(data, first, second), escape)
    if leaf is Leaf.LITERAL:
        return _LITERALS.take(pa.array(first))
    if leaf is Leaf.FLOAT64:
        return _floats(pa.array(first))
    return pa.array(first).cast(pa.string()).cast(pa.binary())


def _floats(values: Any) -> Any:
    """Format the floats. Arrow also writes the shortest digits, but its exponent format differs from TiDB's."""
    shown = values.cast(pa.string())
    powers = pc.match_substring(shown, "e")
    if pc.any(powers).as_py():
        texts = [float_text(value) for value in values.filter(powers).to_pylist()]
        shown = pc.replace_with_mask(shown, powers, pa.array(texts, pa.string()))
    return shown.cast(pa.binary())


def _slices(data: Octets, begins: Ints, lengths: Ints) -> Any:
    """Return a `binary` array of these bytes."""
    offsets = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _SHORT_BYTES_MAX * len(begins):
        view = data.data
        texts = b"".join([view[at:end] for at, end in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)])
    else:
        chosen = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
        texts = data[chosen].tobytes()
    return pa.Array.from_buffers(pa.binary(), len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def has_escaped(octets: Octets) -> bool:
    """Return whether JSON text may escape something in these bytes. May be True without need: for U+2000 to U+203F."""
    data = octets.tobytes()
    if not data:
        return False
    if octets.min() < 32 or any(char in data for char in _ESCAPED):
        return True
    return not data.isascii() and _SEPARATORS in data


def _escaped(texts: Any, escape: Escape) -> Any:
    """Escape the bytes for use between the quotes of a JSON string."""
    octets = np.frombuffer(texts.buffers()[2], np.uint8)
    plain = not has_escaped(octets)
    if plain and octets.max(initial=0) < 0x80:
        return texts
    try:
        strings = texts.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [value.decode("utf-8", "surrogateescape") for value in texts.to_pylist()]
        return pa.array(escape([quote(text)[1:-1] for text in decoded]), pa.string()).cast(pa.binary())
    if plain:
        return texts
    marked = pc.match_substring_regex(strings, ESCAPED_REGEX)
    quoted = escape([quote(text)[1:-1] for text in strings.filter(marked).to_pylist()])
    return pc.replace_with_mask(strings, marked, pa.array(quoted, pa.string())).cast(pa.binary())
