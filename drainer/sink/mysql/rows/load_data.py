"""LOAD DATA LOCAL of the text of VALUES tuples: `(1,'a',NULL),(2,X'00',NULL),` is the file that is read. Pure.

With the options below the server parses such a file as it parses a statement: a field in quotes ends where a quote is
followed by `,` or `),`, a backslash escapes the next character, and NULL without quotes is NULL. Values that a file
cannot express are assigned from a variable: fields of a file are strings, and for some types a number differs from the
string of its digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drainer.batch.work import TableShape
from drainer.changes.net import Tuples
from drainer.row.column_type import TypeClass
from drainer.sink.mysql.rows.format import qualified, quote

# A column of a table as the destination's information_schema describes it.


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the destination's table. `collation` and `charset`: '' if it is not text; `fraction`: number of
    fractional digits, None if unlimited; `type`: its DATA_TYPE, such as `bigint`."""

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
    if rows could differ from those of a statement: a column does not have upstream's type there, or upstream's type is
    unknown."""
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


def statement(shape: TableShape, clause: bytes, *, replaces: bool) -> bytes:
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
