"""The values of a table's secondary unique keys, in a row's carriers (rule 21).

A value is a column's value as upstream compares it (row/key.py), or a tuple of these for several columns. It is None if
one of them is NULL, because then it conflicts with no other row. For a collation that is not implemented here, it is a
pair: first the text in a form that equals more texts than any collation does (so conflicts may be assumed that do not
exist, which only costs time), then the text itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from binlog.errors import DecodeError
from binlog.tidb.table import TableInfo
from binlog.tidb.types import UNSPECIFIED

from drainer.batch.work import Row
from drainer.row.codec import Codec
from drainer.row.form import Form
from drainer.row.format import Format
from drainer.row.key import Same, choose_key, compared_as
from drainer.row.key import comparison as comparison_of
from drainer.row.layout import replicated
from drainer.row.text import shown_as
from drainer.row.usual import Cells

Values: TypeAlias = "tuple[object, ...]"


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A unique key beside the fold key: places in the destination's row, and how each column is compared."""

    places: tuple[int, ...]
    same: tuple[Same | None, ...]

    @property
    def is_coarse(self) -> bool:
        return None in self.same


@dataclass(frozen=True, slots=True)
class OtherKeys:
    """`followed`: the keys whose values are tracked; `all_followed`: the table has no others (on prefixes or generated
    columns)."""

    followed: tuple[OtherKey, ...]
    all_followed: bool


@lru_cache(maxsize=2048)
def other_keys(table: TableInfo) -> OtherKeys:
    """Return the unique keys beside the fold key. A table that upserts has none that are tracked, because its writers
    do not check them."""
    chosen = choose_key(table)
    if table.upserts or not chosen.columns:
        return OtherKeys((), True)
    place = {c.id: n for n, c in enumerate(replicated(table))}
    found: list[OtherKey] = []
    others = [index for index in table.unique_indexes() if index.name in chosen.others]
    for index in others:
        columns = table.index_columns(index)
        if all(part.length == UNSPECIFIED for part in index.columns) and all(c.id in place for c in columns):
            found.append(OtherKey(tuple(place[c.id] for c in columns), tuple(comparison_of(c.type) for c in columns)))
    return OtherKeys(tuple(found), len(found) == len(others))


def coarse(cell: object) -> str:
    """Return the letters of a text or number without case, accents and trailing spaces."""
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
    plain = unicodedata.normalize("NFKD", text)
    return "".join([c for c in plain if not unicodedata.combining(c)]).casefold().rstrip()


def needed_of(key: Iterable[int], keys: Sequence[OtherKey]) -> frozenset[int]:
    """Return the places of the columns of the fold key and of all other keys."""
    return frozenset({*key, *(at for other in keys for at in other.places)})


def value_function(keys: Sequence[OtherKey], forms: Sequence[Form]) -> Callable[[Cells], Values]:
    """Return a function from a row's carriers to the values of all these keys. It raises DecodeError for a value that
    its column's type cannot have."""
    readers = [_value_of(key, forms) for key in keys]
    return lambda cells: tuple([read(cells) for read in readers])


def _value_of(key: OtherKey, forms: Sequence[Form]) -> Callable[[Cells], object]:
    shown = [(at, shown_as(forms[at])) for at in key.places]
    compared = [
        (at, (lambda value, show=show: coarse(show(value))) if same is None else compared_as(forms[at], same))
        for (at, show), same in zip(shown, key.same, strict=True)
    ]

    def read(cells: Cells) -> object:
        found = []
        is_null = False  # values after a NULL are read as well, so that a damaged one is found
        for at, compare in compared:
            value = cells[at]
            if value is None:
                is_null = True
            else:
                found.append(value if compare is None else compare(value))
        if is_null:
            return None
        whole = found[0] if len(found) == 1 else tuple(found)
        if not key.is_coarse:
            return whole
        as_is = [show(cells[at]) for at, show in shown]
        return whole, as_is[0] if len(as_is) == 1 else tuple(as_is)

    return read


def value_row(format_: Format, forms: Sequence[Form], key: OtherKey, value: object) -> Row:
    """Return a value of a key in the form in which the destination compares it."""
    return format_.compared_key([forms[at] for at in key.places], value if isinstance(value, tuple) else (value,))


def check_values(keys: Sequence[OtherKey], codec: Codec, images: Iterable[Cells | None], commit_ts: int) -> None:
    """Raise DecodeError, naming table and commit_ts, for the first row in which a value of these keys cannot be
    read."""
    values_of = value_function(keys, codec.forms)
    for cells in images:
        if cells is not None:
            try:
                values_of(cells)
            except DecodeError as error:
                codec.fail(error, commit_ts)
