"""A mixed load for a TiDB: rows of many shapes from several connections while DDL changes the tables under them.

What a statement runs into because of the others (write conflicts, duplicates, a table renamed a moment ago) is counted
and otherwise ignored: the test is whether the destination ends up equal to TiDB, whatever TiDB took.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pymysql

Cursor = Any
Work = Callable[[Cursor, random.Random], None]
Connect = Callable[..., Any]

TABLES = (
    """CREATE TABLE types (id BIGINT AUTO_INCREMENT PRIMARY KEY, ti TINYINT, tu TINYINT UNSIGNED, si SMALLINT,
       mi MEDIUMINT UNSIGNED, i INT, bu BIGINT UNSIGNED, f FLOAT, d DOUBLE, de DECIMAL(30,10), dt DATETIME(6),
       ts TIMESTAMP(3) NULL, da DATE, tm TIME(2), y YEAR, c CHAR(10), vc VARCHAR(200), bi BINARY(8), vb VARBINARY(50),
       tx TEXT, bl BLOB, e ENUM('a','b','ü'), s SET('x','y','z'), b BIT(11), j JSON,
       g INT AS (i + 1) STORED, gv INT AS (i + 2) VIRTUAL)""",
    "CREATE TABLE uniq (id INT PRIMARY KEY, u INT NOT NULL UNIQUE, n INT UNIQUE, v VARCHAR(40))",
    "CREATE TABLE bare (a INT, s VARCHAR(30), f DOUBLE, x DATETIME)",
    "CREATE TABLE pair (a VARCHAR(20), b INT, v INT, PRIMARY KEY (a, b) CLUSTERED)",
    "CREATE TABLE loose (a DECIMAL(10,2), b DATE, v INT, PRIMARY KEY (a, b) NONCLUSTERED, KEY (v))",
    "CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 4",
    """CREATE TABLE ranges (id INT, v INT, PRIMARY KEY (id) CLUSTERED) PARTITION BY RANGE (id)
       (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200),
        PARTITION p2 VALUES LESS THAN MAXVALUE)""",
    "CREATE TABLE account (id INT PRIMARY KEY, money BIGINT NOT NULL)",
    "CREATE TABLE ledger (id BIGINT AUTO_INCREMENT, src INT, dst INT, amount INT, KEY (src), KEY (id))",
    "CREATE TABLE moving (id INT PRIMARY KEY, v INT, w VARCHAR(20) DEFAULT 'w')",
    "CREATE TABLE other (id INT PRIMARY KEY, v INT, w VARCHAR(20) DEFAULT 'o')",
    "CREATE TABLE wide (id INT PRIMARY KEY, k INT NOT NULL, v VARCHAR(20))",
)

WORDS = ("", "a", "A", "ä", "naïve", "straße", "日本", "🙂", "it's", 'qu"ote', "back\\slash", "tab\tnl\n", "x" * 150)


def prepare(connection: Any, schema: str = "app") -> None:
    """The tables and the accounts, whose sum no transaction changes."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{schema}`")
        cursor.execute(f"USE `{schema}`")
        for table in TABLES:
            cursor.execute(table)
        cursor.execute("INSERT INTO account VALUES " + ", ".join(f"({n}, 1000)" for n in range(20)))


def types(cursor: Cursor, rng: random.Random) -> None:
    choice = rng.random()
    if choice < 0.6:
        cursor.execute(
            "INSERT INTO types (ti,tu,si,mi,i,bu,f,d,de,dt,ts,da,tm,y,c,vc,bi,vb,tx,bl,e,s,b,j) VALUES "
            "(%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)",
            _values(rng),
        )
    elif choice < 0.9:
        cursor.execute(
            "UPDATE types SET vc = %s, d = %s, de = de + 1, b = %s, j = %s, i = %s, ts = NULL, bl = %s "
            "ORDER BY id DESC LIMIT %s",
            (rng.choice(WORDS), rng.uniform(-9, 9), rng.randrange(2048), _json(rng), rng.randrange(1 << 20),
             rng.randbytes(20), rng.randint(1, 3)),
        )  # fmt: skip
    else:
        cursor.execute("DELETE FROM types ORDER BY id LIMIT %s", (rng.randint(1, 3),))


