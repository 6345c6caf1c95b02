"""Rows read from a real TiDB at a timestamp are those that its binlogs gave, each once. A desk test: skipped without
PEER_BIN, in CI too. Two or three minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import pymysql
import pytest
from binlog.cluster.pd import PDClient, ask_first, hold_gc
from binlog.errors import TimestampUnavailable
from binlog.runtime.config import load_or_exit

from drainer.apply.progress import LoadProgress
from drainer.config import PROGRAM
from drainer.ranges import load as ranges
from drainer.ranges.upstream import (
    ROWS_MAX,
    DefinitionChanged,
    Range,
    Snapshot,
    SnapshotGone,
    Source,
    UpstreamRefused,
    divide,
    open_snapshot,
)
from drainer.schema.state import Schema
from drainer.service import first_load, on_spark
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.integration.pump.rpc import Client, until
from tests.peer.cluster import Peer, PumpPlace, peer_bin, running_peer
from tests.peer.compare import AS_TEXT, differences, table_differences, tables
from tests.peer.load import DDLS, TABLES, prepare, running_load
from tests.peer.marks import desk_test
from tests.support.capture import CaptureSet
from tests.support.kafka import Broker
from tests.support.row_bags import Model, replay
from tests.support.servers import MariaDB, Server, python_module, wait_until

pytestmark = desk_test(900)

# Values of a key for each type, as literals.
KEYS = {
    "BIGINT": "-9223372036854775808, -1, 0, 7, 9223372036854775807",
    "BIGINT UNSIGNED": "0, 1, 9223372036854775808, 18446744073709551615",
    "DECIMAL(20,5)": "-1.5, 0, 0.00001, 999999999999999.99999",
    "FLOAT": "-1.1, 0, 0.1, 1024, 3.4e38",
    "DOUBLE": "-1.1, 0, 1e-300, 1e300",
    "DATE": "'0000-00-00', '2000-00-01', '2000-02-31', '2000-01-01', '9999-12-31'",
    "DATETIME(6)": "'0000-00-00', '2000-02-31 00:00:00', '2000-01-01 01:02:03.4', '9999-12-31 23:59:59.999999'",
    "TIMESTAMP(3)": "'0000-00-00', '1999-12-31 16:02:03.4', '2038-01-19 03:14:07.999'",
    "TIME(3)": "'-838:59:59', '-10:00:00.5', '00:00:00', '838:59:59'",
    "YEAR": "0, 1901, 2000, 2155",
    "ENUM('a','b','c')": "0, 'a', 'b', 'c'",
    "SET('a','b','c')": "'', 'a', 'a,c', 'b', 'a,b,c'",
    "BIT(40)": "0, 77, 1099511627775",
    "CHAR(10)": "'', 'Abc', 'new', '你好', 'it''s', 'back\\\\slash'",
    "VARCHAR(20)": "'', ' a', 'a', 'A', 'ä', x'ff', x'c328'",
    "VARCHAR(20) COLLATE utf8mb4_general_ci": "'', 'ABC', 'abd', 'ß', 'T'",
    "VARCHAR(20) COLLATE utf8mb4_unicode_ci": "'', 'ABC', 'abd', 'ß', 'T'",
    "VARCHAR(20) CHARACTER SET gbk": "'', '中文', '测试', 'a'",
    "VARCHAR(20) CHARACTER SET latin1": "'', 'a', 'é', 'z'",
    "BINARY(6)": "'', x'00ff', 'new'",
    "VARBINARY(20)": "'', x'00', x'0000', x'00ff', x'27', 'new'",
}
ODD = (
    "CREATE TABLE odd (id INT PRIMARY KEY AUTO_INCREMENT, e ENUM('', 'a'), s SET('x','y'), d DATE, dt DATETIME(3), "
    "ts TIMESTAMP(6) NULL, t TIME(6), y YEAR, f FLOAT, f73 FLOAT(7,3), v VARCHAR(20), ci VARCHAR(20) COLLATE "
    "utf8mb4_general_ci, g VARCHAR(20) CHARACTER SET gbk, l VARCHAR(20) CHARACTER SET latin1, tx MEDIUMTEXT, "
    "b64 BIT(64), b BINARY(4), j JSON, de DECIMAL(20,5), z INT(6) UNSIGNED ZEROFILL, s64 SET("
    + ",".join(f"'m{n}'" for n in range(64))
    + "), st INT AS (z + 1) STORED, vi INT AS (z + 2) VIRTUAL)"
)
VALUES: dict[str, Sequence[str]] = {
    "e": ("''", "0", "'a'"),
    "s": ("''", "'x,y'"),
    "d": ("'0000-00-00'", "'2020-00-00'", "'2021-02-30'"),
    "dt": ("'0000-00-00'", "'2021-02-30 01:02:03.004'"),
    "ts": ("'0000-00-00'", "'2038-01-19 03:14:07.999999'"),
    "t": ("'-838:59:59'", "'00:00:00.000001'", "'838:59:59'"),
    "y": ("0", "2155"),
    "f": ("0.1", "-0.0", "3.4028234663852886e38", "1.17549435e-38", "16777217", "123456.789"),
    "f73": ("1.1", "9999.999"),
    "v": ("''", "x'ff'", "x'61c328'", "'😀'", "'a '", "x'00'"),
    "ci": ("'Straße'",),
    "g": ("'中文'",),
    "l": ("'é'",),
    "tx": ("REPEAT('é', 70000)",),
    "b64": ("0", "18446744073709551615"),
    "b": ("'a'", "x'ff'"),
    "j": (
        "'-0.0'",
        "'[1, 1.0, 1e21, 18446744073709551615, 18446744073709551616, null, true]'",
        "'\"\\\\u003c\\\\u2028\"'",
        "JSON_ARRAY(CAST('2024-01-02 03:04:05.678' AS DATETIME(3)), CAST('12:34:56' AS TIME), CAST('a' AS BINARY(5)))",
        '\'{"b": {}, "a": []}\'',
    ),
    "de": ("-0.5", "999999999999999.99999"),
    "z": ("42",),
    "s64": ("18446744073709551615", "'m63'"),
}
OTHERS = (
    "CREATE TABLE prefixed (k VARCHAR(40), b BLOB, v INT, PRIMARY KEY (k(5), b(3)) CLUSTERED)",
    "INSERT INTO prefixed VALUES ('abcdefgh', x'010203', 1), ('abcdef', x'0102', 2), ('zzz', x'00', 3), ('zzz', '', 4)",
    "CREATE TABLE distribute (id BIGINT AUTO_RANDOM PRIMARY KEY, v INT)",
    "INSERT INTO distribute (v) VALUES (1), (2), (3), (4), (5)",
    "CREATE TABLE empty (a INT PRIMARY KEY)",
)


@dataclass
class Upstream:
    """A TiDB with tables, written to after `begin_ts`."""

    peer: Peer
    place: PumpPlace
    begin_ts: int = 0

    def run(self, *statements: str) -> None:
        with contextlib.closing(self.peer.connect(database="app")) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode='ALLOW_INVALID_DATES', tidb_skip_utf8_check=1")
            for statement in statements:
                cursor.execute(statement)

    async def binlogs(self, until_ts: int) -> list[bytes]:
        """What the pump has after `begin_ts`."""
        pd = PDClient([self.peer.pd_url])
        client = Client(self.place.addr, (await pd.locate()).cluster_id)
        try:

            async def resolved() -> bool:
                return int((await client.watermark()).resolved_ts) >= until_ts

            await until(resolved)
            messages = await client.pull_range(self.begin_ts, until_ts)
            return [bytes(payload) for message in messages for payload in message.payloads]
        finally:
            await client.close()
            await pd.close()

    def jobs(self) -> bytes:
        with urllib.request.urlopen(f"{self.peer.history_url}/ddl/history", timeout=60) as answer:
            found: bytes = answer.read()
            return found

    async def decoded(self, until_ts: int) -> tuple[Model, Schema]:
        """The rows that the binlogs up to `until_ts` leave."""
        recorded = Recorded("peer", self.jobs(), {"scenario_start_ts": self.begin_ts}, await self.binlogs(until_ts))
        return replay(cast(CaptureSet, recorded))

    def held(self) -> dict[str, int]:
        """The timestamps that PD keeps GC from passing, by the name of the service."""
        with urllib.request.urlopen(f"{self.peer.pd_url}/pd/api/v1/gc/safepoint", timeout=60) as answer:
            found = json.load(answer)["service_gc_safe_points"] or ()
        return {one["service_id"]: one["safe_point"] for one in found}

    def snapshot(self, ts: int, **other: Any) -> Snapshot:
        return open_snapshot(
            ServerConfig(**{"host": "127.0.0.1", "port": self.peer.tidb_port, "load_data": "off", **other}), ts
        )


@dataclass
class Recorded:
    """What row_bags.replay needs of a recording."""

    name: str
    jobs_text: bytes
    meta: dict[str, int]
    binlogs: list[bytes]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path_factory.mktemp("peer")) as peer:
        place = peer.place("pump")
        peer.our_pump(place)
        peer.start_tidb()
        made = Upstream(peer, place)
        made.begin_ts = asyncio.run(made.peer.now_ts())
        with contextlib.closing(peer.connect()) as connection:
            prepare(connection)
        # A TiKV's GC worker writes this row, and the TiKV in one process has none.
        made.run("REPLACE INTO mysql.tidb VALUES ('tikv_gc_safe_point', '20200101-00:00:00 +0000', '')")
        yield made


def sources(schema: Schema) -> Iterator[Source]:
    for table in schema.catalog.tables.values():
        if table.schema == "app" and table.current.has_rows:
            found = Source.of(schema.view(), table.current.id, table.schema)
            assert found is not None
            yield found


def rows_of(snapshot: Snapshot, source: Source, ranges: Sequence[Range]) -> Counter[tuple[object, ...]]:
    """Rows as the literals of a destination."""
    found: Counter[tuple[object, ...]] = Counter()
    for one in ranges:
        for columns in snapshot.read(source, one, block_bytes=1 << 10):
            types = source.codec.column_types
            literals = [SQL_TEXT.literals(of, column.to_pylist()) for of, column in zip(types, columns, strict=True)]
            found.update(zip(*literals, strict=True))
    return found


async def test_rows_read_at_a_timestamp_are_those_of_its_binlogs_each_once(upstream: Upstream) -> None:
    keys = [f"CREATE TABLE k{n} (k {kind}, v INT, PRIMARY KEY (k) CLUSTERED)" for n, kind in enumerate(KEYS)]
    keys += [f"CREATE TABLE c{n} (k {kind}, v INT, PRIMARY KEY (k, v) CLUSTERED)" for n, kind in enumerate(KEYS)]
    upstream.run(ODD, *keys, *(text for text in OTHERS if text.startswith("CREATE")))
    upstream.run(*(text for text in OTHERS if text.startswith("INSERT")))
    for n, values in enumerate(KEYS.values()):
        upstream.run(*(f"INSERT INTO k{n} VALUES ({value}, {v})" for v, value in enumerate(values.split(", "))))
        upstream.run(*(f"INSERT INTO c{n} VALUES ({one}, 1), ({one}, 2), ({one}, 3)" for one in values.split(", ")))
    for column, values in VALUES.items():
        upstream.run(*(f"INSERT INTO odd ({column}) VALUES ({value})" for value in (*values, "NULL")))
    with running_load(upstream.peer.connect) as running:
        wait_until(lambda: running.committed.total() > 300, what="transactions are written")
        ts = await upstream.peer.now_ts()
        wait_until(lambda: running.committed.total() > 600, what="more transactions are written")
    not_utf8 = ("DELETE FROM k14 WHERE v >= 5", "DELETE FROM c14 WHERE HEX(k) IN ('FF', 'C328')")
    upstream.run("DELETE FROM odd", *not_utf8)
    model, schema = await upstream.decoded(ts)
    snapshot = upstream.snapshot(ts)
    divided = 0
    for source in sources(schema):
        ranges = list(divide(source.table, source.key, snapshot.ask, 2))
        divided += len(ranges) > 2
        wanted = +model.bags.get(source.info.id, Counter())
        assert rows_of(snapshot, source, ranges) == wanted, source.table
        assert rows_of(snapshot, source, list(snapshot.divided(source))) == wanted, source.table
    assert divided > 2 * len(KEYS)
    snapshot.close()


async def test_definition_at_the_timestamp_is_read_after_it_has_changed(upstream: Upstream) -> None:
    upstream.run("CREATE TABLE changed (a INT PRIMARY KEY, b INT)", "INSERT INTO changed VALUES (1, 2)")
    before_ts = await upstream.peer.now_ts()
    _, schema = await upstream.decoded(before_ts)
    upstream.run("ALTER TABLE changed DROP COLUMN b")
    after_ts = await upstream.peer.now_ts()
    (source,) = [one for one in sources(schema) if one.info.name == "changed"]
    before, after = upstream.snapshot(before_ts), upstream.snapshot(after_ts)
    assert rows_of(before, source, [Range()]) == {(b"1", b"2"): 1}
    with pytest.raises(DefinitionChanged):
        rows_of(after, source, [Range()])
    upstream.run("DROP TABLE changed")
    assert rows_of(before, source, [Range()]) == {(b"1", b"2"): 1}
    with pytest.raises(DefinitionChanged):
        rows_of(upstream.snapshot(await upstream.peer.now_ts()), source, [Range()])


@contextlib.contextmanager
def gc_passed(upstream: Upstream) -> Iterator[None]:
    """GC has passed everything that is there now."""
    later = time.strftime("%Y%m%d-%H:%M:%S +0000", time.gmtime(time.time() + 60))
    set_to = "REPLACE INTO mysql.tidb VALUES ('tikv_gc_safe_point', '{}', '')"
    upstream.run(set_to.format(later))
    try:
        yield
    finally:
        upstream.run(set_to.format("20200101-00:00:00 +0000"))


async def test_timestamp_that_gc_has_passed_is_gone(upstream: Upstream) -> None:
    ts = await upstream.peer.now_ts()
    upstream.snapshot(ts).close()
    with gc_passed(upstream), pytest.raises(SnapshotGone, match="tidb_gc_life_time"):
        upstream.snapshot(ts)


async def test_account_needs_select_alone(upstream: Upstream) -> None:
    upstream.run("CREATE USER reader", "GRANT SELECT ON app.* TO reader")
    ts = await upstream.peer.now_ts()
    _, schema = await upstream.decoded(ts)
    snapshot = upstream.snapshot(ts, user="reader")
    for source in sources(schema):
        (one, *_) = snapshot.divided(source)
        assert sum(len(columns[0]) for columns in snapshot.read(source, one)) <= ROWS_MAX
    upstream.run("CREATE USER nobody")
    with pytest.raises(UpstreamRefused):
        list(upstream.snapshot(ts, user="nobody").divided(source))


async def test_gc_is_held_until_it_is_released_or_has_passed(upstream: Upstream) -> None:
    leader = await ask_first([upstream.peer.pd_url])
    held_ts = await upstream.peer.now_ts()
    await hold_gc(leader, "a", held_ts, 600)
    assert upstream.held()["a"] == held_ts
    await hold_gc(leader, "a", held_ts, 0)
    assert "a" not in upstream.held()
    await hold_gc(leader, "gc_worker", await upstream.peer.now_ts(), (1 << 63) - 1)  # as TiDB does before it collects
    with pytest.raises(TimestampUnavailable, match=f"GC may have passed {held_ts}"):
        await hold_gc(leader, "a", held_ts, 600)
    assert "a" not in upstream.held()


# Between two transactions of each connection of a load. Without it the load takes the CPU that the program beside it
# waits for, and both go on for longer.
PAUSE_S = 0.05
POINTS = ("sink.ddl_after_exec:3", "load.divided:3", "load.range:3", "sink.after_commit:5")


def test_first_load_killed_on_the_way_is_completed_and_the_stream_continues(
    upstream: Upstream, mariadb: MariaDB
) -> None:
    """Tables change while they are read as they were. The last life of the load has tasks of Spark."""
    peer = upstream.peer
    section = f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\nfirst-load = true\n'

    def load(point: str) -> Server:
        return peer.our_drainer(mariadb, name="loaded", more=section, command=("load",), point=point)

    def position() -> int:
        return int(mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position")[0][0])

    upstream.run("CREATE DATABASE latin COLLATE latin1_bin")
    assert load(POINTS[0]).wait() == -signal.SIGKILL
    begun_ts = position()
    with running_load(peer.connect, pause_s=PAUSE_S) as running:
        for number, point in enumerate(POINTS[1:]):
            running.define(DDLS[number * 14 :][:14])
            killed = load(point)
            assert killed.wait() == -signal.SIGKILL, killed.tail()
            assert upstream.held()["drainer-load-loaded"] == begun_ts
    with contextlib.closing(peer.connect(database="app")) as connection, connection.cursor() as late:
        late.execute("BEGIN")
        late.execute("REPLACE INTO pair VALUES ('late', 1, 1)")
        upstream.run("ALTER TABLE parts TRUNCATE PARTITION p1, p3")
        late.execute("REPLACE INTO parts VALUES (233, 829)")  # a row of the version before the DDL, that stays
        late.execute("COMMIT")
    assert position() == begun_ts
    file = peer.directory / "loaded"
    of = f"-node-id=loaded -pd-urls={peer.pd_url} -data-dir={file} -config={file}.toml"
    distribute = mock.Mock(wraps=on_spark.distribute)
    with (
        mock.patch.multiple(ranges, DISTRIBUTED_RANGES=2, PART_RANGES=2),
        mock.patch.object(first_load, "distribute", distribute),
    ):
        assert asyncio.run(first_load.load(load_or_exit(PROGRAM, of.split()), asyncio.Event(), LoadProgress()))
    assert len(distribute.call_args.args[-1]) > 1, "tasks"
    drainer = peer.our_drainer(mariadb, "-until-now", name="loaded", more=section)
    assert drainer.wait(deadline_s=400) == 0, drainer.tail()
    assert "drainer-load-loaded" not in upstream.held()
    named = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'latin'"
    assert mariadb.query(named) == [("latin1_bin",)]
    found, downstream = peer.connect(**AS_TEXT), mariadb.connect(**AS_TEXT)
    with contextlib.closing(found), contextlib.closing(downstream):
        assert list(differences(found, downstream)) == []


def test_first_load_into_kafka_and_the_stream_behind_it_make_upstreams_tables(
    upstream: Upstream, mariadb: MariaDB, kafka: Broker
) -> None:
    """Tables change while they are loaded as they were, by three lives; a consumer makes tables of the topic."""
    peer, topic = upstream.peer, kafka.topic(3)
    section = f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\nfirst-load = true\n'
    names = [text.split()[2] for text in TABLES if "JSON" not in text]  # not all of it is the same as text
    chosen = "".join(f'[[syncer.replicate-do-table]]\ndb-name = "app"\ntbl-name = "{name}"\n' for name in names)
    to = (
        f'db-type = "kafka"\n{chosen}[syncer.to]\naddresses = ["{kafka.address}"]\n'
        f'topic = "{topic}"\n[[syncer.to.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'
    )
    for point in ("kafka.ddl_sent:3", "load.range:3", "sink.after_commit:3"):
        killed = peer.our_drainer(to, name="topics", more=section, command=("load",), point=point)
        assert killed.wait(deadline_s=240) == -signal.SIGKILL, killed.tail()
        with running_load(peer.connect) as running:
            wait_until(lambda: running.committed.total() > 100, what="transactions are written")
    drainer = peer.our_drainer(to, "-until-now", name="topics", more=section)
    assert drainer.wait(deadline_s=400) == 0, drainer.tail()
    server = f"mariadb://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}"
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    consumer = python_module(
        "drainer.kafka_consumer", uri, "-to", server, "-once", output=peer.directory / "consumer.out"
    )
    assert consumer.start().wait(deadline_s=300) == 0, consumer.tail()
    found, downstream = peer.connect(**AS_TEXT), mariadb.connect(**AS_TEXT)
    with contextlib.closing(found), contextlib.closing(downstream):
        assert tables(downstream, "app") == set(names)
        for name in names:
            assert list(table_differences(found, downstream, "app", name)) == []


CHANGED = [name for name in VALUES if name != "s64"]


def create_checked(upstream: Upstream) -> None:
    """A table with values of each type that MariaDB takes."""
    upstream.run("DROP TABLE IF EXISTS checked", ODD.replace("TABLE odd", "TABLE checked"))
    for column, values in VALUES.items():
        text = (value for value in values if column != "v" or not value.startswith("x"))  # MariaDB has UTF-8 alone
        upstream.run(*(f"INSERT INTO checked ({column}) VALUES ({value})" for value in text))


def spoil_rows(mariadb: MariaDB, database: str) -> None:
    """Change a value of each type, delete a row, and add one."""
    connection = mariadb.connect(database=database, autocommit=True)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for column in CHANGED:
            cursor.execute(f"UPDATE checked SET {column} = NULL WHERE {column} IS NOT NULL ORDER BY id LIMIT 1")
            assert cursor.rowcount == 1, column
        cursor.execute("DELETE FROM checked ORDER BY id DESC LIMIT 1")
        cursor.execute("INSERT INTO checked (id, v) VALUES (1000000, 'surplus')")


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "simple"])
def test_tables_that_a_consumer_makes_of_a_topic_are_compared_beside_the_stream(
    upstream: Upstream, mariadb: MariaDB, kafka: Broker, protocol: str
) -> None:
    """Under other names, while transactions and DDLs run."""
    peer, topic, extension = upstream.peer, kafka.topic(3), protocol == "canal-json"
    section = f'changefeed = "{topic}"\n[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\nfirst-load = true\n'
    create_checked(upstream)
    names = ["checked", *(text.split()[2] for text in TABLES)]
    chosen = "".join(
        f'[[syncer.replicate-do-table]]\ndb-name = "app"\ntbl-name = "{name}"\n' for name in (*names, "moved")
    )
    to = (
        f'db-type = "kafka"\n{chosen}[[syncer.routes]]\nschema-pattern = "app"\ntarget-schema = "copy"\n'
        f'[syncer.to]\naddresses = ["{kafka.address}"]\ntopic = "{topic}"\nprotocol = "{protocol}"\n'
        f"enable-tidb-extension = {str(extension).lower()}\n"
        '[[syncer.to.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'
    )
    server = f"mariadb://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}"
    uri = f"kafka://{kafka.address}/{topic}?protocol={protocol}{'&enable-tidb-extension=true' * extension}"
    named = f"{server}?name={protocol}"

    def check(*arguments: str) -> tuple[int, str]:
        ran = peer.our_drainer(to, f"-consumer={named}", *arguments, name=topic, more=section, command=("check",))
        return ran.wait(deadline_s=300), ran.text()

    drainer = peer.our_drainer(to, name=topic, more=section)
    consumer = python_module(
        "drainer.kafka_consumer", uri, "-to", named, output=peer.directory / f"{topic}.consumer"
    ).start()
    peer.servers.append(consumer)
    loaded = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'copy' AND TABLE_NAME = 'checked'"
    wait_until(lambda: mariadb.query(loaded) == [(1,)], deadline_s=400, what="the tables are there")
    with running_load(peer.connect, pause_s=PAUSE_S) as running:
        running.define(DDLS[:7])
        wait_until(lambda: running.committed.total() > 300, what="transactions are written")
        code, text = check()
        assert (code, text.count(": equal (")) == (0, len(names)), text + consumer.tail()
        spoil_rows(mariadb, "copy")
        code, text = check("-json", "-table=copy.*")
        found = {one["table"]: one for one in json.loads(text[text.rindex("[\n  {") :])}
        assert (code, [name for name, one in found.items() if not one["equal"]]) == (3, ["copy.checked"])
        rows = found["copy.checked"]["differences"]
        changed = [row for row in rows if row["upstream"] and row["destination"]]
        assert sorted(name for row in changed for name in row["upstream"]) == sorted(CHANGED)
        assert len(rows) == len(CHANGED) + 2
        assert [row["destination"]["v"] for row in rows if row["upstream"] is None] == ["'surplus'"]
    assert drainer.stop() == 0, drainer.tail()
    assert consumer.stop() == 0, consumer.tail()


BEYOND_A_MESSAGE = 30_000


FOREIGN_KEYS = (
    "CREATE TABLE parent (id INT PRIMARY KEY)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE)",
    "INSERT INTO parent VALUES (1), (2)",
    "INSERT INTO child VALUES (1, 1)",
)


def write_undone_rows(upstream: Upstream) -> None:
    """What TiDB puts into its binlogs wrongly: the rows of a cascade that it has undone (docs/compatibility.md)."""
    with contextlib.closing(upstream.peer.connect(database="app")) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN PESSIMISTIC")
        with pytest.raises(pymysql.err.IntegrityError):
            cursor.execute("UPDATE parent SET id = 2 WHERE id = 1")
        cursor.execute("INSERT INTO child VALUES (5, 2)")
        cursor.execute("COMMIT")


def test_check_beside_the_stream_names_what_differs_and_repair_mends_it(upstream: Upstream, mariadb: MariaDB) -> None:
    """A value of each type is changed at the destination, a row deleted and one added, while transactions run."""
    peer = upstream.peer
    section = f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\nfirst-load = true\n'
    every = ["bag", "checked", "parent", "child", *(text.split()[2] for text in TABLES)]

    def check(*arguments: str, tables: Sequence[str] = every) -> tuple[int, dict[str, Any]]:
        chosen = [f"-table=app.{table}" for table in tables]
        ran = peer.our_drainer(mariadb, "-json", *chosen, *arguments, name="checked", more=section, command=("check",))
        code = ran.wait(deadline_s=300)
        text = ran.text()
        assert "[\n  {" in text, text
        return code, {one["table"]: one for one in json.loads(text[text.rindex("[\n  {") :])}

    def verified(what: str, where: str = "TRUE") -> list[Any]:
        return mariadb.query(f"SELECT {what} FROM tidb_binlog.drainer_check WHERE {where} ORDER BY table_name")

    upstream.run(
        "CREATE TABLE IF NOT EXISTS bag (a INT, b VARCHAR(20))", "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)"
    )
    create_checked(upstream)
    upstream.run(*FOREIGN_KEYS)
    drainer = peer.our_drainer(mariadb, name="checked", more=f'{section}check-interval = "1h"\n')
    drainer.wait_for_output("drainer is running", deadline_s=480)
    wait_until(lambda: (0,) in verified("MIN(verified_ts < checked_ts)"), what="all tables are verified")
    with running_load(peer.connect, pause_s=PAUSE_S) as running:
        wait_until(lambda: running.committed.total() > 300, what="transactions are written")
        running.define(DDLS[:7])
        code, found = check("-executors")
        assert (code, [one for one in found.values() if not one["equal"]]) == (0, [])
        assert found.keys() == {f"app.{table}" for table in every}
        spoil_rows(mariadb, "app")
        mariadb.query("DELETE FROM app.bag LIMIT 1")
        mariadb.query("INSERT INTO app.bag VALUES (3, 'surplus')")
        with contextlib.closing(peer.connect(port=peer.start_tidb_without_binlog(), database="app")) as unseen:
            unseen.query("INSERT INTO checked (id, v) VALUES (2000000, 'no binlog')")
        write_undone_rows(upstream)
        wait_until(lambda: mariadb.query("SELECT id FROM app.child WHERE id = 5") == [(5,)], what="they are applied")
        code, found = check(tables=["checked", "bag", "parent", "child"])
        assert code == 3
        differing = [("app.bag",), ("app.checked",), ("app.child",), ("app.parent",)]
        assert verified("table_name", "verified_ts < checked_ts") == differing
        undone = [*found["app.parent"]["differences"], *found["app.child"]["differences"]]
        assert [(row["upstream"], row["destination"]) for row in undone] == [
            ({"id": "1"}, None),
            ({"p": "1"}, {"p": "2"}),
        ]
        rows = found["app.checked"]["differences"]
        changed = [row for row in rows if row["upstream"] and row["destination"]]
        assert sorted(name for row in changed for name in row["upstream"]) == sorted(CHANGED)
        assert len(rows) == len(CHANGED) + 3
        assert {"2000000", "1000000"} <= {row["key"].get("id") for row in rows}
        assert [row["destination"]["v"] for row in rows if row["upstream"] is None] == ["'surplus'"]
        assert sorted(len(one or ()) for row in found["app.bag"]["differences"] for one in row.values()) == [
            0,
            0,
            0,
            0,
            2,
            2,
        ]
        code, found = check("-repair")
        assert (code, [one for one in found.values() if not one["equal"]]) == (0, [])
        assert {name: len(one["repaired"]) for name, one in found.items() if one["repaired"]} == {
            "app.checked": len(rows),
            "app.bag": 2,
            "app.child": 1,
            "app.parent": 1,
        }
        assert verified("table_name", "differences") == []
    assert drainer.stop() == 0, drainer.tail()
