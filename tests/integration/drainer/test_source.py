"""The data source "binlog" on its own, as another Spark program would use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from binlog import envelope
from pyspark.errors import PySparkException

from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CAPTURE = CaptureSet(GOLDEN / "keys")
END = CAPTURE.meta["scenario_end_ts"]
SERVED = [(e.commit_ts, e.start_ts, e.ddl_job_id, p) for p in CAPTURE.binlogs if not (e := envelope.scan(p)).is_fake]


def served(rows: list[Any]) -> list[tuple[int, int, int, bytes]]:
    return sorted((r.commit_ts, r.start_ts, r.ddl_job_id, bytes(r.payload)) for r in rows)


def test_binlog_source_read_as_batch_and_stream_has_each_binlog_once(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    """A batch read of everything; a bounded one; an AvailableNow stream in small batches that ends, and goes on from
    its checkpoint when more has come; a row's columns."""
    pumps = [stubs.add("a"), stubs.add("b"), stubs.add("go", extension=False)]
    half = SERVED[len(SERVED) // 2][0]
    for number, payload in enumerate(CAPTURE.binlogs):
        pumps[number % 2].put(payload)
    pumps[2].put(envelope.encode_fake(END))
    stubs.resolve(half)

    def reader(source: Any, **options: object) -> Any:
        source = source.format("binlog").option("pd-urls", stubs.etcd.endpoint).option("tso-source", "own")
        return source.options(**{name.replace("_", "-"): str(value) for name, value in options.items()}).load()

    first = [row for row in SERVED if row[0] <= half]
    assert served(reader(spark.read).collect()) == sorted(first)
    some = [row for row in first if row[0] <= first[5][0]]
    assert served(reader(spark.read, end_ts=first[5][0]).collect()) == sorted(some)

    batches: list[list[Any]] = []

    def drain() -> None:
        stream = reader(spark.readStream, batch_bytes_max=4096).writeStream
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert stream.foreachBatch(lambda frame, _: batches.append(frame.collect())).start().awaitTermination(400)

    drain()
    assert served([row for batch in batches for row in batch]) == sorted(first)
    assert len([batch for batch in batches if batch]) > 2
    stubs.resolve(END)
    drain()
    assert served([row for batch in batches for row in batch]) == sorted(SERVED)

    ddl = next(row for batch in batches for row in batch if row.ddl_job_id)
    assert ddl.ddl_query and ddl.pump in ("a", "b")
    assert next(row for batch in batches for row in batch if not row.ddl_job_id).ddl_query is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "ConfigError: data source binlog: the option pd-urls is required"),
        ({"pd-urls": "http://127.0.0.1:1", "start": "1"}, "ConfigError: data source binlog: unknown option start"),
        (
            {"pd-urls": "http://127.0.0.1:1", "start-ts": "now"},
            "ConfigError: data source binlog: option start-ts: 'now' is neither a TSO nor a time such as",
        ),
    ],
    ids=["missing", "unknown", "neither a ts nor a time"],
)
def test_invalid_option_of_binlog_source_fails_with_one_line(spark: Any, options: dict[str, str], why: str) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("binlog").options(**options).load()
    text = str(caught.value)
    assert why in text
    assert "Traceback" not in text


def test_binlog_source_of_empty_range_returns_no_rows(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    """Nothing was ever written; a start behind the watermark; a stream of nothing."""
    stubs.add("a")
    stubs.resolve(100)

    def reader(source: Any, **options: int) -> Any:
        source = source.format("binlog").option("pd-urls", stubs.etcd.endpoint).option("tso-source", "own")
        return source.options(**{name.replace("_", "-"): str(value) for name, value in options.items()}).load()

    for options in ({}, {"start_ts": 100}, {"start_ts": 1 << 50}):
        frame = reader(spark.read, **options)
        assert frame.collect() == []
        assert frame.columns == ["commit_ts", "start_ts", "pump", "ddl_job_id", "ddl_query", "payload"]
    stream = reader(spark.readStream).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.format("memory").queryName("nothing").trigger(availableNow=True).start()
    assert query.awaitTermination(400)
    assert spark.table("nothing").collect() == []


def test_unreachable_etcd_of_binlog_source_fails_with_one_line(spark: Any) -> None:
    frame = spark.read.format("binlog").option("pd-urls", "http://127.0.0.1:1").load()
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert "no connection to etcd at http://127.0.0.1:1" in str(caught.value)
    assert "Traceback" not in str(caught.value)
