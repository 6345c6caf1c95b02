"""SQLite as a destination: no server, but a real file, real locks and real SIGKILL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.cluster import tso
from binlog.tidb.job import ActionType
from binlog.tidb.table import IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Folded, KeyChange, Kind, NetRow, Ordered, Pieces, SegmentWork, TableShape
from drainer.schema.steps import Ddl
from drainer.sink.base import Identity
from drainer.sink.errors import DdlFailed, Fenced, LockHeld, PositionMoved, RowMissing, RowsRefused, UniqueConflict
from drainer.sink.sqlite.sink import SQLiteSink
from tests.integration.sink.case import shape
from tests.integration.sink.ddl_case import INT, TEXT, column, step, table
from tests.integration.sink.forks import children

IDENTITY = Identity(7, "main", "drainer-1")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "down.sqlite"


def opened(path: Path) -> SQLiteSink:
    destination = SQLiteSink(path)
    destination.open(IDENTITY, 100)
    return destination


def rows_of(path: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(sql).fetchall()


def put(key: int, *row: object, stale: Sequence[tuple[object, ...]] = ()) -> NetRow:
    return NetRow(b"%020d" % key, Kind.UPDATE, tuple(row), tuple(stale))


def gone(key: int) -> NetRow:
    return NetRow(b"%020d" % key, Kind.DELETE, None, ((key,),))


def work(after: int, until: int, *folded: Folded, ordered: Sequence[KeyChange] = ()) -> SegmentWork:
    return SegmentWork(after, until, folded, Ordered(tuple(ordered)), 1, 1)


def one(where: TableShape, kind: Kind, *, old: tuple[object, ...] | None = None, new: object = None) -> KeyChange:
    assert new is None or isinstance(new, tuple)
    return KeyChange(where, kind, old, new, 150, 0)


def unique(name: str, offset: int, column_name: str, length: int = -1) -> IndexInfo:
    return IndexInfo(2, name, (IndexColumn(column_name, offset, length),), unique=True)


UINT64 = FieldType(Tp.LONGLONG, flag=int(Flag.UNSIGNED), flen=20)
DECIMAL = FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)
BYTES = FieldType(Tp.BLOB, charset="binary", collate="binary")
T = replace(
    table(50, "t", column(1, "id"), column(2, "u"), column(3, "big", UINT64), column(4, "d", DECIMAL)),
    indexes=(unique("uu", 1, "u"),),
)
CREATE = step(1, ActionType.CREATE_TABLE, 110, "CREATE TABLE `t` …", after=T)
SHAPE = shape("t", "id u big d", unique=["uu"])


def test_sqlite_keeps_large_unsigned_and_decimal_values_as_text(path: Path) -> None:
    """An unsigned above 2^63-1 is text and stays text; a DECIMAL keeps its zeros."""
    destination = opened(path)
    destination.ddl(CREATE)
    huge = str((1 << 64) - 1)
    destination.apply(work(110, 200, Folded(SHAPE, (put(1, 1, None, huge, "1.50"), put(2, 2, 5, 7, "-0.10")))), 1)
    assert rows_of(path, 'SELECT * FROM "d.t" ORDER BY id') == [(1, None, huge, "1.50"), (2, 5, 7, "-0.10")]


def test_rows_ddl_jobs_and_position_survive_restart(path: Path) -> None:
    """The second life begins where the first ended, and knows its jobs."""
    first = opened(path)
    first.ddl(CREATE)
    first.apply(work(110, 200, Folded(SHAPE, (put(1, 1, 1, 1, "1.00"),))), 9)
    first.close(clean=True)
    second = SQLiteSink(path)
    found = second.open(IDENTITY, 1)
    assert (found.commit_ts, found.schema_version, found.fresh, found.intent) == (200, 9, False, None)
    assert second.job_done(1)
    second.ddl(replace(CREATE, commit_ts=210))
    with pytest.raises(PositionMoved, match="its position is 210"):
        second.apply(work(110, 300), 9)


def test_unique_values_exchanged_in_ring_are_applied(path: Path) -> None:
    """Rule 12 in one transaction: values trade places, an untouched row is never evicted."""
    destination = opened(path)
    destination.ddl(CREATE)
    start = tuple(put(i, i, i, i, "0.00") for i in (1, 2, 3))
    destination.apply(work(110, 200, Folded(SHAPE, start)), 1)
    ring = (put(1, 1, 2, 1, "0.00"), put(2, 2, 1, 2, "0.00"))
    destination.apply(work(200, 300, Folded(SHAPE, ring)), 1)
    assert rows_of(path, 'SELECT id, u FROM "d.t" ORDER BY id') == [(1, 2), (2, 1), (3, 3)]
    with pytest.raises(UniqueConflict, match=r"d\.t: unique key 'uu'"):
        destination.apply(work(300, 400, Folded(SHAPE, (gone(1), put(4, 4, 3, 4, "0.00")))), 1)
    assert rows_of(path, 'SELECT id, u FROM "d.t" ORDER BY id') == [(1, 2), (2, 1), (3, 3)]
    assert destination.commit_ts == 300


def test_identical_keyless_rows_are_changed_one_at_a_time(path: Path) -> None:
    """Rule 11: identical rows are taken one by one, case counts, NULL is found, a miss is an error."""
    keyless = table(51, "k", column(1, "c", TEXT), column(2, "rowid"), key=False)
    k = shape("k", "c rowid", key=())
    destination = opened(path)
    destination.ddl(step(1, ActionType.CREATE_TABLE, 110, "…", after=keyless))
    inserts = [one(k, Kind.INSERT, new=row) for row in (("a", 1), ("A", 1), ("a", 1), (None, 1), ("1", 1))]
    changes = [one(k, Kind.DELETE, old=("A", 1)), one(k, Kind.UPDATE, old=("a", 1), new=("b", 2)),
               one(k, Kind.UPDATE, old=(None, 1), new=(None, 3))]  # fmt: skip
    destination.apply(work(110, 200, ordered=[*inserts, *changes]), 1)
    assert sorted(rows_of(path, 'SELECT * FROM "d.k"'), key=repr) == [("1", 1), ("a", 1), ("b", 2), (None, 3)]
    with pytest.raises(RowMissing, match=r"d\.k: DELETE of commit_ts 150"):
        destination.apply(work(200, 300, ordered=[one(k, Kind.DELETE, old=("A", 1))]), 1)


def test_delete_by_missing_column_is_refused(path: Path) -> None:
    """SQLite takes a name in double quotes for a string where there is no such column, and deletes nothing."""
    destination = opened(path)
    destination.ddl(CREATE)
    wrong = replace(SHAPE, columns=("nokey", *SHAPE.columns[1:]), secondary_unique=())
    with pytest.raises(RowsRefused, match=r"d\.t: .*no such column: nokey"):
        destination.apply(work(110, 200, Folded(wrong, (gone(1),))), 1)


def test_value_that_modify_column_cannot_convert_is_refused_by_name(path: Path) -> None:
    destination = opened(path)
    before = table(50, "t", column(1, "id"), column(2, "d", TEXT))
    after = replace(before, columns=(before.columns[0], replace(before.columns[1], type=DECIMAL)))
    destination.ddl(step(1, ActionType.CREATE_TABLE, 110, "…", after=before))
    destination.apply(work(110, 200, Folded(shape("t", "id d"), (put(1, 1, "no number"),))), 1)
    with pytest.raises(DdlFailed, match=r"table d\.t, column d: 'no number' cannot be converted"):
        destination.ddl(step(2, ActionType.MODIFY_COLUMN, 210, "ALTER …", before=before, after=after))
    assert rows_of(path, "SELECT d FROM `d.t`") == [("no number",)]


def test_refused_segment_names_its_table_and_is_rolled_back(path: Path) -> None:
    """A table that is not there; a NULL where none may be."""
    destination = opened(path)
    destination.ddl(CREATE)
    good = Folded(SHAPE, (put(1, 1, 1, 1, "0.00"),))
    with pytest.raises(RowsRefused, match=r"d\.nothere: .*no such table"):
        destination.apply(work(110, 200, good, Folded(shape("nothere", "id"), (put(1, 1),))), 1)
    strict = table(51, "s", column(1, "id"), column(2, "v", replace(INT, flag=int(Flag.NOT_NULL))))
    destination.ddl(step(2, ActionType.CREATE_TABLE, 120, "…", after=strict))
    with pytest.raises(RowsRefused, match="NOT NULL"):
        destination.apply(work(120, 200, good, Folded(shape("s", "id v"), (put(2, 2, None),))), 1)
    assert rows_of(path, 'SELECT * FROM "d.t"') == []


def test_sqlite_file_is_locked_by_one_drainer_at_a_time(path: Path) -> None:
    """The lock file ends with its process; the epoch refuses whoever held the file before."""
    first = opened(path)
    with pytest.raises(LockHeld, match="another drainer"):
        opened(path)
    first.close(clean=True)
    second = opened(path)
    with sqlite3.connect(path) as outside:
        outside.execute('UPDATE "tidb_binlog.drainer_position" SET epoch=epoch+1')
    with pytest.raises(Fenced, match="taken over"):
        second.advance(200, 1)


def altered(*columns_: object, name: str = "t", query: str = "ALTER …", indexes: Sequence[IndexInfo] = ()) -> Ddl:
    info = table(50, name, *columns_, indexes=tuple(indexes))  # type: ignore[arg-type]
    return step(2, ActionType.MULTI_SCHEMA_CHANGE, 300, query, before=T, after=info)


ID, U, BIG, D = (column(n, c, k) for n, c, k in ((1, "id", INT), (2, "u", INT), (3, "big", UINT64), (4, "d", DECIMAL)))
VARCHAR = replace(TEXT, flen=30)
ALTERATIONS = {
    "append": (altered(ID, U, BIG, D, column(5, "e", TEXT, origin_default="x'y")), [(1, 5, 7, "1.50", "x'y")]),
    "first": (altered(ID, column(5, "e", origin_default="9"), U, BIG, D), [(1, 9, 5, 7, "1.50")]),
    "drop": (altered(ID, BIG, D), [(1, 7, "1.50")]),
    "rename": (altered(ID, column(2, "uu"), BIG, D), [(1, 5, 7, "1.50")]),
    "swap names": (altered(ID, column(2, "d", INT), BIG, column(4, "u", DECIMAL)), [(1, 5, 7, "1.50")]),
    "retype by name": (altered(ID, column(9, "u", VARCHAR), BIG, D), [(1, "5", 7, "1.50")]),
    "change by text": (
        altered(ID, column(9, "w", VARCHAR), BIG, D, query="ALTER TABLE t CHANGE COLUMN `u` `w` VARCHAR(30)"),
        [(1, "5", 7, "1.50")],
    ),
    "scale": (altered(ID, U, BIG, column(4, "d", replace(DECIMAL, decimal=1))), [(1, 5, 7, "1.5")]),
    "to integer": (altered(ID, U, BIG, column(4, "d", INT)), [(1, 5, 7, 2)]),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_alter_table_follows_column_ids_and_keeps_rows(path: Path, name: str) -> None:
    """Add, drop, rename, move and retype, by id, with every row kept."""
    ddl, wanted = ALTERATIONS[name]
    destination = opened(path)
    destination.ddl(CREATE)
    destination.apply(work(110, 200, Folded(SHAPE, (put(1, 1, 5, 7, "1.50"),))), 1)
    destination.ddl(ddl)
    assert rows_of(path, 'SELECT * FROM "d.t"') == wanted
    after = ddl.after
    assert after is not None
    assert [row[1] for row in rows_of(path, 'PRAGMA table_info("d.t")')] == [c.name for c in after.columns]


def test_indexes_and_primary_keys_are_added_and_dropped(path: Path) -> None:
    """Unique, plain and prefix indexes; a primary key that is not clustered is one of them."""
    destination = opened(path)
    destination.ddl(CREATE)
    prefix = IndexInfo(3, "pre", (IndexColumn("e", 4, 2),), unique=True)
    e = column(5, "e", TEXT)
    destination.ddl(altered(ID, U, BIG, D, e, indexes=[prefix]))
    s = shape("t", "id u big d e", unique=["pre"])
    destination.apply(work(300, 400, Folded(s, (put(1, 1, 5, 7, "1.50", "abc"), put(2, 2, 5, 7, "1.50", "b")))), 1)
    with pytest.raises(UniqueConflict, match="key 'pre'"):
        destination.apply(work(400, 500, Folded(s, (put(3, 3, 5, 7, "1.50", "abX"),))), 1)
    names = rows_of(path, "SELECT name FROM sqlite_master WHERE type='index' AND sql IS NOT NULL")
    assert names == [("d.t.pre",)]


def test_rename_truncate_and_drop_statements_change_tables(path: Path) -> None:
    """A ring of names swaps the tables with their indexes; TRUNCATE empties; DROP DATABASE takes all its tables."""
    other = table(60, "o", column(1, "id"))
    destination = opened(path)
    destination.ddl(CREATE)
    destination.ddl(step(2, ActionType.CREATE_TABLE, 120, "…", after=other))
    destination.apply(work(120, 200, Folded(SHAPE, (put(1, 1, 5, 7, "1.50"),))), 1)

    def named(info: TableInfo, name: str) -> TableInfo:
        return replace(info, name=name)

    ring = [(T, named(T, "tmp")), (other, named(other, "t")), (named(T, "tmp"), named(T, "o"))]
    destination.ddl(step(3, ActionType.RENAME_TABLES, 300, "…", changes=ring))
    assert rows_of(path, 'SELECT * FROM "d.o"') == [(1, 5, 7, "1.50")]
    assert rows_of(path, 'SELECT * FROM "d.t"') == []
    assert rows_of(path, "SELECT name FROM sqlite_master WHERE type='index' AND sql IS NOT NULL") == [("d.o.uu",)]
    moved = named(T, "o")
    destination.ddl(step(4, ActionType.TRUNCATE_TABLE, 400, "…", before=moved, after=replace(moved, id=99)))
    assert rows_of(path, 'SELECT * FROM "d.o"') == []
    gone_ = [(replace(moved, id=99), None), (named(other, "t"), None)]
    destination.ddl(step(5, ActionType.DROP_SCHEMA, 500, "…", changes=gone_))
    assert rows_of(path, "SELECT name FROM sqlite_master WHERE type='table' AND name LIKE 'd.%'") == []


def test_dropped_table_is_recovered_or_expires_by_streams_time(path: Path) -> None:
    """FLASHBACK under another name, with rows and indexes; by the stream's clock it is dropped for good."""
    hour = tso.compose(3_600_000)
    destination = opened(path)
    destination.ddl(CREATE)
    destination.apply(work(110, 200, Folded(SHAPE, (put(1, 1, 5, 7, "1.50"),))), 1)
    fresh, again = replace(T, id=99), replace(T, name="again")
    destination.ddl(step(4, ActionType.TRUNCATE_TABLE, 400, "…", before=T, after=fresh))
    assert rows_of(path, 'SELECT * FROM "d.t"') == []
    destination.ddl(step(5, ActionType.RECOVER_TABLE, 500, "…", after=again))
    assert rows_of(path, 'SELECT * FROM "d.again"') == [(1, 5, 7, "1.50")]
    with pytest.raises(DdlFailed, match=r"d\.again \(id \d+\) is not in the recycle bin"):
        destination.ddl(step(6, ActionType.RECOVER_TABLE, 600, "…", after=again))
    destination.ddl(step(7, ActionType.DROP_SCHEMA, 700, "…", changes=[(fresh, None), (again, None)]))
    count = "SELECT COUNT(*) FROM sqlite_master WHERE type='table' AND name GLOB 'tidb_binlog.[0-9a-f]*_[0-9]*'"
    assert rows_of(path, count) == [(2,)]
    destination.advance(hour, 1)
    assert rows_of(path, count) == [(2,)]
    destination.advance(hour + tso.compose(1), 1)
    assert rows_of(path, count) == [(0,)]


