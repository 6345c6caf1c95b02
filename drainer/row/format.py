"""The interface by which a destination converts decoded rows to what it writes (SQL text, SQLite values). Pure.

Rows are converted once, after folding: a few rows column by column over lists, many rows over Arrow arrays, with equal
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from binlog.errors import DecodeError

from drainer.batch.work import Key, Kind, Literals, Row
from drainer.row.codec import Codec
from drainer.row.column_type import ColumnType
from drainer.row.fast_path import Cells


class Format(Protocol):
    """Converts decoded values to rows and keys. Small, picklable, without state. `column_types`: one for each given
    column, in the same order. Columns and cells are decoded values; NULL is None. Methods raise DecodeError, which
    names no row, for a value that its column's type cannot have.

    A *packed* row is in bytes, which are stored in an Arrow array and sent between tasks. Keys are packed as rows are,
    from the columns of the key."""

    def rows(self, column_types: Sequence[ColumnType], columns: Sequence[Sequence[Any]]) -> Sequence[Row]:
        """Return one row for each element of the columns. There is at least one column."""
        ...

    def packed_rows(self, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
        """Like `rows`, from Arrow arrays to a binary array of packed rows."""
        ...

    def literals(self, column_type: ColumnType, values: Sequence[Any]) -> Sequence[object]:
        """Return the values of one column in the form that batch.work.Change has."""
        ...

    def key_writer(self, column_types: Sequence[ColumnType]) -> Callable[[Cells], Key]:
        """Return a function from the decoded values of a key's columns to the key."""
        ...

    def pack(self, row: Row) -> bytes: ...

    def unpack(self, packed: bytes) -> Row: ...

    def split(self, packed: bytes) -> Literals:
        """Return the values of a packed row, each as `literals` has it."""
        ...


def written(format_: Format, codec: Codec, cells: Sequence[Cells], commit_ts: Sequence[int]) -> Sequence[Row]:
    """Convert rows decoded by one codec. Raises DecodeError naming table, column and commit_ts of the first row with a
    value that the destination cannot store."""
    try:
        return format_.rows(codec.column_types, list(zip(*cells, strict=True)))
    except DecodeError:
        for one, ts in sorted(zip(cells, commit_ts, strict=True), key=lambda pair: pair[1]):
            _check(format_, codec, one, ts)
        raise


def written_literals(format_: Format, codec: Codec, cells: Sequence[Cells], commit_ts: Sequence[int]) -> list[Literals]:
    """Like `written`, for complete rows of tables whose changes stay in order."""
    try:
        columns = zip(codec.column_types, zip(*cells, strict=True), strict=True)
        return list(zip(*[format_.literals(column_type, column) for column_type, column in columns], strict=True))
    except DecodeError:
        for one, ts in sorted(zip(cells, commit_ts, strict=True), key=lambda pair: pair[1]):
            _check(format_, codec, one, ts)
        raise


def _check(format_: Format, codec: Codec, cells: Cells, commit_ts: int) -> None:
    for target, cell in zip(codec.layout.targets, cells, strict=True):
        try:
            format_.literals(target.column_type, [cell])
        except DecodeError as error:
            codec.fail(error.within(f"column {target.name} (id {target.id})"), commit_ts)


def check_row(format_: Format, codec: Codec, kind: Kind, old: Cells | None, new: Cells | None, commit_ts: int) -> None:
    """Raise DecodeError, naming table and commit_ts, for a row that cannot be written or has no key."""
    if codec.shape.foldable:
        write = format_.key_writer([codec.column_types[at] for at in codec.shape.key])
        for cells in (old, new):
            if cells is not None:
                codec.key(cells, commit_ts)
                try:
                    write([cells[at] for at in codec.shape.key])
                except DecodeError as error:
                    codec.fail(error, commit_ts)
    elif old is not None:
        _check(format_, codec, old, commit_ts)
    if new is not None:
        _check(format_, codec, new, commit_ts)
