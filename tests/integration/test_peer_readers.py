"""TiCDC's own consumer and the original's arbiter read what a drainer that was killed twice wrote, into a real TiDB.
Skipped without PEER_BIN.

A recording goes through the Kafka sink without Spark. Each protocol is one topic, whose tables have all dispatchers
that TiCDC's consumer knows and that keep a row's order: it computes each row's partition itself, and ends where it is
another. The arbiter reads one partition. What they cannot read is in a table of docs/kafka.md.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden.compare import differences, each_difference
from tests.integration.sink.forks import children
from tests.peer.cluster import peer_bin
from tests.peer.marks import desk_test
from tests.support import kafka_case
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.change_replay import commits
from tests.support.kafka import Broker
from tests.support.servers import MariaDB, Server, free_port, wait_until

BINARIES = peer_bin()

pytestmark = desk_test(900)

PARTITIONS = 3
Rule = dict[str, Any]
BY_COLUMN: Rule = {"matcher": ["*.k_comp"], "partition": "columns", "columns": ["a"]}
BY_TABLE: Rule = {"matcher": ["*.*"], "partition": "table"}
BY_KEY: Rule = {"matcher": ["*.*"], "partition": "index-value"}
RULES: list[Rule] = [
    BY_COLUMN,
    # k_str: a change of trailing spaces alone would be a delete and an insert in two partitions.
    {"matcher": ["*.k_uk*", "*.k_h*", "*.k_str", "*.k_comp_ci", "*.p_gci", "*.p_uci"], "partition": "table"},
    BY_KEY,
]
# A JSON document goes as text, and TiDB reads the text -0 as the integer 0.
MINUS_ZERO = (
    "types.t_json: 22 rows, expected has 22; "
    """missing ['["8", "-0", "1e+21", "dbl"]']; extra ['["8", "0", "1e+21", "dbl"]']"""
)
# The original's messages have a YEAR as text, and TiDB reads the text 0 as 2000. The row's other columns are zeros.
_ZEROS = [f"0000-00-00{time}" for time in ("", *[f" 00:00:00{more}" for more in ("", ".000", ".000000")] * 2)]
_ZEROS += [f"00:00:00{more}" for more in ("", ".000", ".000000")]
ZERO_YEAR = "types.t_time: 9 rows, expected has 9; missing {!r}; extra {!r}".format(
    *([json.dumps(["9", year, *_ZEROS, "zero"])] for year in ("0000", "2000"))
)
ONE_BY_ONE = "batch-dml-enable=false&worker-count=1"


def written(
    kafka: Broker,
    scratch: Path,
    protocol: str,
    rules: Sequence[Rule],
    name: str = "keys",
    partitions: int = PARTITIONS,
    in_pieces: bool = True,
    killed: bool = True,
    **more: Any,
) -> str:
    """The topic with all of a recording. `killed`: the drainer is, between two transactions of Kafka: these
    readers apply also what a killed one left open."""
    topic = kafka.topic(partitions, name=protocol)
    settings = {
        "addresses": [kafka.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "protocol": protocol,
        "dispatchers": rules,
        **more,
    }
    edges = commits(name)[10:-1:40] + commits(name)[-1:]
    deaths = [("sink.after_commit:3", -signal.SIGKILL), ("sink.after_commit:2", -signal.SIGKILL)] if killed else []
    for point, code in (*deaths, ("", 0)):
        given = (settings, edges, str(scratch / "log"), 0, name, in_pieces)
        assert children().start(kafka_case.run, given, scratch, point).wait() == code, point
    return topic


def consumer(kafka: Broker, topic: str, scratch: Path, rules: Sequence[Rule], tidb: MariaDB, more: str = "") -> Server:
    """TiCDC's. `more`: of its downstream URI."""
    protocol = topic.rpartition("-")[0]
    config = scratch / "changefeed.toml"
    dispatchers = ", ".join(
        "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in rule.items()) + "}" for rule in rules
    )
    config.write_text(f"force-replicate = true\n[sink]\ndispatchers = [{dispatchers}]\n")
    extension = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
    upstream = f"kafka://{kafka.address}/{topic}?protocol={protocol}&partition-num={PARTITIONS}{extension}"
    downstream = f"mysql://{tidb.user}@{tidb.host}:{tidb.port}/?{more}"
    program = [str((BINARIES or Path()) / "ticdc-kafka-consumer"), "-upstream-uri", upstream, "-config", str(config)]
    program += ["-downstream-uri", downstream, "-tz", "UTC", "-log-file", str(scratch / "consumer.log")]
    return Server(["env", "TZ=UTC", *program], scratch / "consumer.out").start()


