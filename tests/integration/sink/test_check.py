"""A real server's tables are compared with upstream's at its position, and repaired, beside a drainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from binlog.errors import DecodeError
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ddl.mysql_tables import create_table
from drainer.ranges.check import Compared, Table
from drainer.ranges.upstream import Snapshot, Source, Upstream
from drainer.row.column_type import DecodedValue
from drainer.sink.base import Intent
from drainer.sink.errors import DestinationDown, PositionMoved, RowsRefused, SchemaMoved
from drainer.sink.mysql import position, snapshot
from drainer.sink.mysql.connection import ConnectionLost, ServerError
from drainer.sink.mysql.ddl.job_plan import Server
from drainer.sink.mysql.position import ServerPositionStore
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.position import BUILDING, JobMark
from tests.integration.sink.case import IDENTITY, opened, server_config
from tests.support.row_case import codec_of
from tests.support.row_changes import make_table
from tests.support.row_packets import shown
from tests.support.servers import MariaDB
from tests.support.typed_columns import COLUMNS, text_type, typed_row, typed_table
from tests.support.upstream_case import FakeUpstream

pytestmark = pytest.mark.integration
TS = 100
KINDS = [("id", FieldType(Tp.LONG, Flag.NOT_NULL)), ("name", text_type(Tp.VARCHAR, 20))]
KEYED = make_table("up", "t", KINDS, primary=["id"]).info
UNIQUE = make_table("up", "t", KINDS, primary=["id"], unique=[["name"]]).info
Row = Sequence[DecodedValue]


class Destination:
    """A table of a server, and a drainer that holds it."""

    def __init__(self, mariadb: MariaDB, info: TableInfo) -> None:
        self.mariadb, self.source = mariadb, Source("up", info, codec_of(info))
        self.table = f"db.{info.name}"
        mariadb.query("CREATE DATABASE db")
        mariadb.query(create_table("db", info, Server("mariadb").dialect()))
        self.sink: MySQLSink = opened(mariadb, at=TS)
        self.upstream = FakeUpstream({})

    def has(self, *rows: Row) -> None:
        """Upstream."""
        types = self.source.codec.column_types
        self.upstream = FakeUpstream(
            {int(str(row[0])): [shown(of, value) for of, value in zip(types, row, strict=True)] for row in rows}
        )

    def connect(self, ts: int) -> Snapshot:
        return self.upstream.connect(ts)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Table]:
        with contextlib.closing(MySQLSink(server_config(self.mariadb)).snapshot(IDENTITY)) as there:
            yield Table([self.source], Upstream(self.connect), there)

    def repaired(self) -> Compared:
        """Check, repair, and check that all is equal then."""
        with self.opened() as table:
            found = table.compared()
            assert table.repair(found) == len(found.differences)
        with self.opened() as table:
            assert not table.compared().differences
        return found


@pytest.fixture
def typed(mariadb: MariaDB) -> Iterator[Destination]:
    made = Destination(mariadb, typed_table().info)
    yield made
    made.sink.close(clean=False)


@pytest.fixture(params=[KEYED, UNIQUE], ids=["keyed", "unique"])
def keyed(mariadb: MariaDB, request: pytest.FixtureRequest) -> Iterator[Destination]:
    made = Destination(mariadb, request.param)
    yield made
    made.sink.close(clean=False)


def test_value_of_any_type_that_differs_is_named_and_mended(typed: Destination) -> None:
    names = [name for name, _ in COLUMNS[1:]]
    rows = {number: typed_row(number) for number in range(1, len(names) + 1)}
    typed.has(*rows.values(), [0, *[None] * len(names)])
    assert len(typed.repaired().differences) == len(names) + 1
    for number, name in enumerate(names, 1):
        rows[number] = typed_row(number, [name])
    typed.has(*rows.values(), [0, *[None] * len(names)])
    found = typed.repaired().differences
    assert {row.key["id"]: [*(row.destination or ())] for row in found} == {
        str(number): [name] for number, name in enumerate(names, 1)
    }
    for number, name in enumerate(names, 1):
        typed.mariadb.query(f"UPDATE {typed.table} SET `{name}` = NULL WHERE id = {number}")
    found = typed.repaired().differences
    assert sorted([*(row.destination or {}).items()] for row in found) == sorted([(name, "NULL")] for name in names)


def test_missing_and_surplus_rows_and_exchanged_values_are_mended(keyed: Destination) -> None:
    rows = [(1, b"a"), (2, b"b"), (3, b"c"), (4, None)]
    keyed.has(*rows)
    keyed.mariadb.query(f"INSERT INTO {keyed.table} VALUES (1, 'b'), (2, 'a'), (5, 'c')")
    assert len(keyed.repaired().differences) == 5
    keyed.mariadb.query(f"DELETE FROM {keyed.table} WHERE id < 3")
    keyed.mariadb.query(f"INSERT INTO {keyed.table} VALUES (2, 'a')")  # in the way of row 1, which is missing
    with mock.patch.object(position, "mark") as mark:
        assert len(keyed.repaired().differences) == 2
    assert mark.called, "other drainers leave out what a repair writes"
    keyed.sink.advance(TS + 1, 0)  # the drainer goes on


def test_key_that_the_destination_takes_for_an_equal_one_is_not_lost(mariadb: MariaDB) -> None:
    info = make_table(
        "up", "t", [("name", text_type(Tp.VARCHAR, 20)), ("v", FieldType(Tp.LONG))], primary=["name"]
    ).info
    table = Destination(mariadb, info)
    mariadb.query("ALTER TABLE db.t MODIFY name VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL")
    mariadb.query("INSERT INTO db.t VALUES ('A', 1)")
    keys = {b"a": 1}
    table.upstream = _Named(keys)  # type: ignore[assignment]
    with table.opened() as there:
        table_found = there.compared()
        assert len(table_found.differences) == 2
        there.repair(table_found)
    assert mariadb.query("SELECT name, v FROM db.t") == [("a", 1)]
    table.sink.close(clean=False)


class _Named(FakeUpstream):
    """Tables whose key is a text."""

    def __init__(self, keys: dict[bytes, int]) -> None:
        super().__init__({value: (key, b"%d" % value) for key, value in keys.items()})

    def _answer(self, text: str) -> list[list[bytes | None]]:
        return [list(row) for row in self.rows.values() if " IN (" not in text or (row[0] or b"").decode() in text]


@pytest.mark.parametrize("distributed", [True, False])
def test_rows_that_are_on_the_way_are_waited_for(
    keyed: Destination, monkeypatch: pytest.MonkeyPatch, distributed: bool
) -> None:
    keyed.has((1, b"a"))
    monkeypatch.setitem(snapshot.__dict__, "_WAIT_S", 0.1)
    driver = keyed.sink._ready()
    with keyed.opened() as table:
        found = table.compared()
        session = driver.session()
        if distributed:
            intent = Intent(TS, TS + 1, 1, 1, 1, "", (), (1,))
            driver.store(session).write_intent(epoch=driver.epoch, intent=intent, stage="DIRECT")
        else:
            driver.store(session).mark_job(JobMark(9, "running", TS + 1))
        with pytest.raises(PositionMoved), keyed.opened():
            pass
        assert table.there.schema_moved() != distributed
        with pytest.raises(DestinationDown, match="several tasks" if distributed else "DDL job 9 is running"):
            table.repair(found)
    assert keyed.mariadb.query(f"SELECT * FROM {keyed.table}") == []


def test_repair_after_a_ddl_is_refused(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    with keyed.opened() as table:
        found = table.compared()
        keyed.sink.advance(TS + 1, 8)
        with pytest.raises(SchemaMoved, match="a DDL ran"):
            table.repair(found)


def test_table_that_a_ddl_has_changed_is_compared_later(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    with keyed.opened() as table:
        keyed.mariadb.query(f"ALTER TABLE {keyed.table} FORCE")
        with pytest.raises(SchemaMoved):
            table.compared()


def test_repair_does_not_write_into_a_table_with_triggers(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    keyed.mariadb.query("CREATE TABLE db.log (id INT)")
    keyed.mariadb.query(
        f"CREATE TRIGGER db.tell AFTER INSERT ON {keyed.table} FOR EACH ROW INSERT INTO db.log VALUES (NEW.id)"
    )
    with keyed.opened() as table, pytest.raises(RowsRefused, match="triggers"):
        table.repair(table.compared())


def test_drainer_waits_for_a_repair_and_goes_on(keyed: Destination) -> None:
    """Its transaction begins while the repair's is open."""
    keyed.has((1, b"a"))
    moved: list[Any] = []
    with keyed.opened() as table:
        assert isinstance(table.there, snapshot.ServerSnapshot)
        assert table.there._session.query(b"SELECT @@net_write_timeout") == [(24 * 3600,)], "a check may pause for long"
        found = table.compared()
        connect = keyed.connect

        def while_locked(ts: int) -> Snapshot:
            with contextlib.closing(keyed.mariadb.connect(autocommit=True)) as other, other.cursor() as cursor:
                cursor.execute("SET innodb_lock_wait_timeout = 1")
                with pytest.raises(Exception, match="Lock wait timeout") as raised:
                    cursor.execute("UPDATE tidb_binlog.drainer_position SET commit_ts = commit_ts + 1")
                moved.append(raised.value)
            return connect(ts)

        repairing = Table(table.sources, Upstream(while_locked), table.there)
        assert repairing.repair(found) == 1
    assert len(moved) == 1
    keyed.sink.advance(TS + 1, 0)
    assert keyed.mariadb.query(f"SELECT * FROM {keyed.table}") == [(1, "a")]


