"""The table, and its schema version, of a row that names its table alone: at the row's commit_ts, from DDL jobs. These
are TiDB's, or are made of the schemas in Simple's messages.

Rows above a DDL's commit_ts have the table as it is after the DDL. TiCDC gives a DDL the FinishedTS of its job, and a
drainer the commit_ts of its binlog, which is earlier. So the commit_ts with which a DDL was read counts, and FinishedTS
for a DDL that was not.
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from binlog.cluster import tso
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, DBInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, FieldType, Flag, Tp

from drainer.changes.vector import Ints, Words
from drainer.ddl.lexer import tokens
from drainer.protocol.errors import MessageError
from drainer.protocol.event import KINDS, DdlEvent
from drainer.schema import job_kinds
from drainer.schema.catalog import Catalog, apply_job
from drainer.schema.errors import HistoryUnavailable
from drainer.schema.filter import OWN_SCHEMA
from drainer.schema.history.base import JobHistory, JobSource
from drainer.schema.job_kinds import public_version

if TYPE_CHECKING:
    from drainer.protocol.json_read import Reader
    from drainer.ticdc.partition import RowTable

Name = tuple[str, str]  # database and table, in lower case


class NamedTable(NamedTuple):
    """A table from one DDL to the next. `version`: the schema version from which on its rows have this layout."""

    table_id: int
    version: int
    info: TableInfo


class _Change(NamedTuple):
    """The table that a name denotes in rows above `after_ts`; None: there is none."""

    after_ts: int
    table: NamedTable | None


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Every table by name and commit_ts, and for each DDL that was read its job and statement. Picklable."""

    changes: Mapping[Name, tuple[_Change, ...]]
    ddls: Mapping[tuple[int, str], tuple[int, str]]

    def stretches(self, schema: str, table: str, commit_ts: Words) -> Iterator[tuple[NamedTable | None, Ints]]:
        """Yield the table of rows of one name, as `at` returns it, with the indexes of its rows."""
        changes = self.changes.get((schema.lower(), table.lower()), ()) or (_Change(0, None),)
        of = np.searchsorted(np.array([one.after_ts for one in changes], np.uint64), commit_ts)
        of = np.maximum(of - 1, 0)
        for number in np.unique(of).tolist():
            yield changes[number].table, np.flatnonzero(of == number)

    def at(self, schema: str, table: str, commit_ts: int) -> NamedTable | None:
        """Return the table of a row. None: no table had this name."""
        changes = self.changes.get((schema.lower(), table.lower()), ())
        if changes and commit_ts > changes[-1].after_ts:  # nearly always
            return changes[-1].table
        at = bisect_left(changes, commit_ts, key=lambda change: change.after_ts)
        if not at:  # a row may commit before FinishedTS of the DDL that created its table
            return changes[0].table if changes else None
        return changes[at - 1].table

    def job(self, event: DdlEvent) -> tuple[int, str]:
        """Return job id and statement. Raises MessageError for a DDL that was not read when these tables were made."""
        found = self.ddls.get((event.commit_ts, event.query))
        if found is None:
            raise MessageError(f"the DDL at commit_ts {event.commit_ts} had not been read when its range was planned")
        return found


def named_tables(history: JobHistory, read_at: Mapping[tuple[int, str], int]) -> NamedTables:
    """`read_at`: the job id of each DDL that was read, by its commit_ts and text."""
    commit_ts = {job_id: ts for (ts, _), job_id in read_at.items()}
    catalog = Catalog()
    changes: dict[Name, list[_Change]] = {}
    for job in history:
        if not job_kinds.takes_effect(job):
            continue
        after_ts = commit_ts.get(job.id, job.finished_ts)
        for change in apply_job(catalog, job, public_version(job, history.version_before(job))):
            if change.before is not None and not change.keeps_name:
                _add(changes, change.before.schema, change.before.name, _Change(after_ts, None))
            if change.after is not None:
                found = NamedTable(change.after.table_id, job.schema_version, change.after.info)
                _add(changes, change.after.schema, change.after.name, _Change(after_ts, found))
    jobs = {job.id: job.query for job in history}
    times = Counter(read_at.values())
    # A message has the statement as TiDB prints it, with its own syntax in comments. RENAME TABLE a TO b, c TO d may be
    # two messages, and is one job.
    ddls = {read: (job_id, jobs[job_id] if times[job_id] > 1 else read[1]) for read, job_id in read_at.items()}
    return NamedTables({name: tuple(each) for name, each in changes.items()}, ddls)


