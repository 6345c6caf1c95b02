"""The shape of a binary JSON document: everything except its numbers, texts and literals. Pure.

    {"tags": ["a", "b"], "n": 7}   →   shape {"tags": [text, text], "n": int64}

Documents of one shape differ only in their values, so the documents of that shape in a column are read together, one
leaf of all documents at a time. Only documents with TiDB's layout have a shape: a container's values are stored one
after another in the order of its entries. See `binlog.tidb.json` for the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from binlog.tidb.json import Code, quote

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
