"""How rows of a table are written, from what the destination shows of its columns and unique keys.

The rows that these keys distinguish are compared with upstream's (rule 10: equal keys). A table that somebody made
there as `_ci`, a collation that the server lacks, a unique key that upstream has not: what are two rows upstream may be
one row here, and REPLACE or DELETE by key would silently remove the other one. Such a table's rows are deleted by exact
bytes and written with INSERT, so that a collision is an error and no row is lost.

The file of LOAD DATA LOCAL is the text of VALUES tuples: `(1,'a',NULL),(2,X'00',NULL),`. With the options below the
server parses it as it parses a statement: a field in quotes ends where a quote is followed by `,` or `),`, a backslash
escapes the next character, and NULL without quotes is NULL. Values that a file cannot express are assigned from a
variable: fields of a file are strings, and for some types a number differs from the string of its digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from binlog.runtime.log import get_logger

from drainer.batch.work import TableShape
from drainer.changes.net import Tuples
from drainer.ddl.lexer import quoted, tokens
from drainer.ddl.mysql_columns import SUBSTITUTES
from drainer.row.column_type import TypeClass
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.rows.format import qualified, quote


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the destination's information_schema describes it. `collation` and `charset`: '' if it is not text;
    `fraction`: number of fractional digits, None if unlimited; `type`: its DATA_TYPE, such as `bigint`."""

    collation: str
    fraction: int | None
    type: str = ""
    charset: str = ""
    nullable: bool = True


_FORMAT: Final = (
    b" FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\\'' ESCAPED BY '\\\\'"
    rb" LINES STARTING BY '(' TERMINATED BY '),' "
)
# Values that differ between file and statement: bytes of a string column that are not UTF-8 (format.string_literal),
# and -0.0, which is 0.0 as a literal. Both are rare; a string with such text is found, too, which is harmless.
_NOT_IN_A_FILE: Final = re.compile(rb"[,(](?:x'|-0\.0[,)])")
_MAYBE: Final = (re.compile(rb"x'"), re.compile(rb"-0\.0"))  # a third of the time that `in` takes

# A file is made in memory. Larger files have such long rows that statements are as fast.
BODY_BYTES_MAX: Final = 16 << 20

_PLAIN: Final = b""
_INTEGER: Final = b"CAST(%s AS UNSIGNED)"
_HEX: Final = b"UNHEX(SUBSTR(%s,3,LENGTH(%s)-3))"  # X'00ff'

_STRINGS: Final = dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), _PLAIN)
_INTEGERS: Final = dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), _PLAIN)
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")

# By the type class of upstream's column and the type of the destination's: how the field is converted to the value of
# the literal. Other pairs are not loaded.
_VALUES: Final[Mapping[str, Mapping[str, bytes]]] = {
    TypeClass.INT.value: {**_INTEGERS, "year": _INTEGER},
    TypeClass.DECIMAL.value: {"decimal": _PLAIN},
    TypeClass.FLOAT.value: {"float": _PLAIN, "double": _PLAIN},
    TypeClass.TEXT.value: _STRINGS,
    TypeClass.BYTES.value: dict.fromkeys(_BYTES, _HEX),
    TypeClass.DATE.value: {"date": _PLAIN},
    TypeClass.DATETIME.value: {"datetime": _PLAIN, "timestamp": _PLAIN},
    TypeClass.TIME.value: {"time": _PLAIN},
    TypeClass.ENUM.value: {"enum": _INTEGER},
    TypeClass.SET.value: {"set": _INTEGER},
    TypeClass.BIT.value: {"bit": _INTEGER},
    TypeClass.JSON.value: {"json": _PLAIN, "longtext": _PLAIN},
}


def clause_of(shape: TableShape, columns: Mapping[str, Column]) -> bytes:
    """The part of LOAD DATA after the table's name. `columns`: the destination's, by their names in lower case. Empty
    if rows could differ from those of a statement: upstream's type is unknown, or a column has another one there."""
    if len(shape.type_classes) != len(shape.columns):
        return b""
    names, assignments, charset = [], [], b"binary"
    for column_index, (name, type_class) in enumerate(zip(shape.columns, shape.type_classes, strict=True)):
        column = columns.get(name.lower())
        value = None if column is None else _VALUES[type_class].get(column.type)
        if column is None or value is None:
            return b""
        if column.type == "timestamp" and not column.nullable:
            value = b"%s"  # NULL in a file would become the current time
        # Strings of utf8mb4 columns are stored unchanged; for any other charset the server must convert them.
        if type_class in (TypeClass.TEXT.value, TypeClass.JSON.value) and column.charset != "utf8mb4":
            charset = b"utf8mb4"
        variable = b"@drainer_%d" % column_index
        names.append(quote(name) if value is _PLAIN else variable)
        if value is not _PLAIN:
            assignments.append(quote(name) + b"=" + value.replace(b"%s", variable))
    clause = b" CHARACTER SET " + charset + _FORMAT + b"(" + b",".join(names) + b")"
    return clause + (b" SET " + b",".join(assignments) if assignments else b"")


def load_statement(shape: TableShape, clause: bytes, *, replaces: bool) -> bytes:
    """With `replaces` rows replace those with the same key; without it they are skipped, and counted."""
    how = b"REPLACE " if replaces else b""
    table = qualified(shape.schema, shape.table)
    return b"LOAD DATA LOCAL INFILE 'rows' " + how + b"INTO TABLE " + table + clause


def body_of(tuples: Tuples) -> bytes | None:
    """The file of these rows; None if a value can only be written by a statement, or if they have too many bytes."""
    lines = tuples.lines()
    body = bytes(lines) if len(lines) <= BODY_BYTES_MAX else b""
    if not body or (any(one.search(body) for one in _MAYBE) and _NOT_IN_A_FILE.search(body)):
        return None
    return body


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
    server silently truncates or rounds fractions of a second, and all digits after the point of an integer. Pure."""
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
    """Statements that give these columns a collation like upstream's; none for a column for which there is no such."""
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
