"""Table declarations, and the handles that rows are written through.

A `Table` is either declared (made by the program) or bound (returned by the service). A bound one has a schema, a
TableInfo and a schema version. It never changes: an ALTER returns a new handle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum as PythonEnum
from typing import Final

from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag

from pumpclient.sdk.errors import BadDeclaration, list_of, of_kind, shown

NAME_CHARACTERS_MAX = 64


class Default(PythonEnum):
    """Defaults of a column that are not values."""

    NONE = "none"  # a row that leaves the column out gets NULL; an error if the column is not nullable
    NOW = "now"  # CURRENT_TIMESTAMP: the time, in UTC, at which a row without the column is written


NO_DEFAULT: Final = Default.NONE
NOW: Final = Default.NOW


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its name, its type (such as `BigInt()`), and its properties.

    `nullable`: by default a column is nullable unless it is in the primary key. `default`: the value for rows that
    leave the column out; `NOW` is the time of writing. Raises BadDeclaration if an argument has the wrong type.
    """

    name: str
    type: FieldType
    primary_key: bool = False
    nullable: bool | None = None
    default: object = NO_DEFAULT
    comment: str = ""

    def __post_init__(self) -> None:
        name = of_kind("Column: name", self.name, str)
        of_kind(f"Column {name!r}: type", self.type, FieldType)
        of_kind(f"Column {name!r}: primary_key", self.primary_key, bool)
        if self.nullable is not None:
            of_kind(f"Column {name!r}: nullable", self.nullable, bool)
        of_kind(f"Column {name!r}: comment", self.comment, str)

    @property
    def is_nullable(self) -> bool:
        """The value of `nullable`. If that is None: True unless the column is in the primary key."""
        return not self.primary_key if self.nullable is None else self.nullable


@dataclass(frozen=True, slots=True)
class Index:
    """An index over columns, or prefixes: `("name", 10)` is the first ten characters (or bytes)."""

    name: str
    columns: tuple[tuple[str, int], ...]
    unique: bool = False

    def __post_init__(self) -> None:
        of_kind("Index: name", self.name, str)
        object.__setattr__(self, "columns", _key_parts(f"Index {self.name!r}: columns", self.columns))

    @classmethod
    def over(cls, name: str, columns: Sequence[str | tuple[str, int]], *, unique: bool = False) -> Index:
        """Make an index from column names, or from pairs of a name and a prefix length."""
        return cls(name, columns, unique)  # type: ignore[arg-type]


def _key_parts(where: str, columns: object) -> tuple[tuple[str, int], ...]:
    parts: list[tuple[str, int]] = []
    for part in list_of(where, columns, object):
        if isinstance(part, str):
            parts.append((part, -1))
        elif isinstance(part, tuple) and [type(piece) for piece in part] == [str, int]:
            parts.append((part[0], part[1]))
        else:
            raise BadDeclaration(f"{where}: must be a name or (name, prefix length), not {shown(part)}")
    return tuple(parts)