def _values(rng: random.Random) -> tuple[Any, ...]:
    values = (
        rng.randint(-128, 127), rng.randint(0, 255), rng.randint(-32768, 32767), rng.randint(0, 1 << 23),
        rng.randint(-(1 << 30), 1 << 30), rng.randint(0, (1 << 64) - 1), rng.randint(-1000, 1000) / 8,
        rng.uniform(-1e12, 1e12), f"{rng.randint(-10**18, 10**18)}.{rng.randint(0, 10**9)}",
        f"2024-02-{rng.randint(1, 28):02} 12:34:56.{rng.randint(0, 999999):06}",
        f"2023-07-{rng.randint(1, 28):02} 01:02:03.{rng.randint(0, 999):03}", f"19{rng.randint(10, 99)}-12-31",
        f"{rng.randint(-800, 800)}:59:{rng.randint(10, 59)}.25", rng.randint(1901, 2155), rng.choice(("", "Ab", "ö")),
        rng.choice(WORDS), rng.randbytes(rng.randint(0, 8)), rng.randbytes(rng.randint(0, 50)), rng.choice(WORDS) * 3,
        rng.randbytes(rng.randint(0, 300)), rng.choice(("a", "b", "ü")), rng.choice(("", "x", "x,z", "x,y,z")),
        rng.randrange(2048), _json(rng),
    )  # fmt: skip
    return tuple(None if rng.random() < 0.05 else value for value in values)


def _json(rng: random.Random) -> str:
    return f'{{"k": {rng.randint(-5, 5)}, "list": [1, "zwei", null, true], "n": {{"é": "{rng.choice("abc")}"}}}}'


def uniq(cursor: Cursor, rng: random.Random) -> None:
    choice, number = rng.random(), rng.randrange(400)
    if choice < 0.4:
        cursor.execute(
            "INSERT INTO uniq VALUES (%s,%s,%s,%s)",
            (number, rng.randrange(400), rng.choice((None, rng.randrange(400))), rng.choice(WORDS[:8])),
        )
    elif choice < 0.6:
        cursor.execute("SELECT id, u FROM uniq WHERE id >= %s ORDER BY id LIMIT 2", (number,))
        found = cursor.fetchall()
        if len(found) == 2:
            (first, u_first), (second, u_second) = found
            cursor.execute("UPDATE uniq SET u = %s WHERE id = %s", (-rng.randrange(1, 1 << 30), first))
            cursor.execute("UPDATE uniq SET u = %s WHERE id = %s", (u_first, second))
            cursor.execute("UPDATE uniq SET u = %s WHERE id = %s", (u_second, first))
    elif choice < 0.7:
        cursor.execute("UPDATE uniq SET id = id + 1000, n = NULL WHERE id = %s", (number,))
    elif choice < 0.85:
        cursor.execute("REPLACE INTO uniq VALUES (%s,%s,%s,'r')", (number, rng.randrange(400), rng.randrange(400)))
    else:
        cursor.execute("DELETE FROM uniq WHERE id %% 400 = %s", (number,))


def bare(cursor: Cursor, rng: random.Random) -> None:
    a, choice = rng.randrange(15), rng.random()
    if choice < 0.6:
        cursor.execute(
            "INSERT INTO bare VALUES (%s,%s,%s,%s)",
            (rng.choice((None, a)), rng.choice(WORDS[:7]), rng.choice((None, 0.1, 1e-7, 3.0)), "2024-01-01"),
        )
    elif choice < 0.8:
        cursor.execute("UPDATE bare SET s = %s WHERE a = %s LIMIT 2", (rng.choice(WORDS[:7]), a))
    else:
        cursor.execute("DELETE FROM bare WHERE a = %s OR a IS NULL LIMIT 2", (a,))


def keyed(cursor: Cursor, rng: random.Random) -> None:
    a, b = rng.choice(WORDS[:10]), rng.randrange(30)
    cursor.execute("INSERT INTO pair VALUES (%s,%s,1) ON DUPLICATE KEY UPDATE v = v + 1", (a, b))
    cursor.execute("REPLACE INTO loose VALUES (%s,%s,%s)", (b / 4, f"2024-01-{b + 1:02}", rng.randrange(99)))
    if rng.random() < 0.3:
        cursor.execute("UPDATE pair SET b = b + 100 WHERE b = %s AND a = %s", (b, a))
        cursor.execute("DELETE FROM loose WHERE v < %s LIMIT 3", (rng.randrange(30),))
    if rng.random() < 0.1:
        cursor.execute("DELETE FROM pair WHERE b > 99")


def partitioned(cursor: Cursor, rng: random.Random) -> None:
    number = rng.randrange(300)
    cursor.execute("REPLACE INTO parts VALUES (%s,%s)", (number, rng.randrange(1000)))
    cursor.execute("INSERT INTO ranges VALUES (%s,1) ON DUPLICATE KEY UPDATE v = v + 1", (number,))
    if rng.random() < 0.3:
        cursor.execute("DELETE FROM parts WHERE id = %s", (rng.randrange(300),))
        cursor.execute("UPDATE ranges SET v = v * 2 %% 1000 WHERE id BETWEEN %s AND %s", (number, number + 3))


