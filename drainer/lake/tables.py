"""The tables of a lake: a history and a mirror for each table of upstream, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import count
from typing import Any, Final

from binlog.runtime.crashpoint import crash_point
from binlog.tidb.table import TableInfo

from drainer.lake import files
from drainer.lake.delta import (
    HISTORY,
    KEY,
    ROLE,
    Delta,
    TableState,
    errors,
    history_schema,
    schema_action,
    txn_action,
)
from drainer.lake.fields import Field, conversion, evolved, function_of, in_partitions, key_of, quoted
from drainer.lake.files import Place
from drainer.lake.history import HistoryTable
from drainer.schema.view import retyped
from drainer.sink.base import TableName
from drainer.sink.errors import DestinationRefused
from drainer.sink.file.parquet import path_of

CHANGES: Final = "__changes"
SINCE: Final = "tidb-binlog.since"  # up to this commit_ts a history has no changes any more
_DELETION_VECTORS: Final = "delta.enableDeletionVectors"


@dataclass(frozen=True, slots=True)
class Entry:
    """A table of upstream. `path`: of its mirror, under the lake's directory; its history is beside it. `table_id`:
    upstream's; `mirrored`: whether it has a mirror; `dropped_ts`: 0: it is there; `version`: of the mirror, which has
    the rows of a table that was truncated since; -1: the newest one."""

    schema: str
    table: str
    path: str
    table_id: int
    mirrored: bool
    dropped_ts: int = 0
    version: int = -1

    @property
    def name(self) -> TableName:
        return self.schema, self.table


class Registry:
    """The tables by name, and those that upstream has dropped, which may come back. `notes`: of the position, as
    JSON."""

    def __init__(self, notes: Mapping[str, Any]) -> None:
        found = [Entry(*one) for one in notes.get("tables", ())]
        self.tables = {one.name: one for one in found if not one.dropped_ts}
        self.dropped = {one.table_id: one for one in found if one.dropped_ts}

    def notes(self) -> dict[str, Any]:
        return {"tables": [list(astuple(one)) for one in (*self.tables.values(), *self.dropped.values())]}

    def add(self, name: TableName, table_id: int, *, mirrored: bool) -> Entry:
        """A table that is created, or comes back with its rows."""
        back = self.dropped.pop(table_id, None)
        if back is None or back.version >= 0:
            path = "/".join(map(path_of, name))
            taken = [one.path for one in (*self.tables.values(), *self.dropped.values())]
            taken += [f"{one}{CHANGES}" for one in taken]  # another table may have this name
            is_free = path not in taken and f"{path}{CHANGES}" not in taken
            made = Entry(*name, path if is_free else f"{path}-{table_id}", table_id, mirrored)
        else:
            made = replace(back, schema=name[0], table=name[1], dropped_ts=0, mirrored=back.mirrored and mirrored)
        self.tables[name] = made
        return made

    def moved(self, entry: Entry, name: TableName, table_id: int) -> Entry:
        """A table under another name, or with another id; its directory stays."""
        made = replace(entry, schema=name[0], table=name[1], table_id=table_id)
        self._forget(entry)
        self.tables[name] = made
        return made

    def truncated(self, table_id: int) -> Entry | None:
        """Return the table that had this id until a TRUNCATE, with the version of its mirror that still has the rows;
        None if no table had it."""
        found = self.dropped.get(table_id)
        return found if found is not None and found.version >= 0 else None

    def truncate(self, entry: Entry, commit_ts: int, version: int) -> None:
        """Remember a table, before it has another id, in case that its rows come back."""
        self.dropped[entry.table_id] = replace(entry, dropped_ts=commit_ts, version=version)

    def forget(self, before_ts: int) -> None:
        """Forget tables that were truncated before this TSO: the files of their rows are not kept any more."""
        self.dropped = {id_: one for id_, one in self.dropped.items() if one.version < 0 or one.dropped_ts >= before_ts}

    def drop(self, entry: Entry, commit_ts: int, *, is_known: bool) -> None:
        """`is_known`: whether its mirror has all its rows if it comes back."""
        self._forget(entry)
        self.dropped[entry.table_id] = replace(entry, dropped_ts=commit_ts, mirrored=entry.mirrored and is_known)

    def _forget(self, entry: Entry) -> None:
        """Free a table's name, unless another one has taken it in the same DDL."""
        if self.tables.get(entry.name) == entry:
            del self.tables[entry.name]


