"""The data source "binlog" on its own, as another Spark program would use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from binlog import envelope

from drainer.spark.session import start_session, stop_session
from tests.capture import GOLDEN, CaptureSet
from tests.integration.drainer.stubs import Stubs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CAPTURE = CaptureSet(GOLDEN / "keys")
END = CAPTURE.meta["scenario_end_ts"]
SERVED = [(e.commit_ts, e.start_ts, e.ddl_job_id, p) for p in CAPTURE.binlogs if not (e := envelope.scan(p)).is_fake]


@pytest.fixture
def spark(java: None, tmp_path: Path) -> Iterator[Any]:
    session = start_session(master="local[2]", output=tmp_path / "spark.log", conf={})
    yield session
    stop_session(session)


def served(rows: list[Any]) -> list[tuple[int, int, int, bytes]]:
    return sorted((r.commit_ts, r.start_ts, r.ddl_job_id, bytes(r.payload)) for r in rows)


def test_read_and_stream(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
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
        assert stream.foreachBatch(lambda frame, _: batches.append(frame.collect())).start().awaitTermination(120)

    drain()
    assert served([row for batch in batches for row in batch]) == sorted(first)
    assert len([batch for batch in batches if batch]) > 2
    stubs.resolve(END)
    drain()
    assert served([row for batch in batches for row in batch]) == sorted(SERVED)

    ddl = next(row for batch in batches for row in batch if row.ddl_job_id)
    assert ddl.ddl_query and ddl.pump in ("a", "b")
    assert next(row for batch in batches for row in batch if not row.ddl_job_id).ddl_query is None


def test_a_wrong_option_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match="pd-urls"):
        spark.read.format("binlog").load().collect()
