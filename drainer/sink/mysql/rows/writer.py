"""Writes net rows and ordered changes in an open transaction, and checks that the server stores them exactly.

Many rows are written by LOAD DATA LOCAL. With LOCAL a server refuses nothing: it skips a row, or changes a value, and
warns. So each load follows a savepoint, and is kept only if the server counted every row, skipped none, and no warning
shows a changed value. Otherwise the statements that follow say what is wrong, or do what LOAD DATA could not.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from binlog.runtime.log import get_logger

from drainer.batch.work import Folded, KeyChange, Kind, SegmentWork, TableShape
from drainer.changes.net import Tuples, columns_of
from drainer.sink.errors import DataError, MissingRows, RowMissing, RowsRefused, UniqueConflict, ValueChanged
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.connection import DUPLICATE_KEY, ConnectionLost, Retry, ServerError, ServerSession
from drainer.sink.mysql.rows.format import Statement, deletes, inserts, key_of, qualified, replaces, split_row, sql_of
from drainer.sink.mysql.rows.ordered import Step, exact_deletes, one_by_one, refusal_of_upserts, upserted, where
from drainer.sink.mysql.rows.unique_keys import UniqueKeys, body_of, load_statement, mend, upstream_collations

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


def report_loading(session: ServerSession, *, wanted: bool) -> None:
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
        body = body_of(rows) if clause else None
        if body is None:
            return False
        session.execute(b"SAVEPOINT drainer_load")
        try:
            why = self._load(shape, rows, load_statement(shape, clause, replaces=replaces), body)
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


_log = get_logger(__name__)

_PACKET_SPARE: Final = 1 << 10
# A comparison in WHERE may complain about a value it was given; the count of matched rows is what is checked.
_COMPARISON: Final = frozenset({1292, 1300, 1366, 3146, 4036, 4037, 4038})
_KEY: Final = re.compile(r"for key '([^']*)'")


Name = tuple[str, str]


class UniqueSurprise(DataError):
    """A row conflicts with another row's unique key: write again with `thorough`. Leaves this package only for a
    segment of several transactions, which are then applied one by one."""


@dataclass(eq=False)
class Writer:
    """Writes through one session. `thorough`, after a UniqueSurprise: all touched keys are deleted first, then rows are
    written with INSERT, so that a conflict can only be with a row that upstream did not change."""

    session: ServerSession
    limits: StatementLimits
    until_ts: int
    keys: UniqueKeys
    triggers: frozenset[Name] = frozenset()
    missing: MissingRows = field(default_factory=MissingRows)

    def __post_init__(self) -> None:
        self._loader = Loader(self.session, self.keys, self.limits.load_rows_min)
        self.limits = within_packet(self.session, self.limits)

    def write(self, work: SegmentWork, *, thorough: bool) -> None:
        """Write a segment: its ordered changes, then its net rows. Raises as these."""
        self.ordered(work.ordered.changes)
        for folded in work.folded:
            self.folded(folded, thorough=thorough)

    def folded(self, folded: Folded, *, thorough: bool) -> None:
        """Write net rows of one table: delete stale keys first, then write rows (rules 10: equal keys, and 12: REPLACE
        evicts only stale rows)."""
        self._refuse_triggers(folded.shape)
        plain = self.keys.handling(self.session, folded.shape).replaces
        if folded.shape.secondary_unique or not plain:
            # Rows that cannot conflict upstream are not tried again in a distributed range (slot_writer.py).
            thorough = thorough or not folded.shape.may_collide
            self.delete_touched(folded, known_absent=not thorough)
            self.insert_live(folded, thorough=thorough)
            return
        self._delete(folded.shape, [sql_of(key) for key in columns_of(folded).stale()])
        rows = columns_of(folded).live()
        if not self._loader.write(folded.shape, rows, replaces=True):
            for statement in replaces(folded.shape, rows, self.limits):
                self._write(folded.shape, statement)

    def clear(self, folded: Folded) -> None:
        """With `thorough`: delete the touched keys of the tables concerned, before all inserts of a transaction."""
        if folded.shape.may_collide:
            self.delete_touched(folded, known_absent=False)

    def delete_touched(self, folded: Folded, *, known_absent: bool) -> None:
        """Delete every key that the range changes; with `known_absent` not those that it creates."""
        self._refuse_triggers(folded.shape)
        self._delete(folded.shape, list(touched_keys(folded, known_absent=known_absent)))

    def insert_live(self, folded: Folded, *, thorough: bool) -> None:
        """Insert the rows that exist after the range. Raises UniqueSurprise, or, with `thorough`, UniqueConflict."""
        rows = columns_of(folded).live()
        if not self._loader.write(folded.shape, rows, replaces=False):
            for statement in inserts(folded.shape, rows, self.limits):
                self._write(folded.shape, statement, thorough=thorough)

    def ordered(self, changes: Sequence[KeyChange]) -> None:
        """Write ordered changes (rule 11: tables without keys). Raises RowMissing for a missing row, unless its table
        upserts (rule 21: one outcome wherever a stream is cut)."""
        for upserts, run in groupby(changes, key=lambda change: change.shape.upserts):
            if upserts:
                self._upserted(tuple(run))
                continue
            for step in one_by_one(tuple(run), self.limits, self.session.flavour):
                self._ordered_step(step)

    def _upserted(self, changes: Sequence[KeyChange]) -> None:
        for shape in dict.fromkeys(change.shape for change in changes):
            self._refuse_triggers(shape)
            why = refusal_of_upserts(shape, self.keys.handling(self.session, shape))
            if why:
                raise RowsRefused.of(
                    shape,
                    f"{why}, so a row would take away one that stays upstream: give the destination's table the keys "
                    f"and collations that upstream's has",
                )
        for step in upserted(changes, self.limits, self.session.flavour):
            if step.kind is Kind.INSERT:
                self._write(step.shape, step.statement, thorough=True)
                continue
            affected = self._matched(step)
            if not step.shape.row_key:
                self.missing.note(step.shape, len(step.statement.tuples) - affected)

    def _refuse_triggers(self, shape: TableShape) -> None:
        """Rule 13: a trigger would see deletes and inserts for rows that upstream only updated."""
        if (shape.schema.lower(), shape.table.lower()) in self.triggers:
            raise RowsRefused.of(
                shape,
                "it has triggers in the destination, and rows are replaced there, not updated: drop them, or set "
                "allow-triggers when they may see deletes and inserts instead",
            )

    def _matched(self, step: Step) -> int:
        affected = self._run(step.shape, step.statement.sql, thorough=True)
        if not affected and step.loose is not None:
            affected = self._run(step.shape, step.loose, thorough=True)
        return affected

    def _ordered_step(self, step: Step) -> None:
        shape, tuples, change = step.shape, step.statement.tuples, step.change
        if change is None:
            self._write(shape, step.statement, thorough=True)
            return
        self._check_fractions(shape, tuples)
        affected = self._matched(step)
        if affected != 1:
            raise _missing(change, affected)
        if step.kind is Kind.UPDATE and self.session.warning_count:
            try:
                self._check_warnings(shape, tuples, comparison=True)
            except ValueChanged:
                # TiDB's UPDATE says "Data truncated for column '%s'", so the value is found by reading the row.
                if self.session.flavour != "tidb" or not self._is_stored(shape, change):
                    raise

    def _is_stored(self, shape: TableShape, change: KeyChange) -> bool:
        """Whether the table has a row that equals the change's new image."""
        image = where(shape, [sql_of(value) for value in change.new or ()], self.session.flavour)
        return bool(self.session.query(b"SELECT 1 FROM " + qualified(shape.schema, shape.table) + image))

    def _delete(self, shape: TableShape, keys: Sequence[bytes]) -> None:
        exact = bool(keys) and self.keys.handling(self.session, shape).exact
        by_key = exact_deletes(shape, keys, self.limits, self.session.flavour) if exact else None
        for statement in by_key or deletes(shape, keys, self.limits):
            self._run(shape, statement.sql, thorough=True)

    def _write(self, shape: TableShape, statement: Statement, *, thorough: bool = False) -> None:
        self._check_fractions(shape, statement.tuples)
        self._run(shape, statement.sql, thorough=thorough)
        if self.session.warning_count:
            self._check_warnings(shape, statement.tuples, comparison=False)

    def _run(self, shape: TableShape, sql: bytes, *, thorough: bool) -> int:
        if len(sql) >= self.session.packet_bytes_max:
            raise RowsRefused.of(
                shape,
                f"a row in a transaction up to {self.until_ts} needs a statement of {len(sql)} bytes, and the "
                f"server's max_allowed_packet is {self.session.packet_bytes_max}; raise it there",
            )
        try:
            return self.session.execute(sql)
        except ServerError as error:
            raise self._refused(shape, error, thorough=thorough) from error

    def _refused(self, shape: TableShape, error: ServerError, *, thorough: bool) -> DataError:
        if error.code not in DUPLICATE_KEY:
            return RowsRefused.of(shape, f"rows up to commit_ts {self.until_ts} are refused: {error}")
        found = _KEY.search(error.detail)
        key = found.group(1).rsplit(".", 1)[-1] if found else "?"
        if not thorough:
            return UniqueSurprise.of(shape, error.detail, key=key)
        return UniqueConflict.of(
            shape,
            f"unique key {key!r} of the destination refuses a row up to commit_ts {self.until_ts}: {error.detail}. "
            f"{self._why_refused(shape, key)}",
            key=key,
        )

    def _why_refused(self, shape: TableShape, key: str) -> str:
        handling = self.keys.handling(self.session, shape)
        parts = [part for own in handling.keys if own.name.lower() == key.lower() for part in own.parts]
        coarse = [part for part in parts if part.column in handling.coarse]
        if not coarse:
            if key.upper() == "PRIMARY":
                return "The destination has a row that upstream has not: remove that row"
            return (
                "Upstream has dropped this key or is dropping it, or the destination has a row that upstream has not: "
                "drop the key in the destination, or remove that row"
            )
        of = upstream_collations(shape)
        why = "; ".join(f"column {p.column} is {p.collation} here and {of[p.column.lower()]} upstream" for p in coarse)
        ways = "; ".join(mend(self.session, shape, tuple(part.column for part in coarse)))
        return f"What are two rows upstream is one row here: {why}. " + (
            f"Run in the destination, and start again: {ways}"
            if ways
            else "No collation of this server tells them apart: change one of the two upstream, or leave the table out"
        )

    def _check_fractions(self, shape: TableShape, tuples: Sequence[bytes]) -> None:
        """Raises ValueChanged if digits after the point would be truncated, which a server does not always report."""
        narrow = self.keys.handling(self.session, shape).narrow if any(shape.fractions) else ()
        for row in tuples if narrow else ():
            literals = split_row(row)
            for at, digits in narrow:
                _, point, behind = literals[at].strip(b"'").partition(b".")
                if point and len(behind.rstrip(b"0")) > digits:
                    raise self._changed(
                        shape,
                        f"column {shape.columns[at]} keeps {digits} digits behind the point here and "
                        f"{shape.fractions[at]} upstream, {literals[at].decode(errors='replace')} has more; widen it",
                    )

    def _check_warnings(self, shape: TableShape, tuples: Sequence[bytes], *, comparison: bool) -> None:
        for level, code, text in self.session.warnings():
            if (level == "Note" and code != TRUNCATED) or (comparison and code in _COMPARISON):
                continue
            if is_computed(shape.columns, text):
                continue
            if self.session.flavour == "tidb" and is_about_no_literal(code, text):
                _log.debug("not about a value that was written", table=f"{shape.schema}.{shape.table}", text=text)
                continue
            if stored_exactly(code, literal_at(shape.columns, tuples, text)):
                continue
            raise self._changed(shape, f"warning {code}: {text}; its column is narrower than upstream's, widen it")

    def _changed(self, shape: TableShape, why: str) -> ValueChanged:
        text = f"the destination would change a value of a row up to commit_ts {self.until_ts}: {why}"
        return ValueChanged.of(shape, text)