def test_unsupported_ddl_in_sqlite_is_refused_by_name(path: Path) -> None:
    """A past of the whole cluster has no counterpart: named, nothing changed, the position stays."""
    destination = opened(path)
    destination.ddl(CREATE)
    with pytest.raises(DdlFailed, match=r"job 9 .*FLASHBACK_CLUSTER(.|\n)*job-id = 9"):
        destination.ddl(step(9, ActionType.FLASHBACK_CLUSTER, 300, "…", before=T, after=T))
    assert (destination.commit_ts, destination.job_done(9)) == (110, False)


def play(path: Path, actions: list[tuple[str, object]]) -> None:
    """Do what is not behind the position."""
    destination = opened(path)
    for _, step_ in actions:
        if isinstance(step_, SegmentWork):
            if step_.until_ts > destination.commit_ts:
                destination.apply(step_, 1)
        elif isinstance(step_, Ddl) and not destination.job_done(step_.job.id):
            destination.ddl(step_)


@pytest.mark.parametrize("crash", [f"sink.{edge}_commit:{n}" for edge in ("before", "after") for n in (2, 3, 4, 5)])
def test_drainer_killed_at_any_sqlite_commit_applies_each_step_once(path: Path, crash: str) -> None:
    """SIGKILL around every commit, rows and DDL alike, then a new life: each step once."""
    keyless = table(51, "k", column(1, "n"), key=False)
    k = shape("k", "n", key=())
    actions: list[tuple[str, object]] = [
        ("ddl", step(1, ActionType.CREATE_TABLE, 110, "…", after=keyless)),
        ("rows", work(110, 200, ordered=[one(k, Kind.INSERT, new=(1,))])),
        ("ddl", step(2, ActionType.ADD_COLUMN, 300, "…", before=keyless,
                     after=table(51, "k", column(1, "n"), column(2, "m", origin_default="4"), key=False))),
        ("rows", work(300, 400, ordered=[one(shape("k", "n m", key=()), Kind.INSERT, new=(2, 5))])),
    ]  # fmt: skip
    assert children().start(play, (path, actions), path.parent, crash).wait() == -9
    play(path, actions)
    assert rows_of(path, 'SELECT * FROM "d.k" ORDER BY n') == [(1, 4), (2, 5)]


