"""Segments applied by the driver, on a real server: one transaction each, and what the server must not change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from drainer.batch.work import Folded, Kind, Match
from drainer.sink.base import FirstStart, Identity
from drainer.sink.errors import (
    DestinationRefused,
    PositionMoved,
    RowMissing,
    RowsRefused,
    UniqueConflict,
    ValueChanged,
)
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import IDENTITY, change, gone, limits, opened, put, server_config, shape, work
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration


def position(db: MariaDB) -> int:
    return int(db.query("SELECT commit_ts FROM tidb_binlog.drainer_position")[0][0])


def test_empty_destination_starts_at_initial_position(db: MariaDB) -> None:
    """Nothing there: the initial ts, and the next start finds it again."""
    first = MySQLSink(server_config(db))
    found = first.open(IDENTITY, 555)
    assert (found.commit_ts, found.fresh, found.intent) == (555, True, None)
    first.close(clean=True)
    again = MySQLSink(server_config(db)).open(IDENTITY, 1)
    assert (again.commit_ts, again.fresh) == (555, False)


def test_upstreams_checkpoint_is_read_only_without_own_position(db: MariaDB) -> None:
    """Rule 17: a Go drainer's row gives the first position, and never again."""
    db.query("CREATE DATABASE tidb_binlog")
    db.query("CREATE TABLE tidb_binlog.checkpoint (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")
    text = '{"consistent":true,"commitTS":4711,"ts-map":{},"schema-version":33}'
    db.query("INSERT INTO tidb_binlog.checkpoint VALUES (7, %s)", text)
    first = MySQLSink(server_config(db))
    found = first.open(IDENTITY, 1)
    assert (found.commit_ts, found.schema_version, found.fresh) == (4711, 33, True)
    first.advance(5000, 34)
    first.close(clean=True)
    row = json.loads(db.query("SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])
    assert list(row.items())[:4] == [("consistent", True), ("commitTS", 5000), ("ts-map", {}), ("schema-version", 34)]
    db.query("UPDATE tidb_binlog.checkpoint SET checkPoint=%s", text)
    assert MySQLSink(server_config(db)).open(IDENTITY, 1).commit_ts == 5000


def test_checkpoint_row_written_by_drainer_gives_no_position(db: MariaDB) -> None:
    """Another changefeed has seen nothing of the stream; and whoever deletes the position row starts anew."""
    first = MySQLSink(server_config(db))
    first.open(IDENTITY, 100)
    first.advance(5000, 34)
    first.close(clean=True)
    second = MySQLSink(server_config(db))
    assert second.open(replace(IDENTITY, changefeed="second"), 200).commit_ts == 200
    second.close(clean=True)
    db.query("DELETE FROM tidb_binlog.drainer_position")
    assert MySQLSink(server_config(db)).open(IDENTITY, 300).commit_ts == 300


def test_rows_and_position_are_committed_together(db: MariaDB) -> None:
    """Insert, update and delete by key; the position is the segment's end."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    db.query("INSERT INTO d.t VALUES (1,1),(2,2)")
    t = shape("t", "id v")
    destination = opened(db)
    rows = (put(1, b"(1,10)", Kind.UPDATE), gone(2), put(3, b"(3,30)"))
    destination.apply(work(100, 200, Folded(t, rows)), 5)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 10), (3, 30)]
    assert position(db) == 200
    with pytest.raises(PositionMoved, match="its position is 200"):
        destination.apply(work(100, 200, Folded(t, rows)), 5)


def test_refused_segment_is_rolled_back_with_its_position(db: MariaDB) -> None:
    """An error in the last table rolls the first one back, and the position stays."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    destination = opened(db)
    broken = work(
        100, 200, Folded(shape("t", "id v"), (put(1, b"(1,10)"),)), Folded(shape("nothere", "id"), (put(1, b"(1)"),))
    )
    with pytest.raises(RowsRefused, match=r"d\.nothere.*1146"):
        destination.apply(broken, 1)
    assert db.query("SELECT * FROM d.t") == []
    assert position(db) == 100


def test_old_spellings_of_key_are_deleted_before_row(db: MariaDB) -> None:
    """Rule 10: upstream's key is compared by bytes, 'A' became 'a' by delete and insert; one row must stay."""
    db.query("CREATE TABLE d.t (c VARCHAR(10) COLLATE utf8mb4_bin PRIMARY KEY, v INT)")
    db.query("INSERT INTO d.t VALUES ('A',1)")
    t = shape("t", "c v")
    opened(db).apply(work(100, 200, Folded(t, (put(1, b"('a',2)", Kind.UPDATE, [b"('A')"]),))), 1)
    assert db.query("SELECT * FROM d.t") == [("a", 2)]


def test_unique_values_exchanged_in_ring_are_applied(db: MariaDB) -> None:
    """Rule 12: rows trade their unique values, one takes a deleted row's, one is NULL; nothing untouched goes."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE, w INT UNIQUE)")
    db.query("INSERT INTO d.t VALUES (1,1,1),(2,2,2),(3,3,3),(4,4,4),(9,9,NULL)")
    t = shape("t", "id u w", unique=["u", "w"])
    rows = (
        put(1, b"(1,2,3)", Kind.UPDATE),
        put(2, b"(2,3,1)", Kind.UPDATE),
        put(3, b"(3,1,2)", Kind.UPDATE),
        gone(4),
        put(5, b"(5,4,NULL)"),
    )
    opened(db).apply(work(100, 200, Folded(t, rows)), 1)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (5, 4, None), (9, 9, None)]


def test_untouched_row_is_never_evicted(db: MariaDB) -> None:
    """Rule 12's counterexample: upstream stopped checking an index that is being dropped. A REPLACE would take the
    untouched row 1 away; it must be an error that names table and key, and nothing may change."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT, UNIQUE KEY uu (u))")
    db.query("INSERT INTO d.t VALUES (1,5)")
    t = shape("t", "id u", unique=["uu"])
    destination = opened(db)
    with pytest.raises(UniqueConflict, match="drop the key") as caught:
        destination.apply(work(100, 200, Folded(t, (put(2, b"(2,5)"),))), 1)
    assert (caught.value.schema, caught.value.table, caught.value.key) == ("d", "t", "uu")
    assert db.query("SELECT * FROM d.t") == [(1, 5)]
    db.query("ALTER TABLE d.t DROP KEY uu")
    destination.apply(work(100, 200, Folded(t, (put(2, b"(2,5)"),))), 1)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 5), (2, 5)]


