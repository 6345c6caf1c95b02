"""Reads the upstream TiDB as it was at a TSO: divides a table into ranges, and reads the rows of a range as columns.

A range is one of the key by which TiDB stores the rows, and TiDB alone orders and compares keys. A border is any value
of the key: whichever it is, TiDB finds each row either below it or not, because `<` and `>=` are opposites for values
that are not NULL. So a border must only be a literal that TiDB accepts; how well it divides the rows matters for speed
alone. No range is ever sent to a destination.

Of a table that exists at that TSO TiDB shows the definition of that time, too. So rows are read with the TableInfo of
the drainer's catalog at the same TSO, and an answer that does not fit it means that the two differ.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from binlog.errors import BinlogError, ConfigError, DecodeError
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo
from binlog.tidb.time import is_date
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.changes.texts import decoded, selected, texts_of
from drainer.ddl.lexer import quoted
from drainer.row.codec import Codec
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass, is_utf8
from drainer.schema.view import SchemaView, SkipReason
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.settings import UpstreamServer

ROWS_MAX: Final = 50_000
BYTES_MAX: Final = 16 << 20
KEYS_MAX: Final = 1_000  # of one query
SAMPLED_ROWS: Final = 200
ROWID: Final = "_tidb_rowid"
_ROWID_TYPE: Final = ColumnType(FieldType(Tp.LONGLONG, Flag.NOT_NULL, 20), TypeClass.INT)
_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_DATE: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9:.]+)?")
_TIME: Final = re.compile(rb"-?[0-9:.]+")

Border = tuple[str, ...]  # a literal for each column of the row key
Row = Sequence[bytes | None]
Ask = Callable[[str], Sequence[Row]]  # from a query to its rows, as texts


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns by which TiDB stores a table's rows, in order. They are never NULL."""

    columns: tuple[str, ...]
    column_types: tuple[ColumnType, ...]

    @classmethod
    def of(cls, info: TableInfo) -> RowKey:
        """Raises DecodeError for a column type that no key has."""
        primary = info.primary_index()
        if primary is None or not (info.pk_is_handle or info.is_common_handle):
            return cls((ROWID,), (_ROWID_TYPE,))
        columns = info.index_columns(primary)
        return cls(tuple(c.name for c in columns), tuple(ColumnType.of(c.type) for c in columns))

    def selected(self) -> str:
        """The select list of the key, as `border` expects it."""
        return ", ".join(map(selected, self.columns, self.column_types))

    def border(self, row: Row, *, any_date: bool = False) -> Border | None:
        """The border at a key that TiDB returned. None if a value cannot be written as a literal. `any_date`: also
        dates that do not exist, which TiDB may take for NULL."""
        cells = zip(self.column_types, row, strict=True)
        found = [None if text is None else _literal(of, text, any_date=any_date) for of, text in cells]
        literals = tuple(text for text in found if text is not None)
        return literals if len(literals) == len(found) else None


@dataclass(frozen=True, slots=True)
class Range:
    """The rows whose key is at or above `lower` and below `upper`; None: no border on that side."""

    lower: Border | None = None
    upper: Border | None = None

    def where(self, key: RowKey) -> str:
        """Return the WHERE clause that selects these rows; '' for the whole table."""
        parts = []
        if self.lower is not None:
            parts.append(_beyond(key.columns, self.lower, ">", "="))
        if self.upper is not None:
            parts.append(_beyond(key.columns, self.upper, "<", ""))
        return f" WHERE {' AND '.join(parts)}" if parts else ""


