"""`kafka-consumer` into a server: every recording's tables are upstream's, however often the consumer is killed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.cluster import tso

from drainer.kafka_consumer.__main__ import Destination
from drainer.kafka_consumer.core import ConsumeError, Part, Read, Resume
from drainer.protocol.event import Change, ColumnValue, DdlEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions
from drainer.sink.base import Verification
from drainer.sink.errors import DestinationDown, PositionMoved
from drainer.sink.mysql import fenced_session
from drainer.sink.mysql.config import MySQLSection
from drainer.sink.mysql.connection import ConnectionLost
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.replay.destination import make
from drainer.sink.replay import consumer_settings
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.sink.case import IDENTITY
from tests.integration.sink.forks import children
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.message_case import PLACE, Pairs, consume, messages_of
from tests.support.servers import MariaDB, running_mariadb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OPTIONS = {
    "open": ProtocolOptions("open-protocol", time_zone="America/New_York"),
    "canal": ProtocolOptions("canal-json", enable_tidb_extension=True, only_output_updated_columns=True),
    "simple": ProtocolOptions("simple", time_zone="Asia/Kolkata"),
}
# The others of a replay: test_reparo.py.
POINTS = ["sink.ddl_after_exec:3", "replay.before_commit:2", "replay.after_commit:3"]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    """A server whose defaults are not those of TiDB, which DDL in messages leaves to the server."""
    with running_mariadb("--character-set-server=latin1") as server:
        yield server


def destination(port: int, name: str, zone: str = "UTC", wait_s: float = 60.0) -> Destination:
    section = MySQLSection.model_validate({"port": port, "user": "lab", "password": "lab"})
    return Destination(make(section, consumer_settings(name, wait_s=wait_s, zone=zone)))


def life(pairs: Pairs, protocol: str, port: int) -> None:
    options = OPTIONS[protocol]
    consume(pairs, options, destination(port, protocol, options.time_zone))


@pytest.mark.parametrize(("name", "protocol"), [("types", "open"), ("types", "canal"), ("types", "simple")])
def test_consumer_into_server_gives_upstreams_tables(
    mariadb: MariaDB, tmp_path: Path, name: str, protocol: str
) -> None:
    mariadb.reset()
    capture = CaptureSet(GOLDEN / name)
    pairs = messages_of(capture, OPTIONS[protocol], tmp_path / "jobs.json", policy(capture))
    life(pairs, protocol, mariadb.port)
    assert differences(mariadb, capture) == []
    life(pairs, protocol, mariadb.port)
    assert differences(mariadb, capture) == [], "nothing is applied twice"


@pytest.mark.slow
def test_consumer_killed_repeatedly_gives_upstreams_tables(mariadb: MariaDB, tmp_path: Path) -> None:
    mariadb.reset()
    capture = CaptureSet(GOLDEN / "keys")
    pairs = messages_of(capture, OPTIONS["open"], tmp_path / "jobs.json", policy(capture))
    for point in POINTS:
        child = children().start(life, (pairs, "open", mariadb.port), tmp_path, point)
        assert child.wait() == -signal.SIGKILL, point
    assert children().start(life, (pairs, "open", mariadb.port), tmp_path, "").wait() == 0
    assert differences(mariadb, capture) == []


def part(at: int, *rows: RowEvent, ddl: DdlEvent | None = None) -> Part:
    return Part(rows, ddl, Resume(at, {PLACE: Read(at, at)}))


def insert(table: str, **values: int | str) -> RowEvent:
    image = {name: ColumnValue(value) for name, value in values.items()}
    return RowEvent(Change.INSERT, 5, "d", table, new=image)


@pytest.fixture
def opened(db: MariaDB) -> Iterator[Destination]:
    db.query("DROP TABLE IF EXISTS tidb_binlog.kafka_consumer")
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(3))")
    made = destination(db.port, "test")
    assert made.open() == Resume()
    yield made
    made.close()


def test_consumer_exchanges_unique_values_between_rows(opened: Destination, db: MariaDB) -> None:
    opened.apply(part(1, insert("t", id=1, u=1, v="a"), insert("t", id=2, u=2, v="b")))
    moved = [
        RowEvent(Change.UPDATE, 6, "d", "t", old=insert("t", id=n, u=n).new, new=insert("t", id=n, u=3 - n, v="c").new)
        for n in (1, 2)
    ]
    opened.apply(part(2, *moved))
    assert sorted(db.query("SELECT id, u, v FROM d.t")) == [(1, 2, "c"), (2, 1, "c")]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (insert("nosuch", id=1), "`d`.`nosuch`: there is no such table"),
        (insert("t", id=1, nosuch=2), "`d`.`t`: the destination has no column `nosuch`"),
        (insert("t", id=1, v="longer"), "`d`.`t`: .*Data .*v"),
        (insert("t", id=1, u="word"), "`d`.`t`: .*u"),
    ],
)
def test_consumer_row_refused_by_server_writes_nothing_of_its_part(
    opened: Destination, db: MariaDB, row: RowEvent, words: str
) -> None:
    """And nothing of its part is written."""
    with pytest.raises(ConsumeError, match=words):
        opened.apply(part(7, insert("t", id=9), row))
    assert len(db.query("SELECT * FROM d.t")) == 0
    opened.apply(part(7, insert("t", id=9)))
    opened.close()
    assert opened.open() == part(7).resume


def test_consumer_ddl_that_failed_is_run_at_next_start(opened: Destination, db: MariaDB) -> None:
    ddl = DdlEvent(5, "d", "t", "ALTER TABLE t ADD COLUMN w INT, DROP COLUMN nosuch")
    with pytest.raises(ConsumeError, match=r"the DDL at commit_ts 5: .*nosuch.*; the statement: ALTER TABLE t ADD"):
        opened.apply(part(5, insert("t", id=1), ddl=ddl))
    opened.close()
    db.query("ALTER TABLE d.t ADD COLUMN nosuch INT")
    assert opened.open() == part(5).resume
    opened.apply(part(6, insert("t", id=2, w=2)))
    assert sorted(db.query("SELECT id, w FROM d.t")) == [(1, None), (2, 2)]


def test_consumer_creates_databases_with_tidbs_character_set(opened: Destination, db: MariaDB) -> None:
    opened.apply(part(5, ddl=DdlEvent(5, "new", "", "CREATE DATABASE new")))
    opened.apply(part(6, ddl=DdlEvent(6, "new", "t", "CREATE TABLE t (v VARCHAR(3))")))
    found = db.query("SELECT table_collation FROM information_schema.tables WHERE table_schema = 'new'")
    db.query("DROP DATABASE new")
    assert found == [("utf8mb4_bin",)]


def test_consumer_skips_ddl_of_temporary_tables(opened: Destination, db: MariaDB) -> None:
    for at, verb in enumerate(("CREATE", "DROP"), 5):
        columns = "(id INT) ON COMMIT DELETE ROWS" if verb == "CREATE" else ""
        opened.apply(part(at, ddl=DdlEvent(at, "d", "tmp", f"{verb} GLOBAL TEMPORARY TABLE tmp {columns}")))
    opened.apply(part(7, insert("t", id=1)))
    assert db.query("SELECT id FROM d.t") == [(1,)]


def fail_once(monkeypatch: pytest.MonkeyPatch, point: str, error: Exception) -> list[str]:
    """When a DDL is stored, and has run or not. Gives the points of a crash that were passed."""
    passed: list[str] = []

    def crash_point(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(name) == 1:
            raise error

    monkeypatch.setattr("drainer.sink.mysql.ddl.fingerprint.crash_point", crash_point)
    return passed


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("ALTER TABLE t DROP COLUMN v, NO SUCH WORDS", "NO SUCH WORDS"),
        ("CREATE TABLE t (other INT)", "already exists"),
        ("ALTER TABLE nowhere ADD COLUMN w INT", "doesn't exist"),
    ],
)
def test_consumer_refused_ddl_is_skipped_by_statement_it_names(
    opened: Destination, db: MariaDB, query: str, why: str
) -> None:
    """No start is past it by itself: it has not run, whatever the error says."""
    ddl = DdlEvent(5, "d", "t", query)
    with pytest.raises(ConsumeError, match="it is removed: ") as refused:
        opened.apply(part(5, ddl=ddl))
    opened.close()
    for _ in range(2):
        with pytest.raises(ConsumeError, match=why):
            opened.open()
        opened.close()
    db.query(str(refused.value).partition("it is removed: ")[2].partition(";")[0])
    assert opened.open() == part(5).resume
    opened.apply(part(6, insert("t", id=1, v="a")))
    assert list(db.query("SELECT id, v FROM d.t")) == [(1, "a")]


def test_consumer_ddl_runs_once_when_its_connection_is_lost(
    opened: Destination, db: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = fail_once(monkeypatch, "sink.ddl_after_exec", ConnectionLost("gone"))
    opened.apply(part(5, ddl=DdlEvent(5, "d", "t", "ALTER TABLE t ADD COLUMN w INT")))
    assert passed.count("sink.ddl_before_mark") == 1, "it had run"
    opened.apply(part(6, insert("t", id=1, w=2)))
    assert list(db.query("SELECT id, w FROM d.t")) == [(1, 2)]


@pytest.mark.parametrize("error", [ConnectionLost("gone"), KeyError("killed")])
@pytest.mark.parametrize("point", ["sink.ddl_before_mark", "sink.ddl_marked", "sink.ddl_after_exec"])
@pytest.mark.parametrize(
    ("query", "check", "found"),
    [
        ("ALTER TABLE t ADD INDEX (v)", "SHOW INDEX FROM d.t WHERE Column_name = 'v'", 1),
        ("CREATE INDEX i ON t (v)", "SHOW INDEX FROM d.t WHERE Column_name = 'v'", 1),
        (
            "ALTER TABLE t ADD CHECK (id > 0)",
            "SELECT 1 FROM information_schema.check_constraints WHERE constraint_schema='d'",
            1,
        ),
        ("RENAME TABLE t TO x, u TO t, x TO u", "SHOW COLUMNS FROM d.u", 3),
        ("RENAME TABLE t TO x, w TO t, x TO w", "SELECT * FROM d.w", 1),  # which look the same
        ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE q", "SELECT * FROM d.p", 1),
    ],
)
def test_consumer_ddl_interrupted_at_any_point_runs_once(
    opened: Destination,
    db: MariaDB,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    check: str,
    found: int,
    point: str,
    error: Exception,
) -> None:
    """Not the half of the times that it was interrupted, nor twice."""
    for statement in (
        "CREATE TABLE d.u (id INT PRIMARY KEY)",
        "CREATE TABLE d.w LIKE d.t",
        "INSERT INTO d.t VALUES (1, 1, 'a')",
        "CREATE TABLE d.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))",
        "CREATE TABLE d.q (id INT PRIMARY KEY)",
        "INSERT INTO d.q VALUES (1)",
    ):
        db.query(statement)
    passed = fail_once(monkeypatch, point, error)
    with contextlib.suppress(KeyError):
        opened.apply(part(5, ddl=DdlEvent(5, "d", "p" if "PARTITION" in query else "t", query)))
    opened.close()
    assert opened.open() == part(5).resume
    assert passed.count(point) >= 1
    assert len(db.query(check)) == found
    assert list(db.query("SELECT ddl FROM tidb_binlog.kafka_consumer WHERE name='test'")) == [(None,)]


def test_a_ddl_that_may_undo_itself_is_not_run_where_nothing_shows_whether_it_has_run(
    opened: Destination, db: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to read table ids."""
    db.query("CREATE TABLE d.w LIKE d.t")
    db.query("INSERT INTO d.t VALUES (1, 1, 'a')")
    monkeypatch.setattr(fingerprint, "_ids", lambda *_: None)
    fail_once(monkeypatch, "sink.ddl_after_exec", KeyError("killed"))
    with pytest.raises(KeyError):
        opened.apply(part(5, ddl=DdlEvent(5, "d", "t", "RENAME TABLE t TO x, w TO t, x TO w")))
    for _ in range(2):
        opened.close()
        with pytest.raises(ConsumeError, match=r"commit_ts 5: it was interrupted.*then UPDATE `tidb_binlog`.*RENAME"):
            opened.open()
    assert len(db.query("SELECT * FROM d.w")) == 1


