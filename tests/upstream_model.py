"""A small TiDB: tables whose DDL goes through its states, transactions of older versions, and what it would send.

Each job is a list of steps, a schema version each; a transaction writes its rows as the version it began in says and
may commit a step later, as TiDB lets it (X-08). `truth` is what the tables hold in the end. Values are whole numbers,
as INT or as text, so that a change of type is a cast.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from binlog import envelope
from binlog.tidb.column import ColumnInfo
from binlog.tidb.datum import Datum
from binlog.tidb.index import IndexColumn, IndexInfo
from binlog.tidb.job import ActionType, Job
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.partition import PartitionDefinition, PartitionInfo, PartitionType
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp

from drainer.row.partition import locator
from tests.row_case import INT, TEXT, not_null
from tests.schema_case import ts

PUBLIC, WRITE_REORG = SchemaState.PUBLIC, SchemaState.WRITE_REORGANIZATION
WRITE_ONLY, DELETE_ONLY = SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY
DELETE_REORG, NONE = SchemaState.DELETE_REORGANIZATION, SchemaState.NONE
COMING = (DELETE_ONLY, WRITE_ONLY, WRITE_REORG)
GOING = (WRITE_ONLY, DELETE_ONLY, DELETE_REORG)
ADD, DROP, MODIFY = ActionType.ADD_COLUMN, ActionType.DROP_COLUMN, ActionType.MODIFY_COLUMN

_TAKES_ROWS = (ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION)

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


class Upstream:
    """Runs by a seed; `binlogs` and `jobs` are what a drainer is given."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.version = 0
        self.clock = 0
        self.ids = 100
        self.jobs: list[Job] = []
        self.finished: list[tuple[int, Job]] = []  # (clock at which the history shows it, job)
        self.shown: list[tuple[int, int, TableInfo]] = []  # (clock, table id, table as the status port shows it)
        self.binlogs: list[bytes] = []
        self.tables: list[Table] = []
        self.running: list[Running] = []
        self.copied: dict[int | None, int] = {}  # partition → the one its rows were copied to
        self._next_row = 0
        self._database()
        for make in (self._clustered, self._keyed, self._bare, self._parted):
            self._create(make())

    # Time, versions, ids.

    def tick(self) -> int:
        self.clock += 2
        return ts(self.clock)

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    # Tables.

    def _database(self) -> None:
        self.version += 1
        self._finish(ActionType.CREATE_SCHEMA, 0, None, db_info=DBInfo(2, "d"))

    def _create(self, info: TableInfo) -> None:
        self.version += 1
        self.tables.append(Table([(self.version, info)]))
        self._finish(ActionType.CREATE_TABLE, info.id, info)

    def _columns(self, *, handle: bool = False) -> tuple[ColumnInfo, ...]:
        key = not_null(INT)
        key = replace(key, flag=key.flag | Flag.PRI_KEY) if handle else key
        kinds = [("id", key), ("u", INT), ("a", INT), ("b", TEXT)]
        return tuple(ColumnInfo(n + 1, name, n, kind) for n, (name, kind) in enumerate(kinds))

    def _clustered(self) -> TableInfo:
        key = IndexInfo(1, "uu", (IndexColumn("u", 1),), unique=True)
        return TableInfo(self.new_id(), "clustered", self._columns(handle=True), (key,), pk_is_handle=True)

    def _keyed(self) -> TableInfo:
        key = IndexInfo(1, "PRIMARY", (IndexColumn("id", 0),), unique=True, primary=True)
        return TableInfo(self.new_id(), "keyed", self._columns(), (key,))

    def _bare(self) -> TableInfo:
        return TableInfo(self.new_id(), "bare", self._columns())

    def _parted(self) -> TableInfo:
        bounds = ["20", "40", "60", "MAXVALUE"]
        parts = tuple(PartitionDefinition(self.new_id(), f"p{n}", (bound,)) for n, bound in enumerate(bounds))
        info = PartitionInfo(PartitionType.RANGE, "`id`", definitions=parts, num=len(parts))
        return TableInfo(self.new_id(), "parted", self._columns(handle=True), pk_is_handle=True, partition=info)

    # Jobs.

    def begin_job(self) -> None:
        idle = [t for t in self.tables if all(r.table is not t for r in self.running)]
        if not idle or len(self.running) >= 2:
            return
        table = self.dice.choice(idle)
        makers = [self._add, self._drop, self._retype, self._several, self._rename, self._truncate]
        makers += [self._drop_key] * 2 if table.info.indexes else []
        makers += [self._lose_partition, self._lose_partition, self._reorganize] if table.info.partition else []
        makers += [self._rename_column, self._add_key]
        made = self.dice.choice(makers)(table)
        if made is not None:
            self.running.append(made)

    def _job(self, table: Table, kind: ActionType, steps: list[Step]) -> Running:
        table.jobs += 1
        return Running(table, kind, steps, self.tick(), self.new_id())

    def _spare(self, table: Table) -> list[ColumnInfo]:
        """Columns that a DDL may change: in no key, and not id or u."""
        return [c for c in table.info.columns if c.name not in ("id", "u")]

    def _add(self, table: Table) -> Running:
        return self._job(table, ADD, self._adding(table, self._fresh(table)))

    def _fresh(self, table: Table) -> ColumnInfo:
        column_id = self.new_id()
        default = None if self.dice.random() < 0.4 else str(self.dice.randrange(9))
        kind = self.dice.choice([INT, TEXT])
        kind = not_null(kind) if default is not None and self.dice.random() < 0.5 else kind
        return ColumnInfo(column_id, f"c{column_id}", 0, kind, origin_default=default, default=default)

    def _adding(self, table: Table, column: ColumnInfo) -> list[Step]:
        def put(info: TableInfo) -> TableInfo:
            return with_columns(info, [*info.columns, replace(column, state=DELETE_ONLY)])

        return [put, *(column_state(column.id, state) for state in (WRITE_ONLY, WRITE_REORG, PUBLIC))]

    def _drop(self, table: Table) -> Running | None:
        spare = self._spare(table)
        if len(spare) < 2:
            return None
        gone = self.dice.choice(spare).id
        return self._job(table, DROP, [column_state(gone, state) for state in (*GOING, NONE)])

    def _retyping(self, table: Table, old: ColumnInfo) -> list[Step]:
        """The new column comes in beside the old one and takes its place in one step."""
        kind = INT if old.type.tp is Tp.VARCHAR else TEXT
        fresh = ColumnInfo(self.new_id(), f"_Col$_{old.name}", 0, kind, rest={"change_state_info": {"of": old.id}})

        def swap(info: TableInfo) -> TableInfo:
            columns = [c for c in info.columns if c.id not in (old.id, fresh.id)]
            return with_columns(info, [*columns, replace(fresh, name=old.name, rest={})])

        first = self._adding(table, fresh)[:3]
        return [*first, swap]

    def _retype(self, table: Table) -> Running | None:
        spare = [c for c in self._spare(table) if c.origin_default is None]
        return self._job(table, MODIFY, self._retyping(table, self.dice.choice(spare))) if spare else None

    def _several(self, table: Table) -> Running | None:
        """Additions and a change of type first, each to write-reorganization, then all public at once, then drops."""
        spare = self.dice.sample(self._spare(table), len(self._spare(table)))
        if len(spare) < 3:
            return None
        parts: list[tuple[ActionType, list[Step]]] = [(DROP, []), (ADD, self._adding(table, self._fresh(table)))]
        going = [spare.pop().id]
        if self.dice.random() < 0.5:
            parts.append((ADD, self._adding(table, self._fresh(table))))
        if self.dice.random() < 0.5 and spare[-1].origin_default is None:
            parts.append((MODIFY, self._retyping(table, spare.pop())))
        if self.dice.random() < 0.3 and len(spare) > 1:
            parts.append((DROP, []))
            going.append(spare.pop().id)
        self.dice.shuffle(parts)
        steps = [step for _, four in parts for step in four[:3]]
        publics = [four[3] for _, four in parts if four]
        steps.append(both(*publics, *(column_state(gone, WRITE_ONLY) for gone in going)))
        public_at = len(steps) - 1
        made = self._job(table, ActionType.MULTI_SCHEMA_CHANGE, steps)
        made.parts = [[int(kind), 0] for kind, _ in parts]
        made.marks[public_at] = [0]
        drops = [n for n, (kind, _) in enumerate(parts) if kind == DROP]
        for part, gone in zip(drops, going, strict=True):
            steps += [column_state(gone, state) for state in (DELETE_ONLY, DELETE_REORG, NONE)]
            made.marks[len(steps) - 1] = [part]
        return made

    def _rename(self, table: Table) -> Running:
        name = f"{table.info.name.split('_')[0]}_{self.new_id()}"
        return self._job(table, ActionType.RENAME_TABLE, [lambda info: replace(info, name=name)])

    def _truncate(self, table: Table) -> Running | None:
        if self.dice.random() < 0.6:
            return None
        fresh, parts = self.new_id(), table.info.partition
        if parts is not None:
            moved = tuple(replace(d, id=self.new_id()) for d in parts.definitions)
            parts = replace(parts, definitions=moved)
        made = self._job(table, ActionType.TRUNCATE_TABLE, [lambda info: replace(info, id=fresh, partition=parts)])
        made.finish = table.rows.clear
        return made

    def _drop_key(self, table: Table) -> Running:
        (key,) = table.info.indexes
        kind = ActionType.DROP_PRIMARY_KEY if key.primary else ActionType.DROP_INDEX
        return self._job(table, kind, [key_state(key.name, state) for state in (*GOING, NONE)])

    def _rename_column(self, table: Table) -> Running:
        column = self.dice.choice(self._spare(table))
        name = f"r{self.new_id()}"

        def step(info: TableInfo) -> TableInfo:
            return with_columns(info, [replace(c, name=name) if c.id == column.id else c for c in info.columns])

        return self._job(table, MODIFY, [step])

    def _add_key(self, table: Table) -> Running | None:
        """A unique key on `u`, where its values allow it."""
        values = [row.get(2) for row in table.rows.values() if row.get(2) is not None]
        if table.info.indexes or len(set(values)) < len(values):
            return None
        key = IndexInfo(self.new_id(), f"k{self.ids}", (IndexColumn("u", 1),), unique=True, state=WRITE_ONLY)
        put = both(lambda info: replace(info, indexes=(key,)), lambda info: with_columns(info, list(info.columns)))
        checks = [key_state(key.name, state) for state in (WRITE_REORG, PUBLIC)]
        made = self._job(table, ActionType.ADD_INDEX, [put, *checks])
        self.running.append(made)
        self._advance(made)  # at once, so that no row comes between
        return None

    def _reorganize(self, table: Table) -> Running:
        """Every row stays, in partitions with other ids; the ones in between are written to too."""
        parts = table.info.partition
        assert parts is not None
        fresh = tuple(replace(d, id=self.new_id()) for d in parts.definitions)
        same = replace(parts, definitions=fresh)
        steps: list[Step] = [lambda info: info] * 3
        return self._job(
            table,
            ActionType.REORGANIZE_PARTITION,
            [*steps, lambda info: replace(info, partition=same), lambda info: info],
        )

    def _lose_partition(self, table: Table) -> Running | None:
        parts = table.info.partition
        assert parts is not None
        lost = self.dice.choice(parts.definitions)
        kept = tuple(d for d in parts.definitions if d is not lost)
        if self.dice.random() < 0.5 and len(kept) > 1 and lost.less_than != ("MAXVALUE",):
            shorter = replace(parts, definitions=kept, num=len(kept))
            steps: list[Step] = [lambda info: replace(info, partition=shorter), lambda info: info, lambda info: info]
            made = self._job(table, ActionType.DROP_TABLE_PARTITION, steps)
        else:
            fresh = tuple(replace(d, id=self.new_id()) if d is lost else d for d in parts.definitions)
            same = replace(parts, definitions=fresh)
            made = self._job(table, ActionType.TRUNCATE_TABLE_PARTITION, [lambda info: replace(info, partition=same)])
        return made

    def advance_job(self) -> None:
        if not self.running:
            return
        # Which of the versions in between is the one that knows the partition no more, no history tells.
        alone = [job for job in self.running if job.kind == ActionType.DROP_TABLE_PARTITION and job.done]
        self._advance(self.dice.choice(alone or self.running))

    def _advance(self, job: Running) -> None:
        self.version += 1
        table, before = job.table, job.table.info
        after = job.steps[job.done](before)
        table.infos.append((self.version, after))
        for part in job.marks.get(job.done, ()):
            job.parts[part][1] = self.version
        job.done += 1
        self._settle_rows(table, before, after, job.kind)
        if job.kind == ActionType.REORGANIZE_PARTITION and before.partition is not after.partition:
            assert before.partition is not None and after.partition is not None
            pairs = zip(before.partition.definitions, after.partition.definitions, strict=True)
            self.copied |= {old.id: new.id for old, new in pairs}
        self.shown.append((self.clock, before.id, after))
        if job.done == len(job.steps):
            self.running.remove(job)
            job.finish()
            rest = {"multi_schema_info": {"sub_jobs": [{"type": k, "schema_version": v} for k, v in job.parts]}}
            table_id = before.id if job.kind == ActionType.TRUNCATE_TABLE else after.id
            self._finish(
                job.kind, table_id, after, id=job.job_id, start_ts=job.start_ts, rest=rest if job.parts else {}
            )

    def _settle_rows(self, table: Table, before: TableInfo, after: TableInfo, kind: ActionType) -> None:
        """What a version does to the rows that are there."""
        if after.partition is not None and before.partition is not None and kind in _TAKES_ROWS:
            kept = {d.id for d in after.partition.definitions}
            place = locator(before)
            gone = [n for n, row in table.rows.items() if place(row) not in kept and before.id == after.id]
            for number in gone:
                del table.rows[number]
        for column in after.columns:
            if column.state == WRITE_REORG:  # backfilled
                for row in table.rows.values():
                    self._fill(before, row, column)

    def _finish(self, kind: ActionType, table_id: int, info: TableInfo | None, **fields: object) -> None:
        fields = {"id": self.new_id(), "start_ts": self.tick(), **fields}
        job = Job(
            type=kind,
            schema_version=self.version,
            schema_id=2,
            table_id=table_id,
            table_info=info,
            query=f"{kind.name} {self.version}",
            finished_ts=ts(1_000_000 + self.version),
            **fields,  # type: ignore[arg-type]
        )
        self.jobs.append(job)
        payload = envelope.encode_binlog(
            tp=1, start_ts=self.tick(), commit_ts=self.tick(), prewrite_key=b"k", ddl_query=b"ALTER",
            ddl_job_id=job.id, ddl_schema_state=0,
        )  # fmt: skip
        self.binlogs.append(payload)
        self.finished.append((self.clock + self.dice.randrange(4), job))
        if info is not None:
            self.shown.append((self.clock, info.id, info))

    # Rows.

    def _fill(self, info: TableInfo, row: Row, column: ColumnInfo) -> None:
        """A column on its way in: its default, or what the column whose type it changes holds."""
        changed = column.rest.get("change_state_info")
        if isinstance(changed, dict):
            source = row.get(int(changed["of"]))  # type: ignore[call-overload]
            row[column.id] = cast(source, column.type)
        elif column.id not in row:
            default = column.origin_default
            value = None if default is None else default.encode()  # type: ignore[union-attr]
            row[column.id] = cast(value, column.type)

    def _written(self, info: TableInfo, row: Row) -> Row:
        for column in info.columns:
            if column.is_writable and not column.is_public:
                self._fill(info, row, column)
        return row

    def _value(self, column: ColumnInfo) -> Datum:
        if column.name == "id":
            return self.dice.randrange(80)
        if not column.is_not_null and self.dice.random() < 0.2:
            return None
        return cast(self.dice.randrange(40), column.type)

    def write(self) -> None:
        """A transaction of this version or of one before, on one table."""
        table = self.dice.choice(self.tables)
        steps_back = [0, 0, 1, 1, 2]
        version = max(self.version - self.dice.choice(steps_back), table.infos[0][0])
        if table.since(version) < len(table.infos) - 2:
            version = self.version
        info = table.at(version)
        start_ts = self.tick()
        value = PrewriteValue(version)
        touched = False
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            touched |= self._change(table, info, value)
        if not touched:
            return
        commit_ts = self.tick()
        self.binlogs.append(
            envelope.encode_binlog(
                tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k", prewrite_value=value.serialize()
            )
        )

    def _home(self, table: Table, info: TableInfo, row: Row) -> bool | None:
        """Whether such a row of an older version lies in what is still there."""
        if info.id != table.info.id:
            return False
        if info.partition is None or table.info.partition is None:
            return True
        place = locator(info)(row)
        while place in self.copied:
            place = self.copied[place]
        return place in {d.id for d in table.info.partition.definitions}

    def _change(self, table: Table, info: TableInfo, value: PrewriteValue) -> bool:
        stands = [n for n, row in table.rows.items() if self._home(table, info, row)]
        kind = self.dice.choice(["insert", "insert", "update", "update", "delete"])
        if kind == "insert":
            row = self._written(info, {c.id: self._value(c) for c in info.public_columns})
            if not self._fits(table, info, row, None):
                return False
            self._next_row += 1
            value.insert(info.id, encode_insert(info, row, rowid=self._next_row))
            if self._home(table, info, row):
                table.rows[self._next_row] = self._stored(table, info, row)
            return True
        if not stands or info.id != table.info.id:
            return False
        number = self.dice.choice(stands)
        old = self._read(info, table.rows[number])
        if kind == "delete":
            if any(not c.is_public for c in info.columns):  # tidb#53133
                return False
            value.delete(info.id, encode_delete(info, old))
            del table.rows[number]
            return True
        changed = self.dice.choice([c for c in info.public_columns if c.name != "id"])
        new = self._written(info, {**old, changed.id: self._value(changed)})
        if new == old or not self._fits(table, info, new, number):
            return False
        value.update(info.id, encode_update(info, old, new))
        table.rows[number] = self._stored(table, info, new)
        return True

    def _read(self, info: TableInfo, row: Row) -> Row:
        found = {c.id: row[c.id] for c in info.columns if c.id in row}
        for column in info.columns:
            self._fill(info, found, column) if column.id not in found else None
        return found

    def _stored(self, table: Table, info: TableInfo, row: Row) -> Row:
        """As the newest version has it: a step later a column may have come."""
        kept = dict(row)
        for column in table.info.columns:
            if column.id not in kept:
                self._fill(table.info, kept, column)
        return kept

    def _fits(self, table: Table, info: TableInfo, row: Row, number: int | None) -> bool:
        """Keys are checked as long as they are public or write-only."""
        others = [other for n, other in table.rows.items() if n != number]
        if info.pk_is_handle and any(other[1] == row[1] for other in others):
            return False
        coming = [key for key in table.info.indexes if key.name.startswith("k") and key not in info.indexes]
        for key in (*info.indexes, *coming):
            if key.state in (PUBLIC, WRITE_ONLY, WRITE_REORG):
                part = next(c.id for c in info.columns if c.name == key.columns[0].name)
                if row[part] is not None and any(other.get(part) == row[part] for other in others):
                    return False
        return True

    # The whole.

    def run(self, events: int) -> Upstream:
        for _ in range(events):
            self.dice.choices([self.write, self.advance_job, self.begin_job], weights=[10, 6, 2])[0]()
        while self.running:
            self.advance_job()
            self.write()
        return self

    def truth(self) -> dict[str, list[tuple[object, ...]]]:
        """`d.table` → its rows, sorted as text."""
        found = {}
        for table in self.tables:
            rows = []
            for row in table.rows.values():
                values = [self._read(table.info, row).get(c.id) for c in table.info.public_columns]
                rows.append(tuple(v.decode() if isinstance(v, bytes) else v for v in values))
            found[f"d.{table.info.name}"] = sorted(rows, key=repr)
        return found
