"""Tables whose keys compare more coarsely here than upstream: no row goes without a word, and none stops in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import IndexColumn, IndexInfo
from binlog.tidb.types import Flag

from drainer.batch.work import Folded, Kind, Match, NetRow, TableShape
from drainer.sink.errors import UniqueConflict
from drainer.sink.mysql.rows.slot_writer import Phase
from tests.integration.sink.case import change, opened, put, shape, work
from tests.integration.sink.ddl_case import TEXT, column, step, table
from tests.integration.sink.test_mysql_distributed import at_once, intent
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

BIN, EXACT = "utf8mb4_bin", "utf8mb4_0900_bin"


def text_keyed(collation: str = BIN, columns: str = "c v") -> TableShape:
    """`d.t`, whose first column is its key upstream."""
    count = len(columns.split())
    made = shape("t", columns, match=(Match.BINARY_TEXT, *(Match.PLAIN,) * (count - 1)))
    return replace(made, collations=(collation, *("",) * (count - 1)))


def row(key: str, value: int, first: Kind = Kind.INSERT) -> NetRow:
    stale = (b"('%s')" % key.encode(),) if first is Kind.UPDATE else ()
    return NetRow(key.encode(), first, b"('%s',%d)" % (key.encode(), value), stale)


def dead(key: str) -> NetRow:
    return NetRow(key.encode(), Kind.DELETE, None, (b"('%s')" % key.encode(),))


def create(db: MariaDB, collation: str) -> None:
    db.query(f"CREATE TABLE d.t (c VARCHAR(20) COLLATE {collation} NOT NULL DEFAULT 'x' COMMENT 'it''s', v INT,"
             " PRIMARY KEY (c))")  # fmt: skip


ROWS = "SELECT CONCAT(c,'.'), v FROM d.t ORDER BY BINARY c"
COARSER = [("utf8mb4_general_ci", BIN, "A", "a"), ("utf8mb4_bin", EXACT, "a", "a ")]


@pytest.mark.parametrize(("here", "upstream", "one", "other"), COARSER)
def test_rows_equal_under_coarser_collation_stop_with_repairing_statement(
    db: MariaDB, here: str, upstream: str, one: str, other: str
) -> None:
    """A REPLACE would take the first one away. After the statement everything arrives."""
    create(db, here)
    t = text_keyed(upstream)
    destination = opened(db)
    destination.apply(work(100, 200, Folded(t, (row(one, 1),))), 1)
    second = work(200, 300, Folded(t, (row(other, 2),)))
    with pytest.raises(UniqueConflict, match=f"column c is {here} here and {upstream} upstream") as caught:
        destination.apply(second, 1)
    assert (caught.value.table, caught.value.key) == ("t", "PRIMARY")
    assert db.query(ROWS) == [(f"{one}.", 1)]
    statement = str(caught.value).split("start again: ")[1]
    assert statement.startswith("ALTER TABLE `d`.`t` MODIFY COLUMN `c` varchar(20) CHARACTER SET utf8mb4 COLLATE ")
    db.query(statement)
    again = opened(db)
    again.apply(second, 1)
    again.apply(work(300, 400, Folded(t, (row(one, 3, Kind.UPDATE),))), 1)
    assert db.query(ROWS) == [(f"{one}.", 3), (f"{other}.", 2)]
    assert "DEFAULT 'x' COMMENT 'it''s'" in str(db.query("SHOW CREATE TABLE d.t")[0][1])


@pytest.mark.parametrize(("here", "upstream", "one", "other"), COARSER)
def test_delete_under_coarser_collation_removes_no_other_row(
    db: MariaDB, here: str, upstream: str, one: str, other: str
) -> None:
    """What was deleted upstream is not what stands here."""
    create(db, here)
    db.query("INSERT INTO d.t VALUES (%s,1),('b',2)", other)
    destination = opened(db)
    destination.apply(work(100, 200, Folded(text_keyed(upstream), (dead(one), dead("b")))), 1)
    assert db.query(ROWS) == [(f"{other}.", 1)]


def test_delete_by_column_without_key_removes_no_other_row(db: MariaDB) -> None:
    """The column alone compares more coarsely, in a DELETE as well."""
    db.query("CREATE TABLE d.t (c VARCHAR(20) COLLATE utf8mb4_general_ci, v INT)")
    db.query("INSERT INTO d.t VALUES ('A',1),('b',2)")
    destination = opened(db)
    destination.apply(work(100, 200, Folded(text_keyed(), (dead("a"), row("B", 3, Kind.UPDATE)))), 1)
    assert db.query(ROWS) == [("A.", 1), ("B.", 3), ("b.", 2)]


def test_keys_without_collision_under_coarser_collation_are_applied(db: MariaDB) -> None:
    """Rows come, change and go; one goes and another that is equal here comes, in one segment and in two."""
    create(db, "utf8mb4_general_ci")
    t = text_keyed()
    destination = opened(db)
    destination.apply(work(100, 200, Folded(t, tuple(row(k, 1) for k in ("A", "b", "c", "x'".replace("'", "''"))))), 1)
    destination.apply(work(200, 300, Folded(t, (dead("A"), row("a", 2), row("b", 5, Kind.UPDATE)))), 1)
    destination.apply(work(300, 400, Folded(t, (dead("c"),))), 1)
    destination.apply(work(400, 500, Folded(t, (row("C", 3),))), 1)
    assert db.query(ROWS) == [("C.", 3), ("a.", 2), ("b.", 5), ("x'.", 1)]


def test_row_and_its_coarser_equal_in_another_slot_are_applied_in_phases(db: MariaDB) -> None:
    """Whichever slot is first: the phases put it right, and a collision that stays stops the range."""
    create(db, "utf8mb4_general_ci")
    t = text_keyed()
    db.query("INSERT INTO d.t SELECT CONCAT('K', seq), seq FROM d.seq_1_to_20")
    slots = {
        0: work(100, 200, Folded(t, tuple(row(f"k{n}", n + 100) for n in range(1, 21)))),
        1: work(100, 200, Folded(t, tuple(dead(f"K{n}") for n in range(1, 21)))),
    }
    destination = opened(db)
    target = destination.begin(intent())
    results = [target.write(slot, slots[slot]) for slot in slots]  # the twins first
    assert results[0].detail == "d.t PRIMARY"
    target = destination.commit(intent(), results, 1)
    while target is not None:
        assert target.phase in (Phase.DELETE, Phase.INSERT)
        target = destination.commit(intent(), [target.write(slot, slots[slot]) for slot in slots], 1)
    assert db.query("SELECT COUNT(*), SUM(c LIKE BINARY 'k%%') FROM d.t") == [(20, 20)]
    stays = {0: work(200, 300, Folded(t, (row("K1", 1),)))}
    with pytest.raises(UniqueConflict, match="Run in the destination, and start again: ALTER TABLE"):
        at_once(destination, intent(200, 300), stays)
    assert db.query("SELECT v FROM d.t WHERE c='k1'") == [(101,)]


def test_conflict_on_coarser_secondary_key_names_repairing_statement(db: MariaDB) -> None:
    """Those were never replaced; the error tells the statement there, too."""
    db.query("CREATE TABLE d.t (c VARCHAR(20) COLLATE utf8mb4_general_ci, v INT PRIMARY KEY, UNIQUE KEY u (c))")
    keyed = replace(text_keyed(columns="c v"), key=(1,), secondary_unique=("u",))
    destination = opened(db)
    destination.apply(work(100, 200, Folded(keyed, (row("A", 1),))), 1)
    with pytest.raises(UniqueConflict, match="MODIFY COLUMN `c` varchar"):
        destination.apply(work(200, 300, Folded(keyed, (row("a", 2),))), 1)
    ordered = replace(keyed, key=())
    with pytest.raises(UniqueConflict, match="MODIFY COLUMN `c` varchar"):
        destination.apply(work(200, 300, ordered=[change(ordered, Kind.INSERT, new="'a'|2", ts=250)]), 1)


def test_additional_unique_key_downstream_evicts_no_row(db: MariaDB) -> None:
    """Somebody made it; a REPLACE would take row 1 away. And without any key no old row stays beside the new one."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT, UNIQUE KEY mine (v))")
    t = shape("t", "id v")
    destination = opened(db)
    destination.apply(work(100, 200, Folded(t, (put(1, b"(1,5)"), put(2, b"(2,6)")))), 1)
    with pytest.raises(UniqueConflict, match=r"'mine'.*drop the key in the destination"):
        destination.apply(work(200, 300, Folded(t, (put(2, b"(2,5)", Kind.UPDATE),))), 1)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 5), (2, 6)]
    with pytest.raises(UniqueConflict, match="'mine'"):
        at_once(destination, intent(200, 300), {0: work(200, 300, Folded(t, (put(2, b"(2,5)", Kind.UPDATE),)))})
    db.query("DELETE FROM tidb_binlog.drainer_mark")
    db.query("UPDATE tidb_binlog.drainer_position SET intent=NULL")
    db.query("ALTER TABLE d.t DROP KEY mine, DROP PRIMARY KEY")
    opened(db).apply(work(200, 300, Folded(t, (put(2, b"(2,5)", Kind.UPDATE),))), 1)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 5), (2, 5)]


def test_collation_is_compared_again_after_ddl(db: MariaDB) -> None:
    """The column becomes coarser by upstream's own DDL, which the server cannot do as upstream does."""
    create(db, "utf8mb4_nopad_bin")
    t = text_keyed(EXACT)
    destination = opened(db)
    destination.apply(work(100, 200, Folded(t, (row("a", 1), row("a ", 2)))), 1)
    destination.apply(work(200, 300, Folded(t, (dead("a "),))), 1)
    key = IndexInfo(1, "PRIMARY", (IndexColumn("c", 0),), unique=True, primary=True)
    old = replace(TEXT, collate=EXACT, flag=int(Flag.NOT_NULL))
    before, after = (
        table(50, "t", column(1, "c", kind), column(2, "v"), key=False, indexes=[key])
        for kind in (old, replace(old, flen=30, collate="utf8mb4_bin"))
    )
    destination.ddl(step(9, ActionType.MODIFY_COLUMN, 400, "…", before=before, after=after))
    with pytest.raises(UniqueConflict, match="MODIFY COLUMN `c` varchar"):
        destination.apply(work(400, 500, Folded(t, (row("a ", 3),))), 1)
    assert db.query(ROWS) == [("a.", 1)]
