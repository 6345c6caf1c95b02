"""Convert a column of binary JSON to text. Documents of one shape (json_shape.py) are read together, the others one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.json import decode_text, float_text, quote

from drainer.changes.json_reading import Documents, Ints, Octets, Reading
from drainer.changes.json_shape import Container, Leaf, shape_of, text_parts

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
_ESCAPED_REGEX: Final = '["\\\\\x00-\x1f<>&\u2028\u2029]'
_ESCAPED: Final = b'"\\<>&' + bytes(range(32))
_SEPARATORS: Final = b"\xe2\x80"  # the first bytes of U+2028 and U+2029


def json_texts(column: Any, escape: Escape = list) -> Any:
    """Return `decode_text` of each document as a `binary` array, NULL for NULL. `escape` is applied to all of the text,
    in pieces of any size. It may change only control characters, `"`, `\\`, `<`, `>`, `&`, U+2028 and U+2029. Raises
    DecodeError for a value that is not a document, as `decode_text` does."""
    if column.null_count:
        texts = json_texts(column.drop_null(), escape)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return texts.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))
    alone = np.ones(len(column), np.bool_)
    places: list[Ints] = []
    found: list[Any] = []
    for rows, texts in _together(column, escape):
        alone[rows] = False
        places.append(rows)
        found.append(texts)
    if len(found) == 1 and not alone.any():
        return found[0]
    left = np.flatnonzero(alone)
    texts = [decode_text(value)[0] for value in column.take(pa.array(left)).to_pylist()]
    found.append(pa.array(escape(texts), pa.string()).cast(pa.binary()))
    order = np.empty(len(column), np.int64)
    order[np.concatenate([*places, left])] = np.arange(len(column))
    return pa.concat_arrays(found).take(pa.array(order)) if places else found[0]


def _together(column: Any, escape: Escape) -> Iterator[tuple[Ints, Any]]:
    """Yield for each shape the places of its documents in the column, in order, and their texts."""
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
    places = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(lengths, out=places[1:])
    if places[-1] > _SHORT_BYTES_MAX * len(begins):
        view = data.data
        texts = b"".join([view[at:end] for at, end in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)])
    else:
        chosen = np.repeat(begins - places[:-1], lengths) + np.arange(places[-1])
        texts = data[chosen].tobytes()
    return pa.Array.from_buffers(pa.binary(), len(begins), [None, pa.py_buffer(places), pa.py_buffer(texts)])


def _escaped(texts: Any, escape: Escape) -> Any:
    """Escape the bytes for use between the quotes of a JSON string."""
    octets = texts.buffers()[2].to_pybytes()
    plain = len(octets.translate(None, _ESCAPED)) == len(octets)
    if plain and octets.isascii():
        return texts
    try:
        strings = texts.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [value.decode("utf-8", "surrogateescape") for value in texts.to_pylist()]
        return pa.array(escape([quote(text)[1:-1] for text in decoded]), pa.string()).cast(pa.binary())
    if plain and _SEPARATORS not in octets:
        return texts
    marked = pc.match_substring_regex(strings, _ESCAPED_REGEX)
    quoted = escape([quote(text)[1:-1] for text in strings.filter(marked).to_pylist()])
    return pc.replace_with_mask(strings, marked, pa.array(quoted, pa.string())).cast(pa.binary())