def test_inserted_row_that_already_exists_is_replaced(db: MariaDB) -> None:
    """The first copy of the data may hold rows of the segment already, with secondary unique keys or without."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("CREATE TABLE d.p (id INT PRIMARY KEY, v INT)")
    db.query("INSERT INTO d.t VALUES (1,5)")
    db.query("INSERT INTO d.p VALUES (1,5)")
    opened(db).apply(
        work(
            100,
            200,
            Folded(shape("t", "id u", unique=["u"]), (put(1, b"(1,6)"),)),
            Folded(shape("p", "id v"), (put(1, b"(1,6)"),)),
        ),
        1,
    )
    assert db.query("SELECT * FROM d.t") == [(1, 6)]
    assert db.query("SELECT * FROM d.p") == [(1, 6)]


def test_keyless_rows_are_found_by_their_exact_bytes(db: MariaDB) -> None:
    """Rule 11's counterexample: `c = 'A' LIMIT 1` removes 'a'; blanks at the end count too."""
    db.query("CREATE TABLE d.t (c VARCHAR(10) COLLATE utf8mb4_general_ci, n INT)")
    db.query("INSERT INTO d.t VALUES ('a',1),('A',1),('a ',1),('A',2),(NULL,1)")
    t = shape("t", "c n", key=(), match=[Match.BINARY_TEXT, Match.PLAIN])
    steps = [
        change(t, Kind.DELETE, old="'A'|1", ts=101),
        change(t, Kind.UPDATE, old="'a '|1", new="'b'|3", ts=102),
        change(t, Kind.UPDATE, old="NULL|1", new="NULL|9", ts=103),
    ]
    opened(db).apply(work(100, 200, ordered=steps), 1)
    assert sorted(db.query("SELECT c, n FROM d.t"), key=repr) == sorted(
        [("a", 1), ("b", 3), ("A", 2), (None, 9)], key=repr
    )