def rows_of_range(sizes: Sequence[int]) -> int:
    """How many rows a range gets. `sizes`: the bytes of some rows of the table."""
    average = math.ceil(sum(sizes) / len(sizes)) if sizes else 1
    return max(1, min(ROWS_MAX, BYTES_MAX // max(average, 1)))


def divide(table: str, key: RowKey, ask: Ask, rows: int) -> Iterator[Range]:
    """Yield the ranges of a table, in the order of its key; the first query is made before the first one is known.
    `table`: its quoted name; `ask`: asks TiDB, always at the same TSO; `rows`: how many rows a range has, about."""
    lower: Border | None = None
    while True:
        upper = _next_border(table, key, ask, lower, rows)
        yield Range(lower, upper)
        if upper is None:
            return
        lower = upper


def _next_border(table: str, key: RowKey, ask: Ask, lower: Border | None, rows: int) -> Border | None:
    """The border `rows` rows after `lower`, or the first one behind that can be written; None: there is none."""
    beyond = f" WHERE {_beyond(key.columns, lower, '>', '')}" if lower is not None else ""
    order = ", ".join(map(quoted, key.columns))
    offset = rows
    while True:
        # The key itself is not beyond `lower`, so that the next one is one row less behind it.
        skipped = offset - (lower is not None)
        found = ask(f"SELECT {key.selected()} FROM {table}{beyond} ORDER BY {order} LIMIT 1 OFFSET {skipped}")
        if not found:
            return None
        border = key.border(found[0])
        if border is not None:
            return border
        offset += rows


def _beyond(columns: Sequence[str], border: Border, sign: str, or_equal: str) -> str:
    """`(a > 1 OR (a = 1 AND b >= 2))`: a key is beyond a border, column by column. `or_equal` "=": or it is the border.

    TiDB finds the ranges of an index in this form, and not in one of tuples."""
    name, literal = quoted(columns[0]), border[0]
    if len(columns) == 1:
        return f"{name} {sign}{or_equal} {literal}"
    rest = _beyond(columns[1:], border[1:], sign, or_equal)
    return f"({name} {sign} {literal} OR ({name} = {literal} AND {rest}))"


def _literal(column_type: ColumnType, text: bytes, *, any_date: bool) -> str | None:
    """A literal in a session with NO_BACKSLASH_ESCAPES. None for a value that TiDB may refuse as a literal: a
    comparison with it could then be NULL, and rows would be in no range."""
    kind = column_type.type_class
    if kind in NUMBERS or kind in (TypeClass.DECIMAL, TypeClass.FLOAT):
        return text.decode() if _NUMBER.fullmatch(text) else None
    if kind is TypeClass.BYTES:
        return f"x'{text.hex()}'"
    if kind is TypeClass.TEXT:
        return "'" + text.decode().replace("'", "''") + "'" if is_utf8(text) else None
    if kind is TypeClass.TIME:
        return f"'{text.decode()}'" if _TIME.fullmatch(text) else None
    found = _DATE.fullmatch(text) if kind in (TypeClass.DATE, TypeClass.DATETIME) else None
    return f"'{text.decode()}'" if found and (any_date or is_date(text[:10].decode())) else None


_NEWEST: Final = 1 << 62  # above every schema version
_IDLE_S: Final = 24 * 3600  # while a destination is read, or waits for its disk
# A division's literals; and no mode that changes what is read.
_SQL_MODE: Final = b"'NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES'"
# GC life time is shorter than transaction duration; snapshot is older than GC safe point.
_GC_PASSED: Final = frozenset({9006, 8055})
# The definition has changed (MySQL's number and TiDB's own), information schema has changed; no such database, table
# or column.
_CHANGED: Final = frozenset({1412, 8020, 8028, 8108, 1049, 1146, 1054})
_SELECT: Final = "grant it SELECT on the tables that are read"
_LOGIN: Final = "its name or password is wrong, or it may not connect from this machine"
_DENIED: Final[Mapping[int, str]] = {1045: _LOGIN, 1130: _LOGIN, 1698: _LOGIN} | dict.fromkeys(
    (1044, 1142, 1143, 1227), _SELECT
)


class UpstreamError(BinlogError):
    """Root of the errors of reading upstream."""


class UpstreamDown(UpstreamError):
    """TiDB, PD or TiKV does not answer. To be tried again on a new session."""


class UpstreamRefused(UpstreamError):
    """TiDB does not let this account read."""


class SnapshotGone(UpstreamError):
    """TiDB's GC has passed the TSO, so upstream can no longer be read as it was then."""


class DefinitionChanged(UpstreamError):
    """The table at the TSO is not the one that the drainer's schema has."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table upstream. `schema`, `info`: upstream's own names and definition, which rules do not change; `codec`: what
    becomes of its rows."""

    schema: str
    info: TableInfo
    codec: Codec

    @classmethod
    def of(cls, view: SchemaView, table_id: int, schema: str, *, stored_generated: bool = False) -> Source | None:
        """Return the current table of a view; None if it is not replicated. `schema`: the upstream name of its
        database; `stored_generated`: rows have stored generated columns, too."""
        at = view.lookup(table_id, _NEWEST, 0)
        if isinstance(at, SkipReason):
            return None
        return cls(schema, at.at, Codec(at, at.at_version, view, stored_generated=stored_generated))

    @property
    def table(self) -> str:
        """The quoted name."""
        return quoted(self.schema, self.info.name)

    @property
    def key(self) -> RowKey:
        return RowKey.of(self.info)

    @property
    def columns_read(self) -> Sequence[tuple[str, ColumnType]]:
        """Name and type of the columns that are read: those of the destination that upstream has. Of a merged table it
        has more."""
        names = {column.id: column.name for column in self.info.columns}
        return [(names[t.id], t.column_type) for t in self.codec.layout.targets if t.id in names]

    def query(self, of: Range) -> str:
        """The query of a range's rows."""
        columns = ", ".join(selected(name, column_type) for name, column_type in self.columns_read)
        return f"SELECT {columns} FROM {self.table}{of.where(self.key)}"

    def columns(self, packets: Sequence[bytes]) -> list[Any]:
        """Return what `ruled` makes of these rows. Raises DecodeError naming the table."""
        try:
            read = decoded([column_type for _, column_type in self.columns_read], packets)
        except DecodeError as error:
            raise DecodeError(f"{self.table} upstream: {error.what}", offset=0, detail=error.detail) from None
        return self.ruled(read, len(packets))

    def ruled(self, read: Iterable[Any], count: int) -> list[Any]:
        """Rows as the destination gets them: columns of decoded values, after rules for rows and values. `read`: those
        of `columns_read`."""
        known, left = self.info.columns_by_id, iter(read)
        columns = [
            next(left)
            if target.id in known
            else pa.repeat(pa.scalar(target.default, target.column_type.decoded_type), count)
            for target in self.codec.layout.targets
        ]
        rules = self.codec.rules
        if rules is None:
            return columns
        chosen = [pa.array(mask) for _, mask in rules.kinds(None, columns, count)]  # of inserts
        return list(rules.masked([column.filter(chosen[0]) if chosen else column[:0] for column in columns]) or ())


class Snapshot:
    """A session that reads upstream at one TSO. After an error it is of no further use."""

    def __init__(self, session: ServerSession, ts: int) -> None:
        """Raises UpstreamError."""
        self._session = session
        self.ts = ts
        self.read_bytes = 0  # of rows
        with self._errors():
            session.execute(b"SET SESSION max_execution_time=0, sql_mode=" + _SQL_MODE)  # a range may take long
        self.move(ts)

    def move(self, ts: int) -> None:
        """Read at another TSO from now on. Raises UpstreamError."""
        self.ts = ts
        with self._errors():
            self._session.execute(b"SET SESSION tidb_snapshot='%d'" % ts)

    def ask(self, query: str) -> list[Row]:
        """All rows of a query, as texts."""
        found: list[Row] = []
        with self._errors():
            count, blocks = self._session.packets(query.encode(), BYTES_MAX)
            for block in blocks:
                found += zip(*[column.to_pylist() for column in texts_of(block, count)], strict=True)
        return found

    def jobs_in_effect(self) -> list[Job]:
        """The DDL jobs that have taken effect and that the history did not have yet; none if this TiDB (before 6.2), or
        this user's privileges, do not show them."""
        try:
            found = self.ask("SELECT job_meta FROM mysql.tidb_ddl_job")
        except (DefinitionChanged, UpstreamRefused):
            return []
        return [job for (text,) in found if text is not None and (job := Job.from_json(text)).took_effect]

    def check_ids(self, sources: Mapping[int, Source]) -> None:
        """Raise UpstreamRefused if a table has not the id by which the history knows it: another cluster, whose rows
        would be loaded as well, gave it another one."""
        query = "SELECT TIDB_TABLE_ID FROM information_schema.TABLES WHERE TIDB_TABLE_ID IS NOT NULL"
        there = {text for (text,) in self.ask(query)}
        lacking = [source.table for table_id, source in sources.items() if b"%d" % table_id not in there]
        if lacking:
            raise UpstreamRefused(
                f"[upstream] host: {len(lacking)} tables, such as {lacking[0]}, are not there as of {self.ts}, or not "
                f"the same: it must be a TiDB of the cluster that pd-urls names, and its user must see them. Tables of "
                f"services that embed the SDK are in no TiDB: leave them out by syncer.filter (Service.snapshot)"
            )

    def divided(self, source: Source) -> Iterator[Range]:
        """Yield the table's ranges, each as soon as TiDB has returned its border."""
        with self._errors():
            limited = f"{source.query(Range())} LIMIT {SAMPLED_ROWS}"
            _, blocks = self._session.packets(limited.encode(), BYTES_MAX)
            rows = rows_of_range([len(packet) for block in blocks for packet in block])
        yield from divide(source.table, source.key, self.ask, rows)

    def read(self, source: Source, of: Range, block_bytes: int = BYTES_MAX) -> Iterator[list[Any]]:
        """Yield the rows of a range as columns of decoded values, in blocks of about so many bytes."""
        with self._errors():
            count, blocks = self._session.packets(source.query(of).encode(), block_bytes)
            assert count == len(source.columns_read), "TiDB returns what was selected"
            for block in blocks:
                self.read_bytes += sum(map(len, block))
                yield source.columns(block)

    def with_keys(self, source: Source, keys: Sequence[bytes]) -> Iterator[list[Any]]:
        """Yield the rows with these keys of the destination, as columns of decoded values; also others that TiDB takes
        for equal. `keys`: tuples of literals as a statement for a MySQL has them."""
        layout, columns = source.codec.layout, source.info.columns_by_id
        names = ", ".join(quoted(columns[layout.targets[at].id].name) for at in layout.key.columns)
        head = f"{source.query(Range())} WHERE ({names}) IN (".encode()
        with self._errors():
            self._session.execute(b"SET SESSION sql_mode='ALLOW_INVALID_DATES'")
            for begin in range(0, len(keys), KEYS_MAX):
                _, blocks = self._session.packets(head + b",".join(keys[begin : begin + KEYS_MAX]) + b")", BYTES_MAX)
                for block in blocks:
                    yield source.columns(block)
            self._session.execute(b"SET SESSION sql_mode=" + _SQL_MODE)

    def close(self) -> None:
        self._session.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DestinationError as error:  # of the client that upstream and destinations share
            raise translated(error, self.ts) from error


class Upstream:
    """Reads upstream at one TSO after another. A session is kept until an error ends its use: TiDB needs up to a second
    to begin one. One thread uses it."""

    def __init__(self, connect: Callable[[int], Snapshot] | None) -> None:
        """`connect`: opens a session at a TSO; None: no upstream is configured."""
        self._connect = connect
        self._kept: Snapshot | None = None

    @contextlib.contextmanager
    def at(self, ts: int) -> Iterator[Snapshot]:
        """The session at this TSO. What it yields is read to its end, or raises. Raises UpstreamError."""
        if self._connect is None:
            raise UpstreamRefused("[upstream] host names no TiDB to read")
        snapshot, self._kept = self._kept or self._connect(ts), None
        try:
            if snapshot.ts != ts:
                snapshot.move(ts)
            yield snapshot
        except BaseException:
            snapshot.close()
            raise
        self.close()  # of a use within this one
        self._kept = snapshot

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def server_of(section: UpstreamServer) -> ServerConfig:
    """How upstream is reached. Raises ConfigError."""
    if not section.host:
        raise ConfigError("upstream.host: name a TiDB to read; a service has no store to read, see Service.snapshot")
    return ServerConfig(**section.access(), section="upstream")


def open_snapshot(config: ServerConfig, ts: int) -> Snapshot:
    """Connect to upstream. Raises UpstreamError."""
    try:
        session = connect(config, idle_s=_IDLE_S, read_timeout_s=config.read_timeout_s)
    except DestinationError as error:
        raise translated(error, ts) from error
    try:
        if session.flavour != "tidb":
            raise UpstreamRefused(f"[upstream] host: {session.address} is no TiDB (version {session.version})")
        return Snapshot(session, ts)
    except UpstreamError:
        session.close()
        raise


def translated(error: DestinationError, ts: int) -> UpstreamError:
    """Return the UpstreamError for an error of the MySQL client. `ts`: at which upstream was read."""
    code = error.code if isinstance(error, ServerError) else _code(error)
    if code in _GC_PASSED:
        return SnapshotGone(
            f"upstream can no longer be read as of {ts}, TiDB's GC has passed it; raise tidb_gc_life_time: {error}"
        )
    if code in _CHANGED:
        return DefinitionChanged(f"upstream's table at {ts} is not the one of the schema at that position: {error}")
    if isinstance(error, ConnectionLost | Retry):
        return UpstreamDown(f"[upstream] does not answer: {error}")
    if code in _DENIED:
        return UpstreamRefused(f"[upstream] user: {_DENIED[code]}: {error}")
    return UpstreamRefused(f"[upstream] refuses to be read as of {ts}: {error}")


def _code(error: DestinationError) -> int:
    """The number of the server's error behind it, 0 if there is none."""
    cause = error.__cause__
    code = cause.args[0] if cause is not None and cause.args else 0
    return code if isinstance(code, int) else 0
