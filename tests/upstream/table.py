"""Tables of the small TiDB, the states their parts go through, and what one version of a job does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from binlog.tidb.datum import Datum
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp

PUBLIC, WRITE_REORG = SchemaState.PUBLIC, SchemaState.WRITE_REORGANIZATION
WRITE_ONLY, DELETE_ONLY = SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY
DELETE_REORG, NONE = SchemaState.DELETE_REORGANIZATION, SchemaState.NONE
COMING = (DELETE_ONLY, WRITE_ONLY, WRITE_REORG)
GOING = (WRITE_ONLY, DELETE_ONLY, DELETE_REORG)
ADD, DROP, MODIFY = ActionType.ADD_COLUMN, ActionType.DROP_COLUMN, ActionType.MODIFY_COLUMN

Row = dict[int, Datum]
Step = Callable[[TableInfo], TableInfo]


def cast(value: Datum, kind: FieldType) -> Datum:
    if value is None or kind.tp is Tp.NULL:
        return value
    if kind.tp is Tp.VARCHAR:
        return value if isinstance(value, bytes) else str(value).encode()
    return int(value)  # type: ignore[arg-type]


def with_columns(info: TableInfo, columns: list[ColumnInfo]) -> TableInfo:
    """Public columns first, offsets and the keys' offsets set."""
    columns = [c for c in columns if c.state != NONE]
    columns.sort(key=lambda c: c.state != PUBLIC)
    made = tuple(replace(c, offset=n) for n, c in enumerate(columns))
    place = {c.name: c.offset for c in made}
    indexes = tuple(
        replace(i, columns=tuple(replace(p, offset=place[p.name]) for p in i.columns))
        for i in info.indexes
        if all(p.name in place for p in i.columns)
    )
    return replace(info, columns=made, indexes=indexes)


def column_state(column_id: int, state: SchemaState) -> Step:
    def step(info: TableInfo) -> TableInfo:
        return with_columns(info, [replace(c, state=state) if c.id == column_id else c for c in info.columns])

    return step


def key_state(name: str, state: SchemaState) -> Step:
    def step(info: TableInfo) -> TableInfo:
        kept = (replace(i, state=state) if i.name == name else i for i in info.indexes)
        return replace(info, indexes=tuple(i for i in kept if i.state != NONE))

    return step


def both(*steps: Step) -> Step:
    def step(info: TableInfo) -> TableInfo:
        for one in steps:
            info = one(info)
        return info

    return step


@dataclass
class Running:
    """A job on its way: what each further version does, and what its history entry says."""

    table: Table
    kind: ActionType
    steps: list[Step]
    start_ts: int
    job_id: int
    parts: list[list[int]] = field(default_factory=list)
    marks: dict[int, list[int]] = field(default_factory=dict)  # step → parts whose recorded version it is
    finish: Callable[[], None] = lambda: None
    done: int = 0


@dataclass
class Table:
    """One table and its rows, each under a number of its own. `seen`: (version, TableInfo) of every step."""

    infos: list[tuple[int, TableInfo]]
    rows: dict[int, Row] = field(default_factory=dict)
    jobs: int = 0

    @property
    def info(self) -> TableInfo:
        return self.infos[-1][1]

    def at(self, version: int) -> TableInfo:
        return next(info for since, info in reversed(self.infos) if since <= version)

    def since(self, version: int) -> int:
        return next(n for n, (since, _) in reversed(list(enumerate(self.infos))) if since <= version)
