"""TiCDC's own consumer reads what a drainer that was killed twice wrote, into a real TiDB. Skipped without PEER_BIN.

A recording goes through the Kafka sink without Spark. Each protocol is one topic, whose tables have all dispatchers
that the consumer knows and that keep a row's order: it computes each row's partition itself, and ends where it is
another. What it cannot read is in a table of docs/kafka.md.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden.compare import differences
from tests.integration.sink.forks import children
from tests.peer.cluster import peer_bin
from tests.peer.destination import running_tidb
from tests.support import kafka_case
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.change_replay import commits
from tests.support.kafka import Broker
from tests.support.servers import MariaDB, Server, wait_until

BINARIES = peer_bin()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(BINARIES is None, reason="PEER_BIN does not name a folder of the peer's binaries"),
]

PARTITIONS = 3
Rule = dict[str, Any]
BY_COLUMN: Rule = {"matcher": ["*.k_comp"], "partition": "columns", "columns": ["a"]}
BY_TABLE: Rule = {"matcher": ["*.*"], "partition": "table"}
RULES: list[Rule] = [
    BY_COLUMN,
    {"matcher": ["*.k_uk*", "*.k_h*", "*.k_comp_ci", "*.p_gci", "*.p_uci"], "partition": "table"},
    {"matcher": ["*.*"], "partition": "index-value"},
]
# A JSON document goes as text, and TiDB reads the text -0 as the integer 0.
MINUS_ZERO = (
    "types.t_json: 22 rows, expected has 22; "
    """missing ['["8", "-0", "1e+21", "dbl"]']; extra ['["8", "0", "1e+21", "dbl"]']"""
)
ONE_BY_ONE = "batch-dml-enable=false&worker-count=1"


@pytest.fixture(scope="module")
def tidb() -> Iterator[MariaDB]:
    assert BINARIES is not None
    with running_tidb(BINARIES) as server:
        yield server


def written(kafka: Broker, scratch: Path, protocol: str, rules: Sequence[Rule], name: str = "keys", **more: Any) -> str:
    """The topic with all of a recording. The drainer is killed between two transactions of Kafka: these
    readers apply also what a killed one left open."""
    topic = kafka.topic(PARTITIONS, name=protocol)
    settings = {
        "addresses": [kafka.address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "protocol": protocol,
        "dispatchers": rules,
        **more,
    }
    edges = commits(name)[10:-1:40] + commits(name)[-1:]
    for point, code in (("sink.after_commit:3", -signal.SIGKILL), ("sink.after_commit:2", -signal.SIGKILL), ("", 0)):
        given = (settings, edges, str(scratch / "log"), 0, name)
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


def has_what_tidb_had(reader: Server, tidb: MariaDB, name: str = "keys") -> None:
    left: list[str] = ["nothing was compared"]

    def equal() -> bool:
        assert reader.alive, reader.tail()
        found = differences(tidb, CaptureSet(GOLDEN / name), prints_as_tidb=True)
        left[:] = [line for line in found if line != MINUS_ZERO]
        return not left

    try:
        wait_until(equal, deadline_s=300, what="the reader's tables are TiDB's")
    except pytest.fail.Exception as failure:
        pytest.fail("\n".join([str(failure), *(line[:300] for line in left), reader.tail(5)]))
    finally:
        reader.kill()


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """No database of an earlier reader."""
    tidb: MariaDB = request.getfixturevalue("tidb")
    for (name,) in tidb.query("SHOW DATABASES"):
        if name.startswith(("ks", "types", "tidb_binlog")):
            tidb.query(f"DROP DATABASE `{name}`")


@pytest.mark.parametrize(
    ("protocol", "name", "rules", "more", "uri"),
    [
        ("open-protocol", "keys", RULES, {}, ""),
        ("canal-json", "types", RULES, {"enable-tidb-extension": True}, ""),
        ("simple", "types", [BY_TABLE], {}, ONE_BY_ONE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ticdc_consumer_makes_tables_from_our_topics(
    kafka: Broker,
    tidb: MariaDB,
    tmp_path: Path,
    protocol: str,
    name: str,
    rules: list[Rule],
    more: dict[str, Any],
    uri: str,
) -> None:
    topic = written(kafka, tmp_path, protocol, rules, name, **more)
    has_what_tidb_had(consumer(kafka, topic, tmp_path, rules, tidb, uri), tidb, name)