def transfer(cursor: Cursor, rng: random.Random) -> None:
    src, dst = rng.sample(range(20), 2)
    amount = rng.randint(1, 50)
    cursor.execute("UPDATE account SET money = money - %s WHERE id = %s", (amount, src))
    cursor.execute("UPDATE account SET money = money + %s WHERE id = %s", (amount, dst))
    cursor.execute("INSERT INTO ledger (src, dst, amount) VALUES (%s,%s,%s)", (src, dst, amount))
    if rng.random() < 0.1:
        cursor.execute("DELETE FROM ledger ORDER BY id LIMIT 5")


def moving(cursor: Cursor, rng: random.Random) -> None:
    """Into tables that DDL renames, truncates and alters at the same time."""
    table, number = rng.choice(("moving", "other", "wide")), rng.randrange(500)
    choice = rng.random()
    if choice < 0.5 and table == "wide":
        cursor.execute("INSERT INTO wide (id, k, v) VALUES (%s,%s,'i')", (number, rng.randrange(1 << 30)))
    elif choice < 0.5:
        cursor.execute(f"REPLACE INTO {table} (id, v) VALUES (%s,%s)", (number, rng.randrange(100)))
    elif choice < 0.85:
        column = rng.choice(("v", "v", "v", "second", "third", "extra"))  # those that come and go: 1054 while away
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id %% 50 = %s", (rng.randrange(100), number % 50))
    else:
        cursor.execute(f"DELETE FROM {table} WHERE id %% 100 = %s", (number % 100,))


WORKS: Sequence[Work] = (types, uniq, bare, keyed, partitioned, transfer, moving)

# Each list leaves what it needs where it found it, so that it can run any number of times.
DDLS: Sequence[str] = (
    "ALTER TABLE moving ADD COLUMN extra INT NOT NULL DEFAULT 7",
    "CREATE UNIQUE INDEX wide_k ON wide (k)",
    "RENAME TABLE moving TO moved",
    "RENAME TABLE moved TO moving",
    "ALTER TABLE moving DROP COLUMN extra",
    "ALTER TABLE wide ADD COLUMN added DATETIME DEFAULT '2020-01-01 00:00:00' AFTER id",
    "ALTER TABLE wide ADD INDEX added_i (added), ADD COLUMN second INT DEFAULT 2",
    "ALTER TABLE wide ADD COLUMN third VARCHAR(9) DEFAULT '3', DROP COLUMN second",
    "ALTER TABLE wide DROP COLUMN third, ADD COLUMN second INT NOT NULL DEFAULT 22",
    "DROP INDEX wide_k ON wide",
    "ALTER TABLE other MODIFY COLUMN v BIGINT",
    "TRUNCATE TABLE other",
    "RENAME TABLE moving TO third, other TO moving, third TO other",
    "ALTER TABLE wide DROP INDEX added_i",
    "ALTER TABLE wide DROP COLUMN added, DROP COLUMN second",
    "CREATE TABLE made (a INT PRIMARY KEY, b VARCHAR(10)) AUTO_INCREMENT = 5",
    "INSERT INTO made VALUES (1, 'x'), (2, 'y')",
    "ALTER TABLE moving CHANGE COLUMN w w2 VARCHAR(30) DEFAULT 'changed'",
    "ALTER TABLE moving CHANGE COLUMN w2 w VARCHAR(20) DEFAULT 'back'",
    "ALTER TABLE types ADD COLUMN late VARCHAR(10) DEFAULT 'läte' FIRST",
    "UPDATE made SET b = 'z' WHERE a = 1",
    "ALTER TABLE ranges TRUNCATE PARTITION p0",
    "ALTER TABLE parts TRUNCATE PARTITION p1, p3",
    "ALTER TABLE ranges REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (150), "
    "PARTITION more VALUES LESS THAN (200))",
    "ALTER TABLE ranges DROP PARTITION p1",
    "ALTER TABLE ranges REORGANIZE PARTITION more INTO (PARTITION p1 VALUES LESS THAN (200))",  # as it began
    "ALTER TABLE ranges ADD INDEX by_v (v)",
    "ALTER TABLE ranges DROP INDEX by_v",
    "DROP TABLE made",
    "ALTER TABLE types DROP COLUMN late",
    "CREATE TABLE bare_copy LIKE bare",
    "INSERT INTO bare_copy SELECT * FROM bare LIMIT 20",
    "DROP TABLE bare_copy",
    "ALTER TABLE uniq ADD COLUMN extra INT DEFAULT 3, ADD COLUMN more VARCHAR(5) DEFAULT 'm'",
    "ALTER TABLE uniq DROP COLUMN extra, DROP COLUMN more",
    "CREATE DATABASE passing",
    "CREATE TABLE passing.t (id INT PRIMARY KEY)",
    "INSERT INTO passing.t VALUES (1), (2)",
    "DROP DATABASE passing",
    "ALTER TABLE pair ADD INDEX by_v (v)",
    "ALTER TABLE pair DROP INDEX by_v",
)  # fmt: skip

