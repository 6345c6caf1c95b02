"""A recording of a real TiDB, as TiCDC's topics have it, through the drainer into a real MariaDB."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from drainer.protocol.options import ProtocolOptions
from drainer.schema.filter import Filter
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_recording import configuration
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.message_case import messages_of
from tests.support.servers import MariaDB
from tests.support.ticdc_topic import spread

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

CANAL = ProtocolOptions("canal-json", enable_tidb_extension=True)
PARAMETERS = "protocol=canal-json&enable-tidb-extension=true"
LEFT_OUT = "ks.k_genpk"  # our own topics lack stored generated columns, which TiCDC's have


def written(kafka: Broker, capture: CaptureSet, options: ProtocolOptions, scratch: Path) -> str:
    """A topic of three partitions with the recording."""
    topic = kafka.topic(3)
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", f"!{LEFT_OUT}"]))
    pairs = messages_of(capture, options, scratch / "jobs.json", rules)
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for number, part in enumerate(spread(options, pairs)):
        for key, value in part:
            producer.produce(topic, key=key, value=value, partition=number)
    assert producer.flush(60) == 0
    return topic


@pytest.mark.parametrize("name", ["keys"])
def test_topics_become_upstreams_tables(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker, tmp_path: Path, name: str
) -> None:
    """Every batch without a DDL is distributed: executors read the partitions."""
    capture = CaptureSet(GOLDEN / name)
    topic = written(kafka, capture, CANAL, tmp_path)
    source = (
        'source = "ticdc"\ndistributed-bytes-min = 1\n[ticdc-source]\n'
        f'uri = "kafka://{kafka.address}/{topic}?{PARAMETERS}"'
    )
    drainer = stubs.drainer(configuration(stubs, capture, mariadb, more=source), "--until-now").start()
    assert drainer.wait(deadline_s=400) == 0, drainer.tail()
    assert [one for one in differences(mariadb, capture) if not one.startswith(LEFT_OUT)] == []


def test_change_stream_of_topics_has_the_rows_of_pumps(stubs: Stubs, spark: Any, kafka: Broker, tmp_path: Path) -> None:
    """Every type; a batch read, one of a part, and an availableNow stream in several batches."""
    capture = CaptureSet(GOLDEN / "types")
    topic, history = written(kafka, capture, CANAL, tmp_path), str(tmp_path / "jobs.json")
    stubs.add("a").put(*capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    pumps = {"pd-urls": stubs.etcd.endpoint, "tso-source": "own", "start-ts": capture.meta["scenario_start_ts"]}
    topics = {"source": f"kafka://{kafka.address}/{topic}?{PARAMETERS}"}
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
