"""Builds rows of JSON from constants and columns: what is the same in all messages of a table is built once.

rows = Rows(['{"a":', Slot(0), ',"b":', Slot(1, quoted=True), "}"])
rows.build([numbers, texts])      → an array of b'{"a":1,"b":"x"}', b'{"a":2,"b":null}'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.decode import Columns
from drainer.protocol.encoded_columns import large_binary
from drainer.protocol.errors import converted
from drainer.protocol.json_text import Fragment
from drainer.protocol.table import RowChanges

# The most bytes of rows that are joined at a time: an Arrow `binary` array is limited to 2 GiB.
JOINED_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """The position `at` of a column in the list that `Rows.join` gets. `quoted`: quotes surround its values. `head` and
    `tail`: text in front of and after a value that is not NULL."""

    at: int
    quoted: bool = False
    head: str = ""
    tail: str = ""

    @property
    def around(self) -> tuple[bytes, bytes]:
        quote = '"' if self.quoted else ""
        return (self.head + quote).encode(), (quote + self.tail).encode()


Parts = Sequence[str | Slot]


class Rows:
    """The constant parts and slots of one kind of document, compiled. It must have at least one slot."""

    def __init__(self, parts: Parts) -> None:
        self._parts = [part if isinstance(part, Slot) else part.encode() for part in parts]
        self._constant = sum(len(part) for part in self._parts if isinstance(part, bytes))

    def build(self, columns: Sequence[Any]) -> Any:
        """Return one document for each row as `large_binary`. `columns`: `binary` arrays of the same length. NULL is
        written as null."""
        count = max(len(column) for column in columns)
        size = sum(column.nbytes for column in columns) + count * self._constant
        if size <= JOINED_BYTES_MAX or count < 2:
            return large_binary(self.join(columns))
        half = count // 2
        return pa.concat_arrays(
            [
                self.build([column[:half] if len(column) else column for column in columns]),
                self.build([column[half:] if len(column) else column for column in columns]),
            ]
        )

    def join(self, columns: Sequence[Any]) -> Any:
        """Return the same documents as one `binary` array."""
        pieces: list[Any] = []
        for part in self._parts:
            if isinstance(part, bytes):
                _add(pieces, part)
            else:
                _add_values(pieces, columns[part.at], *part.around)
        if len(pieces) == 1 and isinstance(pieces[0], bytes):  # all columns are NULL in all rows
            return constant(pieces[0], max(len(column) for column in columns))
        return pc.binary_join_element_wise(*pieces, b"")


def _add(pieces: list[Any], constant: bytes) -> None:
    if pieces and isinstance(pieces[-1], bytes):
        pieces[-1] += constant
    else:
        pieces.append(constant)


def _add_values(pieces: list[Any], column: Any, head: bytes, tail: bytes) -> None:
    if len(column) and column.null_count == len(column):
        _add(pieces, b"null")
    elif column.null_count:
        pieces.append(or_null(column, head, tail))
    else:
        _add(pieces, head)
        pieces.append(column)
        _add(pieces, tail)


def or_null(column: Any, head: bytes, tail: bytes) -> Any:
    """Return complete JSON values: `column` between head and tail, and `null` for NULL."""
    whole = pc.binary_join_element_wise(head, column, tail, b"") if head or tail else column
    return pc.fill_null(whole, b"null")


def joined(parts: Sequence[Parts]) -> list[str | Slot]:
    """Join the parts with commas."""
    found: list[str | Slot] = []
    for part in parts:
        if found:
            found.append(",")
        found.extend(part)
    return found


def numbers(values: Any) -> Any:
    """Convert a numpy array of integers to text."""
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def constant(text: bytes, count: int) -> Any:
    """Return an array with the same text for every row."""
    return pa.repeat(pa.scalar(text, pa.binary()), count)


def fragments_of(
    changes: RowChanges, image: Columns, fragments: Sequence[Fragment], column_indexes: Sequence[int]
) -> list[Any]:
    """Convert the columns at `column_indexes`, in that order. Raises EncodeError naming table, column and commit_ts."""
    return [_column(changes, image, fragments, column_index) for column_index in column_indexes]


def old_fragments(
    changes: RowChanges, fragments: Sequence[Fragment], column_indexes: Sequence[int], new: Sequence[Any]
) -> list[Any]:
    """Convert the columns of the old image of updates, as `fragments_of` does. `new`: the result of `fragments_of` for
    the new image. A column whose old and new values are equal in all rows is copied from `new` instead of being
    converted again."""
    old, image = changes.old, changes.new
    assert old is not None and image is not None
    return [
        text if _alike(old[column_index], image[column_index]) else _column(changes, old, fragments, column_index)
        for column_index, text in zip(column_indexes, new, strict=True)
    ]


def _alike(old: Any, new: Any) -> bool:
    """Return whether all values are identical. Floats are compared bit by bit, because 0 and -0 are equal but have
    different texts."""
    if pa.types.is_floating(old.type):
        old, new = old.view(pa.int64()), new.view(pa.int64())
    alike: bool = old.equals(new)
    return alike


def _column(changes: RowChanges, image: Columns, fragments: Sequence[Fragment], column_index: int) -> Any:
    where = f"column {changes.table.column_name(column_index)}"
    return converted(where, changes.commit_ts, fragments[column_index], image[column_index])