def test_identical_keyless_rows_are_changed_one_at_a_time(db: MariaDB) -> None:
    """Rule 11: of three equal rows one is deleted and one updated."""
    db.query("CREATE TABLE d.t (c VARCHAR(10), n INT)")
    t = shape("t", "c n", key=(), match=[Match.BINARY_TEXT, Match.PLAIN])
    steps = [change(t, Kind.INSERT, new="'x'|1", ts=101, seq=i) for i in range(3)]
    steps.append(change(t, Kind.DELETE, old="'x'|1", ts=102))
    steps.append(change(t, Kind.UPDATE, old="'x'|1", new="'x'|2", ts=103))
    opened(db).apply(work(100, 200, ordered=steps), 1)
    assert db.query("SELECT c, n FROM d.t ORDER BY n") == [("x", 1), ("x", 2)]


def test_keyless_rows_with_float_and_json_are_found_exactly(db: MariaDB) -> None:
    """Rule 11: 0.1 in a FLOAT is not the double 0.1, and its neighbour must not be taken for it."""
    db.query("CREATE TABLE d.t (f FLOAT, g DOUBLE, j JSON, n INT, fm FLOAT(7,3))")
    t = shape(
        "t", "f g j n fm", key=(),
        match=[Match.EXACT_FLOAT, Match.PLAIN, Match.JSON, Match.PLAIN, Match.EXACT_FLOAT],
    )  # fmt: skip
    values = [
        "0.1|0.1|'{\"a\": 1}'|1|1.235",
        "0.10000001|0.1|'{\"a\": 1}'|2|1.235",
        "16777216.0|1e+22|'{\"a\": 1.0}'|3|-0.5",
        "3.4028234663852886e+38|5e-324|NULL|4|NULL",
        "1e-45|-0.1|'[]'|5|9999.999",
    ]
    destination = opened(db)
    destination.apply(work(100, 200, ordered=[change(t, Kind.INSERT, new=v, ts=101) for v in values]), 1)
    deletes = [change(t, Kind.DELETE, old=v, ts=201, seq=i) for i, v in enumerate(values) if i != 1]
    destination.apply(work(200, 300, ordered=deletes), 1)
    assert [row[0] for row in db.query("SELECT n FROM d.t")] == [2]


def test_keyless_row_with_json_in_another_spelling_is_found(db: MariaDB) -> None:
    """MariaDB keeps JSON as the text the first copy wrote; equal values match when no equal text does."""
    db.query("CREATE TABLE d.t (j JSON, n INT)")
    db.query("""INSERT INTO d.t VALUES ('{"b":2,"a":1}',1)""")
    t = shape("t", "j n", key=(), match=[Match.JSON, Match.PLAIN])
    step = change(t, Kind.DELETE, old="""'{"a": 1, "b": 2}'|1""")
    opened(db).apply(work(100, 200, ordered=[step]), 1)
    assert db.query("SELECT n FROM d.t") == []