Keys = Mapping[str, Sequence[str | tuple[str, int]]] | Sequence[Sequence[str | tuple[str, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The published definition of a table: its database, its TableInfo, and the schema version they belong to.

    Equal to itself only, so that it is a key without its contents being hashed.
    """

    schema: str
    info: TableInfo
    version: int


class Table:
    """A table with its columns and keys.

    `unique` and `indexes` map names to columns. As a list of column lists, each key is named after its first column.

    A primary key of one integer column is the row's handle. Any other primary key is clustered unless
    `clustered=False`. A table may have no key.
    """

    def __init__(
        self,
        name: str,
        *columns: Column,
        unique: Keys = (),
        indexes: Keys = (),
        clustered: bool = True,
        primary_key: Sequence[str | tuple[str, int]] = (),
        collate: str = "utf8mb4_bin",
        comment: str = "",
        bound: Bound | None = None,
    ) -> None:
        """Declare a table.

        `primary_key` lists the key's columns, with prefix lengths where needed; by default it is the columns declared
        with `primary_key=True`, in their order. Raises BadDeclaration if the declaration is not possible.
        """
        self.name = check_name("table", name)
        for n, column in enumerate(columns):
            of_kind(f"Table {name!r}: column {n + 1}", column, Column)
        self.primary_key = Index.over("PRIMARY", primary_key or [c.name for c in columns if c.primary_key], unique=True)
        in_key = {part for part, _ in self.primary_key.columns}
        self.columns = tuple(replace(c, primary_key=c.name in in_key) for c in columns)
        self.keys = (*_indexes(unique, unique=True), *_indexes(indexes, unique=False))
        self.clustered = of_kind(f"Table {name!r}: clustered", clustered, bool)
        self.collate = of_kind(f"Table {name!r}: collate", collate, str)
        self.comment = of_kind(f"Table {name!r}: comment", comment, str)
        self.bound = bound
        if bound is None:
            self._check()

    def _check(self) -> None:
        where = f"table {self.name}"
        if not self.columns:
            raise BadDeclaration(f"{where} has no columns")
        for column in self.columns:
            check_column(self.name, column)
        _distinct(where, "column", [c.name for c in self.columns])
        _distinct(where, "index", [k.name for k in self.keys])
        for key in (self.primary_key, *self.keys):
            check_index(self.name, key, {c.name: c.type for c in self.columns})

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the declaration."""
        return tuple(c.name for c in self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __repr__(self) -> str:
        if self.bound is None:
            return f"<Table {self.name}, declared>"
        return f"<Table {self.bound.schema}.{self.name} id={self.bound.info.id} version={self.bound.version}>"


def check_name(what: str, name: str) -> str:
    """Return `name` if MySQL accepts it as an identifier; raise BadDeclaration if not."""
    of_kind(f"{what} name", name, str)
    if not name or len(name) > NAME_CHARACTERS_MAX or name.endswith(" ") or "\x00" in name:
        raise BadDeclaration(
            f"{what} name {name!r} must have 1 to {NAME_CHARACTERS_MAX} characters and no space at the end"
        )
    if any(character > "\uffff" for character in name):
        raise BadDeclaration(f"{what} name {name!r} has a character outside the basic plane")
    return name


def check_column(table: str, column: Column) -> None:
    check_name(f"{table}: column", column.name)
    if column.primary_key and column.nullable:
        raise BadDeclaration(f"{table}.{column.name}: a primary key's column cannot be nullable")
    if column.default is None and not column.is_nullable:
        raise BadDeclaration(f"{table}.{column.name}: default NULL in a column that is not nullable")


def check_index(table: str, key: Index, types: Mapping[str, FieldType]) -> None:
    """Raise BadDeclaration unless the columns exist, prefixes fit, TEXT and BLOB have a prefix, and none is JSON."""
    if not key.columns and key.name != "PRIMARY":
        raise BadDeclaration(f"{table}: key {key.name} names no column")
    _distinct(f"{table}: key {key.name}", "column", [name for name, _ in key.columns])
    for name, length in key.columns:
        where = f"{table}: key {key.name}, column {name}"
        kind = types.get(name)
        if kind is None:
            raise BadDeclaration(f"{where}: there is no such column; the columns are {', '.join(types)}")
        if kind.mysql_name == "json":
            raise BadDeclaration(f"{where}: JSON cannot be in a key")
        if length == 0 or length < -1 or (length > 0 and (not kind.is_string or length > kind.flen)):
            raise BadDeclaration(f"{where}: {length} is not a valid prefix length")
        if length == -1 and kind.mysql_name.endswith(("text", "blob")):
            raise BadDeclaration(f"{where}: a key over {kind.mysql_name} needs a prefix length")


def _distinct(where: str, what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadDeclaration(f"{where}: {what} {name!r} occurs twice")
        seen.add(name.lower())


def _indexes(keys: Keys, *, unique: bool) -> tuple[Index, ...]:
    if isinstance(keys, Mapping):
        return tuple(Index.over(check_name("index", name), parts, unique=unique) for name, parts in keys.items())
    made: list[Index] = []
    taken: set[str] = set()
    argument = "unique" if unique else "indexes"
    for parts in list_of(argument, keys, object):
        columns = _key_parts(f"{argument}: a key", parts)
        if not columns:
            raise BadDeclaration(f"{argument}: a key names no column")
        first = columns[0][0]
        name, number = first, 2
        while name.lower() in taken:
            name, number = f"{first}_{number}", number + 1
        taken.add(name.lower())
        made.append(Index(name, columns, unique))
    return tuple(made)


def bound_table(bound: Bound) -> Table:
    """Return the handle of a published table; another process may have created it."""
    info = bound.info
    columns = [
        Column(
            c.name,
            replace(c.type, flag=c.type.flag & ~int(Flag.NOT_NULL)),
            nullable=not c.is_not_null,
            comment=c.comment,
        )
        for c in info.public_columns
        if not c.hidden
    ]
    primary = info.primary_index()
    parts = [(p.name, p.length) for p in primary.columns] if primary else []
    table = Table(
        info.name,
        *columns,
        primary_key=parts,
        clustered=info.pk_is_handle or info.is_common_handle,
        collate=info.collate,
        comment=info.comment,
        bound=bound,
    )
    table.keys = tuple(
        Index(i.name, tuple((p.name, p.length) for p in i.columns), i.unique) for i in info.indexes if not i.primary
    )
    return table
