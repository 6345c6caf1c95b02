"""The Spark schema of a change stream, from the TableInfos of its tables; the parameters of a task that reads it,
and the errors of its rows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from binlog.errors import BinlogError
from binlog.tidb.table import ColumnInfo, TableInfo
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from drainer.protocol.table import handle_index
from drainer.row.layout import replicated
from drainer.schema.filter import EventFilter
from drainer.schema.history.base import Name, Watched
from drainer.schema.rules import Rules
from drainer.spark.typed.types import spark_type

BEFORE, AFTER, ADDED = "before", "after", "added"
CHANGELOG = ("_change_type", "_commit_version", "_commit_timestamp")


class TablesUnfit(BinlogError):
    """No Spark schema exists for these tables; the text gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of `before` and `after`, common to all tables. `names`, `types`: in the order of the tables' columns;
    `columns`: for each table the column of each field, None where it has none; `key`: of a single table the fields that
    identify its rows; none if the table has no such key, or if not all of its columns are fields."""

    names: tuple[str, ...]
    types: tuple[DataType, ...]
    columns: Mapping[Name, tuple[ColumnInfo | None, ...]]
    key: tuple[str, ...] = ()

    def struct(self) -> StructType:
        return StructType([StructField(name, kind) for name, kind in zip(self.names, self.types, strict=True)])


def fields_of(tables: Mapping[Name, TableInfo]) -> Fields:
    """Return the columns of the change stream: those of all tables, by name. Generated columns are left out, because
    rows in a binlog do not contain them.

    Raises TablesUnfit for a type without a Spark equivalent, and for two columns of one name and different types.
    """
    places: dict[str, int] = {}
    names: list[str] = []
    types: list[DataType] = []
    origins: list[str] = []
    by_table: dict[Name, dict[int, ColumnInfo]] = {}
    for name, info in tables.items():
        mine = by_table[name] = {}
        for column in replicated(info):
            kind = spark_type(column.type)
            what = f"{'.'.join(name)}.{column.name}"
            if kind is None:
                raise TablesUnfit(f"column {what}: Spark has no type for {column.type.mysql_name}")
            place = places.get(column.name.lower())
            if place is None:
                place = places[column.name.lower()] = len(names)
                names.append(column.name)
                types.append(kind)
                origins.append(what)
            elif types[place] != kind:
                raise TablesUnfit(
                    f"column {origins[place]} is {types[place].simpleString()} and {what} is {kind.simpleString()}: "
                    f"a stream has one type for each column name; read these tables as two streams"
                )
            mine[place] = column
    columns = {name: tuple(mine.get(n) for n in range(len(names))) for name, mine in by_table.items()}
    index = handle_index(info) if len(tables) == 1 else None
    key = tuple(column.name for column in info.index_columns(index)) if index is not None else ()
    return Fields(tuple(names), tuple(types), columns, key if {*key} <= {*names} else ())


def identifies(key: Sequence[str], info: TableInfo) -> bool:
    """Return whether a unique key of the table has no other columns than these, and no NULL."""
    names = {name.lower() for name in key}
    return any(
        not info.takes_null(index) and {column.name.lower() for column in info.index_columns(index)} <= names
        for index in info.unique_indexes()
    )


def changelog_schema(fields: Fields) -> StructType:
    """Return the schema of the shape "changelog". Raises TablesUnfit for a column that has the name of one of its
    own."""
    taken = [name for name in fields.names if name.lower() in CHANGELOG]
    if taken:
        raise TablesUnfit(f"column {taken[0]} has the name of a column of shape = changelog: use the shape images")
    own = map(StructField, CHANGELOG, (StringType(), LongType(), TimestampType()))
    return StructType([*fields.struct(), *own])


def change_schema(fields: Fields, *, collect: bool) -> StructType:
    """Return the schema of the data source: one row per row change (see drainer.spark.source.data_source)."""
    columns = [
        StructField("kind", StringType()),
        StructField("commit_ts", LongType()),
        StructField("commit_time", TimestampType()),
        StructField("start_ts", LongType()),
        StructField("seq", IntegerType()),
        StructField("schema", StringType()),
        StructField("table", StringType()),
        StructField(BEFORE, fields.struct()),
        StructField(AFTER, fields.struct()),
    ]
    if collect:
        columns.append(StructField(ADDED, MapType(StringType(), StringType())))
    return StructType(columns)


def chosen(watched: Watched, wanted: Iterable[Name], sources: str) -> dict[Name, TableInfo]:
    """Return the current TableInfos of the tables named in `wanted`, in that order. Raises TablesUnfit."""
    newest = {(name[0].lower(), name[1].lower()): name for name in watched.newest}
    tables = {}
    for name in wanted:
        known = newest.get((name[0].lower(), name[1].lower()))
        if known is None:
            hint = "the name is misspelled, the table was dropped, or the history does not go back to its creation"
            raise TablesUnfit(f"table {'.'.join(name)} is not in the DDL history ({sources}): {hint}")
        info = watched.newest[known]
        if info.is_view or info.is_sequence:
            raise TablesUnfit(f"{'.'.join(name)} is a {'view' if info.is_view else 'sequence'} and has no rows")
        tables[known] = info
    return tables


@dataclass(frozen=True, slots=True)
class StreamRules:
    """What is left out of the changes of the stream's tables, and masked. Picklable. `values`: the rules for columns
    and rows; `ignored_ts`: commit_ts of transactions that are left out."""

    values: Rules = field(default_factory=Rules)
    events: EventFilter = field(default_factory=EventFilter)
    ignored_ts: tuple[int, ...] = ()

    def applied(self, name: Name, info: TableInfo) -> TableInfo:
        """The table without the columns that are left out. Raises RuleRefused, naming rule, table and column."""
        applied = self.values.applied(name[0], info)
        return info if applied is None else applied.info


# Parameters of a task of the change stream, and the errors of its rows.


class SchemaChanged(BinlogError):
    """A DDL has changed a table since the query was started, and the table's rows no longer fit the query's columns."""

    def __init__(self, table: str, what: str, commit_ts: int) -> None:
        super().__init__(
            f"table {table}: {what} since the query was started (row of commit_ts {commit_ts}). Start the query again "
            f"to read on with the table's new columns, or set schema-changes = collect"
        )


class ValueUnfit(BinlogError):
    """A value from before or after a change of type does not fit the type of the column in the query."""

    def __init__(self, table: str, column: str, why: str, commit_ts: int) -> None:
        super().__init__(
            f"table {table}, row of commit_ts {commit_ts}: column {column} had another type then, and {why}. With "
            f"schema-changes = collect it is NULL, and its text is in the column added; or start after this "
            f"commit_ts with start-ts"
        )


class KeyUnfit(BinlogError):
    """The key of a row of the shape "changelog" is not shown as it is, so that rows cannot be told apart by it."""

    def __init__(self, table: str, column: str, why: str, commit_ts: int) -> None:
        super().__init__(
            f"table {table}, row of commit_ts {commit_ts}: column {column} of the key {why}, so rows cannot be told "
            f"apart by it. Read with shape = images, or start after this commit_ts with start-ts"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters of a task; picklable. `watched`: includes every DDL that affects the task's rows; a column that is not
    in it was not public when the row was written. `begin_version`: schema version at the start of the query. `collect`:
    put columns added by a DDL into the column `added` instead of raising. `zero_dates_fail`: raise for zero dates.
    `fields` has the columns that `rules` leave. `changelog`: return rows in the shape "changelog"."""

    watched: Watched
    fields: Fields
    begin_version: int
    collect: bool = False
    zero_dates_fail: bool = False
    rules: StreamRules = field(default_factory=StreamRules)
    changelog: bool = False