def test_table_with_coarser_collation_loses_no_row(path: Path) -> None:
    """Rule 10: by NOCASE a delete of 'a' would take 'A' along, and a row that collides must be an error."""
    opened(path).close(clean=True)
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "d.t" (c TEXT COLLATE NOCASE PRIMARY KEY, v INT)')
        connection.execute('CREATE TABLE "d.bare" (c TEXT COLLATE NOCASE)')
        connection.execute("INSERT INTO \"d.t\" VALUES ('A',1)")
        connection.execute("INSERT INTO \"d.bare\" VALUES ('A'), ('a')")
    t, bare = shape("t", "c v"), shape("bare", "c", key=())
    destination = opened(path)
    dead = NetRow(b"a", Kind.DELETE, None, (("a",),))
    one = KeyChange(bare, Kind.DELETE, ("a",), None, 150, 0)
    destination.apply(work(100, 200, Folded(t, (dead,)), ordered=[one]), 1)
    assert rows_of(path, 'SELECT * FROM "d.t"') == [("A", 1)]
    assert rows_of(path, 'SELECT * FROM "d.bare"') == [("A",)]
    twin = NetRow(b"a", Kind.INSERT, ("a", 2), ())
    with pytest.raises(UniqueConflict, match="PRIMARY"):
        destination.apply(work(200, 300, Folded(t, (twin,))), 1)
    assert rows_of(path, 'SELECT * FROM "d.t"') == [("A", 1)]


def test_pieces_are_applied_in_one_sqlite_transaction(path: Path) -> None:
    """Applied in turn, and none of them when a later one fails."""
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "d.t" (id INTEGER PRIMARY KEY, u INTEGER UNIQUE)')
    destination = opened(path)
    t = shape("t", "id u", unique=("u",))

    def works(*, fails: bool) -> Iterator[SegmentWork]:
        yield work(100, 200, Folded(t, (put(1, 1, 10), put(2, 2, 20))))
        yield work(100, 200, Folded(t, (put(1, 1, 30), put(2, 2, 10))))
        assert rows_of(path, 'SELECT * FROM "d.t"') == []
        if fails:
            raise RowMissing("the test's", schema="d", table="t")

    with pytest.raises(RowMissing):
        destination.apply_pieces(Pieces(100, 200, lambda: works(fails=True)), 5)
    assert (destination.commit_ts, rows_of(path, 'SELECT * FROM "d.t"')) == (100, [])
    destination.apply_pieces(Pieces(100, 200, lambda: works(fails=False)), 5)
    assert (destination.commit_ts, rows_of(path, 'SELECT * FROM "d.t" ORDER BY id')) == (200, [(1, 30), (2, 10)])