def within_packet(session: ServerSession, limits: StatementLimits) -> StatementLimits:
    """The limits of statements that the server's max_allowed_packet permits."""
    room = max(session.packet_bytes_max - _PACKET_SPARE, 1 << 10)
    return replace(limits, statement_bytes_max=min(limits.statement_bytes_max, room))


def tables_with_triggers(session: ServerSession) -> frozenset[Name]:
    """(schema, table) in lower case of everything this user can see a trigger on."""
    rows = session.query(b"SELECT DISTINCT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS")
    return frozenset((str(schema).lower(), str(table).lower()) for schema, table in rows)


def tables_there(session: ServerSession, wanted: Sequence[Name]) -> list[Name]:
    """All tables of the databases of `wanted`, as (schema, table)."""
    schemas = sorted({schema for schema, _ in wanted})
    if not schemas:
        return []
    names = b",".join(session.literal(schema) for schema in schemas)
    rows = session.query(
        b"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN (%s)" % names
    )
    return [(str(schema), str(table)) for schema, table in rows]


def touched_keys(folded: Folded, *, known_absent: bool) -> Iterable[bytes]:
    """Keys to delete. With `known_absent`, without keys whose first change in the range was an INSERT."""
    for row in folded.rows:
        for key in row.stale:
            yield sql_of(key)
        if row.row is not None and not (known_absent and row.first is Kind.INSERT):
            yield key_of(sql_of(row.row), folded.shape.key)


def _missing(change: KeyChange, affected: int) -> RowMissing:
    image = b",".join(value if isinstance(value, bytes) else b"?" for value in change.old or ())
    return RowMissing.of(
        change.shape,
        f"{change.kind.name} of commit_ts {change.commit_ts} (row {change.sequence} of its transaction) matched "
        f"{affected} rows instead of one: the destination has no row ({image[:300].decode(errors='replace')}), so it "
        f"has diverged from upstream before this",
    )
