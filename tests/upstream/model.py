"""A small TiDB: tables whose DDL goes through its states, transactions of older versions, and what it would send.

Each job is a list of steps, a schema version each; a transaction writes its rows as the version it began in says and
may commit a step later, as TiDB lets it (X-08). `truth` is what the tables hold in the end. Values are whole numbers,
as INT or as text, so that a change of type is a cast.
"""

from __future__ import annotations

from binlog import envelope
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import TableInfo

from drainer.row.partition import locator
from tests.upstream.ddl import Ddl
from tests.upstream.table import (
    PUBLIC,
    WRITE_ONLY,
    WRITE_REORG,
    Row,
    Table,
)


class Upstream(Ddl):
    """Runs by a seed; `binlogs` and `jobs` are what a drainer is given."""

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
