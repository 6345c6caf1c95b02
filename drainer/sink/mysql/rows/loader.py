"""Writes rows by LOAD DATA LOCAL; if the server does not store them exactly, the load is rolled back and statements
must follow.

With LOCAL a server refuses nothing: it skips a row, or changes a value, and warns. So each load follows a savepoint,
and is kept only if the server counted every row, skipped none, and no warning shows a changed value. Otherwise the
statements that follow say what is wrong, or do what LOAD DATA could not.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from binlog.runtime.log import get_logger

from drainer.batch.work import TableShape
from drainer.changes.net import Tuples
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession
from drainer.sink.mysql.rows import load_data
from drainer.sink.mysql.rows.statements import split_row
from drainer.sink.mysql.rows.unique_keys import UniqueKeys

# Decides from a server's warnings whether rows were stored exactly. Pure.

TRUNCATED: Final = 1265
AT_ROW: Final = re.compile(r"column '?(?:[^']*\.)*`?([^'`]+)`?'? at row (\d+)$")
_TIDB_NO_LITERAL: Final = frozenset({1105, 1690})


def literal_at(columns: Sequence[str], tuples: Sequence[bytes], text: str) -> bytes:
    """The literal that a warning "… for column 'c' at row n" is about; b"" if unknown."""
    found = AT_ROW.search(text)
    if found is None:
        return b""
    name, row = found.group(1), int(found.group(2))
    if name not in columns or not 0 < row <= len(tuples):
        return b""
    return split_row(tuples[row - 1])[columns.index(name)]


def is_computed(columns: Sequence[str], text: str) -> bool:
    """Whether a warning is about a column that is generated in the destination, as it is upstream: TiDB accepts a row
    whose VIRTUAL column does not fit its type."""
    found = AT_ROW.search(text)
    return found is not None and found.group(1) not in columns


def is_about_no_literal(code: int, text: str) -> bool:
    """Warnings of TiDB that name neither column nor row: those without a number of their own come from its planner
    (statistics, hints, plan cache), an overflow from the expression of a generated column. A literal that does not fit
    its column gets another number, and its column is named."""
    return code in _TIDB_NO_LITERAL and AT_ROW.search(text) is None


def stored_exactly(code: int, literal: bytes) -> bool:
    """Warnings about values that are stored unchanged: 0 in an ENUM or SET (X-14; no other type complains about a 0),
    and the largest FLOAT, whose nine digits are a little more than it is."""
    return (code == TRUNCATED and literal == b"0") or (code == 1264 and literal.lstrip(b"-") == b"3.40282347e+38")


_log = get_logger(__name__)

# Error numbers of a client or server that forbids LOCAL, and of a proxy that does not know the statement.
_NOT_ALLOWED: Final = frozenset({1064, 1148, 1235, 3948, 4166})
_NO_SAVEPOINT: Final = 1305
# A lost connection may be an accident; a proxy that closes it does so every time.
STATEMENTS_ONLY_S: Final = 600.0

_until: dict[str, float] = {}  # address of a server for which only statements are used → until when, of time.monotonic
_lock = threading.Lock()


def leave_to_statements(address: str, why: str) -> None:
    """Use only statements for that server in this process, for STATEMENTS_ONLY_S."""
    with _lock:
        logged = address in _until
        _until[address] = time.monotonic() + STATEMENTS_ONLY_S
    if not logged:
        _log.info("LOAD DATA LOCAL does not work on this server; writing rows by statements", address=address, why=why)


def may_load(address: str) -> bool:
    with _lock:
        return time.monotonic() >= _until.get(address, 0.0)


def report(session: ServerSession, *, wanted: bool) -> None:
    """Log whether LOAD DATA LOCAL is used there: it decides how fast large batches are written."""
    if not wanted:
        return
    if session.local_infile:
        _log.info("large batches of rows are written by LOAD DATA LOCAL", address=session.address)
        return
    why = "it is a TiDB" if session.flavour == "tidb" else "local_infile is off there; large batches are faster with it"
    _log.info("rows are written by REPLACE statements, not by LOAD DATA LOCAL", address=session.address, why=why)


@dataclass(frozen=True, slots=True)
class Loader:
    """For one session in a transaction."""

    session: ServerSession
    keys: UniqueKeys
    rows_min: int

    def write(self, shape: TableShape, rows: Tuples, *, replaces: bool) -> bool:
        """Write all rows and return True, or write none and return False. With `replaces` a row replaces the one with
        the same key.

        Raises ConnectionLost, and Retry: run the whole transaction again."""
        session = self.session
        if len(rows) < self.rows_min or not session.local_infile or not may_load(session.address):
            return False
        clause = self.keys.handling(session, shape).load
        body = load_data.body_of(rows) if clause else None
        if body is None:
            return False
        session.execute(b"SAVEPOINT drainer_load")
        try:
            why = self._load(shape, rows, load_data.statement(shape, clause, replaces=replaces), body)
        except ConnectionLost as error:
            leave_to_statements(session.address, str(error))
            raise
        if not why:
            return True
        _log.info(
            "LOAD DATA rolled back; writing the rows by statements", table=f"{shape.schema}.{shape.table}", why=why
        )
        self.keys.write_by_statements(shape)
        try:
            session.execute(b"ROLLBACK TO SAVEPOINT drainer_load")
        except ServerError as error:
            if error.code == _NO_SAVEPOINT:  # the server has rolled back more than the statement
                raise Retry(f"{session.address}: the transaction is gone: {error}") from error
            raise
        return False

    def _load(self, shape: TableShape, rows: Sequence[bytes], sql: bytes, body: bytes) -> str:
        """Why the load must be rolled back, '' if it need not."""
        session = self.session
        try:
            done = session.load(sql, body)
        except ServerError as error:
            if error.code in _NOT_ALLOWED:
                leave_to_statements(session.address, str(error))
            return str(error)
        if done is None or done.records != len(rows) or done.skipped:
            return f"{len(rows)} rows were sent, the server counts {done}"
        warned = session.warning_count
        found = session.warnings() if warned or done.warnings else []
        if len(found) != max(warned, done.warnings):
            return f"{max(warned, done.warnings)} warnings, of which {len(found)} can be read"
        for _, code, text in found:
            if not stored_exactly(code, literal_at(shape.columns, rows, text)):
                return f"warning {code}: {text}"
        return ""
