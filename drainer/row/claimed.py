"""Rows of tables with secondary unique keys: what the fold takes, and the values of those keys, read in one go (rule
21).

A value is a cell, or a tuple of several, as upstream compares it; None where a NULL is in it, for then it is nobody's.
Of a collation that is not computed here it is a pair: compared more coarsely than any collation does for letters and
accents, which can only cost time, and as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from binlog.tidb.table import TableInfo
from binlog.tidb.types import UNSPECIFIED

from drainer.batch.work import Kind, Row
from drainer.row.codec import Codec
from drainer.row.form import Cell
from drainer.row.key import Same, choose_key, normal
from drainer.row.key import comparison as comparison_of
from drainer.row.layout import Layout, replicated
from drainer.row.program import Cells, Images, Writer
from drainer.row.text import row_text

Values: TypeAlias = "tuple[object, ...]"
ClaimInserted: TypeAlias = "tuple[object, Images, Row, Values]"
ClaimUpdated: TypeAlias = "tuple[object, Images, object, Images, Row, Values, Values]"
ClaimDeleted: TypeAlias = "tuple[object, Images, Values]"


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
    """`followed`: those whose values rows carry; `all_followed`: there are no others (prefixes, generated columns)."""

    followed: tuple[OtherKey, ...]
    all_followed: bool


@lru_cache(maxsize=2048)
def other_keys(table: TableInfo) -> OtherKeys:
    """Of a table that folds. None are followed of one that upserts: nobody checks them."""
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


def coarse(cell: Cell) -> object:
    """A cell compared by its letters without case, accents and trailing spaces."""
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
    plain = unicodedata.normalize("NFKD", text)
    return "".join([c for c in plain if not unicodedata.combining(c)]).casefold().rstrip()


class ClaimPrograms(NamedTuple):
    insert: Callable[[bytes, int, int], ClaimInserted | None]
    update: Callable[[bytes, int, int], ClaimUpdated | None]
    delete: Callable[[bytes, int, int], ClaimDeleted | None]


class ClaimWriter(Writer):
    """As for the fold, and of old rows the columns of the other keys, too."""

    def __init__(self, layout: Layout, keys: tuple[OtherKey, ...]) -> None:
        super().__init__(layout, fold=True)
        self._keys = keys
        self.needed = sorted({*layout.key.columns, *(at for key in keys for at in key.places)})
        self.source.names["coarse"] = coarse

    def _null(self, v: str, target: int) -> str:
        """The mask of NULLs is that of the new row."""
        return f"{v} = None" if v.startswith("o") else super()._null(v, target)

    def values(self, prefix: str) -> str:
        """An expression of the values of all other keys."""
        return "(" + "".join(f"{self._value(prefix, key)}, " for key in self._keys) + ")"

    def _value(self, prefix: str, key: OtherKey) -> str:
        cells = [f"{prefix}{at}" for at in key.places]
        if self.text and prefix == "c":
            null = f"m & {sum(1 << at for at in set(key.places))}"
        else:
            null = " or ".join(f"{cell} is None" for cell in cells)
        pairs = zip(cells, key.same, strict=True)
        compared = _whole([self._compared(c, same) if same is not None else f"coarse({c})" for c, same in pairs])
        found = f"({compared}, {_whole(cells)})" if key.is_coarse else compared
        return f"None if {null} else {found}"


def _whole(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def claim_programs(layout: Layout, keys: tuple[OtherKey, ...]) -> ClaimPrograms:
    insert, update, delete = (ClaimWriter(layout, keys) for _ in range(3))
    insert.insert()
    insert.row()
    insert.source.add("return {}, {}, row, {}".format(*insert.key_of("c"), insert.values("c")))
    update.update()
    update.row()
    both = (*update.key_of("o"), *update.key_of("c"), update.values("o"), update.values("c"))
    update.source.add("return {}, {}, {}, {}, row, {}, {}".format(*both))
    delete.delete()
    delete.source.add("return {}, {}, {}".format(*delete.key_of("c"), delete.values("c")))
    return ClaimPrograms(insert.compile("insert"), update.compile("update"), delete.compile("delete"))


class ClaimCodec:
    """As Codec for the fold, with the values of the other keys at the end of what it returns."""

    def __init__(self, codec: Codec, keys: tuple[OtherKey, ...]) -> None:
        self._codec = codec
        self._keys = keys
        self.insert_program, self.update_program, self.delete_program = _compiled(codec.layout, keys)

    # The general way, for what a program returned None for.

    def insert(self, b: bytes, p: int, end: int, commit_ts: int) -> ClaimInserted:
        codec, row = self._codec, b[p:end]
        return *codec.insert(b, p, end, commit_ts), self._values(codec.cells(Kind.INSERT, row, commit_ts)[0])

    def update(self, b: bytes, p: int, end: int, commit_ts: int) -> ClaimUpdated:
        codec, row = self._codec, b[p:end]
        old, new = codec.cells(Kind.UPDATE, row, commit_ts)
        return *codec.update(b, p, end, commit_ts), self._values(old), self._values(new)

    def delete(self, b: bytes, p: int, end: int, commit_ts: int) -> ClaimDeleted:
        codec, row = self._codec, b[p:end]
        return *codec.delete(b, p, end, commit_ts), self._values(codec.cells(Kind.DELETE, row, commit_ts)[0])

    def value_row(self, number: int, value: object) -> Row:
        """A value of key `number`, as it is, as a destination matches it."""
        cells = value if isinstance(value, tuple) else (value,)
        if self._codec.dialect != "mysql":
            return cells
        targets = self._codec.layout.targets
        return row_text(tuple(targets[at].form for at in self._keys[number].places), cells)

    def _values(self, cells: Cells) -> Values:
        return tuple([_value(key, cells) for key in self._keys])


def _value(key: OtherKey, cells: Cells) -> object:
    own = tuple([cells[at] for at in key.places])
    if None in own:
        return None
    compared = tuple([coarse(c) if s is None else normal(c, s) for c, s in zip(own, key.same, strict=True)])
    value = compared[0] if len(compared) == 1 else compared
    return (value, own[0] if len(own) == 1 else own) if key.is_coarse else value


def _no_program(b: bytes, p: int, end: int) -> None:
    """Of a layout that has none: a column takes the value of another one."""


@lru_cache(maxsize=2048)
def _compiled(layout: Layout, keys: tuple[OtherKey, ...]) -> ClaimPrograms:
    if any(target.old_column_id for target in layout.targets):
        return ClaimPrograms(_no_program, _no_program, _no_program)
    return claim_programs(layout, keys)