def test_ddl_does_not_wait_for_a_check_that_has_read_its_table(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    with keyed.opened() as table:
        table.compared()
        keyed.mariadb.query(f"SET STATEMENT lock_wait_timeout=1 FOR ALTER TABLE {keyed.table} FORCE")
        with pytest.raises(SchemaMoved):
            table.compared()


def test_repair_does_not_begin_while_a_ddl_runs_that_began_before_it_had_the_position(keyed: Destination) -> None:
    """The drainer marks the DDL in the transaction for whose end the repair waits."""
    keyed.has((1, b"a"))
    driver = keyed.sink._ready()
    session = driver.session()
    marks = iter([lambda: driver.store(session).mark_job(JobMark(9, "running", TS + 1))])
    move = ServerPositionStore.move

    def marked(store: ServerPositionStore, **how: Any) -> None:
        next(marks, lambda: None)()
        move(store, **how)

    with keyed.opened() as table:
        found = table.compared()
        with (
            mock.patch.object(ServerPositionStore, "move", marked),
            mock.patch.object(snapshot, "_WAIT_S", 0.1),
            pytest.raises(DestinationDown, match="DDL job 9 is running"),
        ):
            table.repair(found)
    assert keyed.mariadb.query(f"SELECT * FROM {keyed.table}") == []


def test_index_that_is_built_beside_the_stream_is_not_waited_for(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    driver = keyed.sink._ready()
    driver.store(driver.session()).mark_job(JobMark(9, BUILDING, TS))
    assert len(keyed.repaired().differences) == 1


@pytest.mark.parametrize("text", ["RENAME TABLE {0} TO {0}_old", "DROP TABLE {0}", "ALTER TABLE {0} DROP COLUMN name"])
def test_table_or_column_that_a_ddl_took_away_is_compared_later_and_else_an_error(
    keyed: Destination, text: str
) -> None:
    keyed.has((1, b"a"))
    with keyed.opened() as table:
        keyed.mariadb.query(text.format(keyed.table))
        with pytest.raises(ServerError, match=r"doesn't exist|Unknown column"):
            table.compared()
        keyed.sink.advance(TS + 1, 9)
        with pytest.raises(SchemaMoved, match=r"doesn't exist|Unknown column"):
            table.compared()


def test_table_that_has_another_ones_name_since_the_check_began_is_told(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    keyed.mariadb.query(f"INSERT INTO {keyed.table} VALUES (1, 'a')")
    keyed.mariadb.query(f"CREATE TABLE {keyed.table}_new LIKE {keyed.table}")
    with keyed.opened() as table:
        keyed.mariadb.query(f"RENAME TABLE {keyed.table} TO {keyed.table}_old, {keyed.table}_new TO {keyed.table}")
        assert table.compared().differences
        assert not table.there.schema_moved()
        keyed.sink.advance(TS + 1, 9)
        assert table.there.schema_moved()


def test_value_that_cannot_be_read_leaves_the_other_tables_comparable(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    keyed.mariadb.query("CREATE TABLE db.bad (id VARCHAR(10) PRIMARY KEY, name TEXT)")
    keyed.mariadb.query("INSERT INTO db.bad VALUES ('x', 'y'), ('z', REPEAT('a', 60000))")
    info = make_table("up", "bad", KINDS, primary=["id"]).info
    with keyed.opened() as table, mock.patch.object(snapshot, "_BLOCK_BYTES", 1):
        with pytest.raises(DecodeError, match=r"db\.bad of the destination"):
            Table([Source("up", info, codec_of(info))], Upstream(keyed.connect), table.there).compared()
        assert len(table.compared().differences) == 1


def test_connection_that_a_repair_loses_is_one_to_be_tried_again(keyed: Destination) -> None:
    keyed.has((1, b"a"))
    with keyed.opened() as table, mock.patch.object(ServerPositionStore, "move", side_effect=ConnectionLost("gone")):
        found = table.compared()
        with pytest.raises(DestinationDown, match="gone"):
            table.repair(found)
