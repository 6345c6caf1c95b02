"""A MySQL, MariaDB or TiDB destination as a check and a repair need it, and what it shows of a table and of the one
that is wanted. See sink.snapshot."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from binlog.errors import DecodeError
from binlog.tidb.table import TableInfo
from binlog.tidb.types import Tp

from drainer.batch.work import SegmentWork, TableShape
from drainer.changes.texts import decoded, selected
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import Dialect, UnsupportedType, column_sql
from drainer.ddl.mysql_tables import create_table, index_sql
from drainer.ddl.table_diff import all_indexes, is_counted, shown_columns
from drainer.row.codec import Codec
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.view import TableVersions
from drainer.sink.base import Identity, Verification
from drainer.sink.errors import DestinationDown, PositionMoved, SchemaMoved
from drainer.sink.mysql import position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.ddl.job_plan import Server
from drainer.sink.mysql.ddl.runner import known_collations
from drainer.sink.mysql.position import Changefeed
from drainer.sink.mysql.rows.format import SQL_TEXT, bounded, qualified, quote, sql_of
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import Name, UniqueSurprise, Writer, tables_with_triggers, within_packet
from drainer.sink.position import BUILDING, SqlPositionStore
from drainer.sink.retry import RetryDeadline
from drainer.sink.snapshot import (
    Definition,
    Found,
    PackedRows,
    SchemaDifference,
    Transaction,
    differences,
    of_each,
    settled,
)

_WANTED: Final = "drainer_check_wanted"
_NO_DATABASE, _NO_TABLE = 1049, 1146
# MySQL adds this invisible column to a table without a primary key, if sql_generate_invisible_primary_key is on.
_OWN_KEY: Final = "my_row_id"
_WIDTH: Final = re.compile(r"(int|year)\(\d+\)(?!.*zerofill)")
_NO_TEXT: Final = re.compile(r"(?:\\x[0-9a-f]{2}|\ufffd)+")  # a server may show such bytes as ?, and TiDB store U+FFFD
_GENERATED: Final = re.compile(r"^  (`.+?`) .* GENERATED ALWAYS AS (\(.*\)) (?:VIRTUAL|STORED)", re.MULTILINE)


def server_differences(session: ServerSession, tables: Iterable[TableVersions]) -> Iterator[SchemaDifference]:
    """Compare the definitions of a view's tables with the server's. Not in a transaction, because temporary tables are
    created. A table that cannot be compared is reported as a difference."""
    dialect = Server(session.flavour, known_collations(session)).dialect()
    return of_each(tables, lambda table: _on_server(session, table, dialect))


def _on_server(session: ServerSession, table: TableVersions, dialect: Dialect) -> Found:
    schema, info, name = table.schema, table.current, quoted(table.schema, table.name)
    try:
        there = _shown(session, name, info)
        wanted = _created(session, schema, info, dialect)
    except (ServerError, UnsupportedType) as error:
        if isinstance(error, ServerError) and error.code in (_NO_DATABASE, _NO_TABLE):
            database = f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}"
            yield "no such table", f"{database}; {create_table(schema, info, dialect)}"
        else:
            yield f"not compared (this needs SELECT and CREATE TEMPORARY TABLES): {error}", ""
        return
    columns = {one.name.lower(): one for one in shown_columns(info)}
    indexes = {one.name.lower(): one for one in all_indexes(info)}
    has_keys = all(there.get(key) == text for key, text in wanted.items() if key[0] == "index")
    for what, kind, one, found, asked in differences(table, there, wanted):
        if kind == "column" and asked is not None:
            definition = column_sql(columns[one], dialect, counted=has_keys and is_counted(info, columns[one]))
            clause = f"{'MODIFY' if found else 'ADD'} COLUMN {definition}"
        else:
            drop = "DROP PRIMARY KEY" if (kind, one) == ("index", "primary") else f"DROP {kind.upper()} {quoted(one)}"
            # The primary key may have another name there.
            add = asked and f"ADD {index_sql(info, indexes.get(one) or indexes['primary'], dialect)}"
            clause = ", ".join(filter(None, (found and drop, add)))
        yield what, f"ALTER TABLE {name} {clause}"


def _created(session: ServerSession, schema: str, info: TableInfo, dialect: Dialect) -> Definition:
    """What the server shows of a table that is created from the TableInfo, with only what rows depend on."""
    plain, name = replace(info, name=_WANTED, partition=None), quoted(schema, _WANTED)
    text = create_table(schema, plain, dialect.only_rows())
    session.execute(text.replace("CREATE", "CREATE TEMPORARY", 1).encode())
    try:
        return _shown(session, name, info)
    finally:
        session.execute(f"DROP TEMPORARY TABLE {name}".encode())


def _shown(session: ServerSession, name: str, info: TableInfo) -> Definition:
    table, found = name.encode(), Definition()
    computed = {one.name.lower() for one in info.columns if one.default_is_expr}
    expressions = dict(_GENERATED.findall(session.show_create(b"TABLE " + table)))
    for column, kind, collation, null, _, default, extra, _, comment in session.show(b"FULL COLUMNS FROM " + table):
        if column != _OWN_KEY or "INVISIBLE" not in str(extra):
            key = str(column).lower()
            words = (
                _WIDTH.sub(r"\1", str(kind)),
                collation and f"COLLATE {collation}",
                null == "NO" and "NOT NULL",
                default is not None and key not in computed and f"DEFAULT {_NO_TEXT.sub('?', default)!r}",
                str(extra).replace("DEFAULT_GENERATED", "").strip(),
                expressions.get(quoted(str(column))),
                comment and f"COMMENT {comment!r}",
            )
            found["column", key] = " ".join(str(word) for word in words if word)
    parts: dict[tuple[str, str], list[str]] = {}
    for row in session.show(b"INDEX FROM " + table):
        part = (row[4] or _OWN_KEY).lower() + (f"({row[7]})" if row[7] else "")  # no column: an expression
        parts.setdefault((str(row[2]).lower(), "UNIQUE" if row[1] == "0" else "KEY"), []).append(part)
    found |= {("index", key): f"{kind} ({', '.join(of)})" for (key, kind), of in parts.items() if _OWN_KEY not in of}
    return found


_IDLE_S: Final = 24 * 3600
_CHANGED: Final = 1412  # "Table definition has changed", of MySQL and MariaDB
_GONE: Final = frozenset({1049, 1054, 1146})  # no such database, column, table
_BLOCK_BYTES: Final = 16 << 20
_WAIT_S: Final = 60.0  # for a distributed batch or a DDL to end

StoreOf = Callable[[ServerSession, Changefeed], SqlPositionStore]


class ServerSnapshot:
    """See sink.snapshot.DestinationSnapshot. Reads through one session's consistent snapshot; on TiDB, where a
    transaction would hold back the DDL of every table that it has read, rows through a second session as of its TSO."""

    format: Final = SQL_TEXT

    def __init__(self, config: ServerConfig, identity: Identity, store_of: StoreOf = position.store) -> None:
        """`store_of`: the position, in a session's transaction. Raises PositionMoved while a batch is distributed or a
        DDL runs, whose effects are partly there, and DestinationRefused."""
        self._config, self._store_of = config, store_of
        self._keys = UniqueKeys(tell=False)
        self._session = self._reader = self._connected()
        self._changefeed = Changefeed.of(config, identity, self._session)
        try:
            self._session.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._session.execute(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            stored = settled(self._store(self._session))
            if self._session.flavour == "tidb":
                (found,) = self._session.query(b"SELECT @@tidb_current_ts")
                self._reader = self._connected()
                self._reader.execute(b"SET SESSION tidb_snapshot='%d'" % int(found[0] or 0))
            else:  # between two blocks a check that keeps a rate may pause for longer than the server's minute
                self._session.execute(b"SET SESSION net_write_timeout=%d" % _IDLE_S)
            self._triggers: frozenset[Name] = frozenset()
            if not config.allow_triggers:
                self._triggers = tables_with_triggers(self._session)
        except BaseException:
            self.close()
            raise
        self.commit_ts, self.schema_version = stored.commit_ts, stored.schema_version

    def job_done(self, job_id: int) -> bool:
        return self._store(self._session).job(job_id) is not None

    def schema_differences(self, tables: Iterable[TableVersions]) -> list[SchemaDifference]:
        with contextlib.closing(self._connected()) as session:
            found = list(server_differences(session, tables))
        if self.schema_moved():
            raise self._moved()
        return found

    def rows(self, codec: Codec) -> Iterator[PackedRows]:
        """Rolling back to the savepoint releases the metadata lock on the table. Otherwise a DDL of the table, and all
        statements behind it, would wait until the snapshot is closed."""
        inside = self._reader is self._session
        if inside:
            self._reader.execute(b"SAVEPOINT drainer_check")
        try:
            yield from _packed(self._reader, codec, _select(self._reader, codec))
        except ServerError as error:
            if error.code in _GONE and self.schema_moved():
                raise self._moved(f": {error}") from error
            raise
        finally:
            if inside:
                with contextlib.suppress(ConnectionLost, ServerError):
                    self._reader.execute(b"ROLLBACK TO SAVEPOINT drainer_check")

    def schema_moved(self) -> bool:
        with contextlib.closing(self._connected()) as session:
            store = self._store(session)
            running = any(job.state != BUILDING for job in store.open_jobs())
            stored = store.read()  # after the jobs: one that ends meanwhile moves it
            return running or stored is None or stored.schema_version != self.schema_version

    def key_literals(self, keys: Sequence[bytes]) -> list[bytes]:
        return [SQL_TEXT.unpack(key) for key in keys]

    def transact(self, body: Callable[[Transaction], None]) -> None:
        deadline = RetryDeadline(f"{self._changefeed.label}: repair", _WAIT_S)
        session = self._connected()
        thorough = False

        def once() -> None:
            nonlocal thorough
            stored = settled(self._store(session))
            if stored.schema_version != self.schema_version:
                raise self._moved()
            try:
                with session.transaction("repair"):
                    self._store(session).move(
                        epoch=stored.epoch,
                        after_ts=stored.commit_ts,
                        until_ts=stored.commit_ts,
                        schema_version=stored.schema_version,
                    )
                    settled(self._store(session))  # the drainer may have begun a DDL before the position was locked
                    position.mark(session, self._config.channel_id, position.DRIVER)
                    body(
                        _ServerTransaction(
                            session, stored.commit_ts, self._config, self._keys, self._triggers, thorough
                        )
                    )
            except UniqueSurprise as error:
                thorough = True
                raise Retry(str(error)) from error

        try:
            deadline.repeat(once, (PositionMoved, Retry), lambda _: None)
        except ConnectionLost as error:
            raise DestinationDown(f"{self._changefeed.label}: {error}") from error
        finally:
            session.close()

    def record(self, found: Sequence[Verification], known: Container[int]) -> None:
        with contextlib.closing(self._connected()) as session, session.transaction("check"):
            self._store(session).put_verifications(found, known)

    def close(self) -> None:
        self._session.close()
        self._reader.close()

    def _moved(self, why: str = "") -> SchemaMoved:
        return SchemaMoved(f"{self._store(self._session).label}: a DDL ran since the check began{why}")

    def _store(self, session: ServerSession) -> SqlPositionStore:
        return self._store_of(session, self._changefeed)

    def _connected(self) -> ServerSession:
        try:
            return connect(self._config, idle_s=_IDLE_S, read_timeout_s=self._config.read_timeout_s)
        except ConnectionLost as error:
            raise DestinationDown(str(error)) from error


@dataclass
class _ServerTransaction:
    session: ServerSession
    commit_ts: int
    config: ServerConfig
    keys: UniqueKeys
    triggers: frozenset[Name]
    thorough: bool

    def rows(self, codec: Codec) -> Iterator[PackedRows]:
        return _packed(self.session, codec, _select(self.session, codec))

    def with_keys(self, codec: Codec, keys: Sequence[bytes]) -> Iterator[PackedRows]:
        shape = codec.shape
        names = b",".join(quote(shape.columns[at]) for at in shape.key)
        head = b"%b WHERE (%b) IN (" % (_select(self.session, codec), names)
        literals = [sql_of(SQL_TEXT.unpack(key)) for key in keys]
        for statement in bounded(head, b")", literals, within_packet(self.session, self.config.limits)):
            yield from _packed(self.session, codec, statement.sql)

    def write(self, work: SegmentWork) -> None:
        limits = self.config.limits
        writer = Writer(self.session, limits, until_ts=self.commit_ts, keys=self.keys, triggers=self.triggers)
        writer.write(work, thorough=self.thorough)


def _select(session: ServerSession, codec: Codec) -> bytes:
    shape: TableShape = codec.shape
    parts = zip(shape.columns, codec.column_types, strict=True)
    columns = ", ".join(_selected(session, column, column_type) for column, column_type in parts)
    return b"SELECT %b FROM %b" % (columns.encode(), qualified(shape.schema, shape.table))


def _selected(session: ServerSession, column: str, column_type: ColumnType) -> str:
    """As upstream's, but texts are converted to UTF-8 by a server that stores them in another character set."""
    if session.flavour != "tidb":
        if column_type.type_class is TypeClass.TEXT:
            return quoted(column)
        if column_type.kind.tp is Tp.FLOAT:
            return f"{quoted(column)} * 1e0"  # CAST … AS DOUBLE is unknown to older servers
    return selected(column, column_type)


def _packed(session: ServerSession, codec: Codec, query: bytes) -> Iterator[PackedRows]:
    """Yield the rows of a query. Raises DecodeError naming the table."""
    table = f"{codec.shape.schema}.{codec.shape.table} of the destination"
    try:
        _, blocks = session.packets(query, _BLOCK_BYTES)
        for packets in blocks:
            yield PackedRows.of(SQL_TEXT, codec, decoded(codec.column_types, packets))
    except DecodeError as error:
        for _ in blocks:  # the session is used for other tables
            pass
        raise DecodeError(f"{table}: {error.what}", offset=0, detail=error.detail) from None
    except ConnectionLost as error:
        raise DestinationDown(f"{table}: {error}") from error
    except ServerError as error:
        if error.code == _CHANGED:
            raise SchemaMoved(f"{table}: a DDL has changed it since it was opened: {error}") from error
        raise
