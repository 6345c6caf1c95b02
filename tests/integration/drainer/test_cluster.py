"""The drainer on a Spark cluster whose nodes see nothing of the driver's files, and die in the middle.

One etcd, two pumps, one MariaDB and one master for the whole module. What stands downstream in the end, and what
triggers counted, must be as if nothing had happened (rules 15, 16, 22).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pymysql
import pytest

from tests.integration.drainer.test_daemon import status
from tests.integration.drainer.test_kills import AUDIT
from tests.integration.drainer.test_kills import World as Killed
from tests.integration.drainer.writer import two_pumps
from tests.support.processes import descendants
from tests.support.servers import MariaDB, Server, python_module, require_java, wait_until
from tests.support.servers import missing as missing_part
from tests.support.spark_cluster import CORES, SECRET, SparkCluster, namespace_command, running_cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

TRANSACTIONS = 300
WAITS = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
DEADLOCK = (
    "CREATE TRIGGER k.deadlock BEFORE INSERT ON k.keyed FOR EACH ROW IF NEW.id = {} THEN "
    "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'only slots fail'; END IF"
)
BOTH_NODES = f'["concurrent tasks available"] [component=drainer.service.spark_runner] [tasks={2 * CORES}]'
RUNNING = '["drainer is running"]'
WORKERS = "drainer.spark.startup.worker_imports"
# A path without a scheme is then none of this machine.
NO_SHARED_FILES = {"spark.hadoop.fs.defaultFS": "hdfs://no-such-name.invalid:8020"}


@dataclass
class World(Killed):
    """As for the drainer that is killed itself, whose tables and checks these are."""

    spark: SparkCluster | None = None
    driver: Path = Path()
    consistency: ClassVar[str] = "row"
    workers: ClassVar[str] = ""  # the default

    def drainer(self, *args: str) -> Server:  # type: ignore[override]
        assert self.spark is not None
        self.lives += 1
        folder = self.driver
        (folder / "tmp").mkdir(exist_ok=True)
        config = folder / "drainer.toml"
        config.write_text(self.configuration(folder / "data") + self.spark.settings(**NO_SHARED_FILES))
        output = self.directory / f"drainer-{self.lives}.log"
        env = {"TMPDIR": str(folder / "tmp")}
        return python_module("drainer", "-config", str(config), *args, output=output, **env).start()

    def reached(self, drainer: Server, sql: str) -> None:
        """Wait until this finds something downstream."""

        def there() -> bool:
            if not drainer.alive:
                pytest.fail(f"the drainer ended\n{self.said(drainer)}")
            return bool(self.mariadb.query(sql))

        self.wait(there, drainer, sql)

    def wait(self, condition: Callable[[], bool], drainer: Server, what: str) -> None:
        wait_until(condition, deadline_s=300, what=lambda: f"{what}\n{self.said(drainer)}")

    def status(self) -> dict[str, object]:
        text = (self.driver / "drainer.toml").read_text()
        return status(int(re.findall(r'^addr = "127\.0\.0\.1:(\d+)"', text, re.M)[0]))

    def failing(self, drainer: Server, reason: str) -> None:
        """Wait until the driver says, in its status and its log, that a slot fails by this."""

        def told() -> bool:
            if not drainer.alive:
                pytest.fail(f"the drainer ended\n{self.said(drainer)}")
            error = str(self.status()["Error"])
            return re.match(r"batch: slot \d+ of ", error) is not None and reason in error

        self.wait(told, drainer, f"a slot fails by {reason!r}")
        drainer.wait_for_output('["destination: trying again"] [component=drainer.sink.retry] [what=batch]')

    def said(self, drainer: Server) -> str:
        log = self.driver / "data" / "spark.log"
        spark = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
        return "\n".join([drainer.tail(), "spark.log:", *spark])


@pytest.fixture(scope="module")
def world(mariadb_server: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    mariadb_server.reset()
    directory = tmp_path_factory.mktemp("cluster")
    with two_pumps(directory) as (cluster, writer), contextlib.ExitStack() as stack:
        spark = stack.enter_context(running_cluster())
        driver = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driver-")))
        made = World(cluster, mariadb_server, writer, directory, spark=spark, driver=driver)
        made.writer.create()
        made.writer.write(3)
        yield made


@contextlib.contextmanager
def row_held(mariadb: MariaDB, key: int) -> Iterator[pymysql.connections.Connection[tuple[object, ...]]]:
    """While inside, whoever writes the row of `key` waits."""
    with mariadb.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO k.keyed(id, u, note) VALUES (%s, %s, 'held')", (key, -1000 - key))
        yield connection
        connection.rollback()


def running(world: World) -> Server:
    """A drainer with executors on both nodes that has applied what there was; triggers count everything from now on.
    DDLs and large transactions, which the driver applies alone: test_kills.py, test_large.py."""
    drainer = world.drainer()
    writer = world.writer
    drainer.wait_for_output(RUNNING, deadline_s=300)
    assert_workers_started(world, drainer)

    def on_both() -> bool:
        """The drainer looks for new executors after each batch, so there must be batches."""
        if not drainer.alive:
            pytest.fail(f"the drainer ended\n{world.said(drainer)}")
        writer.write(1)
        return BOTH_NODES in drainer.text()

    world.wait(on_both, drainer, "executors on both nodes")
    writer.write(20)
    world.reached(drainer, f"SELECT 1 FROM k.keyed HAVING COUNT(*) = {len(writer.keyed)}")
    # Slots of a batch that is distributed commit one after another; nothing of it may be counted.
    world.reached(drainer, "SELECT 1 FROM tidb_binlog.drainer_position WHERE intent IS NULL")
    for statement in AUDIT:
        world.mariadb.query(statement)
    writer.puts.clear()
    writer.takes.clear()
    return drainer


def assert_workers_started(world: World, drainer: Server) -> None:
    """The executors that had registered when the drainer says that it runs have started Python. How many those are is
    in the log, because on a busy machine one of them may be late."""
    assert world.spark is not None
    before = drainer.text().partition(RUNNING)[0]
    if "executors are still starting" in before:  # for a minute, on a machine that is far too busy
        return
    (known,) = re.findall(r'\["the warm-up of the executors has ended"\].*\[executors=(\d)\]', before)
    having = [node.name for node in world.spark.nodes.values() if WORKERS in command_lines(node.server)]
    assert len(having) >= int(known) > 0, (having, world.said(drainer))


def test_rows_are_applied_once_when_executor_and_node_die_in_batch(world: World) -> None:
    """Each dies while a distributed batch is half applied: a row that another session holds keeps it from ending.
    Behind that a trigger makes a slot fail on the node that is left, and the driver says so until it is over."""
    assert world.spark is not None
    writer, mariadb = world.writer, world.mariadb
    nodes = {name: world.spark.add(name) for name in ("node-1", "node-2")}
    drainer = running(world)
    try:
        first = len(writer.keyed)
        third, two_thirds = first + TRANSACTIONS // 3, first + 2 * TRANSACTIONS // 3
        # Everything is written by then, so its batch is large, and executors write it.
        mariadb.query(DEADLOCK.format(first + 4 * TRANSACTIONS // 5))
        with row_held(mariadb, third) as one, row_held(mariadb, two_thirds):
            writer.write(TRANSACTIONS)
            world.reached(drainer, WAITS)
            assert nodes["node-1"].strangers(world.driver) == nodes["node-2"].strangers(world.driver) == []
            assert SECRET not in command_lines(drainer, *(node.server for node in nodes.values()))
            (executor,) = nodes["node-1"].executors()
            os.kill(executor, signal.SIGKILL)
            one.rollback()
            world.reached(drainer, f"SELECT 1 FROM k.keyed WHERE id = {third}")
            world.reached(drainer, WAITS)
            nodes["node-2"].kill()
        world.failing(drainer, "only slots fail")
        mariadb.query("DROP TRIGGER k.deadlock")
        drainer.wait_for_output(
            '["destination: it works again"] [component=drainer.sink.retry] [what=batch]', deadline_s=120
        )
        world.reached(drainer, f"SELECT 1 FROM k.keyed HAVING COUNT(*) = {first + TRANSACTIONS}")
        assert drainer.stop(deadline_s=180) == 0, world.said(drainer)
    finally:
        drainer.kill()
        nodes["node-1"].kill()
    world.check()
    drainer.wait_for_output('["executors on other nodes cannot reach a loopback address"]')


def test_node_without_package_is_named_in_last_error(world: World) -> None:
    """Spark tells why a worker did not start, or trips over that; the drainer's last words name node and package. What
    is said of other packages: tests/unit/drainer/spark/startup/test_node_requirements.py."""
    if not namespace_command():
        missing_part("this system gives no mount namespaces, so every node has every package")
    assert world.spark is not None
    bare = world.spark.add("bare", packages=["drainer"])  # the nodes of the test before are gone
    world.writer.write(1)
    drainer = replace(world, lives=20).drainer()
    try:
        assert drainer.wait(deadline_s=300) == 2, world.said(drainer)
    finally:
        drainer.kill()
        bare.kill()
    (last,) = [line for line in drainer.text().splitlines() if "[ERROR]" in line][-1:]
    named = f"node {bare.address} (executor "
    assert named in last and "has no module binlog: pip install" in last, world.said(drainer)


def test_drainer_without_executors_says_so_and_can_be_stopped(world: World) -> None:
    """The nodes of the tests before are gone, so no executor will ever register."""
    drainer = replace(world, lives=30).drainer()
    try:
        drainer.wait_for_output('["concurrent tasks available"]', deadline_s=300)
        world.wait(lambda: world.status()["Phase"] == "waiting for Spark's executors", drainer, "the phase")
        assert drainer.stop(deadline_s=180) == 0, world.said(drainer)
    finally:
        drainer.kill()
    assert RUNNING not in drainer.text()


def command_lines(*servers: Server | None) -> str:
    """What everybody on a machine may read of these programs and all that they started."""
    found = []
    for server in servers:
        assert server is not None and server.process is not None
        for pid in (server.process.pid, *descendants(server.process.pid)):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)