def test_consumer_waits_for_running_ddl_of_killed_consumer(
    opened: Destination, db: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statement goes on in the server; until that has ended nothing says whether it ran."""
    fail_once(monkeypatch, "sink.ddl_marked", KeyError("killed"))
    with pytest.raises(KeyError):
        opened.apply(part(5, ddl=DdlEvent(5, "d", "t", "ALTER TABLE t ADD INDEX (v)")))
    opened.close()
    monkeypatch.setattr(fenced_session, "STATEMENT_WAIT_S", 0)
    with db.connect() as connection, connection.cursor() as cursor:
        name = fenced_session.lock_name("kafka_consumer", "test")
        cursor.execute(f"SELECT GET_LOCK('{name}', 0)")
        impatient = destination(db.port, "test", wait_s=0.0)
        with pytest.raises(DestinationDown, match="a DDL of a consumer of this name is still running"):
            impatient.open()
        impatient.close()
        cursor.execute("ALTER TABLE d.t ADD INDEX (v)")
    opened.open()
    assert len(db.query("SHOW INDEX FROM d.t WHERE Column_name = 'v'")) == 1


def test_second_consumer_of_one_name_is_refused(opened: Destination, db: MariaDB) -> None:
    other = destination(db.port, "test")
    other.open()
    opened.apply(part(1, insert("t", id=1)))
    with pytest.raises(ConsumeError, match="another consumer named test writes here, too"):
        other.apply(part(2, insert("t", id=2)))
    other.close()
    assert list(db.query("SELECT id FROM d.t")) == [(1,)]


def test_snapshot_of_consumed_tables_has_the_consumers_position_and_tells_of_a_ddl(
    opened: Destination, db: MariaDB
) -> None:
    before, at, later = (tso.compose(1_700_000_000_000 + ms, 0) for ms in (0, 1, 60_000))
    ddl = DdlEvent(at, "d", "t", "ALTER TABLE t ADD COLUMN w INT")
    reads, ran = {PLACE: Read(1, 1)}, frozenset({(at, 0, ddl.query, 0)})
    consumer = MySQLSection.model_validate({"port": db.port, "user": "lab", "password": "lab"})
    replayer = make(consumer, consumer_settings("test"))
    opened.apply(part(before, insert("t", id=1)))
    with contextlib.closing(replayer.snapshot(IDENTITY)) as there:
        assert (there.commit_ts, there.schema_moved(), there.job_done(6)) == (before, False, False)
        there.record([Verification(1, "d.t", before, before)], {1})
        opened.apply(Part((), ddl, Resume(at, reads, ran)))
        with pytest.raises(PositionMoved, match=f"kafka-consumer 'test': the DDL at {at} has not run, or not been"):
            there.schema_moved()
        opened.apply(Part((), None, Resume(later, reads, ran)))
        assert there.schema_moved()
    with contextlib.closing(replayer.snapshot(IDENTITY)) as there:
        assert (there.commit_ts, there.schema_moved()) == (later, False)
    assert db.query("SHOW TABLES FROM tidb_binlog") == [("kafka_consumer",)]
