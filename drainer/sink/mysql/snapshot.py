"""A MySQL, MariaDB or TiDB destination as a check and a repair need it. See sink.snapshot.DestinationSnapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from binlog.errors import DecodeError
from binlog.tidb.types import Tp

from drainer.batch.work import SegmentWork, TableShape
from drainer.changes.row_packets import decoded, selected
from drainer.ddl.lexer import quoted
from drainer.row.codec import Codec
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.view import TableVersions
from drainer.sink.base import Identity, Verification
from drainer.sink.errors import DestinationDown, PositionMoved, SchemaMoved
from drainer.sink.mysql import position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.ddl.schema_check import server_differences
from drainer.sink.mysql.position import Changefeed
from drainer.sink.mysql.rows.format import SQL_TEXT, sql_of
from drainer.sink.mysql.rows.statements import bounded, qualified, quote
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import Name, UniqueSurprise, Writer, tables_with_triggers, within_packet
from drainer.sink.position import BUILDING, SqlPositionStore
from drainer.sink.retry import RetryDeadline
from drainer.sink.snapshot import PackedRows, SchemaDifference, Transaction, settled

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