def arbiter(kafka: Broker, topic: str, scratch: Path, tidb: MariaDB) -> Server:
    """The original's. Its session has the server's sql_mode, which must admit what the source's did."""
    tidb.query("SET GLOBAL sql_mode = ''")
    config = scratch / "arbiter.toml"
    config.write_text(
        f'[up]\nkafka-addrs = "{kafka.address}"\nkafka-version = "2.0.0"\ntopic = "{topic}"\n'
        f'[down]\nhost = "{tidb.host}"\nport = {tidb.port}\nuser = "{tidb.user}"\npassword = ""\n'
    )
    program = [str((BINARIES or Path()) / "arbiter"), "-config", str(config), "-addr", f"127.0.0.1:{free_port()}"]
    program += ["-down.worker-count", "1", "-safe-mode"]
    return Server(["env", "TZ=UTC", *program], scratch / "arbiter.out").start()


def has_what_tidb_had(reader: Server, tidb: MariaDB, name: str = "keys", known: Sequence[str] = (MINUS_ZERO,)) -> None:
    """`known`: the differences that there may be."""

    capture = CaptureSet(GOLDEN / name)

    def left() -> Iterator[str]:
        return (line for line in each_difference(tidb, capture, prints_as_tidb=True) if line not in known)

    def equal() -> bool:
        assert reader.alive, reader.tail()
        return next(left(), None) is None

    def unequal() -> str:
        return "\n".join(["the reader's tables are TiDB's", *(line[:300] for line in left()), reader.tail(5)])

    try:
        wait_until(equal, deadline_s=300, what=unequal)
    finally:
        reader.kill()


@pytest.mark.parametrize(
    ("protocol", "name", "rules", "more"),
    [
        ("open-protocol", "keys", RULES, {}),
        ("canal-json", "types", RULES, {"enable-tidb-extension": True}),
        ("simple", "types", [BY_TABLE], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ticdc_consumer_makes_tables_from_our_topics(ticdc_consumer: Server, tidb: MariaDB, name: str) -> None:
    has_what_tidb_had(ticdc_consumer, tidb, name)


@pytest.mark.parametrize(
    ("protocol", "name", "rules", "more", "error"),
    [
        ("simple", "keys", [BY_KEY], {}, "RowChangedEvent dispatched to wrong partition"),
        ("canal-json", "keys", [BY_TABLE], {"enable-tidb-extension": True}, "Error 3105"),
        ("open-protocol", "types", [BY_TABLE], {}, "invalid column value"),
    ],
    ids=["simple by key", "stored generated column", "BIT(64)"],
)
def test_ticdc_consumer_stops_at_documented_error(ticdc_consumer: Server, error: str) -> None:
    def told() -> bool:
        return error in ticdc_consumer.text() + log_of(ticdc_consumer)

    try:
        wait_until(told, deadline_s=300, what="the error is told")
    finally:
        ticdc_consumer.kill()


@pytest.fixture
def ticdc_consumer(
    request: pytest.FixtureRequest,
    kafka: Broker,
    tidb: MariaDB,
    tmp_path: Path,
    protocol: str,
    name: str,
    rules: list[Rule],
    more: dict[str, Any],
) -> Server:
    """It reads what the test's settings write."""
    killed = "error" not in request.fixturenames
    topic = written(kafka, tmp_path, protocol, rules, name, in_pieces=killed, killed=killed, **more)
    return consumer(kafka, topic, tmp_path, rules, tidb, ONE_BY_ONE if protocol == "simple" else "")


def log_of(reader: Server) -> str:
    """What TiCDC's consumer logs; it tries some statements again and again."""
    log = reader.output.with_suffix(".log")
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("name", ["keys", "types"])
def test_go_arbiter_makes_tables_from_our_topics(kafka: Broker, tidb: MariaDB, tmp_path: Path, name: str) -> None:
    topic = written(kafka, tmp_path, "secondary-binlog", [BY_TABLE], name, partitions=1, in_pieces=False)
    has_what_tidb_had(arbiter(kafka, topic, tmp_path, tidb), tidb, name, [MINUS_ZERO, ZERO_YEAR])


def test_go_arbiter_applies_only_first_piece_of_a_transaction(kafka: Broker, tidb: MariaDB, tmp_path: Path) -> None:
    """It takes the messages of the others, which have the same commit_ts, for repeats."""
    topic = written(kafka, tmp_path, "secondary-binlog", [BY_TABLE], partitions=1, killed=False)
    reader = arbiter(kafka, topic, tmp_path, tidb)
    last = commits()[-3]  # the two after it have no message
    try:
        wait_until(lambda: position(tidb) == [(last,)], deadline_s=300, what="the arbiter is at the end")
    finally:
        reader.kill()
    found = differences(tidb, CaptureSet(GOLDEN / "keys"), prints_as_tidb=True)
    assert [line.partition(",")[0] for line in found] == ["ks.k_big: 5 rows"]


def position(tidb: MariaDB) -> list[tuple[object, ...]]:
    """Of the arbiter."""
    if not tidb.query("SELECT 1 FROM information_schema.tables WHERE table_name = 'arbiter_checkpoint'"):
        return []
    return tidb.query("SELECT ts FROM tidb_binlog.arbiter_checkpoint")