@dataclass(eq=False)
class Tables:
    """`app`: under which a changefeed commits; `vectors`: with deletion vectors; `zero_dates_fail`: see
    HistoryTable."""

    delta: Delta
    directory: Place
    app: str
    vectors: bool = True
    zero_dates_fail: bool = False
    _histories: dict[str, HistoryTable] = field(default_factory=dict)

    def mirror_path(self, entry: Entry) -> Place:
        return self.directory / entry.path

    def history_path(self, entry: Entry) -> Place:
        return self.directory / f"{entry.path}{CHANGES}"

    def history(self, entry: Entry, info: TableInfo) -> HistoryTable:
        """How rows of a table are written to its history, which is made if it is not there."""
        found = self._histories.get(entry.path)
        if found is None:
            self.define_history(entry, info, {})
            found = self._histories[entry.path]
        return found

    def history_of(self, entry: Entry) -> HistoryTable:
        """How rows of a table are written whose history `history` has made."""
        return self._histories[entry.path]

    def wrote(self, entry: Entry, until_ts: int) -> None:
        """Its history has the changes up to `until_ts`."""
        self._histories[entry.path] = replace(self._histories[entry.path], committed_ts=until_ts)

    @property
    def _load_app(self) -> str:
        return f"{self.app}/load"

    def ranges(self, entry: Entry) -> int:
        """How many ranges of its first load its history has."""
        return max(self.delta.committed(self.history_path(entry), self._load_app), 0)

    def add_range(self, entry: Entry, number: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Commit the files of range `number` of a first load to the table's history, with the number of ranges that it
        has then. Raises Fenced if it does not have exactly the ranges before this one."""
        app = self._load_app
        made = [txn_action(app, number + 1), *actions]
        self.delta.commit(self.history_path(entry), made, app=app, after=number or -1)

    def end_load(self, entry: Entry, until_ts: int) -> None:
        """Its history has all rows of a first load, as upstream has them at `until_ts`. May be repeated."""
        path = self.history_path(entry)
        committed_ts = self.delta.committed(path, self.app)
        if committed_ts < until_ts:
            self.delta.commit(path, [txn_action(self.app, until_ts)], app=self.app, after=committed_ts)
        self._histories.pop(entry.path, None)

    def refuse_rows(self, entry: Entry) -> None:
        """Raise DestinationRefused if a table of a first load has rows of an earlier position already."""
        mirror, history = self.mirror_path(entry), self.history_path(entry)
        if self.delta.state(history) is None:
            has_rows = self.delta.state(mirror) is not None
        else:
            has_rows = any(self.delta.committed(history, app) >= 0 for app in (self.app, self._load_app))
        if has_rows:
            raise DestinationRefused(f"{mirror} is from before this first load: move it and {history} away")

    def define_history(self, entry: Entry, info: TableInfo, was: Mapping[int, int]) -> None:
        """Make the history, or give it the table's columns. `was`: see `evolved`. May be repeated."""
        path = self.history_path(entry)
        state = self._state(path, f"tidb-{entry.table_id}-changes")
        fields = evolved(state.fields, info, count(state.max_id + 2, 2), was=was, keeps=True)
        if state.version < 0 or fields != state.fields:
            last = max([state.max_id, *(one.id for one in fields)])
            settings = {**state.settings, ROLE: HISTORY}
            self.delta.commit(path, [schema_action(state.table_id, history_schema(fields), last, settings)])
        committed_ts = self.delta.committed(path, self.app)
        key = key_of(info) if entry.mirrored else ()
        self._histories[entry.path] = HistoryTable(path, fields, committed_ts, self.zero_dates_fail, key)

    def define_mirror(
        self, entry: Entry, before: TableInfo | None, info: TableInfo, was: Mapping[int, int], commit_ts: int
    ) -> int:
        """Make the mirror, or give it the table's columns and its old rows their values. It has upstream's state at
        `commit_ts` then. May be repeated. Return its version, always a new one: of those of one TSO the last one
        counts, with its name."""
        path = self.mirror_path(entry)
        state = self._state(path, f"tidb-{entry.table_id}")
        fields = evolved(state.fields, info, count(state.max_id + 1), before=before, was=was, keeps=False)
        last = max([state.max_id, *(one.id for one in fields)])
        settings = {**state.settings, KEY: json.dumps(key_of(info)), _DELETION_VECTORS: str(self.vectors).lower()}

        def action(fields: tuple[Field, ...]) -> dict[str, Any]:
            return schema_action(state.table_id, [one.json() for one in fields], last, settings)

        if any(one.fill for one in fields):
            if fields != state.fields:
                self.delta.commit(path, [action(fields)])
                crash_point("lake.columns_added")
            self._fill(path, fields, before, info, was)
            crash_point("lake.columns_filled")
        final = tuple(replace(one, fill="") for one in fields if one.column_id >= 0)
        merged_ts = self.delta.committed(path, self.app)
        actions = [action(final), txn_action(self.app, max(merged_ts, commit_ts))]
        return self.delta.commit(path, actions, app=self.app, after=merged_ts)

    def _fill(
        self, path: Place, fields: Sequence[Field], before: TableInfo | None, info: TableInfo, was: Mapping[int, int]
    ) -> None:
        """Give old rows the values of columns that are new, or have another type."""
        known, now = {} if before is None else before.columns_by_id, info.columns_by_id
        sets = {one.name: one.fill for one in fields if one.fill}
        for one in fields:
            column = now.get(one.column_id)
            old = known.get(was.get(one.column_id, one.column_id))
            if column is not None and old is not None and function_of(column) in one.fill:
                kind = "binary" if one.type == "binary" else "string"
                self.delta.spark.udf.register(function_of(column), conversion(old.type, column.type), kind)
        text = ", ".join(f"{quoted(name)} = {fill}" for name, fill in sets.items())
        with errors(path):
            self.delta.spark.sql(f"UPDATE delta.{quoted(str(path))} SET {text}")

    def truncate(self, entry: Entry, commit_ts: int) -> None:
        """Delete all rows of a mirror. May be repeated."""
        path = self.mirror_path(entry)
        self.delta.delete(path, "true")
        crash_point("lake.emptied")
        merged_ts = self.delta.committed(path, self.app)
        self.delta.commit(path, [txn_action(self.app, max(merged_ts, commit_ts))], app=self.app, after=merged_ts)

    def forget(self, entry: Entry, until_ts: int) -> None:
        """Remove a history's changes up to `until_ts`, and record that before."""
        path = self.history_path(entry)
        since = {"domain": SINCE, "configuration": str(until_ts), "removed": False}
        self.delta.commit(path, [{"domainMetadata": since}])
        crash_point("lake.forgetting")
        self.delta.delete(path, f"commit_ts <= {until_ts}")

    def remove(self, entry: Entry, info: TableInfo, partitions: Collection[int]) -> None:
        """Delete a mirror's rows that are in these partitions. May be repeated. Raises PartitionUnknown."""
        self.delta.delete(self.mirror_path(entry), self._in_partitions(entry, info, partitions))
        crash_point("lake.partitions_removed")

    def exchange(self, parted: Entry, info: TableInfo, partitions: Collection[int], other: Entry, job_id: int) -> None:
        """Exchange a partition's rows and those of another table. `job_id`: of the DDL, greater than those before it.
        Its commit_ts may be that of a merge, if it runs early. May be repeated. Raises PartitionUnknown."""
        spark, path, of = self.delta.spark, self.mirror_path(parted), self.mirror_path(other)
        app = f"{self.app}/exchange"
        where = self._in_partitions(parted, info, partitions)
        pairs = list(zip(self._names(parted), self._names(other), strict=True))
        with errors(of), self.delta.as_app(of, app, job_id):  # nothing is written if it has been
            rows = spark.read.format("delta").load(str(path)).where(where)
            theirs = rows.selectExpr(*(f"{ours} AS {name}" for ours, name in pairs))
            theirs.write.format("delta").mode("overwrite").save(str(of))
        crash_point("lake.exchanged")
        if self.delta.committed(path, app) >= job_id:
            return
        self.delta.delete(path, where)
        crash_point("lake.partitions_removed")
        before = self.version(other)
        while self.delta.committed(of, app, before) >= job_id:
            before -= 1
        with errors(path), self.delta.as_app(path, app, job_id):
            rows = self.delta.read(of, before, spark)
            ours = rows.selectExpr(*(f"{name} AS {ours}" for ours, name in pairs))
            ours.write.format("delta").mode("append").save(str(path))

    def _in_partitions(self, entry: Entry, info: TableInfo, partitions: Collection[int]) -> str:
        """SQL of the condition that a row of a mirror is in one of these partitions."""
        arguments, belongs = in_partitions(self._mirror(entry).fields, info, partitions)
        name = f"tidb_partitions_of_{info.id}"
        self.delta.spark.udf.register(name, belongs, "boolean")
        return f"{name}({arguments})"

    def _names(self, entry: Entry) -> list[str]:
        return [quoted(one.name) for one in self._mirror(entry).fields]

    def version(self, entry: Entry) -> int:
        """The newest version of a mirror."""
        return self._mirror(entry).version

    def restore(self, entry: Entry, before: Entry) -> int:
        """Copy the rows of a truncated table from the version of its mirror that has them, and return the version of
        the new mirror. May be repeated."""
        path = self.mirror_path(entry)
        with errors(path):
            rows = self.delta.read(self.mirror_path(before), before.version, self.delta.spark)
            rows.write.format("delta").mode("overwrite").save(str(path))
        return self.version(entry)

    def _mirror(self, entry: Entry) -> TableState:
        return self._state(self.mirror_path(entry), "")

    def _state(self, path: Place, table_id: str) -> TableState:
        found = self.delta.state(path)
        if found is not None and not found.table_id.startswith(f"{self.app}/"):
            raise DestinationRefused(f"{path} is a table that this drainer has not made: move it away")
        if found is None:
            files.make(path)
        return found or TableState(-1, f"{self.app}/{table_id}", (), {})


def replaced(before: TableInfo | None, after: TableInfo, query: str, *, one_changed: bool) -> dict[int, int]:
    """The ids of columns that got another one by a change of type, by their new ids."""
    return {} if before is None else dict(retyped(before, after, one_changed=one_changed, query=query))
