"""`arbiter` on a real broker, into a real server: killed anywhere, and its row in the original's table."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from drainer.arbiter.__main__ import main
from drainer.arbiter.config import ArbiterConfig
from drainer.arbiter.core import RUNNING, Position
from drainer.protocol.event import DdlEvent
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.secondary import commit_ts_of
from drainer.sink.errors import DestinationRefused
from drainer.sink.replay import Replayer, ReplayFailed, replayed
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.sink.forks import children
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.message_case import messages_of
from tests.support.servers import MariaDB, Server, free_port, python_module, running_mariadb, wait_until
from tests.unit.drainer.arbiter.test_core import ddl, dml

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROW = "SELECT ts, status FROM tidb_binlog.arbiter_checkpoint"
ORIGINAL = (
    "CREATE TABLE tidb_binlog.arbiter_checkpoint (topic_name VARCHAR(255) PRIMARY KEY, ts BIGINT NOT NULL, "
    "status INT NOT NULL)"
)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb() as server:
        yield server


def flags(kafka: Broker, topic: str, db: MariaDB, scratch: Path, *more: str) -> list[str]:
    config = scratch / "arbiter.toml"
    config.write_text(
        f'[up]\nkafka-addrs = "{kafka.address}"\ntopic = "{topic}"\n'
        f'[down]\nhost = "{db.host}"\nport = {db.port}\nuser = "{db.user}"\npassword = "{db.password}"\n'
    )
    return ["-config", str(config), "-addr", f"127.0.0.1:{free_port()}", *more]


def started(kafka: Broker, topic: str, db: MariaDB, scratch: Path, *more: str) -> Server:
    given = flags(kafka, topic, db, scratch, *more)
    return python_module("drainer.arbiter", *given, output=scratch / "arbiter.out").start()


def write(kafka: Broker, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value=value, partition=partition)
    assert producer.flush(60) == 0


def pieces(values: list[bytes]) -> Iterator[bytes]:
    """Two messages of one transaction are one, as protobuf joins them."""
    for (_, is_ddl), found in groupby(values, key=lambda value: (commit_ts_of(value), value[1])):
        while joined := b"".join(islice(found, 1 if is_ddl else 2)):
            yield joined


def test_arbiter_killed_twice_makes_a_recordings_tables(kafka: Broker, db: MariaDB, tmp_path: Path) -> None:
    """Two rows are a message, a piece of their transaction."""
    topic, capture = kafka.topic(1, name="obinlog"), CaptureSet(GOLDEN / "keys")
    pairs = messages_of(capture, ProtocolOptions("secondary-binlog"), tmp_path / "jobs.json", policy(capture))
    write(kafka, topic, *pieces([value or b"" for _, value in pairs]))
    for point in ("replay.after_commit:40", "sink.ddl_after_exec", "replay.before_commit:3"):
        child = children().start(main, (flags(kafka, topic, db, tmp_path),), tmp_path, point)
        assert child.wait() == -signal.SIGKILL, point
    reader = started(kafka, topic, db, tmp_path, "-down.batch-size", "7")
    last = commit_ts_of(pairs[-1][1] or b"")
    try:
        wait_until(lambda: not reader.alive or db.query(ROW) == [(last, 1)], what=lambda: reader.tail())
        assert "\n".join(differences(db, capture)) == "", reader.tail()
    finally:
        code = reader.stop()
    assert (code, db.query(ROW)) == (0, [(last, 0)]), reader.tail()


def test_arbiter_takes_over_and_tells_where_it_stands(kafka: Broker, db: MariaDB, tmp_path: Path) -> None:
    """The original's row says where to begin, also after an own run; the original finds it as it wrote it."""
    db.query("CREATE TABLE d.t (id INT)")
    db.query("CREATE DATABASE tidb_binlog")
    db.query(ORIGINAL)
    topic = kafka.topic(1)
    write(kafka, topic, *(dml(ts, ts) for ts in range(1, 7)))
    db.query(f"INSERT INTO tidb_binlog.arbiter_checkpoint VALUES ('{topic}', 2, 0)")
    reader = started(kafka, topic, db, tmp_path)
    try:
        wait_until(lambda: db.query(ROW) == [(6, 1)], what=lambda: reader.tail())
        page = "http://" + reader.argv[-1]
        assert json.load(urllib.request.urlopen(f"{page}/status")) == {
            "topic": topic,
            "ts": 6,
            "offset": 6,
            "status": 1,
        }
        shown = urllib.request.urlopen(f"{page}/metrics").read().decode()
        assert 'binlog_arbiter_event{type="Insert"} 4.0' in shown
        for name in ("checkpoint_tso", "queue_size", "txn_latency_seconds", "query_duration_time"):
            assert f"# TYPE binlog_arbiter_{name} " in shown
    finally:
        code = reader.stop()
    assert (code, db.query(ROW)) == (0, [(6, 0)])
    assert db.query("SELECT id FROM d.t ORDER BY id") == [(3,), (4,), (5,), (6,)]
    write(kafka, topic, *(dml(ts, ts) for ts in (7, 8, 9)))
    original = f"REPLACE INTO tidb_binlog.arbiter_checkpoint (topic_name, ts, status) VALUES ('{topic}', 8, 0)"
    db.query(original)
    reader = started(kafka, topic, db, tmp_path)
    try:
        wait_until(lambda: db.query(ROW) == [(9, 1)], what=lambda: reader.tail())
        db.query(original)
        write(kafka, topic, dml(10, 10))
        wait_until(lambda: not reader.alive, what="it notices that another one writes")
    finally:
        reader.kill()
    assert "another arbiter" in reader.text()
    assert db.query("SELECT id FROM d.t WHERE id > 6") == [(9,)]


