"""Whether folding a segment could hide that upstream broke a unique key (rule 21). Pure.

A table with secondary unique keys is written as deletes of the touched keys, then inserts. A value that two rows held
at once in the midst of the segment does not show in that; applied transaction by transaction it is refused. So the
values are followed here: where one is taken while another row of the segment holds it, or is given up by a row only
after it was taken, the segment is to be applied one transaction after another. A stream that keeps its keys is never
told so, however its values move.

Keys on prefixes and generated columns are not followed. Strings of collations that are not computed here are compared
more coarsely than any of them does for letters and accents, which can only cost time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from binlog.tidb.table import TableInfo
from binlog.tidb.types import UNSPECIFIED

from drainer.plan import Change, Literals
from drainer.row.key import Same, choose_key, comparison, normal
from drainer.row.layout import replicated

Part = tuple[int, Same | None]
Values = frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Keys:
    """A table's fold key and its other unique keys: (place in the row, how it is compared) of each column."""

    fold: tuple[Part, ...]
    others: tuple[tuple[Part, ...], ...]


def keys_of(table: TableInfo) -> Keys:
    chosen = choose_key(table)
    place = {c.id: n for n, c in enumerate(replicated(table))}
    others: list[tuple[Part, ...]] = []
    for index in table.unique_indexes():
        columns = table.index_columns(index)
        whole = all(part.length == UNSPECIFIED for part in index.columns)
        if index.name != chosen.name and whole and all(c.id in place for c in columns):
            others.append(tuple((place[c.id], comparison(c.type)) for c in columns))
    return Keys(tuple(zip(chosen.columns, chosen.same, strict=True)), tuple(others))


def hides_conflict(transactions: Iterable[Sequence[Change]], keys: Mapping[int, Keys]) -> bool:
    """`transactions`: all changes of one commit_ts each, in order; `keys`: of every table id among them."""
    tables = {table_id: _Table(found) for table_id, found in keys.items()}
    for changes in transactions:
        by_table: dict[int, list[Change]] = {}
        for change in changes:
            by_table.setdefault(change.shape.table_id, []).append(change)
        if any(tables[table_id].breaks(found) for table_id, found in by_table.items()):
            return True
    return False


class _Table:
    """What the rows of one table hold, as far as the segment tells."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._rows: dict[tuple[object, ...], Values | None] = {}  # None: dead
        self._holder: dict[Hashable, Hashable] = {}
        self._takers: dict[Hashable, set[Hashable]] = {}  # everybody who ever took a value

    def breaks(self, changes: Sequence[Change]) -> bool:
        """Take in one transaction; whether a value has two holders behind it, or had before."""
        after: dict[tuple[object, ...], Values | None] = {}
        found = False
        for change in changes:
            if change.old is not None:
                key = _compared_all(change.old, self._keys.fold)
                if key not in self._rows and key not in after:
                    held = self._values(change.old)
                    found = found or any(self._takers.get(value, set()) - {key} for value in held)
                after[key] = None
            if change.new is not None:
                after[_compared_all(change.new, self._keys.fold)] = self._values(change.new)
        for key in after:
            for value in self._rows.get(key) or ():
                if self._holder.get(value) == key:
                    del self._holder[value]
        for key, values in after.items():
            for value in values or ():
                found = found or self._holder.get(value, key) != key
                self._holder[value] = key
                self._takers.setdefault(value, set()).add(key)
        self._rows.update(after)
        return found

    def _values(self, row: Literals) -> Values:
        """A value with a NULL in it is nobody's."""
        return frozenset(self._each(row))

    def _each(self, row: Literals) -> Iterator[Hashable]:
        for number, parts in enumerate(self._keys.others):
            value = _compared_all(row, parts)
            if None not in value:
                yield number, value


def _compared_all(row: Literals, parts: tuple[Part, ...]) -> tuple[object, ...]:
    return tuple([_compared(row[place], same) for place, same in parts])


def _compared(literal: object, same: Same | None) -> object:
    """A literal as compared. A quoted one keeps its opening quote, which tells 'a' from a number."""
    if literal is None or literal == b"NULL":
        return None
    if isinstance(literal, bytes) and literal[:1] == b"'":
        literal = literal[:-1]
    if same is not None:
        return normal(literal, same)
    text = literal.decode(errors="replace") if isinstance(literal, bytes) else str(literal)
    plain = unicodedata.normalize("NFKD", text)
    return "".join([c for c in plain if not unicodedata.combining(c)]).casefold().rstrip()