def test_missing_keyless_row_is_refused_with_table_and_commit_ts(db: MariaDB) -> None:
    """A destination that has diverged says so with table and commit_ts."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    destination = opened(db)
    with pytest.raises(RowMissing, match=r"d\.t: DELETE of commit_ts 150"):
        destination.apply(work(100, 200, ordered=[change(t, Kind.DELETE, old="5", ts=150)]), 1)
    assert position(db) == 100


def test_zero_dates_enum_0_and_id_0_are_stored_unchanged(db: MariaDB) -> None:
    """Zero and impossible dates, ENUM and SET 0 (X-14), id 0 in an AUTO_INCREMENT column."""
    db.query(
        "CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY, d DATE, dt DATETIME NOT NULL, ts TIMESTAMP NULL, y YEAR,"
        " e ENUM('a','b') NOT NULL, s SET('p','q'), up TIMESTAMP NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP)"
    )
    t = shape("t", "id d dt ts y e s up")
    rows = (
        put(0, b"(0,'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00',0,0,0,NULL)"),
        put(1, b"(1,'2020-02-31','2020-00-00 00:00:00',NULL,1999,2,3,'2001-02-03 04:05:06')"),
    )
    destination = opened(db)
    destination.apply(work(100, 200, Folded(t, rows)), 1)
    assert db.query("SELECT id, CONCAT(d), CONCAT(dt), CONCAT(ts), y, e+0, s+0, CONCAT(up) FROM d.t ORDER BY id") == [
        (0, "0000-00-00", "0000-00-00 00:00:00", "0000-00-00 00:00:00", 0, 0, 0, None),
        (1, "2020-02-31", "2020-00-00 00:00:00", None, 1999, 2, 3, "2001-02-03 04:05:06"),
    ]
    keyless = shape("t", "id d dt ts y e s up", key=())
    old = rows[0].row
    assert isinstance(old, bytes)
    literals = old.decode()[1:-1].replace(",", "|")
    step = change(keyless, Kind.UPDATE, old=literals, new=literals.replace("0|", "7|", 1), ts=201)
    destination.apply(work(200, 300, ordered=[step]), 1)
    assert db.query("SELECT id, up FROM d.t WHERE e=0") == [(7, None)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("TINYINT", b"300"),
        ("VARCHAR(3)", b"'long'"),
        ("ENUM('a')", b"'z'"),
        ("INT NOT NULL", b"NULL"),
        ("DATETIME", b"'2020-13-01 00:00:00'"),
        ("VARCHAR(9) CHARACTER SET latin1", "'名'".encode()),
    ],
)
def test_value_server_would_change_is_refused(db: MariaDB, column: str, value: bytes) -> None:
    """Non-strict mode must never be felt: every warning about data ends the transaction with its place."""
    db.query(f"CREATE TABLE d.t (id INT PRIMARY KEY, v {column})")
    destination = opened(db)
    with pytest.raises((ValueChanged, RowsRefused), match=r"d\.t"):
        destination.apply(work(100, 200, Folded(shape("t", "id v"), (put(1, b"(1,%s)" % value),))), 1)
    assert db.query("SELECT * FROM d.t") == []


def test_virtual_column_out_of_range_does_not_stop_row(db: MariaDB) -> None:
    """TiDB takes such a row too; what the destination computes itself is not a value that is changed."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, i INT, g INT AS (i * 2) VIRTUAL)")
    destination = opened(db)
    destination.apply(work(100, 200, Folded(shape("t", "id i"), (put(1, b"(1,2000000000)"),))), 1)
    assert db.query("SELECT id, i FROM d.t") == [(1, 2000000000)]


