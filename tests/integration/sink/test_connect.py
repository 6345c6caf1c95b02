"""Debezium's JDBC sink on Kafka Connect reads what a drainer that was killed twice wrote, into MariaDB. What it cannot
read is in a table of docs/kafka.md."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from confluent_kafka import Producer

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl, Message
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.golden.compare import each_difference
from tests.integration.sink.forks import children
from tests.support import kafka_case
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.change_replay import commits
from tests.support.connect import Connect, running_connect
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.kafka import Broker
from tests.support.registry import SchemaRegistryServer
from tests.support.row_changes import make_changes, make_table
from tests.support.servers import MariaDB, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

WITHOUT_DDLS = {
    "transforms": "ddl",
    "transforms_ddl_type": "io.debezium.transforms.SchemaChangeEventFilter",
    "transforms_ddl_schema_change_event_exclude_list": "CREATE,ALTER,DROP,TRUNCATE,DATABASE",
}
# Of Avro's topics, one for each table: the table's name, and no columns that the table does not have.
WITHOUT_EXTENSION = {
    "collection_name_format": "${topic}",
    "transforms": "table,own",
    "transforms_table_type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms_table_regex": ".*_ks_(.*)",
    "transforms_table_replacement": "$1",
    "transforms_own_type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
    "transforms_own_exclude": "_tidb_op,_tidb_commit_ts,_tidb_commit_physical_time",
}
WITHOUT_KEY = ("none", "none_idx", "hashno", "list", "shard", "uk")
# Also with a stored generated column, with a binary string, with a name that is not in lower case.
UNREADABLE = (*WITHOUT_KEY, "gen", "gennull", "genpk", "ukprefix", "case")
# With a second unique key, or with a key in a collation that ignores case or trailing spaces.
ONE_PARTITION = ["ks.k_ukmulti", "ks.k_churn", "ks.k_comp_ci", "ks.k_str"]
GREATEST_FLOAT = 3.4028234663852886e38


def from_registry(registry: SchemaRegistryServer) -> dict[str, str]:
    """Settings of a connector that reads Avro."""
    converter = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        "_apicurio_registry_url": f"http://127.0.0.1:{registry.port}/apis/registry/v2",
        "_apicurio_registry_id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler",
        "_apicurio_registry_use-id": "contentId",
    }
    return {f"{of}_converter{name}": value for of in ("key", "value") for name, value in converter.items()}


@pytest.fixture(scope="module")
def connect(kafka_server: Broker) -> Iterator[Connect]:
    with running_connect(kafka_server) as worker:
        yield worker


def replayed(
    kafka: Broker, scratch: Path, topic: str, rules: list[dict[str, Any]], ignored: Sequence[str] = (), **more: Any
) -> None:
    """The topics with all of a recording except the tables `ignored`, by a drainer that is killed twice."""
    settings = {
        "addresses": [kafka.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "dispatchers": rules,
        **more,
    }
    edges, killed = commits()[10:-1:40] + commits()[-1:], -signal.SIGKILL
    for point, code in (("sink.before_commit:3", killed), ("kafka.slot_flushed:2", killed), ("", 0)):
        given = (settings, edges, str(scratch / "log"), 0, "keys", True, [("ks", name) for name in ignored])
        assert children().start(kafka_case.run, given, scratch, point).wait() == code, point


def has_what_tidb_had(
    connect: Connect, connector: str, topics: str, mariadb: MariaDB, skipped: set[str], settings: dict[str, str]
) -> None:
    """The connector makes all tables but those of `skipped`."""
    capture = CaptureSet(GOLDEN / "keys")
    mariadb.query("CREATE DATABASE ks DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_nopad_bin")
    with mariadb.connect(database="ks") as connection, connection.cursor() as cursor:
        for name, table in capture.tables("downstream").items():
            if name.startswith("ks."):
                cursor.execute(table["create"])
    connect.jdbc_sink(connector, topics, mariadb, **settings)

    def found() -> Iterator[str]:
        return (line for line in each_difference(mariadb, capture) if line.partition(":")[0] not in skipped)

    def equal() -> bool:
        assert not (failure := connect.failure(connector)), failure
        return next(found(), None) is None

    def unequal() -> str:
        return "\n".join(["the tables are equal", *(line[:300] for line in found())])

    wait_until(equal, deadline_s=240, what=unequal)


def test_debezium_jdbc_sink_writes_tidbs_tables_from_killed_drainer(
    kafka: Broker, connect: Connect, mariadb: MariaDB, tmp_path: Path
) -> None:
    """Key updates and deletes included."""
    topic = kafka.topic(3, name="debezium")
    chosen = {"matcher": ["ks.*"], "partition": "index-value", "topic": f"{topic}-{{schema}}"}
    left = {"matcher": [*(f"ks.k_{name}" for name in UNREADABLE), "ks_ignored.*"], "partition": "table"}
    several = {**chosen, "matcher": ONE_PARTITION, "partition": "table"}
    more = {"protocol": "debezium", "debezium-bigint-unsigned-handling-mode": "precise"}
    replayed(kafka, tmp_path, topic, [left, several, chosen], **more)
    skipped = {*(f"ks.k_{name}" for name in UNREADABLE), "ks-2.a b", "ks_ignored.t"}
    has_what_tidb_had(connect, "tables", f"{topic}-ks", mariadb, skipped, WITHOUT_DDLS)


def test_jdbc_sink_writes_tidbs_tables_from_avro_topics(
    kafka: Broker, connect: Connect, mariadb: MariaDB, schema_registry: SchemaRegistryServer, tmp_path: Path
) -> None:
    """Key updates, and deletes, which are tombstones, included; and watermarks and DDLs, which the converter cannot
    read and the connector leaves out."""
    topic = kafka.topic(3, name="avro")
    chosen = {"matcher": ["*.*"], "partition": "index-value", "topic": f"{topic}_{{schema}}_{{table}}"}
    several = {**chosen, "matcher": ONE_PARTITION, "partition": "table"}
    more: dict[str, Any] = {
        "protocol": "avro",
        "schema-registry": schema_registry.url,
        "partition-num": 3,
        "enable-tidb-extension": True,
        "avro-enable-watermark": True,
        "avro-bigint-unsigned-handling-mode": "string",
    }
    replayed(kafka, tmp_path, topic, [several, chosen], [f"k_{name}" for name in WITHOUT_KEY], **more)
    unreadable = {f"ks.k_{name}" for name in UNREADABLE if name != "ukprefix"}
    tables = [name for name in CaptureSet(GOLDEN / "keys").tables("expected") if name.startswith("ks.")]
    topics = ",".join(f"{topic}_{name.replace('.', '_')}" for name in tables if name not in unreadable)
    skipped = {*unreadable, "ks-2.a b", "ks_ignored.t"}
    settings = from_registry(schema_registry) | WITHOUT_EXTENSION
    has_what_tidb_had(connect, topic, topics, mariadb, skipped, settings | {"errors_tolerance": "all"})


def produced(kafka: Broker, options: ProtocolOptions, *, more: str = "") -> str:
    """A topic with one row, behind a DDL or a watermark, if `more` says so."""
    table = make_table(
        "ks",
        "t",
        [("id", FieldType(Tp.LONGLONG, Flag.UNSIGNED | Flag.NOT_NULL)), ("f", FieldType(Tp.FLOAT))],
        primary=["id"],
    )
    encoder = make_encoder(options)
    rows = encoded_rows(encoder.table(table), make_changes(table, Kind.INSERT, new=[[(1 << 64) - 1, GREATEST_FLOAT]]))
    messages = [*framed_rows(encoder, rows)]
    if more == "DDL":
        messages = [*encoder.ddl(Ddl(1, 1, "ks", "t", "CREATE TABLE t (id INT)", 3, None, table)), *messages]
    if more == "watermark":
        messages = [*encoder.resolved(5), *messages]
    return sent(kafka, messages)


def sent(kafka: Broker, messages: list[Message]) -> str:
    """A topic with these messages."""
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


Columns = list[tuple[str, FieldType]]
Rows = list[list[Any]]
KEY: dict[str, Any] = {"primary": ["id"]}
ID = ("id", FieldType(Tp.LONG, Flag.NOT_NULL))
V = ("v", FieldType(Tp.LONG))
BLOB = ("v", FieldType(Tp.BLOB, charset="binary", collate="binary"))
DECIMAL = ("v", FieldType(Tp.NEWDECIMAL, flen=22, decimal=2))
DIGITS, GREAT, ROUNDED = "DECIMAL(22,2)", "12345678901234567890", "12345678901234567000.00"
# The second one takes the value of the first one, as if the partition in which that one goes were read later.
TWO_WITH_ONE_VALUE: Rows = [[1, 2], [2, 2], [3, 4]]


@pytest.mark.parametrize(
    ("columns", "keys", "create", "rows", "failure"),
    [
        ([ID, V], {}, "id INT, v INT", [[1, 2]], "Cannot write to table t with no key fields defined"),
        (
            [ID, V],
            KEY,
            "id INT PRIMARY KEY, v INT AS (id + 1) STORED",
            [[1, 2]],
            "value specified for generated column",
        ),
        ([("Id", ID[1]), V], {"primary": ["Id"]}, "Id INT PRIMARY KEY, v INT", [[1, 2]], "Cannot ALTER table"),
    ],
    ids=["no handle key", "stored generated column", "capitals"],
)
def test_debezium_jdbc_sink_task_fails_for_unsupported_table(connect: Connect, topic: str, failure: str) -> None:
    wait_until(lambda: bool(connect.failure(topic)), what="the task has ended")
    assert failure in connect.failure(topic)


@pytest.mark.parametrize(
    ("columns", "keys", "create", "rows", "result"),
    [
        ([ID, V], KEY | {"unique": [["v"]]}, "id INT PRIMARY KEY, v INT UNIQUE", TWO_WITH_ONE_VALUE, ((1, 2), (3, 4))),
        ([ID, BLOB], KEY, "id INT PRIMARY KEY, v BLOB", [[1, b"abc"]], ((1, b"YWJj"),)),
        ([ID, DECIMAL], KEY, f"id INT PRIMARY KEY, v {DIGITS}", [[1, f"{GREAT}.12"]], ((1, Decimal(ROUNDED)),)),
    ],
    ids=["several unique keys", "binary string", "DECIMAL"],
)
def test_debezium_jdbc_sink_changes_rows_as_documented(
    connect: Connect, mariadb: MariaDB, topic: str, result: tuple[Any, ...]
) -> None:
    def over() -> bool:
        assert not (failure := connect.failure(topic)), failure
        return tuple(mariadb.query("SELECT * FROM ks.t ORDER BY id")) == result

    wait_until(over, what="the rows are as expected")


@pytest.fixture
def topic(
    kafka: Broker,
    connect: Connect,
    mariadb: MariaDB,
    columns: Columns,
    keys: dict[str, Any],
    create: str,
    rows: Rows,
) -> str:
    """The name of a connector that reads the test's rows as inserts."""
    table = make_table("ks", "t", columns, **keys)
    encoder = make_encoder(ProtocolOptions("debezium"))
    encoded = encoded_rows(encoder.table(table), make_changes(table, Kind.INSERT, new=rows))
    name = sent(kafka, [*framed_rows(encoder, encoded)])
    mariadb.query("CREATE DATABASE ks")
    mariadb.query(f"CREATE TABLE ks.t ({create})")
    connect.jdbc_sink(name, name, mariadb)
    return name