def _add(changes: dict[Name, list[_Change]], schema: str, table: str, change: _Change) -> None:
    known = changes.setdefault((schema.lower(), table.lower()), [])
    after_ts = max(change.after_ts, known[-1].after_ts if known else 0)
    known.append(change._replace(after_ts=after_ts))


def job_of(event: DdlEvent, jobs: Iterable[Job], read_at: Mapping[tuple[int, str], int]) -> Job | None:
    """Return the job of a DDL that was read: the one that finished at its commit_ts, or else the first one that ran
    then, best of the same table, and is not that of another DDL (`read_at`: see named_tables). None: it is not among
    these jobs. Statements cannot be compared, because messages have them as TiDB prints them."""
    others = {job_id for (commit_ts, _), job_id in read_at.items() if commit_ts != event.commit_ts}
    ran = [job for job in jobs if job.start_ts < event.commit_ts <= job.finished_ts and job.id not in others]
    name = (event.schema.lower(), event.table.lower())

    def rank(job: Job) -> tuple[bool, bool, int]:
        is_same = (job.schema_name.lower(), job.table_name.lower()) == name
        return job.finished_ts != event.commit_ts, not is_same, job.finished_ts

    return min(ran, key=rank, default=None)


def packed(tables: NamedTables) -> bytes:
    return zlib.compress(pickle.dumps(tables), 1)


@lru_cache(maxsize=2)  # a worker lives through many batches
def unpacked(data: bytes) -> NamedTables:
    """Return what `packed` packed. Both are used within one drainer alone."""
    found = pickle.loads(zlib.decompress(data))  # noqa: S301
    assert isinstance(found, NamedTables)
    return found


# Makes DDL jobs of the schemas in Simple's messages. Pure.
_TYPES: Final = {FieldType(tp, charset=of).mysql_name: tp for of in ("", "binary") for tp in Tp if tp is not Tp.NEWDATE}
# Schemas in Avro lack a time's decimals: the length of one without a fraction.
_LENGTHS: Final = {Tp.DATETIME: 19, Tp.TIMESTAMP: 19, Tp.DURATION: 10}
_HANDLE: Final = "primary"  # TiCDC's name for a primary key that is the handle and so has no index


def table_info(schema: Reader, before: TableInfo | None = None) -> TableInfo:
    """`before`: the table until then; columns and indexes keep their ids by name. Columns are in the order of TiDB's
    ids; what a schema does not say (partitions, generated columns, AUTO_INCREMENT, prefixes of indexes, the charset of
    the table, comments) is as if there were none. Raises MessageError."""
    known = before or TableInfo(0, "")
    indexes, columns, made = schema.objects("indexes"), list[ColumnInfo](), list[IndexInfo]()
    primary = [one for one in indexes if one.boolean("primary", False)]
    keys = {name.lower() for one in primary for name in _texts(one, "columns")}
    ids, last_id = {one.name.lower(): one.id for one in known.columns}, known.max_column_id
    for one in schema.objects("columns"):
        name = one.text("name")
        column_id = ids.get(name.lower()) or (last_id := last_id + 1)
        columns.append(
            _column(one, ColumnInfo(column_id, name, len(columns), FieldType(Tp.NULL)), is_key=name.lower() in keys)
        )
    offsets = {column.name.lower(): column.offset for column in columns}
    index_ids, last_index_id = {one.name.lower(): one.id for one in known.indexes}, known.max_index_id
    for one in indexes:
        parts = tuple(IndexColumn(name, offsets.get(name.lower(), -1)) for name in _texts(one, "columns"))
        if not parts or any(part.offset < 0 for part in parts):
            one.wrong("columns", "columns of the table")
        if (name := one.text("name")) != _HANDLE:
            index_id = index_ids.get(name.lower()) or (last_index_id := last_index_id + 1)
            made.append(IndexInfo(index_id, name, parts, unique=one.boolean("unique"), primary=one in primary))
    return TableInfo(
        schema.integer("tableID"),
        schema.text("table"),
        tuple(columns),
        tuple(made),
        charset="",
        collate="",
        pk_is_handle=any(one.text("name") == _HANDLE for one in primary),
        max_column_id=last_id,
        max_index_id=last_index_id,
        update_timestamp=schema.integer("version"),
    )


