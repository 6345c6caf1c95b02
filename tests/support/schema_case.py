"""Schema cases: DDL jobs and rows as text, one loader. What the files mean is in tests/cases/schema/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlog import envelope
from binlog.pb import binlog_pb2
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.table import ColumnInfo, DBInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp

from drainer.batch.served import ServedBinlog, read_batch
from drainer.schema.errors import TableUnknown
from drainer.schema.filter import Filter
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Rows, Step
from drainer.schema.view import SchemaView, SkipReason

CASES = Path(__file__).resolve().parents[1] / "cases" / "schema"


def belongs(view: SchemaView, schema_version: int) -> bool:
    """Whether rows of this schema version may be decoded with this view."""
    due = view.ddl_due_version
    return schema_version <= view.settled_version and (not due or schema_version < due)


# Positions below this are before every job of a case.
BEGIN_TS = 1_000 << 18


def ts(step: int) -> int:
    """A readable TSO: `step` milliseconds after the case begins."""
    return (1_000 + step) << 18


def table(
    table_id: int, name: str, columns: Sequence[str] = ("id",), partitions: Sequence[tuple[int, str]] = ()
) -> TableInfo:
    """A table of BIGINT columns with ids 1, 2, …; a column `name#7` has that id, `name!2` that schema state."""
    made = []
    for offset, text in enumerate(columns):
        match = re.fullmatch(r"([^#!]+)(?:#(\d+))?(?:!(\d+))?", text)
        assert match, text
        column_id = int(match[2]) if match[2] else offset + 1
        state = SchemaState(int(match[3])) if match[3] else SchemaState.PUBLIC
        kind = FieldType(tp=Tp.LONGLONG)
        made.append(ColumnInfo(id=column_id, name=match[1], offset=offset, type=kind, state=state))
    definitions = tuple(PartitionDefinition(i, n) for i, n in partitions)
    parts = PartitionInfo(PartitionType.RANGE, definitions=definitions) if definitions else None
    return TableInfo(id=table_id, name=name, columns=tuple(made), partition=parts)


def job(
    job_id: int,
    kind: ActionType,
    version: int,
    *,
    finished_ts: int = 0,
    schema: tuple[int, str] | None = None,
    **fields: object,
) -> Job:
    """A finished job; by default it finishes long after the case begins."""
    finished_ts = finished_ts or ts(1_000_000 + version)
    if schema is not None:
        fields["db_info"] = DBInfo(*schema)
        fields["schema_id"] = schema[0]
    return Job(id=job_id, type=kind, schema_version=version, finished_ts=finished_ts, **fields)  # type: ignore[arg-type]


def row(commit_ts: int, version: int, *table_ids: int, pump: str = "p1", start_ts: int = 0) -> ServedBinlog:
    """A transaction with one (empty) mutation for each table id."""
    value = binlog_pb2.PrewriteValue(schema_version=version)
    for table_id in table_ids:
        value.mutations.add(table_id=table_id)
    start_ts = start_ts or commit_ts - 1
    payload = envelope.encode_binlog(
        tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k", prewrite_value=value.SerializeToString()
    )
    return ServedBinlog(commit_ts, start_ts, pump, payload)


def ddl(commit_ts: int, job_id: int, query: str, *, state: int = 5, pump: str = "p1") -> ServedBinlog:
    """A DDL's binlog as served."""
    payload = envelope.encode_binlog(
        tp=1,
        start_ts=commit_ts - 1,
        commit_ts=commit_ts,
        prewrite_key=b"k",
        ddl_query=query.encode(),
        ddl_job_id=job_id,
        ddl_schema_state=state,
    )
    return ServedBinlog(commit_ts, commit_ts - 1, pump, payload)


def versions_of(rows: Rows) -> Iterator[tuple[int, int]]:
    """(commit_ts, schema version) of each transaction of a segment."""
    for binlog in rows.binlogs:
        yield binlog.commit_ts, envelope.scan(binlog.payload).schema_version


@dataclass(frozen=True)
class Case:
    """One conversation: jobs and binlogs in, steps and tables out."""

    name: str
    lines: tuple[tuple[int, str], ...]


def cases() -> list[Case]:
    """Every case of every file; `== name` begins one."""
    found: list[Case] = []
    for path in sorted(CASES.glob("*.txt")):
        name, lines = "", list[tuple[int, str]]()
        for number, line in enumerate([*path.read_text().splitlines(), "== end"], start=1):
            if line.startswith("== "):
                if name:
                    found.append(Case(f"{path.stem}: {name}", tuple(lines)))
                name, lines = line[3:], []
            elif line.strip() and not line.startswith("#"):
                lines.append((number, line))
    return found


