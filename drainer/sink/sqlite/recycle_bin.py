"""The recycle bin of an SQLite file: dropped tables under names of ours, for as long as upstream may bring them back.

See drainer/sink/recycle_names.py. Everything happens in the step's own transaction.
"""

from __future__ import annotations

import sqlite3

from binlog.runtime.log import get_logger

from drainer.schema.steps import Ddl, Located
from drainer.sink import recycle_names
from drainer.sink.base import Identity
from drainer.sink.recycle_names import Kept
from drainer.sink.sqlite.layout import quote, table_name

_log = get_logger(__name__)

_PREFIX = table_name(recycle_names.SCHEMA, "")


class RecycleBin:
    """The dropped tables of one changefeed. `keep_ms` 0: no table is added; those that are in the bin can be recovered
    and expire."""

    def __init__(self, identity: Identity, keep_ms: int) -> None:
        self._tag = recycle_names.tag(identity)
        self._keep_ms = keep_ms

    @property
    def keeps(self) -> bool:
        return self._keep_ms > 0

    def put_away(self, connection: sqlite3.Connection, step: Ddl, table: Located) -> None:
        """Rename a table, which must be there and have no index, into the bin."""
        kept = recycle_names.name_for(
            self._tag, commit_ts=step.commit_ts, job_id=step.job.id, table_id=table.table_id, table=table.name
        )
        _rename(connection, table_name(table.schema, table.name), _PREFIX + kept)

    def bring_back(self, connection: sqlite3.Connection, table: Located) -> bool:
        """Rename the table of this id back, under the name it has now. False when it is not in the bin."""
        kept = recycle_names.latest(self._look(connection), table.table_id)
        if kept is None:
            return False
        _rename(connection, _PREFIX + kept.name, table_name(table.schema, table.name))
        return True

    def purge(self, connection: sqlite3.Connection, position_ts: int) -> None:
        """Drop what has expired."""
        for table in self._look(connection):
            if table.is_expired(position_ts, self._keep_ms):
                connection.execute(f"DROP TABLE {quote(_PREFIX + table.name)}")
                _log.info("table deleted from the recycle bin", table=table.name, job_id=table.job_id)

    def _look(self, connection: sqlite3.Connection) -> list[Kept]:
        rows = connection.execute(
            "SELECT substr(name, ?) FROM sqlite_master WHERE type='table' AND substr(name, 1, ?)=?",
            (len(_PREFIX) + 1, len(_PREFIX), _PREFIX),
        )
        return recycle_names.kept(self._tag, (str(row[0]) for row in rows.fetchall()))


def _rename(connection: sqlite3.Connection, old: str, new: str) -> None:
    connection.execute(f"ALTER TABLE {quote(old)} RENAME TO {quote(new)}")
