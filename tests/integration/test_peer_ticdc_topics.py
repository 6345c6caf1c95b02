"""Topics that TiCDC's own encoders and dispatchers wrote, read by `kafka-consumer` and by a drainer in place of pumps.
Skipped without PEER_BIN.

TiCDC's consumer writes to Kafka as well, so it makes its topics from one of ours. What its file of settings has as
`protocol` is what it writes; the address says what it reads. It reads one partition, so that its dispatchers apply to
what it writes alone, and sends no watermarks: those at the end of its topics are ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from binlog.tidb.job import ActionType
from confluent_kafka import Producer

from drainer.kafka_consumer.__main__ import main
from drainer.protocol.encoder import Ddl
from drainer.protocol.event import Image, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.schema.filter import Filter
from tests.golden.compare import compare_sqlite, differences
from tests.golden.test_files import policy
from tests.integration.drainer.stubs import Stubs, running_stubs
from tests.integration.drainer.test_recording import configuration
from tests.integration.test_peer_readers import BINARIES, BY_KEY, BY_TABLE, RULES, Rule, log_of
from tests.peer.marks import desk_test
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.http_registry import Registry, serving
from tests.support.kafka import Broker
from tests.support.message_case import Pairs, messages_of
from tests.support.servers import Etcd, MariaDB, Server, wait_until

pytestmark = desk_test(300)

PARTITIONS = 3


@dataclass(frozen=True)
class Way:
    """How a recording becomes TiCDC's topic. `ours` and `theirs`: protocols with their options; `tables`: filter
    rules."""

    name: str
    ours: ProtocolOptions
    theirs: ProtocolOptions
    rules: Sequence[Rule] = (BY_KEY,)
    tables: Sequence[str] = ("*.*",)

    def __str__(self) -> str:
        return f"{self.name} {parameters(self.theirs)} {self.rules[-1]['partition']}"

    @property
    def end_ts(self) -> int:
        return int(CaptureSet(GOLDEN / self.name).meta["scenario_end_ts"]) + 1

    @property
    def filter(self) -> Filter:
        return Filter.create(rules=self.tables)

    @property
    def left_out(self) -> set[str]:
        names = CaptureSet(GOLDEN / self.name).tables("expected")
        return {name for name in names if not self.filter.allows(*name.split(".", 1))}


OPEN = ProtocolOptions("open-protocol")
CANAL = ProtocolOptions("canal-json", enable_tidb_extension=True)
SIMPLE = ProtocolOptions("simple")
SIMPLE_AVRO = ProtocolOptions("simple", encoding_format="avro")
DEBEZIUM = ProtocolOptions("debezium")
AVRO = ProtocolOptions("avro", enable_tidb_extension=True, avro_enable_watermark=True)
# TiCDC's reader of open-protocol ends at a BIT(64) above 2^63-1.
NO_BIT = ("*.*", "!types.t_bit", "!types.p_bit")
# TiCDC's rows have stored generated columns, those of our topics, from which it makes these, have not.
NO_STORED = ("*.*", "!ks.k_genpk")
UPDATED: dict[str, Any] = {"only_output_updated_columns": True}
WITHOUT_KEY = ("k_hashno", "k_list", "k_none", "k_none_idx", "k_shard", "k_uk")
WITH_KEY = ("*.*", "!`ks-2`.*", *(f"!ks.{table}" for table in WITHOUT_KEY))
PER_TABLE: Rule = BY_KEY | {"topic": "theirs_{schema}_{table}"}
CLAIMS: dict[str, Any] = {
    "large_message_handle_option": "claim-check",
    "claim_check_storage_uri": "file:",
    "max_message_bytes": 60_000,
}
LZ4: dict[str, Any] = {"large_message_handle_compression": "lz4"}
END = "CREATE DATABASE the_end"


def parameters(options: ProtocolOptions) -> str:
    """Of an address: every option that is not the default."""
    values = ((one.name, one.default, getattr(options, one.name)) for one in fields(options))
    changed = {name.replace("_", "-"): str(value) for name, default, value in values if value != default}
    return urlencode(changed).replace("True", "true")


def produce(kafka: Broker, topic: str, pairs: Pairs, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for key, value in pairs:
        for partition in range(partitions):
            producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(60) == 0


def recorded(way: Way, options: ProtocolOptions, scratch: Path) -> Pairs:
    capture = CaptureSet(GOLDEN / way.name)
    return messages_of(capture, options, scratch / "jobs.json", replace(policy(capture), filter=way.filter))


def rewritten(kafka: Broker, way: Way, scratch: Path, ended: bytes | int) -> str:
    """The topic that TiCDC writes. `ended`: what its first partition has at the end, or the number of all records."""
    ours, theirs = kafka.topic(1, name="ours"), kafka.topic(PARTITIONS, name="theirs")
    produce(kafka, ours, recorded(way, way.ours, scratch))
    encoder = make_encoder(way.ours)
    end = way.end_ts
    last = [
        *encoder.ddl(Ddl(end, end - 1, "the_end", "", END, ActionType.CREATE_SCHEMA)),
        *encoder.resolved(end + 1),
    ]
    produce(kafka, ours, [(one.key, one.value) for one in last])
    rules = ", ".join("{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in rule.items()) + "}" for rule in way.rules)
    large = way.theirs.large_message_handle_option
    config = scratch / "changefeed.toml"
    config.write_text(
        f"force-replicate = {json.dumps(large == 'none' and way.theirs.protocol != 'avro')}\n"
        f'[sink]\nprotocol = "{way.theirs.protocol}"\ndispatchers = [{rules.replace("theirs_", f"{theirs}_")}]\n'
        f'[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = "{large}"\n'
        f'claim-check-storage-uri = "{way.theirs.claim_check_storage_uri}"\n'
        f'large-message-handle-compression = "{way.theirs.large_message_handle_compression}"\n'
    )
    upstream = f"kafka://{kafka.address}/{ours}?partition-num=1&{parameters(way.ours)}"
    downstream = f"kafka://{kafka.address}/{theirs}?partition-num={PARTITIONS}&{parameters(way.theirs)}"
    program = [str((BINARIES or Path()) / "ticdc-kafka-consumer"), "-upstream-uri", upstream, "-config", str(config)]
    program += ["-downstream-uri", downstream, "-tz", "UTC", "-log-file", str(scratch / "ticdc.log")]
    server = Server(["env", "TZ=UTC", *program], scratch / "ticdc.out").start()

    def complete() -> bool:
        if not server.alive or "error on running consumer" in log_of(server):
            pytest.fail(f"TiCDC ends: {server.text()[:2000]}")
        values = kafka.values(theirs, committed=False)
        if isinstance(ended, int):
            return sum(map(len, values)) >= ended
        return bool(values[0]) and ended in (values[0][-1] or b"")

    try:
        wait_until(complete, deadline_s=120, what=lambda: f"TiCDC has written it all\n{server.tail(5)}")
    finally:
        server.kill()
    return theirs


def resolved(kafka: Broker, way: Way, *topics: str) -> None:
    """Everything in the topics is complete."""
    pairs = [(one.key, one.value) for one in make_encoder(way.theirs).resolved(way.end_ts + 1)]
    for topic in topics:
        produce(kafka, topic, pairs, PARTITIONS)


@pytest.mark.parametrize(
    "way",
    [
        Way("keys", OPEN, OPEN),
        Way("types", OPEN, OPEN, [BY_TABLE], NO_BIT),
        Way("keys", OPEN, CANAL, RULES),
        Way("types", OPEN, CANAL, tables=NO_BIT),
        Way("types", SIMPLE, SIMPLE),
        Way("types", SIMPLE_AVRO, SIMPLE_AVRO),
        Way("keys", SIMPLE, SIMPLE),
        Way("keys", OPEN, replace(OPEN, only_output_updated_columns=True)),
        Way("keys", OPEN, replace(CANAL, only_output_updated_columns=True)),
        Way("keys", OPEN, replace(CANAL, content_compatible=True)),
        Way("types", OPEN, replace(CANAL, **CLAIMS), tables=NO_BIT),
        Way("types", OPEN, replace(OPEN, **CLAIMS), tables=NO_BIT),
        Way("types", SIMPLE, replace(SIMPLE, **CLAIMS)),
        Way("types", replace(SIMPLE_AVRO, **LZ4), replace(SIMPLE_AVRO, **LZ4, **CLAIMS)),
    ],
    ids=str,
)
def test_topics_that_ticdc_wrote_become_upstreams_tables(
    kafka: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    if way.theirs.claim_check_storage_uri:
        way = replace(way, theirs=replace(way.theirs, claim_check_storage_uri=f"file://{tmp_path}/claims"))
    topic = rewritten(kafka, way, tmp_path, END.encode())
    resolved(kafka, way, topic)
    monkeypatch.setenv("MYSQL_PWD", mariadb.password)
    to = f"mysql://{mariadb.user}@{mariadb.host}:{mariadb.port}"
    assert main([f"kafka://{kafka.address}/{topic}?{parameters(way.theirs)}", "--to", to, "--once"]) == 0
    found = differences(mariadb, CaptureSet(GOLDEN / way.name))
    assert [line[:500] for line in found if line.partition(":")[0] not in way.left_out] == []


@pytest.fixture
def stubs(etcd: Etcd, java: None) -> Iterator[Stubs]:
    with running_stubs(etcd) as cluster:
        yield cluster


def with_end(way: Way) -> str:
    """The recording's DDL history, and the job of the DDL at the end of TiCDC's topics."""
    jobs: list[dict[str, Any]] = json.loads(CaptureSet(GOLDEN / way.name).jobs_text)
    last = max(jobs, key=lambda job: job["binlog"]["SchemaVersion"])
    database = {**jobs[0]["binlog"]["DBInfo"], "id": 9_000, "db_name": {"O": "the_end", "L": "the_end"}}
    made = {"SchemaVersion": last["binlog"]["SchemaVersion"] + 1, "DBInfo": database, "FinishedTS": way.end_ts}
    names = {"schema_id": 9_000, "schema_name": "the_end", "query": END}
    ids = {"id": last["id"] + 2, "seq_num": last["seq_num"] + 1, "start_ts": way.end_ts - 1}
    return json.dumps([*jobs, {**jobs[0], **names, **ids, "binlog": made}])


@pytest.mark.parametrize(
    "way",
    [
        Way("keys", OPEN, replace(OPEN, **UPDATED), tables=NO_STORED),
        Way("keys", OPEN, replace(CANAL, **UPDATED, content_compatible=True), RULES, NO_STORED),
        Way("types", OPEN, replace(CANAL, **CLAIMS), tables=NO_BIT),
        Way("types", SIMPLE, SIMPLE),
        Way("types", replace(SIMPLE_AVRO, **LZ4), replace(SIMPLE_AVRO, **LZ4, **CLAIMS)),
    ],
    ids=str,
)
def test_drainer_reads_topics_that_ticdc_wrote_in_place_of_pumps(
    stubs: Stubs, kafka: Broker, mariadb: MariaDB, tmp_path: Path, way: Way
) -> None:
    """Every batch without a DDL is distributed: executors read the partitions."""
    if way.theirs.claim_check_storage_uri:
        way = replace(way, theirs=replace(way.theirs, claim_check_storage_uri=f"file://{tmp_path}/claims"))
    topic = rewritten(kafka, way, tmp_path, END.encode())
    resolved(kafka, way, topic)
    capture = CaptureSet(GOLDEN / way.name)
    uri = f"kafka://{kafka.address}/{topic}?{parameters(way.theirs)}"
    more = f'source = "ticdc"\ndistributed-bytes-min = 1\n[ticdc-source]\nuri = "{uri}"'
    config = configuration(stubs, capture, mariadb, more=more)
    (stubs.directory / "history.json").write_text(with_end(way))
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    found = differences(mariadb, capture)
    assert [line[:500] for line in found if line.partition(":")[0] not in way.left_out] == []


def test_ticdcs_debezium_has_the_rows_of_ours(kafka: Broker, tmp_path: Path) -> None:
    """TiCDC 8.1 has no DDLs and no watermarks in it, so nothing says when a row may be applied."""
    way = Way("keys", OPEN, DEBEZIUM)
    wanted = rows(DEBEZIUM, recorded(way, DEBEZIUM, tmp_path))
    topic = rewritten(kafka, way, tmp_path, len(wanted))
    found = rows(DEBEZIUM, [(one.key, one.value) for records in kafka.read(topic) for one in records])
    assert found == wanted


def test_ticdcs_avro_becomes_upstreams_tables(kafka: Broker, tmp_path: Path) -> None:
    with serving(Registry()) as registry:
        theirs = replace(AVRO, schema_registry=registry.url)
        way = Way("keys", SIMPLE_AVRO, theirs, [PER_TABLE], WITH_KEY)
        topic = rewritten(kafka, way, tmp_path, END.encode())
        resolved(kafka, way, *(one for one in kafka.topics() if one.startswith(topic)))
        uri = f"kafka://{kafka.address}/{topic}?{parameters(theirs)}"
        assert main([uri, "--topic", f"^{topic}", "--to", f"sqlite:{tmp_path}/rows.db", "--once"]) == 0
    assert compare_sqlite(tmp_path / "rows.db", CaptureSet(GOLDEN / "keys"), way.left_out) > 50


def rows(options: ProtocolOptions, pairs: Pairs) -> list[str]:
    decoder = make_decoder(options)
    events = [event for key, value in pairs for event in decoder.decode(key, value)]
    return sorted(shown(event) for event in events if isinstance(event, RowEvent))


def shown(event: RowEvent) -> str:
    def values(image: Image | None) -> list[Any] | None:
        return image and sorted((name, column.value) for name, column in image.items())

    return repr((event.commit_ts, event.schema, event.table, event.change, values(event.old), values(event.new)))
