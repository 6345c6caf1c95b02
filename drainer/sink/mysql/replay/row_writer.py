"""Rows that are not of a batch into a server, in one session: how it has their tables, statements, and its warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zoneinfo import ZoneInfo

from binlog.errors import DecodeError

from drainer.protocol.errors import MessageError
from drainer.protocol.event import RowEvent
from drainer.protocol.pb_file.decoder import FileEvent
from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.replay.row_events import file_event, in_utc
from drainer.sink.mysql.replay.statements import RowStatement, TableThere, statements
from drainer.sink.mysql.rows.row_warnings import stored_exactly
from drainer.sink.mysql.rows.unique_keys import read
from drainer.sink.replay import ReplayFailed

_GENERATED: Final = re.compile(r"\b(?:VIRTUAL|STORED|PERSISTENT)\b", re.IGNORECASE)
_AT_ROW: Final = re.compile(r"column '?(?:[^']*\.)*`?([^'`]+)`?'? at row (\d+)$")


class RowWriter:
    """`safe`: rows may be there already, or be missing (`D-LD-11`); `zone`: that of TIMESTAMPs in events, the session's
    is UTC. Tables are asked for once, until `forget`."""

    def __init__(self, *, safe: bool, zone: str) -> None:
        self._safe = safe
        self._zone = None if zone == "UTC" else ZoneInfo(zone)
        self._tables: dict[tuple[str, str], TableThere] = {}

    def forget(self) -> None:
        """Tables may have changed."""
        self._tables.clear()

    def write(self, session: Session, commit_ts: int, events: Sequence[FileEvent | RowEvent]) -> None:
        """In order, in the session's transaction. `commit_ts`: for errors. Raises ReplayFailed."""
        place, found = "", list[FileEvent]()
        try:
            for event in events:
                place = f"`{event.schema}`.`{event.table}`"
                there = self._table(session, event.schema, event.table)
                made = file_event(event, there) if isinstance(event, RowEvent) else event
                found.append(made if self._zone is None else in_utc(made, self._zone))
            for statement in statements(found, self._tables, session.flavour, safe=self._safe):
                place = f"`{statement.schema}`.`{statement.table}`"
                self._run(session, statement, commit_ts)
        except (ServerError, MessageError, DecodeError) as error:
            raise ReplayFailed(f"{place}: {error}", commit_ts=commit_ts, table=place) from error

    def _table(self, session: Session, schema: str, table: str) -> TableThere:
        """How the destination has it. Raises MessageError where it does not."""
        found = self._tables.get((schema, table))
        if found is None:
            found = self._tables[schema, table] = _look(session, schema, table)
        return found

    def _run(self, session: Session, statement: RowStatement, commit_ts: int) -> None:
        found = session.execute(statement.sql)
        place = f"`{statement.schema}`.`{statement.table}`"
        if statement.rows not in (-1, found):
            raise ReplayFailed(
                f"{place}: {found} rows were found, and {statement.rows} should be: the destination is not what it was "
                f"upstream at that time; -safe-mode goes over it. The statement: {statement.sql[:200]!r}",
                commit_ts=commit_ts,
                table=place,
            )
        if session.warning_count:
            _judge(session, statement, place, commit_ts)


def _look(session: Session, schema: str, table: str) -> TableThere:
    found = read(session, schema, table)
    if found is None:
        raise MessageError("there is no such table in the destination")
    keys = sorted(found[0], key=lambda key: key.name.upper() != "PRIMARY")
    parts = [tuple(part.column.lower() for part in key.parts) for key in keys]
    columns = session.query(
        b"SELECT COLUMN_NAME, EXTRA, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        % (session.literal(schema), session.literal(table))
    )
    generated = frozenset(str(column).lower() for column, extra, _ in columns if _GENERATED.search(str(extra)))
    types = {str(column).lower(): str(kind).lower() for column, _, kind in columns}
    return TableThere(tuple(key for key in parts if "" not in key), generated, types)


def _judge(session: Session, statement: RowStatement, place: str, commit_ts: int) -> None:
    """A value that the server stored otherwise than it is."""
    for level, code, text in session.warnings():
        at = _AT_ROW.search(text)
        if level == "Note" or at is None or at[1] not in statement.columns:
            continue
        row = int(at[2]) - 1
        known = 0 <= row < len(statement.tuples)
        if known and stored_exactly(code, statement.tuples[row][statement.columns.index(at[1])]):
            continue
        raise ReplayFailed(f"{place}: {code}: {text}", commit_ts=commit_ts, table=place)
