"""A recording of a real TiDB, as TiCDC's topics have it, through the drainer into a real MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from drainer.protocol.event import ResolvedEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.schema.filter import Filter
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_recording import configuration
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.message_case import Pairs, messages_of
from tests.support.servers import MariaDB, wait_until
from tests.support.ticdc_topic import Part, spread

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

CANAL = ProtocolOptions("canal-json", enable_tidb_extension=True)
DEBEZIUM = ProtocolOptions("debezium", enable_tidb_extension=True)
SIMPLE = ProtocolOptions("simple")
# Our own topics lack stored generated columns, which TiCDC's have. Debezium does not tell NULL from a default.
LEFT_OUT = ("ks.k_genpk", "ks.k_gen")
KEYS = CaptureSet(GOLDEN / "keys")


def left_out(options: ProtocolOptions) -> tuple[str, ...]:
    if options == SIMPLE:  # whose schemas do not say which columns are generated
        return *LEFT_OUT, "ks.k_gennull", "ks.k_expr"
    return LEFT_OUT if options == DEBEZIUM else LEFT_OUT[:1]


def recorded(scratch: Path, capture: CaptureSet = KEYS, options: ProtocolOptions = CANAL) -> Pairs:
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", *(f"!{one}" for one in left_out(options))]))
    return messages_of(capture, options, scratch / "jobs.json", rules)


def write(kafka: Broker, parts: Iterable[tuple[str, int, Part]]) -> None:
    """One part after another. Each: topic, partition, messages."""
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for topic, partition, part in parts:
        for key, value in part:
            producer.produce(topic, key=key, value=value, partition=partition)
        assert producer.flush(60) == 0


def written(kafka: Broker, scratch: Path, capture: CaptureSet = KEYS, options: ProtocolOptions = CANAL) -> str:
    """A topic of three partitions with the recording."""
    topic, parts = kafka.topic(3), spread(options, recorded(scratch, capture, options))
    write(kafka, [(topic, number, part) for number, part in enumerate(parts)])
    return topic


def address(kafka: Broker, topic: str, options: ProtocolOptions = CANAL) -> str:
    return f"kafka://{kafka.address}/{topic}?protocol={options.protocol}&enable-tidb-extension=true"


def source(kafka: Broker, topic: str, more: str = "", options: ProtocolOptions = CANAL) -> str:
    """Every batch without a DDL is distributed: executors read the partitions."""
    uri = address(kafka, topic, options)
    return f'source = "ticdc"\ndistributed-bytes-min = 1\n[ticdc-source]\nuri = "{uri}"\n{more}'


def missing(mariadb: MariaDB, options: ProtocolOptions = CANAL) -> list[str]:
    return [one for one in differences(mariadb, KEYS) if one.partition(":")[0] not in left_out(options)]


def position(mariadb: MariaDB) -> int:
    return max((ts for (ts,) in mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position")), default=0)


@pytest.mark.parametrize("options", [CANAL, DEBEZIUM], ids=lambda options: options.protocol)
def test_drainer_killed_within_batches_loses_no_row_and_writes_none_twice(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker, tmp_path: Path, options: ProtocolOptions
) -> None:
    """The drainer dies behind a DDL, and when every slot of a batch is written. Each next one finds its place in the
    partitions by the position alone. Tables without keys show at once what was written twice."""
    topic = written(kafka, tmp_path, options=options)
    config = configuration(stubs, KEYS, mariadb, more=source(kafka, topic, options=options))
    for point in ("drainer.after_ddl:20", "drainer.before_commit"):
        drainer = stubs.drainer(config, "--until-now", BINLOG_CRASH_POINT=point).start()
        assert drainer.wait(deadline_s=240) == -9, f"{point} was not reached\n{drainer.tail()}"
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    assert missing(mariadb, options) == []
    for schema, table in (one.split(".") for one in left_out(options)):  # their DDLs are in the history alone
        assert not mariadb.query(f"SHOW TABLES FROM {schema} LIKE '{table}'")


def test_topics_of_simple_are_enough_without_any_tidb(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker, tmp_path: Path
) -> None:
    """DDL messages create all tables. The drainer is killed, and the next one finds the schemas in the topic again."""
    topic = kafka.topic(3)
    parts = spread(SIMPLE, recorded(tmp_path, options=SIMPLE))
    write(kafka, [(topic, number, part) for number, part in enumerate(parts)])
    uri = f"kafka://{kafka.address}/{topic}?protocol=simple"
    more = f'source = "ticdc"\ndistributed-bytes-min = 1\n[ticdc-source]\nuri = "{uri}"\n'
    config = re.sub(r"\[schema\]\n.*\n", "", configuration(stubs, KEYS, mariadb, more=more))
    drainer = stubs.drainer(config, "--until-now", BINLOG_CRASH_POINT="drainer.after_ddl:20").start()
    assert drainer.wait(deadline_s=240) == -9, drainer.tail()
    begin_ts = KEYS.meta["scenario_start_ts"]
    assert begin_ts < position(mariadb)
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    assert missing(mariadb, SIMPLE) == []


def thirds(pairs: Pairs) -> Sequence[tuple[Pairs, int]]:
    """Each third of the messages, and the ts up to which it is resolved by its last message."""
    decoder = make_decoder(CANAL)
    found: list[tuple[Pairs, int]] = []
    begin = 0
    for end, pair in enumerate(pairs, 1):
        for event in decoder.decode(*pair):
            is_due = end == len(pairs) or end >= (len(found) + 1) * len(pairs) // 3
            if isinstance(event, ResolvedEvent) and is_due and len(found) < 3:
                found.append((pairs[begin:end], event.commit_ts))
                begin = end
    assert begin == len(pairs) and len(found) == 3
    return found


def test_running_drainer_reads_new_topics_and_partitions_and_outlasts_a_broker(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker, tmp_path: Path
) -> None:
    """TiCDC makes a partition, writes rows to it, and only then says anywhere that everything up to them is there. No
    position may be past the rows of a partition that the drainer did not know."""
    (first, first_ts), (second, second_ts), (third, _) = thirds(recorded(tmp_path))
    topic = kafka.topic()
    config = configuration(stubs, KEYS, mariadb, more=source(kafka, topic, f'topics = ["^{topic}"]'))
    drainer = stubs.drainer(config).start()
    write(kafka, [(topic, 0, [*first])])
    drainer.wait_for_output("drainer is running", deadline_s=120)
    wait_until(
        lambda: position(mariadb) >= first_ts - 1, deadline_s=120, what=lambda: f"a third is there {drainer.tail()}"
    )

    kafka.grow(topic, 2)
    other = kafka.topic(name=f"{topic}-more")
    a, b, c = spread(CANAL, second)
    write(kafka, [(other, 0, c), (topic, 1, b), (topic, 0, a)])
    wait_until(lambda: position(mariadb) >= second_ts - 1, deadline_s=120, what=lambda: f"two thirds {drainer.tail()}")

    kafka.kill()
    kafka.start()
    a, b, c = spread(CANAL, third)
    write(kafka, [(topic, 0, a), (topic, 1, b), (other, 0, c)])
    wait_until(lambda: missing(mariadb) == [], deadline_s=120, what=lambda: f"everything is there {drainer.tail()}")
    assert drainer.stop(deadline_s=120) == 0, drainer.tail()


def test_drainer_ends_where_brokers_removed_messages_above_its_position(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker, tmp_path: Path
) -> None:
    topic = written(kafka, tmp_path)
    kafka.order(kafka.admin.delete_records, [TopicPartition(topic, 1, 40)])
    drainer = stubs.drainer(configuration(stubs, KEYS, mariadb, more=source(kafka, topic))).start()
    assert drainer.wait(deadline_s=120) != 0
    assert f"{topic}[1] offset " in drainer.text() and "the brokers removed those before it" in drainer.text()
    assert position(mariadb) == KEYS.meta["scenario_start_ts"]


def test_change_stream_of_topics_has_the_rows_of_pumps(stubs: Stubs, spark: Any, kafka: Broker, tmp_path: Path) -> None:
    """Every type; a batch read, one of a part, and an availableNow stream in several batches."""
    capture = CaptureSet(GOLDEN / "types")
    topic, history = written(kafka, tmp_path, capture), str(tmp_path / "jobs.json")
    stubs.add("a").put(*capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    pumps = {"pd-urls": stubs.etcd.endpoint, "tso-source": "own", "start-ts": capture.meta["scenario_start_ts"]}
    topics = {"source": address(kafka, topic)}
    table = {"history-file": history, "table": "types.t_all"}

    def read(source: Any, options: dict[str, Any]) -> Any:
        return source.format("binlog").options(**table, **options).load()

    def shown(rows: list[Any]) -> list[str]:
        return sorted(repr((r.kind, r.commit_ts, r.schema, r.table, r.before, r.after)) for r in rows)

    wanted = read(spark.read, pumps).collect()
    middle = sorted(row.commit_ts for row in wanted)[len(wanted) // 2]
    assert shown(read(spark.read, topics).collect()) == shown(wanted)
    some = [row for row in wanted if row.commit_ts <= middle]
    assert 0 < len(some) < len(wanted)
    assert shown(read(spark.read, topics | {"end-ts": middle}).collect()) == shown(some)

    batches: list[list[Any]] = []
    stream = read(spark.readStream, topics | {"batch-bytes-max": 4096}).writeStream.trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.foreachBatch(lambda frame, _: batches.append(frame.collect())).start()
    assert query.awaitTermination(300)
    assert len(batches) > 2
    assert shown([row for batch in batches for row in batch]) == shown(wanted)
