"""Compares which rows the destination's unique keys distinguish with upstream's (rule 10: equal keys).

A table that somebody made there as `_ci`, a collation that the server lacks, a unique key that upstream has not: what
are two rows upstream may be one row here, and REPLACE or DELETE by key would silently remove the other one. Such a
table's rows are deleted by exact bytes and written with INSERT, so that a collision is an error and no row is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from binlog.runtime.log import get_logger

from drainer.batch.work import TableShape
from drainer.ddl.lexer import quoted, tokens
from drainer.ddl.mysql_columns import SUBSTITUTES
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.rows.load_data import Column, clause_of

_log = get_logger(__name__)

_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})


def coarseness(collation: str) -> int:
    """0: bytes, 1: bytes without trailing spaces, 2: anything else."""
    name = collation.lower()
    if name in _EXACT or name.endswith("_nopad_bin"):
        return 0
    return 1 if name.endswith("_bin") else 2


def is_coarser(here: str, upstream: str) -> bool:
    """Whether strings that differ under upstream's collation may be equal under the destination's. '': not a string."""
    ours, theirs = here.lower().replace("utf8mb3_", "utf8_"), upstream.lower().replace("utf8mb3_", "utf8_")
    if not ours or not theirs or ours == theirs:
        return False
    return coarseness(ours) == 2 or coarseness(ours) > coarseness(theirs)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key; `collation` '' where it is no text, `whole`: not a prefix of it."""

    column: str
    collation: str
    whole: bool


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key as it is in the destination."""

    name: str
    parts: tuple[KeyColumn, ...]


@dataclass(frozen=True, slots=True)
class Handling:
    """How rows of a table are written. `replaces`: REPLACE removes exactly the row with upstream's key. `coarse`:
    columns of upstream's key, or of any unique key of the destination, that the destination compares less strictly than
    upstream. `exact`: whether keys to delete are compared byte for byte. `narrow`: columns (index, number of fractional
    digits) with fewer fractional digits than upstream's. `load`: the clause with which LOAD DATA writes the same rows
    as a statement would; empty if there is none."""

    replaces: bool = True
    coarse: tuple[str, ...] = ()
    exact: bool = False
    keys: tuple[UniqueKey, ...] = ()
    narrow: tuple[tuple[int, int], ...] = ()
    load: bytes = b""


class UniqueKeys:
    """Reads each table's keys once, and again after every DDL."""

    def __init__(self, *, tell: bool = False) -> None:
        self._known: dict[TableShape, Handling] = {}
        self._tell = tell
        self._told: set[tuple[object, ...]] = set()

    def forget(self) -> None:
        self._known.clear()

    def write_by_statements(self, shape: TableShape) -> None:
        """Do not use LOAD DATA for this table."""
        if shape in self._known:
            self._known[shape] = replace(self._known[shape], load=b"")

    def handling(self, session: ServerSession, shape: TableShape) -> Handling:
        found = self._known.get(shape)
        if found is None:
            there = read(session, shape.schema, shape.table)
            if there is None:  # no such table: the statement will fail with the server's error
                return Handling()
            keys, columns = there
            handling = handling_of(shape, keys, {name: column.collation for name, column in columns.items()})
            narrow = narrower(shape, columns)
            load = b"" if narrow else clause_of(shape, columns)
            found = self._known[shape] = replace(handling, narrow=narrow, load=load)
            if self._tell:
                self._warn(session, shape, found)
        return found

    def _warn(self, session: ServerSession, shape: TableShape, found: Handling) -> None:
        """Warn, once for each table and reason, of what an operator can change."""
        additional = additional_keys(shape, found.keys)
        reason = (shape.schema, shape.table, found.coarse, additional)
        if reason in self._told or not (found.coarse or additional):
            return
        self._told.add(reason)
        _log.warning(
            "the destination refuses rows that upstream accepts: one that collides with another row there stops the "
            "drainer; give the columns upstream's collation, and drop unique keys that upstream has not",
            table=f"{shape.schema}.{shape.table}",
            coarser_columns=found.coarse,
            keys_not_upstream=additional,
            statements=tuple(mend(session, shape, found.coarse)),
        )


def read(session: ServerSession, schema: str, table: str) -> tuple[tuple[UniqueKey, ...], Mapping[str, Column]] | None:
    """Return the unique keys of a table and its columns (by names in lower case), None if the table does not exist."""
    where = b" WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s" % (session.literal(schema), session.literal(table))
    found = session.query(
        b"SELECT COLUMN_NAME, COLLATION_NAME, COALESCE(DATETIME_PRECISION, NUMERIC_SCALE), DATA_TYPE,"
        b" CHARACTER_SET_NAME, IS_NULLABLE FROM information_schema.COLUMNS" + where
    )
    if not found:
        return None
    columns = {
        str(name).lower(): Column(
            str(collation or ""),
            None if fraction is None else int(fraction),
            str(kind).lower(),
            str(charset or ""),
            nullable != "NO",
        )
        for name, collation, fraction, kind, charset, nullable in found
    }
    rows = session.query(
        b"SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS"
        + where
        + b" AND NON_UNIQUE=0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"
    )
    parts: dict[str, list[KeyColumn]] = {}
    for index, column, prefix in rows:
        name = "" if column is None else str(column)  # an expression
        of = columns.get(name.lower())
        parts.setdefault(str(index), []).append(KeyColumn(name, of.collation if of else "", prefix is None))
    return tuple(UniqueKey(name, tuple(of)) for name, of in parts.items()), columns


