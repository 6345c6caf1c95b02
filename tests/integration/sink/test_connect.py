"""Debezium's JDBC sink on Kafka Connect reads what a drainer that was killed twice wrote, into MariaDB. What it cannot
read is in a table of docs/kafka.md."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from confluent_kafka import Producer

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_encoder
from tests.golden.compare import differences
from tests.integration.sink.forks import children
from tests.support import kafka_case
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.change_replay import commits
from tests.support.connect import Connect, running_connect
from tests.support.kafka import Broker
from tests.support.row_changes import make_changes, make_table
from tests.support.servers import MariaDB, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

WITHOUT_DDLS = {
    "transforms": "ddl",
    "transforms_ddl_type": "io.debezium.transforms.SchemaChangeEventFilter",
    "transforms_ddl_schema_change_event_exclude_list": "CREATE,ALTER,DROP,TRUNCATE,DATABASE",
}
# Without a handle key, with a stored generated column, with a binary string, with a name that is not in lower case.
UNREADABLE = ("none", "none_idx", "hashno", "list", "shard", "uk", "gen", "gennull", "genpk", "ukprefix", "case")
GREATEST_FLOAT = 3.4028234663852886e38


@pytest.fixture(scope="module")
def connect(kafka_server: Broker) -> Iterator[Connect]:
    with running_connect(kafka_server) as worker:
        yield worker


def test_debezium_jdbc_sink_writes_tidbs_tables_from_killed_drainer(
    kafka: Broker, connect: Connect, mariadb: MariaDB, tmp_path: Path
) -> None:
    """Key updates and deletes included. Tables with a second unique key are in one partition each."""
    topic = kafka.topic(3, name="debezium")
    chosen = {"matcher": ["ks.*"], "partition": "index-value", "topic": f"{topic}-{{schema}}"}
    left = {"matcher": [*(f"ks.k_{name}" for name in UNREADABLE), "ks_ignored.*"], "partition": "table"}
    several = {**chosen, "matcher": ["ks.k_ukmulti", "ks.k_churn", "ks.k_comp_ci"], "partition": "table"}
    settings: dict[str, Any] = {
        "addresses": [kafka.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "protocol": "debezium",
        "debezium-bigint-unsigned-handling-mode": "precise",
        "dispatchers": [left, several, chosen],
    }
    edges = commits()[10:-1:40] + commits()[-1:]
    killed = -signal.SIGKILL
    for point, code in (("sink.before_commit:3", killed), ("kafka.slot_flushed:2", killed), ("", 0)):
        given = (settings, edges, str(tmp_path / "log"))
        assert children().start(kafka_case.run, given, tmp_path, point).wait() == code, point
    capture = CaptureSet(GOLDEN / "keys")
    mariadb.query("CREATE DATABASE ks DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_nopad_bin")
    with mariadb.connect(database="ks") as connection, connection.cursor() as cursor:
        for name, table in capture.tables("downstream").items():
            if name.startswith("ks."):
                cursor.execute(table["create"])
    connect.jdbc_sink("tables", f"{topic}-ks", mariadb, **WITHOUT_DDLS)
    skipped = {*(f"ks.k_{name}" for name in UNREADABLE), "ks-2.a b", "ks_ignored.t"}
    found: list[str] = []

    def equal() -> bool:
        assert not (failure := connect.failure("tables")), failure
        found[:] = [line for line in differences(mariadb, capture) if line.partition(":")[0] not in skipped]
        return not found

    try:
        wait_until(equal, deadline_s=120, what="the tables are equal")
    except pytest.fail.Exception as failed:
        pytest.fail("\n".join([str(failed), *(line[:300] for line in found)]))


def produced(kafka: Broker, options: ProtocolOptions, *, more: str = "") -> str:
    """A topic with one row, behind a DDL or a watermark, if `more` says so."""
    table = make_table(
        "ks",
        "t",
        [("id", FieldType(Tp.LONGLONG, Flag.UNSIGNED | Flag.NOT_NULL)), ("f", FieldType(Tp.FLOAT))],
        primary=["id"],
    )
    encoder = make_encoder(options)
    rows = encoder.table(table).encode(make_changes(table, Kind.INSERT, new=[[(1 << 64) - 1, GREATEST_FLOAT]]))
    messages = [*encoder.frame(rows)]
    if more == "DDL":
        messages = [*encoder.ddl(Ddl(1, 1, "ks", "t", "CREATE TABLE t (id INT)", 3, None, table)), *messages]
    if more == "watermark":
        messages = [*encoder.resolved(5), *messages]
    topic, producer = kafka.topic(1), Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for message in messages:
        producer.produce(topic, key=message.key, value=message.value)
    assert producer.flush(60) == 0
    return topic


BINARY = {"connection_url": "jdbc:mariadb://127.0.0.1:{port}/ks?useServerPrepStmts=true"}


@pytest.mark.parametrize(
    ("mode", "more", "settings", "failure"),
    [
        ("precise", "", BINARY, ""),
        ("precise", "", {}, "Out of range value for column 'f'"),
        ("long", "", BINARY, "Out of range value for column 'id'"),
        ("precise", "DDL", BINARY, "Schema change records are not supported"),
        ("precise", "DDL", BINARY | WITHOUT_DDLS, ""),
        ("precise", "watermark", BINARY | WITHOUT_DDLS, "after is not a valid field name"),
    ],
    ids=["all is well", "FLOAT as text", "negative", "DDL", "filtered DDL", "watermark"],
)
def test_debezium_jdbc_sink_failure_and_remedy_are_as_documented(
    kafka: Broker, connect: Connect, mariadb: MariaDB, mode: Any, more: str, settings: dict[str, str], failure: str
) -> None:
    options = ProtocolOptions(
        "debezium", debezium_bigint_unsigned_handling_mode=mode, enable_tidb_extension=more == "watermark"
    )
    topic = produced(kafka, options, more=more)
    mariadb.query("CREATE DATABASE ks")
    mariadb.query("CREATE TABLE ks.t (id BIGINT UNSIGNED PRIMARY KEY, f FLOAT)")
    given = {name: value.replace("{port}", str(mariadb.port)) for name, value in settings.items()}
    connect.jdbc_sink(topic, topic, mariadb, **given)

    def over() -> bool:
        return bool(connect.failure(topic) or mariadb.query("SELECT 1 FROM ks.t"))

    wait_until(over, what="the row is there or the task has ended")
    assert failure in connect.failure(topic) and bool(failure) == bool(connect.failure(topic))
    if not failure:
        assert mariadb.query("SELECT id, f + 0e0 FROM ks.t") == [((1 << 64) - 1, GREATEST_FLOAT)]
