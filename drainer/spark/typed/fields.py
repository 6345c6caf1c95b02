"""The columns of the change stream, made of the tables it is asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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

from drainer.row.layout import replicated
from drainer.schema.table_versions import Name, Watched
from drainer.spark.typed.types import spark_type

BEFORE, AFTER, ADDED = "before", "after", "added"


class TablesUnfit(BinlogError):
    """No schema for Spark can be made of these tables; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Fields:
    """`names` and `types`: the fields of `before` and `after`, the same for all tables, in the order in which the
    tables have them; `columns`: of each table the column behind each field, None where it has none."""

    names: tuple[str, ...]
    types: tuple[DataType, ...]
    columns: Mapping[Name, tuple[ColumnInfo | None, ...]]

    def struct(self) -> StructType:
        return StructType([StructField(name, kind) for name, kind in zip(self.names, self.types, strict=True)])


def fields_of(tables: Mapping[Name, TableInfo]) -> Fields:
    """The union of the tables' columns by name. Generated columns, which rows do not carry, are not among them.

    Raises TablesUnfit for a type that Spark has not, and for two columns of one name and different types.
    """
    places: dict[str, int] = {}
    names: list[str] = []
    types: list[DataType] = []
    origins: list[str] = []
    found: dict[Name, dict[int, ColumnInfo]] = {}
    for name, info in tables.items():
        mine = found[name] = {}
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
                    f"one stream has one type for a name, read these tables as two streams"
                )
            mine[place] = column
    columns = {name: tuple(mine.get(n) for n in range(len(names))) for name, mine in found.items()}
    return Fields(tuple(names), tuple(types), columns)


def change_schema(fields: Fields, *, collect: bool) -> StructType:
    """What the data source gives for each change of a row (see drainer.spark.source.data_source)."""
    found = [
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
        found.append(StructField(ADDED, MapType(StringType(), StringType())))
    return StructType(found)


def chosen(watched: Watched, wanted: Iterable[Name], sources: str) -> dict[Name, TableInfo]:
    """The tables of these names as they are now, in the order in which they were asked for. Raises TablesUnfit."""
    newest = {(name[0].lower(), name[1].lower()): name for name in watched.newest}
    found = {}
    for name in wanted:
        known = newest.get((name[0].lower(), name[1].lower()))
        if known is None:
            hint = "it is spelled otherwise, was dropped, or these do not go back to its creation"
            raise TablesUnfit(f"table {'.'.join(name)} is not in the DDL history ({sources}): {hint}")
        info = watched.newest[known]
        if info.is_view or info.is_sequence:
            raise TablesUnfit(f"{'.'.join(name)} is a {'view' if info.is_view else 'sequence'} and has no rows")
        found[known] = info
    return found