def _column(column: Reader, made: ColumnInfo, *, is_key: bool) -> ColumnInfo:
    data, default, bits = column.needed("dataType"), column.document.get("default"), None
    tp = _TYPES.get(data.text("mysqlType")) or data.wrong("mysqlType", "a type of MySQL")
    flags = {Flag.PRI_KEY: is_key, Flag.NOT_NULL: not column.boolean("nullable")}
    flags |= {Flag.UNSIGNED: data.boolean("unsigned", False), Flag.ZEROFILL: data.boolean("zerofill", False)}
    flag, flen = sum(flag for flag, is_set in flags.items() if is_set), data.integer("length", 0, signed=True)
    decimal = data.integer("decimal", 0, signed=True) or max(flen - _LENGTHS.get(tp, flen) - 1, -(tp in FLOATS))
    if not isinstance(default, str | int | float | None):
        column.wrong("default", "a text or a number")
    if tp is Tp.BIT and default is not None:
        number = int(default) if str(default).isdecimal() else column.wrong("default", "a number")
        default, bits = None, number.to_bytes((max(flen, number.bit_length()) + 7) // 8, "big")
    kind = FieldType(tp, flag, flen, decimal, data.text("charset"), data.text("collate"), _texts(data, "elements"))
    return replace(made, type=kind, default=default, default_bit=bits)


def _texts(of: Reader, name: str) -> tuple[str, ...]:
    found = of.document.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        of.wrong(name, "an array of strings")
    return tuple(found)


_A: Final = ActionType
_Info = TableInfo | None
_OF_TYPE: Final = {name: kinds[0] for name, kinds in KINDS.items() if name != "ALTER"}
_OF_WORDS: Final = {
    **_A.__members__, "ALTER_SCHEMA": _A.MODIFY_SCHEMA_CHARSET_AND_COLLATE, "FLASHBACK_TABLE": _A.RECOVER_TABLE,
    "CHANGE_COLUMN": _A.MODIFY_COLUMN, "RENAME_COLUMN": _A.MODIFY_COLUMN,
}  # fmt: skip
_OBJECTS: Final = {"DATABASE": "SCHEMA", **{name: name for name in ("SCHEMA", "TABLE", "VIEW", "SEQUENCE")}}
# These have no effect if they come behind a newer schema: they would take it back.
_PASSED: Final = (
    job_kinds.CREATES
    | job_kinds.DROPS.keys()
    | job_kinds.RENAMES
    | {_A.TRUNCATE_TABLE, _A.RECOVER_TABLE, _A.DROP_SCHEMA}
)
# Messages do not say when a DDL began. From then on TiDB may not enforce a key that it drops.
_RUNS_MS: Final = 60_000


def kind_of(message_type: str, query: str) -> ActionType:
    """The kind of a DDL's job, by the type of its message and its text. NONE: these do not say."""
    words = [word.value.upper() if word.kind in ("word", "mark") else "" for word in tokens(query)]
    kind, at = _OF_TYPE.get(message_type, _A.NONE), next((at for at, word in enumerate(words) if word in _OBJECTS), 0)
    if kind in (_A.ADD_INDEX, _A.DROP_INDEX):
        key = next((word for word in ("FOREIGN", "PRIMARY") if word in words), "")
        return _A[kind.name.replace("INDEX", f"{key}_KEY")] if key else kind
    if kind or words[:1] != ["ALTER"] or words[at] != "TABLE":
        return kind or _OF_WORDS.get(f"{words[0]}_{_OBJECTS[words[at]]}" if at else "", _A.NONE)
    what, of, *_ = *words[at + (4 if "." in words[at + 2 : at + 3] else 2) :], "", ""
    name = f"{what}_TABLE_{of}" if of == "PARTITION" else f"{what}_{of}" if "," not in words else ""
    return _OF_WORDS.get(name, _A.MULTI_SCHEMA_CHANGE)


class MessageSchemas(JobSource):
    """DDL jobs of Simple's messages. A table's first schema creates it, unless a DDL did; no such job is a DDL of the
    topics. Several partitions have the same messages, and each may be the first. On one event loop."""

    complete = True

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._newest: dict[Name, TableInfo] = {}
        self._known_ts: dict[Name, int] = {}  # of the newest schema, or of the DDL that dropped the table
        self._versions: dict[tuple[str, str, int], int] = {}  # of the job, by that of a row
        self._read: set[tuple[int, str, Name]] = set()

    def describe(self) -> str:
        return "the messages of the topics"

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """All jobs."""
        return self._jobs

    def version_of(self, of: RowTable) -> int | None:
        """Return the schema version of a table; None: no message had its schema yet."""
        return 0 if of.schema.lower() == OWN_SCHEMA else self._versions.get(of)

    def learn(self, message: Reader) -> None:
        """Read a bootstrap message or a DDL. Raises MessageError, also for a DDL without its table's new schema."""
        before, after = message.child("preTableSchema"), message.child("tableSchema")
        query = message.text("sql", "")
        for schema in (before, None if query else after):
            if schema is not None:
                self._seen(schema)
        if query:
            self._ddl(message, query, before, after)

    def _seen(self, schema: Reader) -> None:
        """Read the schema of a table as it is already."""
        (name, table), version = _names(schema), schema.integer("version")
        if version > self._known_ts.get(table, 0) and (*name, version) not in self._versions:
            old = self._newest.get(table)
            info = self._newest[table] = table_info(schema, old)
            kind = _A.MULTI_SCHEMA_CHANGE if old is not None and old.id == info.id else _A.TRUNCATE_TABLE
            # It is never run. Its id is above those of DDLs, which are timestamps.
            self._add((1 << 61) + self.size, _A.CREATE_TABLE if old is None else kind, name[0], version, "", old, info)
            self._known_ts[table] = version
        self._versions.setdefault((*name, version), version)

    def _ddl(self, message: Reader, query: str, before: Reader | None, after: Reader | None) -> None:
        kind, commit_ts = kind_of(message.text("type"), query), message.integer("commitTs")
        name = message.text("database", ""), message.text("table", "")
        if kind in job_kinds.ON_SCHEMA:
            name, after = (name[0] or _database(query), ""), None
        elif after is None and not kind.name.endswith(("_VIEW", "_SEQUENCE")):  # those without one are left out
            raise MessageError(
                f"the DDL at commit_ts {commit_ts} of `{name[0]}`.`{name[1]}` ({query:.200}): its message does not say "
                "what becomes of the table: give [schema] history-url or history-file, or let the changefeed's filter "
                "leave it out"
            )
        name, table = _names(after) if after is not None else (name, (name[0].lower(), name[1].lower()))
        if (commit_ts, query, table) in self._read:
            return
        # By id: the messages of a RENAME of several tables name each as it was before all of them.
        first = before if before is not None else after
        table_id = first.integer("tableID") if first is not None else None
        gone = [one for one, info in self._newest.items() if info.id == table_id] if table_id is not None else [table]
        old = self._newest.get(gone[0]) if gone else None if before is None else table_info(before)
        new = table_info(after, None if kind in job_kinds.CREATES else old) if after is not None else old
        if new is not None and kind in (_A.CREATE_VIEW, _A.DROP_VIEW):
            new = replace(new, rest={"view": {}})
        if kind == _A.DROP_SCHEMA:
            gone = [one for one in self._newest if one[0] == table[0]]
        # Another partition, which was not read from so far back, may have had newer ones.
        is_newest = all(self._known_ts.get(one, 0) <= commit_ts for one in (table, *gone))
        if not is_newest and kind in _PASSED:
            kind = _A.LOCK_TABLE
        job_id = commit_ts + sum(one[0] == commit_ts for one in self._read)  # one job may be several messages
        self._read.add((commit_ts, query, table))
        self._add(job_id, kind or _A.MULTI_SCHEMA_CHANGE, name[0], commit_ts, query, old, new)
        for one in gone if is_newest else ():
            self._newest.pop(one, None)
            self._known_ts[one] = commit_ts
        self._known_ts[table] = max(commit_ts, self._known_ts.get(table, 0))
        if after is not None and new is not None and kind not in job_kinds.DROPS:
            self._versions[*name, after.integer("version")] = job_id
            if is_newest:
                self._newest[table] = new

    def _add(self, job_id: int, kind: ActionType, schema: str, ts: int, query: str, old: _Info, new: _Info) -> None:
        digest = hashlib.blake2b(schema.lower().encode(), digest_size=6).digest()
        schema_id = 1 << 48 | int.from_bytes(digest, "big")  # messages have none
        job = Job(
            job_id,
            kind,
            schema_id=schema_id,
            table_id=(old or new or TableInfo(0, "")).id,
            schema_name=schema,
            table_name=new.name if new is not None else "",
            query=query,
            schema_version=job_id if query else ts,
            finished_ts=ts,
            start_ts=ts - tso.compose(_RUNS_MS),
            table_info=new,
            db_info=DBInfo(schema_id, schema) if kind in job_kinds.ON_SCHEMA else None,
            # Of a text without a charset, TiDB's default is meant, and not the destination's. Tables inherit it.
            by_text=kind != _A.CREATE_SCHEMA
            or any(word in query.upper() for word in ("CHARSET", "CHARACTER", "COLLATE")),
        )
        self._jobs.append(job)
        self.size += 1


def _names(schema: Reader) -> tuple[Name, Name]:
    """A table's database and name, as they are spelled, and in lower case."""
    name = schema.text("schema"), schema.text("table")
    return name, (name[0].lower(), name[1].lower())


def _database(query: str) -> str:
    """The name in CREATE, ALTER or DROP DATABASE; "" without one."""
    names = [word for word in tokens(query) if word.is_name][2:]
    return next((one.value for one in names if not one.is_word("IF", "NOT", "EXISTS")), "")


# Reads the DDL history from TiDB, and finds the job of each DDL message of the topics.
_TRIED: int = 25
_PAUSE_S: float = 0.2


class TopicHistory:
    """Shared by all partitions, on one event loop. `schemas`: the source that the messages are read for."""

    def __init__(self, sources: Sequence[JobSource]) -> None:
        self._sources = tuple(sources)
        self.schemas = next((source for source in sources if isinstance(source, MessageSchemas)), None)
        self._history = JobHistory()
        self._read_at: dict[tuple[int, str], int] = {}
        self._tables: NamedTables | None = None  # made when they are needed after a change
        self._packed = b""
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Read the history, if it was not read yet. Raises HistoryBroken, HistoryUnavailable."""
        async with self._reading:
            if not len(self._history):
                await self._refresh()

    async def learn(self, message: Reader) -> None:
        """Read the schemas of a message, if no other source has them. Raises MessageError."""
        if self.schemas is not None:
            self.schemas.learn(message)
            if self.schemas.size > len(self._history):
                async with self._reading:
                    await self._refresh()

    def packed(self) -> bytes:
        """Return the packed NamedTables with every DDL that was placed."""
        self._packed = self._packed or packed(self._named())
        return self._packed

    def lacks(self, job: Job) -> bool:
        """Return whether no topic had the DDL of a job: the changefeed's filter leaves it out, or it is older than the
        topics. To be asked for a job that finished below the resolved ts of all partitions."""
        return job.id not in self._read_at.values()

    def versions_of(self, of: RowTable, commit_ts: Words) -> Ints | int | None:
        """Return the schema versions of a table's rows. 0: the table is not known, which the task that reads the row
        reports. None: the message with the table's schema has not been read yet."""
        if self.schemas is not None:
            return self.schemas.version_of(of)
        found = np.zeros(len(commit_ts), np.int64)
        for table, its in self._named().stretches(of.schema, of.table, commit_ts):
            found[its] = 0 if table is None else table.version
        return found

    async def place(self, event: DdlEvent) -> None:
        """Find the job of a DDL that was read. Raises HistoryBroken, HistoryUnavailable if no source has it in time."""
        read = (event.commit_ts, event.query)
        async with self._reading:
            if read in self._read_at:
                return
            for tried in range(_TRIED):
                job = job_of(event, self._history, self._read_at)
                # One that did not finish then may have run beside the right one, which is not listed yet.
                if job is not None and (tried or job.finished_ts == event.commit_ts):
                    self._read_at[read] = job.id
                    self._changed()
                    return
                if not await self._refresh() and job is None:
                    await asyncio.sleep(_PAUSE_S)
        sources = ", ".join(source.describe() for source in self._sources) or "no source is configured"
        raise HistoryUnavailable(
            sources, f"it has no job for the DDL at commit_ts {event.commit_ts}: {event.query:.200}"
        )

    async def _refresh(self) -> int:
        found = sum([len(self._history.add(await source.refresh())) for source in self._sources])
        self._changed()
        return found

    def _changed(self) -> None:
        self._tables, self._packed = None, b""

    def _named(self) -> NamedTables:
        if self._tables is None:
            self._tables = named_tables(self._history, self._read_at)
        return self._tables
