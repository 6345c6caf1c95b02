"""DDL steps by hand."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, DBInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.schema.steps import Ddl, Located, TableChange
from tests.support.servers import MariaDB

INT = FieldType(Tp.LONG, flen=11)
TEXT = FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_bin")


def column(number: int, name: str, kind: FieldType = INT, **more: object) -> ColumnInfo:
    return ColumnInfo(id=number, name=name, offset=0, type=kind, **more)  # type: ignore[arg-type]


def table(
    table_id: int, name: str, *columns: ColumnInfo, key: bool = True, indexes: Sequence[IndexInfo] = ()
) -> TableInfo:
    """`key`: the first column is the integer primary key."""
    from dataclasses import replace

    placed = [replace(c, offset=at) for at, c in enumerate(columns or (column(1, "id"),))]
    if key:
        first = placed[0]
        placed[0] = replace(first, type=replace(first.type, flag=int(Flag.PRI_KEY | Flag.NOT_NULL)))
    return TableInfo(table_id, name, tuple(placed), tuple(indexes), pk_is_handle=key)


def index(name: str, *offsets: int, unique: bool = False, columns: Sequence[str] = ()) -> IndexInfo:
    parts = tuple(IndexColumn(columns[at] if columns else f"c{at}", at) for at in offsets)
    return IndexInfo(1, name, parts, unique=unique)


def located(info: TableInfo | None, schema: str = "d") -> Located | None:
    return Located(info.id, schema, info) if info is not None else None


def step(
    job_id: int,
    kind: ActionType,
    commit_ts: int,
    *sql: str,
    before: TableInfo | None = None,
    after: TableInfo | None = None,
    changes: Sequence[tuple[TableInfo | None, TableInfo | None]] = (),
    schema: str = "d",
    use: str = "d",
    database: DBInfo | None = None,
) -> Ddl:
    pairs = changes or ([(before, after)] if before or after else [])
    return Ddl(
        job=Job(job_id, kind, schema_version=job_id, db_info=database),
        commit_ts=commit_ts,
        early=False,
        schema=schema,
        use=use,
        sql=sql,
        query=";".join(sql),
        own_ts=commit_ts,
        changes=tuple(TableChange(located(b, schema), located(a, schema)) for b, a in pairs),
    )


T = table(50, "t")
CREATE = step(1, ActionType.CREATE_TABLE, 200, "CREATE TABLE `t` (`id` INT PRIMARY KEY)", after=T)


def position(db: MariaDB) -> int:
    return int(db.query("SELECT commit_ts FROM tidb_binlog.drainer_position")[0][0])
