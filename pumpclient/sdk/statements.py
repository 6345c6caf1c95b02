"""What each DDL statement does to the schema: its text and its job, from the catalog of the moment. Pure plans.

Every function checks what it can at once and returns a plan; the runner calls it once it holds the DDL lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from binlog.tidb.job import ActionType
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import SchemaState

from pumpclient.sdk import schema as shape
from pumpclient.sdk import sql
from pumpclient.sdk.ddl import Plan, Planning, Statement
from pumpclient.sdk.errors import BadDeclaration, SchemaExists
from pumpclient.sdk.table import Column, Index, Table, check_name


@dataclass(frozen=True, slots=True)
class Alteration:
    """The changes of one ALTER TABLE. Drops come first in the text, then columns, then keys."""

    add: tuple[Column, ...] = ()
    drop: tuple[str, ...] = ()
    add_unique: tuple[Index, ...] = ()
    add_index: tuple[Index, ...] = ()
    drop_index: tuple[str, ...] = ()
    after: str | None = None
    first: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, (self.add, self.drop, self.add_unique, self.add_index, self.drop_index)))


def create_database(schema: str, collate: str = "utf8mb4_bin") -> Plan:
    check_name("database", schema)

    async def plan(at: Planning) -> Statement:
        if schema.lower() in map(str.lower, at.catalog.databases()):
            raise SchemaExists(f"database {schema} is there already")
        made = DBInfo(await at.next_id(), schema, collate.split("_", 1)[0], collate)
        return Statement(ActionType.CREATE_SCHEMA, sql.create_database(schema, collate), schema, made.id, database=made)

    return plan


def drop_database(schema: str) -> Plan:
    async def plan(at: Planning) -> Statement:
        info = at.catalog.database(schema).info
        gone = replace(info, state=SchemaState.NONE)
        return Statement(ActionType.DROP_SCHEMA, sql.drop_database(info.name), info.name, info.id, database=gone)

    return plan


def create_table(schema: str, table: Table) -> Plan:
    text = sql.create_table(table)  # an impossible default is found here, before anything is locked

    async def plan(at: Planning) -> Statement:
        database = at.catalog.must_be_free(schema, table.name).info
        info = shape.build_table(table, table_id=await at.next_id(), start_ts=at.start_ts)
        return _on_table(ActionType.CREATE_TABLE, text, database, info)

    return plan


def drop_table(schema: str, name: str) -> Plan:
    async def plan(at: Planning) -> Statement:
        database, info = _current(at, schema, name)
        gone = replace(info, state=SchemaState.NONE, update_timestamp=at.start_ts)
        return _on_table(ActionType.DROP_TABLE, sql.drop_table(info.name), database, gone)

    return plan


def truncate_table(schema: str, name: str) -> Plan:
    async def plan(at: Planning) -> Statement:
        database, info = _current(at, schema, name)
        emptied = replace(info, id=await at.next_id(), update_timestamp=at.start_ts)
        statement = _on_table(ActionType.TRUNCATE_TABLE, sql.truncate_table(info.name), database, emptied)
        return replace(statement, table_id=info.id)  # the job names the old id, its TableInfo the new one

    return plan


def rename_table(schema: str, name: str, new_schema: str, new_name: str) -> Plan:
    check_name("table", new_name)

    async def plan(at: Planning) -> Statement:
        old_database, info = _current(at, schema, name)
        database = at.catalog.must_be_free(new_schema, new_name).info
        text = sql.rename_table(info.name, new_name, old_schema=old_database.name, new_schema=database.name)
        renamed = replace(info, name=new_name, update_timestamp=at.start_ts)
        return _on_table(ActionType.RENAME_TABLE, text, database, renamed)

    return plan


def alter_table(schema: str, name: str, change: Alteration) -> Plan:
    if not change.count:
        raise BadDeclaration(f"ALTER TABLE {schema}.{name} without a change")

    async def plan(at: Planning) -> Statement:
        database, info = _current(at, schema, name)
        altered, texts = _altered(info, change)
        altered = replace(altered, update_timestamp=at.start_ts)
        return _on_table(_action(change), sql.alter_table(info.name, texts), database, altered)

    return plan


def _altered(info: TableInfo, change: Alteration) -> tuple[TableInfo, list[str]]:
    texts: list[str] = []
    for key in change.drop_index:
        info = shape.drop_index(info, key)
        texts.append(sql.drop_key(key))
    for column in change.drop:
        info = shape.drop_column(info, column)
        texts.append(sql.drop_column(column))
    after, first = change.after, change.first
    for added in change.add:
        info = shape.add_column(info, added, after=after, first=first)
        texts.append(sql.add_column(info.name, added, position=_position(after, first)))
        if first or after is not None:
            after, first = added.name, False  # the next one follows this one
    for made in (*change.add_unique, *change.add_index):
        unique = made in change.add_unique
        made = replace(made, unique=unique)
        info = shape.add_index(info, made)
        texts.append(sql.add_key(made))
    return info, texts


def _position(after: str | None, first: bool) -> str:
    if first:
        return "FIRST"
    return f"AFTER {sql.name(after)}" if after is not None else ""


def _action(change: Alteration) -> ActionType:
    if change.count > 1:
        return ActionType.MULTI_SCHEMA_CHANGE
    if change.add:
        return ActionType.ADD_COLUMN
    if change.drop:
        return ActionType.DROP_COLUMN
    return ActionType.DROP_INDEX if change.drop_index else ActionType.ADD_INDEX


def _current(at: Planning, schema: str, name: str) -> tuple[DBInfo, TableInfo]:
    return at.catalog.database(schema).info, at.catalog.bound(schema, name).info


def _on_table(action: ActionType, text: str, database: DBInfo, info: TableInfo) -> Statement:
    return Statement(action, text, database.name, database.id, info.id, info.name, info)