class Runner:
    """Runs one case: collects jobs and binlogs, walks when the expectations begin."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._binlogs: list[ServedBinlog] = []
        self._policy = Policy()
        self._schema: Schema | None = None
        self._clock = 0

    def run(self, case: Case) -> None:
        """Assert every `>` (a step) in order and every `=` (a table at the end)."""
        steps: list[str] = []
        for number, line in case.lines:
            word, _, rest = line.strip().partition(" ")
            if word in (">", "=") and self._schema is None:
                steps = self._walk()
            if word == ">":
                assert steps, f"line {number}: no step left for {rest!r}"
                assert steps.pop(0) == rest.strip(), f"line {number}"
            elif word == "=":
                assert not steps, f"line {number}: steps that nobody expects: {steps}"
                self._expect_table(number, rest)
            else:
                self._read(number, word, rest)
        assert not steps, f"steps that nobody expects: {steps}"

    def _read(self, number: int, word: str, rest: str) -> None:
        if word == "filter":
            words = dict(part.split("=", 1) for part in rest.split())
            tables = [tuple(t.split(".")) for t in words.get("do-table", "").split(",") if t]
            dbs = [d for d in words.get("do-db", "").split(",") if d]
            self._policy = Policy(filter=Filter.create(do_dbs=dbs, do_tables=tables))  # type: ignore[arg-type]
        elif word == "row":
            table_ids, version = rest.split()
            self._clock += 1
            ids = [int(i) for i in table_ids.split(",")]
            self._binlogs.append(row(ts(self._clock), int(version.removeprefix("v")), *ids))
        elif word == "ddl":
            job_id, query = ([*rest.split(" ", 1), ""])[:2]
            self._clock += 1
            job_ = next(j for j in self._jobs if j.id == int(job_id))
            self._binlogs.append(ddl(ts(self._clock), job_.id, query or job_.query))
        elif word.startswith("v"):
            self._jobs.append(self._job(int(word[1:]), rest))
        else:
            raise AssertionError(f"line {number}: what is {word!r}?")

    def _job(self, version: int, text: str) -> Job:
        head, _, query = text.partition("|")
        kind, *parts = head.split()
        given = dict(part.split("=", 1) for part in parts)
        old = "before" in given  # finished before the case begins
        fields: dict[str, object] = {"query": query.strip()}
        if "state" in given:
            fields["state"] = JobState(int(given["state"]))
        if "name" in given:
            fields["schema_name"] = given["name"]
        schema = given.get("schema", "0").split(":")
        if len(schema) == 2:
            fields["db_info"] = DBInfo(int(schema[0]), schema[1])
        fields["schema_id"] = int(schema[0])
        tables = [_table(t) for t in given.get("tables", "").split(";") if t]
        if tables:
            fields["multiple_table_infos"] = tuple(tables)
        if "table" in given:
            fields["table_info"] = _table(given["table"])
        info = fields.get("table_info")
        fields["table_id"] = int(given.get("id", info.id if isinstance(info, TableInfo) else 0))
        finished_ts = 1 if old else ts(1_000_000 + version)
        return job(version, ActionType[kind], version, finished_ts=finished_ts, **fields)  # type: ignore[arg-type]

    def _walk(self) -> list[str]:
        self._schema = Schema.open(JobHistory(self._jobs), position_ts=BEGIN_TS, policy=self._policy)
        batch = read_batch(self._binlogs, after_ts=BEGIN_TS, until_ts=ts(900_000))
        self._schema.settle(batch.greatest_version)  # the sources have been asked: they are complete
        return [text for step in walk(batch, self._schema) for text in _shown(step)]

    def _expect_table(self, number: int, text: str) -> None:
        assert self._schema is not None
        table_id, expected = text.split(maxsplit=1)
        try:
            found = self._schema.view().lookup(int(table_id), 1 << 40, 0)
        except TableUnknown:
            shown = "unknown"
        else:
            if isinstance(found, SkipReason):
                shown = found.value
            else:
                columns = ",".join(c.name for c in found.current.columns)
                shown = f"{found.schema}.{found.current.name}({columns})"
        assert shown == expected.strip(), f"line {number}"


def _table(text: str) -> TableInfo:
    """`10:items(id,name)[13:p0,14:p1]`"""
    match = re.fullmatch(r"(\d+):([^(\[]+)(?:\(([^)]*)\))?(?:\[([^\]]*)\])?", text)
    assert match, text
    columns = match[3].split(",") if match[3] else ["id"]
    parts = [p.split(":") for p in match[4].split(",")] if match[4] else []
    return table(int(match[1]), match[2], columns, [(int(i), n) for i, n in parts])


def _shown(step: Step) -> Iterator[str]:
    """Rows: `rows 10.at(cols) …`; a DDL: `ddl|early db: sql`."""
    if isinstance(step, Ddl):
        word = "early" if step.early else "ddl"
        use = f"{step.use}: " if step.use else ""
        yield f"{word} {step.job.id} {use}{'; '.join(step.sql)}"
    elif isinstance(step, Rows):
        for binlog in step.binlogs:
            value = binlog_pb2.PrewriteValue()
            value.ParseFromString(binlog_pb2.Binlog.FromString(binlog.payload).prewrite_value)
            yield "rows " + " ".join(_placed(step, m.table_id, value.schema_version) for m in value.mutations)


def _placed(step: Rows, table_id: int, version: int) -> str:
    found = step.view.lookup(table_id, version, step.until_ts)
    if isinstance(found, SkipReason):
        return f"{table_id}:{found.value}"
    columns = ",".join(c.name for c in found.at.columns)
    return f"{found.schema}.{found.current.name}({columns})"