def test_statements_are_bounded_and_larger_rows_are_written(db: MariaDB) -> None:
    """Many statements, rows larger than the bound, and one larger than the server takes."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v LONGBLOB)")
    destination = opened(db, limits=limits(7, 4096))

    def replaces() -> int:
        return int(db.query("SHOW GLOBAL STATUS LIKE 'Com_replace'")[0][1])

    rows = [put(i, b"(%d,'%s')" % (i, b"x" * (i * 37 % 9000))) for i in range(100)]
    rows.append(put(100, b"(100,'%s')" % (b"y" * (20 << 20))))
    before = replaces()
    destination.apply(work(100, 200, Folded(shape("t", "id v"), tuple(rows))), 1)
    assert replaces() - before > 60
    lengths = db.query("SELECT id, LENGTH(v) FROM d.t ORDER BY id")
    assert lengths == [*((i, i * 37 % 9000) for i in range(100)), (100, 20 << 20)]
    too_large = put(101, b"(101,'%s')" % (b"z" * (70 << 20)))
    with pytest.raises(RowsRefused, match="max_allowed_packet"):
        destination.apply(work(200, 300, Folded(shape("t", "id v"), (too_large,))), 1)
    assert position(db) == 200


def test_foreign_keys_do_not_block_or_cascade(db: MariaDB) -> None:
    """Rule 13: child before parent, and no cascade of the destination's own."""
    db.query("CREATE TABLE d.p (id INT PRIMARY KEY)")
    db.query("CREATE TABLE d.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES d.p (id) ON DELETE CASCADE)")
    destination = opened(db)
    child, parent = shape("c", "id p"), shape("p", "id")
    destination.apply(work(100, 200, Folded(child, (put(1, b"(1,1)"),)), Folded(parent, (put(1, b"(1)"),))), 1)
    destination.apply(work(200, 300, Folded(parent, (gone(1),))), 1)
    assert db.query("SELECT * FROM d.c") == [(1, 1)]


def test_table_with_triggers_is_refused_unless_allowed(db: MariaDB) -> None:
    """Rule 13: a trigger would count an update as a delete and an insert; it is named unless it is allowed."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    db.query("CREATE TABLE d.gone (id INT)")
    db.query("INSERT INTO d.t VALUES (1,1)")
    db.query("CREATE TRIGGER d.x AFTER DELETE ON d.t FOR EACH ROW INSERT INTO d.gone VALUES (OLD.id)")
    update = work(100, 200, Folded(shape("t", "id v"), (put(1, b"(1,2)", Kind.UPDATE),)))
    refused = opened(db)
    with pytest.raises(RowsRefused, match=r"d\.t: it has triggers"):
        refused.apply(update, 1)
    refused.close(clean=False)
    opened(db, allow_triggers=True).apply(update, 1)
    assert db.query("SELECT * FROM d.gone") == [(1,)]


def test_session_variable_that_would_lose_rows_is_refused(db: MariaDB) -> None:
    """Rule 13 again, from the configuration; a time zone is harmless because it is left out."""
    with pytest.raises(DestinationRefused, match="foreign_key_checks"):
        opened(db, params=(("foreign_key_checks", "ON"),))
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, ts TIMESTAMP)")
    zoned = opened(db, params=(("time_zone", "+08:00"), ("group_concat_max_len", "4096")))
    zoned.apply(work(100, 200, Folded(shape("t", "id ts"), (put(1, b"(1,'2020-01-01 00:00:00')"),))), 1)
    assert db.query("SELECT CONCAT(ts) FROM d.t") == [("2020-01-01 00:00:00",)]


@contextmanager
def whole_server(db: MariaDB, name: str, value: str) -> Iterator[None]:
    """A variable of all new connections, for a while."""
    before = db.query(f"SELECT @@GLOBAL.{name}")[0][0]
    db.query(f"SET GLOBAL {name}={value}")
    try:
        yield
    finally:
        db.query(f"SET GLOBAL {name}='{before}'" if isinstance(before, str) else f"SET GLOBAL {name}={before}")


def test_sql_select_limit_hides_no_unique_key(db: MariaDB) -> None:
    """Or REPLACE would take away the row that is in the way of a key that upstream has not."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT, UNIQUE KEY vv (v))")
    db.query("INSERT INTO d.t VALUES (9, 2)")
    with whole_server(db, "sql_select_limit", "0"):
        opened(db).close(clean=True)
    with whole_server(db, "sql_select_limit", "1"):
        destination = opened(db)
        with pytest.raises(UniqueConflict, match="vv"):
            destination.apply(work(100, 200, Folded(shape("t", "id v"), (put(1, b"(1,2)"),))), 1)
        destination.close(clean=False)
    assert db.query("SELECT * FROM d.t") == [(9, 2)]
    for limit in ("0", "1"):
        with pytest.raises(DestinationRefused, match="sql_select_limit"):
            opened(db, params=(("sql_select_limit", limit),))


