"""The values that decoding, ordering and destinations exchange; for a table that upserts, the row that a change
removes and the row that it writes. Pure.

A *row* is written in the form its destination reads fastest: for the MySQL family one `bytes` with the text
of a VALUES tuple, `(1,'a',NULL)`; for SQLite a `tuple` of Python values. A *key* is the same for the fold
key's columns alone. Ordered work keeps one literal (or value) per column, because it must match whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

Row = bytes | tuple[object, ...]
Key = bytes | tuple[object, ...]
Literals = tuple[object, ...]
S_co = TypeVar("S_co", covariant=True)  # the segment that a sink needs: SegmentWork or ChangeSegment


class Kind(IntEnum):
    """What happened to a row upstream."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


class Match(IntEnum):
    """How one column is compared to find a row in a table without a key (correctness rule 11)."""

    PLAIN = 0
    BINARY_TEXT = 1  # strings: byte for byte, whatever the collation
    EXACT_FLOAT = 2
    JSON = 3  # compared as text after the destination's own normalisation
    ANY = 4  # not compared: a column that only other parts of a merged table have


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a statement needs to know about one table of the destination.

    `columns`: names in the order of every row; `key`: column indexes of the fold key, empty when the table has
    none that may fold (rule 9); `secondary_unique`: names of the unique keys beside the fold key, whose evictions must
    be checked (rule 12); `match`: parallel to `columns`; `collations`: parallel to `columns`, upstream's collation of
    a string (`binary` for bytes), '' for other types; `upserts`: the table's writers
    do not check for existing rows, so a written row replaces every row that has one of its unique values, and a row to
    delete may be missing (rule 21); `row_key`: for such a table whose changes stay in order, the columns by which a row
    is deleted (empty: all); `unique`: for such a table, the column indexes of every unique key. `fractions`: parallel
    to `columns`, the number of fractional digits of a number or of seconds; `type_classes`: parallel to `columns`, the
    type classes of their types (row.type_class), empty if not known.
    """

    table_id: int
    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    secondary_unique: tuple[str, ...]
    match: tuple[Match, ...]
    collations: tuple[str, ...] = ()
    upserts: bool = False
    row_key: tuple[int, ...] = ()
    unique: tuple[tuple[int, ...], ...] = ()
    fractions: tuple[int, ...] = ()
    type_classes: tuple[str, ...] = ()

    @property
    def has_text_key(self) -> bool:
        """Whether the key has a string column, which the destination may compare less strictly (rule 10)."""
        return any(self.collations[at] for at in self.key) if self.collations else False

    @property
    def may_collide(self) -> bool:
        """Whether a row may conflict with another row that a later change of the range removes."""
        return bool(self.secondary_unique) or self.has_text_key

    @property
    def foldable(self) -> bool:
        return bool(self.key)


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One row change in upstream order. `old`/`new` are per-column literals parallel to `shape.columns`."""

    shape: TableShape
    kind: Kind
    old: Literals | None
    new: Literals | None
    commit_ts: int
    sequence: int


class NetRow(NamedTuple):
    """The final state of one key within a segment.

    `identity`: the key as compared (collation applied), the total order's second half; `first`: what the
    first change in the segment was, so an insert is known not to exist yet; `row`: None when the key is dead at the
    end; `stale`: every byte image of the key that must be deleted before `row` is written.
    A NamedTuple because a batch has as many as it has keys, and a frozen dataclass takes four times as long to make.
    """

    identity: bytes
    first: Kind
    row: Row | None
    stale: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """One table's net changes, in the order of `NetRow.identity`."""

    shape: TableShape
    rows: Sequence[NetRow]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Changes that must be applied one after another, in this order."""

    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """The changes between two DDLs: net rows of tables that fold, and one ordered list for all other tables.

    Covers (after_ts, until_ts]. `change_count` counts upstream row changes (before folding), `source_bytes` the binlog
    payloads they came from, `commits` the number of different commit_ts: changes that are refused together may be
    accepted one transaction after another, and vice versa (rule 21).
    """

    after_ts: int
    until_ts: int
    folded: tuple[Folded, ...]
    ordered: Ordered
    change_count: int
    source_bytes: int
    commits: int = 1


@dataclass(frozen=True, slots=True)
class Pieces(Generic[S_co]):
    """The work of (after_ts, until_ts] if it is too large for one value: pieces that are applied one after another in
    one transaction. Every call of `works` returns the same pieces again, because a transaction may have to be repeated,
    and a sink may have to read all pieces before it writes the first. It may raise. `loaded`: the table's id, the
    number of its part and that of the range whose load this is: the transaction records it, and writes nothing if it is
    recorded already."""

    after_ts: int
    until_ts: int
    works: Callable[[], Iterable[S_co]]
    loaded: tuple[int, int, int] | None = None


# Abbreviated rows and keys for error texts. Pure.

_KEYS_SHOWN_MAX = 3
_KEY_CHARS_MAX = 200


def shown_keys(work: SegmentWork, schema: str, table: str) -> str:
    """The first rows that a transaction writes to a table, and keys that it deletes, as text."""
    rows = chain.from_iterable(
        row.stale if row.row is None else (row.row,)
        for folded in work.folded
        if (folded.shape.schema, folded.shape.table) == (schema, table)
        for row in folded.rows
    )
    changes = (
        change.old if change.new is None else change.new
        for change in work.ordered.changes
        if (change.shape.schema, change.shape.table) == (schema, table)
    )
    found = [shown_row(row) for row in chain(rows, changes)]
    more = f" and {len(found) - _KEYS_SHOWN_MAX} more" if len(found) > _KEYS_SHOWN_MAX else ""
    return ", ".join(found[:_KEYS_SHOWN_MAX]) + more


def shown_row(row: object) -> str:
    """A row or key as text, at most _KEY_CHARS_MAX characters."""
    if isinstance(row, tuple):
        values = [value.decode(errors="replace") if isinstance(value, bytes) else repr(value) for value in row]
        text = "(" + ",".join(values) + ")"
    else:
        text = row.decode(errors="replace") if isinstance(row, bytes) else str(row)
    return text if len(text) <= _KEY_CHARS_MAX else text[:_KEY_CHARS_MAX] + "…"


# Tables that upsert and are applied in order: the row that each change removes, and the one it writes (rule 21). A
# row to remove may be missing, which is no error.


class Upsert(NamedTuple):
    """First the row `gone` is deleted, if it exists, then `put` replaces every row that shares a unique key with it.
    Either may be None."""

    gone: Literals | None
    put: Literals | None


def upsert(change: KeyChange) -> Upsert:
    """A row that keeps its key is replaced by the new row, so that many fit into one statement."""
    if change.kind is Kind.INSERT:
        return Upsert(None, change.new)
    if change.kind is Kind.DELETE:
        return Upsert(change.old, None)
    old, new, key = change.old or (), change.new or (), change.shape.row_key
    stays = bool(key) and all(old[at] == new[at] for at in key)
    return Upsert(None if stays else change.old, change.new)


def replaces(shape: TableShape) -> bool:
    """Whether a new row may replace others; without a unique key it is written with INSERT."""
    return bool(shape.unique or shape.secondary_unique)