# The original drainer loses values, or stops, where a column comes or goes while rows are written: there the
# columns change only in tables that nobody writes to.
CALM_DDLS: Sequence[str] = (
    "CREATE UNIQUE INDEX wide_k ON wide (k)",
    "CREATE TABLE made (a INT PRIMARY KEY, b VARCHAR(10)) AUTO_INCREMENT = 5",
    "INSERT INTO made VALUES (1, 'x'), (2, 'y')",
    "ALTER TABLE made ADD COLUMN c DATETIME DEFAULT '2020-01-01 00:00:00' AFTER a",
    "UPDATE made SET b = 'z' WHERE a = 1",
    "RENAME TABLE moving TO moved",
    "RENAME TABLE moved TO moving",
    "DROP INDEX wide_k ON wide",
    "ALTER TABLE made DROP COLUMN b",
    "INSERT INTO made (a) VALUES (7)",
    "TRUNCATE TABLE other",
    "CREATE TABLE bare_copy LIKE bare",
    "INSERT INTO bare_copy SELECT * FROM bare LIMIT 20",
    "ALTER TABLE bare_copy ADD COLUMN more INT DEFAULT 4",
    "DELETE FROM bare_copy LIMIT 3",
    "DROP TABLE bare_copy",
    "ALTER TABLE pair ADD INDEX by_v (v)",
    "ALTER TABLE pair DROP INDEX by_v",
    "DROP TABLE made",
    "CREATE DATABASE passing",
    "CREATE TABLE passing.t (id INT PRIMARY KEY)",
    "INSERT INTO passing.t VALUES (1), (2)",
    "DROP DATABASE passing",
)


class Load:
    """Threads on connections of their own until `stop`. `committed` and `refused` count by what was tried."""

    def __init__(self, connect: Connect, *, works: Sequence[Work] = WORKS, seed: int = 1, pause_s: float = 0.0) -> None:
        self._connect = connect
        self._stop = threading.Event()
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self.committed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failed_ddls: list[str] = []
        self._threads = [
            threading.Thread(target=self._write, args=(work, seed * 1000 + number), daemon=True)
            for number, work in enumerate(works)
        ]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def define(self, ddls: Sequence[str] = DDLS, *, pause_s: float = 0.05) -> None:
        """One after the other on the caller's thread."""
        connection = self._connect(database="app")
        with contextlib.closing(connection), connection.cursor() as cursor:
            for ddl in ddls:
                self._attempt("ddl", partial(cursor.execute, ddl))
                time.sleep(pause_s)

    def _write(self, work: Work, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            try:
                connection = self._connect(database="app", autocommit=False)
                with contextlib.closing(connection):
                    self._write_with(connection, work, rng)
            except pymysql.err.Error as error:
                self._note(work.__name__, error)
                time.sleep(0.2)

    def _write_with(self, connection: Any, work: Work, rng: random.Random) -> None:
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                cursor.execute(rng.choice(("BEGIN PESSIMISTIC", "BEGIN OPTIMISTIC")))
                if not self._attempt(work.__name__, lambda: self._transaction(connection, cursor, work, rng)):
                    connection.rollback()
                time.sleep(self._pause_s)

    @staticmethod
    def _transaction(connection: Any, cursor: Cursor, work: Work, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            work(cursor, rng)
        if rng.random() < 0.05:
            connection.rollback()
        else:
            connection.commit()

    def _attempt(self, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except pymysql.err.Error as error:
            self._note(what, error)
            if isinstance(error, pymysql.err.InterfaceError) or error.args[0] in (2006, 2013):
                raise
            return False
        with self._lock:
            self.committed[what] += 1
        return True

    def _note(self, what: str, error: pymysql.err.Error) -> None:
        with self._lock:
            self.refused[f"{what} {error.args[0] if error.args else '?'}"] += 1
            if what == "ddl":
                self.failed_ddls.append(str(error))


@contextlib.contextmanager
def running_load(connect: Connect, **options: Any) -> Iterator[Load]:
    load = Load(connect, **options).start()
    try:
        yield load
    finally:
        load.stop()