@pytest.mark.parametrize("value", ["CHAIN", "RELEASE"])
def test_commit_ignores_completion_type_of_server(db: MariaDB, value: str) -> None:
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    with whole_server(db, "completion_type", f"'{value}'"):
        session = connect(server_config(db), idle_s=60, read_timeout_s=60)
        session.begin()
        session.commit()
        session.execute(b"INSERT INTO d.t VALUES (1)")
        assert db.query("SELECT id FROM d.t") == [(1,)]
        session.close()
    with pytest.raises(DestinationRefused, match="completion_type"):
        opened(db, params=(("completion_type", value),))


def test_empty_destination_reports_its_missing_tables(db: MariaDB) -> None:
    """Names ignore case; with none of them there it begins at another ts; asked only while there is no position."""
    question = FirstStart((("shop", "orders"), ("d", "Here")), empty_ts=0)
    db.query("CREATE DATABASE IF NOT EXISTS d")
    empty = MySQLSink(server_config(db))
    assert empty.open(Identity(7, "other", "drainer-1"), 555, question).commit_ts == 0
    empty.close(clean=True)
    db.query("CREATE TABLE d.here (id INT)")
    first = MySQLSink(server_config(db))
    found = first.open(IDENTITY, 555, question)
    assert (found.commit_ts, found.fresh, found.missing) == (555, True, (("shop", "orders"),))
    first.close(clean=True)
    again = MySQLSink(server_config(db)).open(IDENTITY, 1, question)
    assert (again.commit_ts, again.fresh, again.missing) == (555, False, ())


@pytest.mark.parametrize(
    ("upstream", "here", "digits", "fits", "cut"),
    [
        ("DECIMAL(10,4)", "DECIMAL(10,2)", 4, "1.2300", "1.2340"),
        ("DECIMAL(10,4)", "INT", 4, "-1.0000", "-1.4000"),
        ("DATETIME(6)", "DATETIME", 6, "'2026-01-02 03:04:05.000000'", "'2026-01-02 03:04:05.600000'"),
        ("TIMESTAMP(3)", "DATETIME(1)", 3, "'2026-01-02 03:04:05.100'", "'2026-01-02 03:04:05.120'"),
        ("TIME(2)", "TIME", 2, "'-03:04:05.00'", "'-03:04:05.01'"),
        ("DATETIME", "DATE", 0, "'2026-01-02 00:00:00'", "'2026-01-02 03:04:05'"),
        ("VARCHAR(5)", "VARCHAR(3)", 0, "'abc'", "'abc '"),
    ],
)
def test_value_truncated_by_server_without_warning_is_refused(
    db: MariaDB, upstream: str, here: str, digits: int, fits: str, cut: str
) -> None:
    """A note is hidden or there is none; what fits arrives, in order and folded, and nothing else is stored."""
    db.query(f"CREATE TABLE d.t (id INT PRIMARY KEY, v {here})")
    t = replace(shape("t", "id v"), fractions=(0, digits))
    ordered = replace(t, key=())
    destination = opened(db)
    first = change(ordered, Kind.INSERT, new=f"2|{fits}", ts=150)
    destination.apply(work(100, 200, Folded(t, (put(1, f"(1,{fits})".encode()),)), ordered=[first]), 1)
    stored = db.query("SELECT * FROM d.t ORDER BY id")
    assert len(stored) == 2
    for bad in (
        work(200, 300, Folded(t, (put(3, f"(3,{cut})".encode()),))),
        work(200, 300, ordered=[change(ordered, Kind.INSERT, new=f"3|{cut}", ts=250)]),
        work(200, 300, ordered=[change(ordered, Kind.UPDATE, old=f"2|{fits}", new=f"2|{cut}", ts=250)]),
    ):
        with pytest.raises(ValueChanged, match=r"column '?v'? .*widen it"):
            destination.apply(bad, 1)
        assert db.query("SELECT * FROM d.t ORDER BY id") == stored
