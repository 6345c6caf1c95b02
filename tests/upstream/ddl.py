"""The jobs of the small TiDB: which there are, their versions, and what its history and its status port show."""

from __future__ import annotations

import random
from dataclasses import replace

from binlog import envelope
from binlog.tidb.datum import Datum
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import (
    ColumnInfo,
    DBInfo,
    IndexColumn,
    IndexInfo,
    PartitionDefinition,
    PartitionInfo,
    PartitionType,
    TableInfo,
)
from binlog.tidb.types import Flag, Tp

from drainer.row.partition import locator
from tests.support.row_case import INT, TEXT, not_null
from tests.support.schema_case import ts
from tests.upstream.table import (
    ADD,
    DELETE_ONLY,
    DELETE_REORG,
    DROP,
    GOING,
    MODIFY,
    NONE,
    PUBLIC,
    WRITE_ONLY,
    WRITE_REORG,
    Row,
    Running,
    Step,
    Table,
    both,
    cast,
    column_state,
    key_state,
    with_columns,
)

_TAKES_ROWS = (ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION)


class Ddl:
    """Its tables and its jobs, by a seed. What a job does to rows that are there is done here too."""

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

    # What a column on its way holds.

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