def handling_of(shape: TableShape, keys: tuple[UniqueKey, ...], collations: Mapping[str, str]) -> Handling:
    """How a table's rows must be written, from the destination's keys and the collations of columns. Pure."""
    upstream = upstream_collations(shape)

    def coarser(part: KeyColumn) -> bool:
        return is_coarser(part.collation, upstream.get(part.column.lower(), ""))

    # A DELETE by upstream's key compares its columns, even if the destination has no such key.
    own = tuple(
        KeyColumn(name, collations.get(name.lower(), ""), True) for name in (shape.columns[at] for at in shape.key)
    )
    keyed = (part for key in keys for part in key.parts)
    coarse = tuple({part.column.lower(): part.column for part in (*own, *keyed) if coarser(part)}.values())
    by = {part.column.lower() for part in own}

    def tells_apart(key: UniqueKey) -> bool:
        """Whether rows with different fold keys never conflict in this key."""
        return by <= {part.column.lower() for part in key.parts if part.whole and not coarser(part)}

    has_own = any({part.column.lower() for part in key.parts} == by for key in keys)
    exact = any(column.lower() in by for column in coarse)
    return Handling(has_own and all(map(tells_apart, keys)), coarse, exact, keys)


def additional_keys(shape: TableShape, keys: tuple[UniqueKey, ...]) -> tuple[str, ...]:
    """Return the names of the destination's unique keys that upstream has not. Pure."""
    own = {shape.columns[at].lower() for at in shape.key}
    upstream = {name.lower() for name in shape.secondary_unique}
    others = (key for key in keys if {part.column.lower() for part in key.parts} != own)
    return tuple(key.name for key in others if key.name.lower() not in upstream)


def narrower(shape: TableShape, columns: Mapping[str, Column]) -> tuple[tuple[int, int], ...]:
    """Return the columns (index, number of fractional digits) that have fewer fractional digits in the destination. A
    server silently truncates or rounds fractions of a second, and all digits after the point in an integer column.
    Pure."""
    found = []
    for column_index, wanted in enumerate(shape.fractions):
        here = columns.get(shape.columns[column_index].lower())
        if here is not None and here.fraction is not None and here.fraction < wanted:
            found.append((column_index, here.fraction))
    return tuple(found)


def upstream_collations(shape: TableShape) -> Mapping[str, str]:
    """Upstream's collation by the column's name in lower case, of strings alone."""
    pairs = zip(shape.columns, shape.collations, strict=bool(shape.collations))
    return {name.lower(): collation for name, collation in pairs if collation}


def mend(session: ServerSession, shape: TableShape, columns: tuple[str, ...]) -> Iterator[str]:
    """Statements that give these columns a collation like upstream's; none for a column for which no such collation
    exists."""
    if not columns:
        return
    lines = session.show_create(b"TABLE " + quoted(shape.schema, shape.table).encode()).splitlines()
    upstream = upstream_collations(shape)
    for column in columns:
        wanted = _available(session, upstream[column.lower()])
        line = next((line.strip().rstrip(",") for line in lines if line.strip().startswith(quoted(column) + " ")), "")
        if wanted and line:
            definition = with_collation(line, wanted)
            yield f"ALTER TABLE {quoted(shape.schema, shape.table)} MODIFY COLUMN {definition}"


def _available(session: ServerSession, collation: str) -> str:
    """This collation, or the most similar one here that distinguishes at least as much."""
    wanted = [c for c in (collation, *SUBSTITUTES.get(collation.lower(), ())) if not is_coarser(c, collation)]
    names = b",".join(session.literal(name) for name in wanted)
    known = session.query(
        b"SELECT LOWER(COLLATION_NAME) FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s)" % names
    )
    found = {str(row[0]) for row in known}
    return next((name for name in wanted if name.lower() in found), "")


def with_collation(definition: str, collation: str) -> str:
    """A column's definition, as SHOW CREATE TABLE says it, with another character set and collation. Pure."""
    words = list(tokens(definition))
    cut: list[tuple[int, int]] = []
    for at, word in enumerate(words):
        if word.is_word("COLLATE") and at + 1 < len(words):
            cut.append((word.start, words[at + 1].end))
        if word.is_word("CHARACTER") and at + 2 < len(words) and words[at + 1].is_word("SET"):
            cut.append((word.start, words[at + 2].end))
    text = definition
    for start, end in reversed(cut):
        text = text[:start].rstrip() + text[end:]
    words = list(tokens(text))
    end = 1
    if len(words) > 2 and words[2].value == "(":
        end = next(at for at, word in enumerate(words) if word.value == ")")
    behind = words[end].end
    return f"{text[:behind]} CHARACTER SET {collation.split('_', 1)[0]} COLLATE {collation}{text[behind:]}"
