"""Writes net rows and ordered changes into an open transaction, and notices when the server stores something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drainer.plan import Change, Folded, Key, Kind, NetRow, Row, TableShape
from drainer.sink.errors import DataError, RowMissing, RowsRefused, UniqueConflict, ValueChanged
from drainer.sink.mysql.config import Limits
from drainer.sink.mysql.connection import DUPLICATE_KEY, ServerError, Session
from drainer.sink.mysql.match import OneByOne, one_by_one
from drainer.sink.mysql.statements import Statement, deletes, inserts, key_of, replaces, split_row

_PACKET_SPARE: Final = 1 << 10
_AT_ROW: Final = re.compile(r"column '?(?:[^']*\.)*`?([^'`]+)`?'? at row (\d+)$")
# A comparison in WHERE may complain about a value it was given; the count of matched rows is what is checked.
_COMPARISON: Final = frozenset({1292, 1300, 1366, 3146, 4036, 4037, 4038})
_KEY: Final = re.compile(r"for key '([^']*)'")


Name = tuple[str, str]


class UniqueSurprise(DataError):
    """A row that is in the way of a unique key was found: try the thorough way. Not raised out of this package."""

    def __init__(self, message: str, *, schema: str, table: str, key: str) -> None:
        super().__init__(message, schema=schema, table=table)
        self.key = key


@dataclass(slots=True)
class Written:
    """What a transaction wrote so far."""

    rows: int = 0
    statements: int = 0


class Writer:
    """Writes through one session; `thorough` after a surprise: every touched key is deleted first, then rows are
    inserted plainly, so that what stands in the way can only be a row that upstream did not touch."""

    def __init__(
        self, session: Session, limits: Limits, *, until_ts: int, triggers: frozenset[Name] = frozenset()
    ) -> None:
        room = max(session.packet_bytes_max - _PACKET_SPARE, 1 << 10)
        self._session = session
        self._limits = replace(limits, statement_bytes_max=min(limits.statement_bytes_max, room))
        self._packet_bytes_max = session.packet_bytes_max
        self._until_ts = until_ts
        self._triggers = triggers
        self.written = Written()

    def folded(self, folded: Folded, *, thorough: bool) -> None:
        """Net rows of one table in one go: stale keys first, then rows (rules 10 and 12)."""
        self._refuse_triggers(folded.shape)
        if folded.shape.secondary_unique:
            self.delete_touched(folded, known_absent=not thorough)
            self.insert_live(folded, thorough=thorough)
            return
        self._delete(folded.shape, [_bytes(key) for row in folded.rows for key in row.stale])
        rows = [_bytes(row.row) for row in folded.rows if row.row is not None]
        for statement in replaces(folded.shape, rows, self._limits):
            self._write(folded.shape, statement)
        self.written.rows += len(folded.rows)

    def delete_touched(self, folded: Folded, *, known_absent: bool) -> None:
        """Delete every key that the range touches; with `known_absent` not those that it creates."""
        self._refuse_triggers(folded.shape)
        self._delete(folded.shape, list(touched_keys(folded, known_absent=known_absent)))

    def insert_live(self, folded: Folded, *, thorough: bool) -> None:
        """Insert what is alive at the end. Raises UniqueSurprise, or UniqueConflict when nothing is left to try."""
        rows = [_bytes(row.row) for row in folded.rows if row.row is not None]
        for statement in inserts(folded.shape, rows, self._limits):
            self._write(folded.shape, statement, thorough=thorough)
        self.written.rows += len(folded.rows)

    def ordered(self, changes: Sequence[Change]) -> None:
        """One change after another (rule 11). Raises RowMissing when a row to change is not there."""
        for step in one_by_one(changes, self._limits, self._session.flavour):
            self._ordered_step(step)
            self.written.rows += step.rows

    def _refuse_triggers(self, shape: TableShape) -> None:
        """Rule 13: a trigger would see rows come and go that upstream only changed."""
        if (shape.schema.lower(), shape.table.lower()) in self._triggers:
            raise RowsRefused(
                f"{shape.schema}.{shape.table} has triggers in the destination, and rows are replaced there, not "
                f"updated: drop them, or set allow-triggers when they may see deletes and inserts instead",
                schema=shape.schema,
                table=shape.table,
            )

    def _ordered_step(self, step: OneByOne) -> None:
        shape = step.change.shape
        if step.change.kind is Kind.INSERT:
            self._write(shape, Statement(step.sql, step.tuples), thorough=True)
            return
        affected = self._run(shape, step.sql, thorough=True)
        if affected == 0 and step.loose is not None:
            affected = self._run(shape, step.loose, thorough=True)
        if affected != step.rows:
            raise _missing(step, affected)
        if step.change.kind is Kind.UPDATE and self._session.warning_count:
            self._check_warnings(shape, step.tuples, comparison=True)

    def _delete(self, shape: TableShape, keys: Sequence[bytes]) -> None:
        for statement in deletes(shape, keys, self._limits):
            self._run(shape, statement.sql, thorough=True)

    def _write(self, shape: TableShape, statement: Statement, *, thorough: bool = False) -> None:
        self._run(shape, statement.sql, thorough=thorough)
        if self._session.warning_count:
            self._check_warnings(shape, statement.tuples, comparison=False)

    def _run(self, shape: TableShape, sql: bytes, *, thorough: bool) -> int:
        if len(sql) >= self._packet_bytes_max:
            raise RowsRefused(
                f"{shape.schema}.{shape.table}: a row in a transaction up to {self._until_ts} needs a statement of "
                f"{len(sql)} bytes, and the server's max_allowed_packet is {self._packet_bytes_max}; raise it there",
                schema=shape.schema,
                table=shape.table,
            )
        self.written.statements += 1
        try:
            return self._session.execute(sql)
        except ServerError as error:
            raise self._refused(shape, error, thorough=thorough) from error

    def _refused(self, shape: TableShape, error: ServerError, *, thorough: bool) -> DataError:
        place = f"{shape.schema}.{shape.table}"
        if error.code not in DUPLICATE_KEY:
            return RowsRefused(
                f"{place}: rows up to commit_ts {self._until_ts} are refused: {error}",
                schema=shape.schema,
                table=shape.table,
            )
        found = _KEY.search(error.detail)
        key = found.group(1).rsplit(".", 1)[-1] if found else "?"
        kind = UniqueConflict if thorough else UniqueSurprise
        return kind(
            f"{place}: unique key {key!r} of the destination refuses a row up to commit_ts {self._until_ts}: "
            f"{error.detail}. Upstream has dropped this key or is dropping it, or the destination has a row that "
            f"upstream has not: drop the key in the destination, or remove that row",
            schema=shape.schema,
            table=shape.table,
            key=key,
        )

    def _check_warnings(self, shape: TableShape, tuples: Sequence[bytes], *, comparison: bool) -> None:
        for level, code, text in self._session.warnings():
            if level == "Note" or (comparison and code in _COMPARISON) or _is_computed(shape, text):
                continue
            if _stored_exactly(code, _literal_at(shape, tuples, text)):
                continue
            raise ValueChanged(
                f"{shape.schema}.{shape.table}: the destination would change a value of a row up to commit_ts "
                f"{self._until_ts}: warning {code}: {text}; its column is narrower than upstream's, widen it",
                schema=shape.schema,
                table=shape.table,
            )


def tables_with_triggers(session: Session) -> frozenset[Name]:
    """(schema, table) in lower case of everything this user can see a trigger on."""
    rows = session.query(b"SELECT DISTINCT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS")
    return frozenset((str(schema).lower(), str(table).lower()) for schema, table in rows)


def touched_keys(folded: Folded, *, known_absent: bool) -> Iterable[bytes]:
    """Keys to delete. `known_absent` leaves out keys whose first change in the range was their creation."""
    for row in folded.rows:
        for key in row.stale:
            yield _bytes(key)
        if row.row is not None and not (known_absent and row.first is Kind.INSERT):
            yield key_of(_bytes(row.row), folded.shape.key)


def live(rows: Iterable[NetRow]) -> int:
    return sum(1 for row in rows if row.row is not None)


def _bytes(value: Row | Key | None) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a row for MySQL must be the bytes of a VALUES tuple, not {type(value).__name__}")
    return value


def _literal_at(shape: TableShape, tuples: Sequence[bytes], text: str) -> bytes:
    """The literal that a warning "… for column 'c' at row n" is about; b"" when it cannot be told."""
    found = _AT_ROW.search(text)
    if found is None:
        return b""
    name, row = found.group(1), int(found.group(2))
    if name not in shape.columns or not 0 < row <= len(tuples):
        return b""
    return split_row(tuples[row - 1])[shape.columns.index(name)]


def _is_computed(shape: TableShape, text: str) -> bool:
    """Whether a warning is about a column that is not written but generated there, as it is upstream: TiDB lets a
    row in whose VIRTUAL column does not fit its type."""
    found = _AT_ROW.search(text)
    return found is not None and found.group(1) not in shape.columns


def _stored_exactly(code: int, literal: bytes) -> bool:
    """Warnings about values that arrive as they are: 0 in an ENUM or SET (X-14; no other type complains about a 0),
    and the largest FLOAT, whose nine digits are a little more than it is."""
    return (code == 1265 and literal == b"0") or (code == 1264 and literal.lstrip(b"-") == b"3.40282347e+38")


def _missing(step: OneByOne, affected: int) -> RowMissing:
    change = step.change
    image = b",".join(value if isinstance(value, bytes) else b"?" for value in change.old or ())
    return RowMissing(
        f"{change.shape.schema}.{change.shape.table}: {change.kind.name} of commit_ts {change.commit_ts} (row "
        f"{change.sequence} of its transaction) matched {affected} rows instead of one: the destination has no row "
        f"({image[:300].decode(errors='replace')}), so it has diverged from upstream before this",
        schema=change.shape.schema,
        table=change.shape.table,
    )