def test_arbiter_exit_codes(kafka: Broker, db: MariaDB, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = kafka.topic(1)
    assert main(flags(kafka, "nosuch", db, tmp_path)) == 2
    several = kafka.topic(2)
    write(kafka, several, ddl(1), partition=1)
    assert main(flags(kafka, several, db, tmp_path)) == 2
    assert f"{several}[1] has messages" in capsys.readouterr().err
    assert main(flags(kafka, "", db, tmp_path)) == 1
    assert "up.topic not config, please config the topic name" in capsys.readouterr().err
    write(kafka, topic, ddl(1), dml(2, 1), b"\xff")
    assert main(flags(kafka, topic, db, tmp_path)) == 2
    assert f"{topic}[0] offset 2: secondary-binlog" in capsys.readouterr().err


def test_arbiter_refuses_a_topic_whose_messages_were_deleted(
    kafka: Broker, db: MariaDB, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic(1)
    write(kafka, topic, *(dml(ts, ts) for ts in range(1, 7)))
    for future in kafka.admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result(60)
    assert main(flags(kafka, topic, db, tmp_path, "-up.initial-commit-ts", "2")) == 2
    assert "commit_ts 2, and the topic's oldest message, offset 4, has 5" in capsys.readouterr().err


@pytest.fixture
def opened(db: MariaDB) -> Iterator[Replayer]:
    """A topic at ts 5, as ours stores it."""
    made = destination(db)
    assert made.open() == ""
    made.apply((), Position(5, RUNNING, 1).text())
    yield made
    made.close()


def destination(db: MariaDB) -> Replayer:
    down = {"host": db.host, "port": db.port, "user": db.user, "password": db.password}
    return ArbiterConfig.model_validate({"up": {"topic": "t"}, "down": down}).replayer()


def test_checkpoint_is_below_a_ddl_until_it_has_run(opened: Replayer, db: MariaDB) -> None:
    """The original, which empties our columns, runs it."""
    after = Position(6, RUNNING, 2).text()
    bad = replayed(DdlEvent(6, "d", "t", "ALTER TABLE nosuch ADD c INT"))
    with pytest.raises(ReplayFailed, match=r"ddl=NULL, ts=6 WHERE topic_name='t'"):
        opened.apply((), after, bad)
    assert db.query(ROW) == [(5, 1)]
    db.query("CREATE TABLE d.nosuch (id INT)")
    again = destination(db)
    assert again.open() == after
    again.close()
    assert db.query(ROW) == [(6, 1)]
    assert db.query("SHOW COLUMNS FROM d.nosuch LIKE 'c'")


def test_checkpoint_that_a_person_wrote_counts(opened: Replayer, db: MariaDB) -> None:
    db.query("UPDATE tidb_binlog.arbiter_checkpoint SET ts=3, status=0")
    again = destination(db)
    assert Position.parse(again.open()) == Position(3, 0, newest=3)
    again.apply((), Position(3, RUNNING, 7).text())
    with pytest.raises(DestinationRefused, match="another arbiter named t"):
        opened.apply((), Position(9, RUNNING, 9).text())
    again.close()
    assert db.query(ROW) == [(3, 1)]
