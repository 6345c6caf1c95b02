"""The text and the job of each DDL statement, planned from the current catalog. Pure.

Every function first checks what it can without the catalog, then returns a plan. The runner calls the plan while it
holds the DDL lock.

`parse_ddl` accepts statements as text that declare no columns. A small grammar; any other text is refused:

CREATE DATABASE d | DROP DATABASE d | DROP TABLE d.t | TRUNCATE [TABLE] d.t | RENAME TABLE d.t TO d.t
DROP INDEX i ON d.t | ALTER TABLE d.t DROP [COLUMN] c [, DROP …] | CREATE [UNIQUE] INDEX i ON d.t (c [, c…])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import SchemaState

from pumpclient.sdk import schema as shape
from pumpclient.sdk import sql
from pumpclient.sdk.ddl import MakeStatement, Planning
from pumpclient.sdk.errors import BadDeclaration, SchemaExists, list_of, mapping_of, of_kind, shown
from pumpclient.sdk.table import Column, Index, Table, check_name


class AlterOptions(TypedDict, total=False):
    """The arguments of `alter_table`. See Service.alter_table."""

    add: Sequence[Column]
    drop: Sequence[str]
    add_unique: Sequence[Index]
    add_index: Sequence[Index]
    drop_index: Sequence[str]
    modify: Sequence[Column]
    change: Mapping[str, Column]
    rename: Mapping[str, str]
    place: Mapping[str, str | None]
    after: str | None
    first: bool


@dataclass(frozen=True, slots=True)
class Alteration:
    """The changes of one ALTER TABLE. In its text, drops come first, then changed columns, new columns, and keys.

    `change`: pairs of a column's name and its new declaration. `rename`: pairs of an old and a new name. `place`: pairs
    of a column in `modify` or `change`, by its new name, and the column that it shall follow (None: the first place).
    """

    add: tuple[Column, ...] = ()
    drop: tuple[str, ...] = ()
    add_unique: tuple[Index, ...] = ()
    add_index: tuple[Index, ...] = ()
    drop_index: tuple[str, ...] = ()
    after: str | None = None
    first: bool = False
    modify: tuple[Column, ...] = ()
    change: tuple[tuple[str, Column], ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    place: tuple[tuple[str, str | None], ...] = ()

    @property
    def count(self) -> int:
        keys = len(self.add_unique) + len(self.add_index) + len(self.drop_index)
        return keys + len(self.add) + len(self.drop) + self.changed_count

    @property
    def changed_count(self) -> int:
        """The number of columns that get another name or declaration."""
        return len(self.modify) + len(self.change) + len(self.rename)

    def check(self, where: str) -> None:
        """Raises BadDeclaration: a statement changes a column once, and its names are those from before it."""
        if not self.count:
            raise BadDeclaration(f"{where} contains no change")
        touched: dict[str, str] = {}
        for argument, names in (
            ("drop", self.drop),
            ("modify", [c.name for c in self.modify]),
            ("change", [n for old, c in self.change for n in dict.fromkeys((old, c.name))]),
            ("rename", [n for pair in self.rename for n in dict.fromkeys(pair)]),
            ("add", [c.name for c in self.add]),
        ):
            for name in names:
                if name.lower() in touched:
                    raise BadDeclaration(
                        f"{where}: {argument} and {touched[name.lower()]} both name column {name}; one statement "
                        f"changes a column only once"
                    )
                touched[name.lower()] = argument
        if self.after is not None and touched.get(self.after.lower(), "add") != "add":
            raise BadDeclaration(f"{where}: after={self.after!r} names a column that this statement changes")
        declared = {column.name.lower() for column in (*self.modify, *(column for _, column in self.change))}
        for name, after in self.place:
            if name.lower() not in declared:
                raise BadDeclaration(f"{where}: place names {name}, which is in neither modify nor change")
            if after is not None and after.lower() in touched:
                raise BadDeclaration(f"{where}: place[{name!r}]={after!r} names a column that this statement changes")
        if len({name.lower() for name, _ in self.place}) < len(self.place):
            raise BadDeclaration(f"{where}: place names a column twice")

    def position(self, name: str) -> tuple[bool, str | None]:
        """Return whether `place` names the column, and the column that it shall follow."""
        found = [after for placed, after in self.place if placed.lower() == name.lower()]
        return bool(found), found[0] if found else None


def alteration(**given: Unpack[AlterOptions]) -> Alteration:
    """Make an Alteration. BadDeclaration names an argument of the wrong type, TypeError an unknown one."""
    unknown = given.keys() - AlterOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"alter_table has no argument {', '.join(sorted(unknown))}")
    after = given.get("after")
    return Alteration(
        add=list_of("add", given.get("add", ()), Column),
        drop=list_of("drop", given.get("drop", ()), str),
        add_unique=list_of("add_unique", given.get("add_unique", ()), Index),
        add_index=list_of("add_index", given.get("add_index", ()), Index),
        drop_index=list_of("drop_index", given.get("drop_index", ()), str),
        modify=list_of("modify", given.get("modify", ()), Column),
        change=mapping_of("change", given.get("change", {}), Column),
        rename=mapping_of("rename", given.get("rename", {}), str),
        place=_places(given.get("place", {})),
        after=None if after is None else of_kind("after", after, str),
        first=of_kind("first", given.get("first", False), bool),
    )


def create_database(schema: str, collate: str = "utf8mb4_bin") -> MakeStatement:
    check_name("database", schema)

    async def plan(at: Planning) -> Job:
        if schema.lower() in map(str.lower, at.catalog.databases()):
            raise SchemaExists(f"database {schema} already exists")
        made = DBInfo(await at.next_id(), schema, collate.split("_", 1)[0], collate)
        return _on_database(ActionType.CREATE_SCHEMA, sql.create_database(schema, collate), made)

    return plan


def drop_database(schema: str) -> MakeStatement:
    async def plan(at: Planning) -> Job:
        info = at.catalog.database(schema).info
        gone = replace(info, state=SchemaState.NONE)
        text = f"DROP DATABASE {sql.name(info.name)};"
        return _on_database(ActionType.DROP_SCHEMA, text, gone)

    return plan


def create_table(schema: str, table: Table) -> MakeStatement:
    text = sql.create_table(
        of_kind("table", table, Table)
    )  # an impossible default is found here, before anything is locked

    async def plan(at: Planning) -> Job:
        database = at.catalog.must_be_free(schema, table.name).info
        info = shape.build_table(table, table_id=await at.next_id(), start_ts=at.start_ts)
        return _on_table(ActionType.CREATE_TABLE, text, database, info)

    return plan


def drop_table(schema: str, name: str) -> MakeStatement:
    async def plan(at: Planning) -> Job:
        database, info = _current(at, schema, name)
        gone = replace(info, state=SchemaState.NONE, update_timestamp=at.start_ts)
        return _on_table(ActionType.DROP_TABLE, f"DROP TABLE {sql.name(info.name)};", database, gone)

    return plan


def truncate_table(schema: str, name: str) -> MakeStatement:
    async def plan(at: Planning) -> Job:
        database, info = _current(at, schema, name)
        emptied = replace(info, id=await at.next_id(), update_timestamp=at.start_ts)
        text = f"TRUNCATE TABLE {sql.name(info.name)};"
        job = _on_table(ActionType.TRUNCATE_TABLE, text, database, emptied)
        return replace(job, table_id=info.id)  # the job names the old id, its TableInfo the new one

    return plan


def rename_table(schema: str, name: str, new_schema: str, new_name: str) -> MakeStatement:
    check_name("new table", new_name)

    async def plan(at: Planning) -> Job:
        old_database, info = _current(at, schema, name)
        database = at.catalog.must_be_free(new_schema, new_name).info
        text = sql.rename_table(info.name, new_name, old_schema=old_database.name, new_schema=database.name)
        renamed = replace(info, name=new_name, update_timestamp=at.start_ts)
        return _on_table(ActionType.RENAME_TABLE, text, database, renamed)

    return plan


def alter_table(schema: str, name: str, change: Alteration) -> MakeStatement:
    change.check(f"ALTER TABLE {schema}.{name}")

    async def plan(at: Planning) -> Job:
        database, info = _current(at, schema, name)
        altered, texts = _altered(info, change)
        altered = replace(altered, update_timestamp=at.start_ts)
        return _on_table(_action(change), sql.alter_table(info.name, texts), database, altered)

    return plan


def _altered(info: TableInfo, change: Alteration) -> tuple[TableInfo, list[str]]:
    texts: list[str] = []
    for key in change.drop_index:
        info = shape.drop_index(info, key)
        texts.append(f"DROP INDEX {sql.name(key)}")
    for column in change.drop:
        info = shape.drop_column(info, column)
        texts.append(f"DROP COLUMN {sql.name(column)}")
    info = _changed(info, change, texts)
    after, first = change.after, change.first
    for added in change.add:
        info = shape.add_column(info, added, after=after, first=first)
        texts.append(f"ADD COLUMN {sql.column_sql(info.name, added)}{_position(after, first)}")
        if first or after is not None:
            after, first = added.name, False  # the next added column follows this one
    for made in (*change.add_unique, *change.add_index):
        unique = made in change.add_unique
        made = replace(made, unique=unique)
        info = shape.add_index(info, made)
        texts.append(f"ADD {sql.key_sql(made)}")
    return info, texts


def _changed(info: TableInfo, change: Alteration, texts: list[str]) -> TableInfo:
    for modified in change.modify:
        old = shape.column_of(info, modified.name)
        modified = replace(modified, name=old.name, primary_key=modified.primary_key or old.is_primary)
        info = shape.change_column(info, old.name, modified)
        info, position = _placed(info, change, modified.name)
        texts.append(f"MODIFY COLUMN {sql.column_sql(info.name, modified)}{position}")
    for name, column in change.change:
        old = shape.column_of(info, name)
        column = replace(column, primary_key=column.primary_key or old.is_primary)
        info = shape.change_column(info, old.name, column)
        info, position = _placed(info, change, column.name)
        texts.append(f"CHANGE COLUMN {sql.name(old.name)} {sql.column_sql(info.name, column)}{position}")
    for name, new_name in change.rename:
        old = shape.column_of(info, name)
        info = shape.rename_column(info, old.name, new_name)
        texts.append(f"RENAME COLUMN {sql.name(old.name)} TO {sql.name(new_name)}")
    return info


def _placed(info: TableInfo, change: Alteration, name: str) -> tuple[TableInfo, str]:
    """Move the column to its place. Return the table and the position in SQL."""
    moves, after = change.position(name)
    if not moves:
        return info, ""
    if after is not None:
        after = shape.column_of(info, after).name
    return shape.move_column(info, name, after), _position(after, after is None)


def _places(value: object) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(value, Mapping):
        raise BadDeclaration(f"place must be a dict of names to a name or None, not {shown(value)}")
    return tuple(
        (
            of_kind("a key of place", name, str),
            None if after is None else of_kind(f"place[{name!r}]", after, str),
        )
        for name, after in value.items()
    )


def _position(after: str | None, first: bool) -> str:
    if first:
        return " FIRST"
    return f" AFTER {sql.name(after)}" if after is not None else ""


def _action(change: Alteration) -> ActionType:
    if change.count > 1:
        return ActionType.MULTI_SCHEMA_CHANGE
    if change.changed_count:
        return ActionType.MODIFY_COLUMN
    if change.add:
        return ActionType.ADD_COLUMN
    if change.drop:
        return ActionType.DROP_COLUMN
    return ActionType.DROP_INDEX if change.drop_index else ActionType.ADD_INDEX


def _current(at: Planning, schema: str, name: str) -> tuple[DBInfo, TableInfo]:
    return at.catalog.database(schema).info, at.catalog.bound(schema, name).info


def _on_table(action: ActionType, text: str, database: DBInfo, info: TableInfo) -> Job:
    return Job(
        0,
        action,
        schema_id=database.id,
        table_id=info.id,
        schema_name=database.name,
        table_name=info.name,
        query=text,
        table_info=info,
    )


def _on_database(action: ActionType, text: str, info: DBInfo) -> Job:
    return Job(0, action, schema_id=info.id, schema_name=info.name, query=text, db_info=info)


_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TABLE = rf"({_NAME})\s*\.\s*({_NAME})"
_FLAGS = re.IGNORECASE | re.DOTALL


def parse_ddl(statement: str) -> MakeStatement:
    """Return the plan of a statement. Raises BadDeclaration if the grammar above does not include it."""
    text = statement.strip().removesuffix(";").strip()
    for pattern, build in _GRAMMAR:
        match = pattern.fullmatch(text)
        if match:
            return build(match)
    raise BadDeclaration(
        f"{statement.strip()[:80]!r} is not a statement that the SDK accepts as text; declare tables, columns and keys "
        "with create_table and alter_table (a table is written database.table)"
    )


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _names(match: re.Match[str]) -> list[str]:
    return [_bare(group) for group in match.groups()]


def _alter(match: re.Match[str]) -> MakeStatement:
    schema, table = _bare(match[1]), _bare(match[2])
    columns: list[str] = []
    for part in re.split(r",(?=\s*DROP\b)", match[3], flags=_FLAGS):
        one = re.fullmatch(rf"\s*DROP\s+(?:COLUMN\s+)?({_NAME})\s*", part, _FLAGS)
        if one is None:
            raise BadDeclaration(f"ALTER TABLE {schema}.{table}: {part.strip()!r} is not accepted as text")
        columns.append(_bare(one[1]))
    return alter_table(schema, table, Alteration(drop=tuple(columns)))


def _create_index(match: re.Match[str]) -> MakeStatement:
    unique, name, schema, table = bool(match[1]), _bare(match[2]), _bare(match[3]), _bare(match[4])
    key = Index.over(name, [_bare(c) for c in re.findall(_NAME, match[5])], unique=unique)
    change = Alteration(add_unique=(key,)) if unique else Alteration(add_index=(key,))
    return alter_table(schema, table, change)


def _drop_index(match: re.Match[str]) -> MakeStatement:
    name, schema, table = _names(match)
    return alter_table(schema, table, Alteration(drop_index=(name,)))


def _on(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), _FLAGS)


_GRAMMAR: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], MakeStatement]], ...] = (
    (_on(rf"CREATE (?:DATABASE|SCHEMA) ({_NAME})"), lambda m: create_database(*_names(m))),
    (_on(rf"DROP (?:DATABASE|SCHEMA) ({_NAME})"), lambda m: drop_database(*_names(m))),
    (_on(rf"DROP TABLE {_TABLE}"), lambda m: drop_table(*_names(m))),
    (_on(rf"TRUNCATE (?:TABLE\s+)?{_TABLE}"), lambda m: truncate_table(*_names(m))),
    (_on(rf"RENAME TABLE {_TABLE} TO {_TABLE}"), lambda m: rename_table(*_names(m))),
    (_on(rf"DROP INDEX ({_NAME}) ON {_TABLE}"), _drop_index),
    (_on(rf"ALTER TABLE {_TABLE} (DROP .+)"), _alter),
    (
        _on(rf"CREATE (UNIQUE\s+)?INDEX ({_NAME}) ON {_TABLE}\s*\(\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*\)"),
        _create_index,
    ),
)
