"""The change stream of a table with typed columns, in a plain Spark program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from binlog import envelope
from binlog.cluster.node import State
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, TableInfo
from pyspark.errors import PySparkException

from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.row_case import INT, table, transaction
from tests.support.schema_case import ddl, job, ts
from tests.support.servers import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KEYS = CaptureSet(GOLDEN / "keys")
DDL = CaptureSet(GOLDEN / "ddl")
Read = Callable[..., Any]


def reader(stubs: Stubs, history: Path) -> Read:
    def read(source: Any, table: str, **options: object) -> Any:
        source = source.format("binlog").option("pd-urls", stubs.etcd.endpoint).option("tso-source", "own")
        source = source.option("history-file", str(history)).option("table", table)
        return source.options(**{name.replace("_", "-"): str(value) for name, value in options.items()}).load()

    return read


def serve(stubs: Stubs, capture: CaptureSet) -> None:
    """From a pump of ours."""
    stubs.add("a").put(*capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])


def serve_with_a_go_pump(stubs: Stubs, capture: CaptureSet) -> None:
    """In the place of `serve`'s pump: on one of ours, one from before the extension, and every third binlog on both."""
    ours, go = stubs.add("b"), stubs.add("go", extension=False)
    for number, payload in enumerate(capture.binlogs):
        if number % 3 != 1:
            ours.put(payload)
        if number % 3 != 0:
            go.put(payload)
    end = capture.meta["scenario_end_ts"]
    go.put(envelope.encode_fake(end))
    stubs.resolve(end)
    stubs.register("a", State.OFFLINE)


def test_change_stream_read_as_batch_and_stream_has_each_row_once(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    """The types of the columns, a batch read, a bounded one; and the same rows, each of them once, from pumps of which
    two hold it, by a batch read and through a stream in small batches."""
    history = tmp_path / "history.json"
    history.write_bytes(KEYS.jobs_text)
    serve(stubs, KEYS)
    read = reader(stubs, history)
    tables = KEYS.tables()
    busy = max(tables, key=lambda name: len(tables[name].get("rows", ())))
    frame = read(spark.read, busy)
    rows = frame.orderBy("commit_ts", "seq").collect()
    assert rows
    assert len({(row.commit_ts, row.start_ts, row.seq) for row in rows}) == len(rows)
    assert {row.kind for row in rows} <= {"insert", "update", "delete"}
    assert all((row.before is None) == (row.kind == "insert") for row in rows)
    assert all((row.after is None) == (row.kind == "delete") for row in rows)
    assert frame.schema["after"].dataType == frame.schema["before"].dataType

    some = read(spark.read, busy, end_ts=rows[0].commit_ts).collect()
    assert some == [row for row in rows if row.commit_ts <= rows[0].commit_ts]
    assert read(spark.read, busy, start_ts=rows[0].commit_ts).count() == len(rows) - len(some)

    minutes = frame.groupBy("kind").count().collect()
    assert sum(row["count"] for row in minutes) == len(rows)

    serve_with_a_go_pump(stubs, KEYS)
    # The query waits until a Go pump's stream is quiet, which it may be too soon on a machine that stands still.
    assert wait_until(lambda: whole(read(spark.read, busy), rows), deadline_s=240, what="all rows are read") == rows

    found: list[Any] = []
    batches: list[int] = []

    def keep(batch: Any, number: int) -> None:
        found.extend(batch.collect())
        batches.append(number)

    def streamed() -> bool:
        stream = read(spark.readStream, busy, batch_bytes_max=16384).writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(keep)
        assert stream.start().awaitTermination(400)
        return len(found) >= len(rows)

    wait_until(streamed, deadline_s=240, what="all rows come through the stream")
    assert len(batches) > 2
    assert sorted(found, key=lambda row: (row.commit_ts, row.seq)) == rows


def whole(frame: Any, rows: Sequence[Any]) -> list[Any]:
    """The frame's rows in their order, or nothing if it ends before the last of `rows`."""
    found: list[Any] = frame.orderBy("commit_ts", "seq").collect()
    return found if found and found[-1].commit_ts >= rows[-1].commit_ts else []


def test_ddl_during_change_stream_stops_it_or_is_collected(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    """The query ends with an error that names table and column; started again it goes on with the new column, and
    nothing is lost or comes twice. With `collect` the first one goes on."""
    history = tmp_path / "history.json"
    history.write_text(json.dumps([each.to_json() for each in JOBS[:2]]))
    pump = stubs.add("a")
    pump.put(*(inserted(OLD, number, 2) for number in range(5)))
    stubs.resolve(ts(4))
    read = reader(stubs, history)
    rows: dict[str, list[Any]] = {"fail": [], "collect": []}

    def start(mode: str) -> Any:
        stream = read(spark.readStream, "shop.orders", schema_changes=mode).writeStream
        stream = stream.option("checkpointLocation", str(tmp_path / mode))
        return stream.foreachBatch(lambda batch, _: rows[mode].extend(batch.collect())).start()

    failing, collecting = start("fail"), start("collect")
    try:
        for query in (failing, collecting):
            query.processAllAvailable()
        assert ids_of(rows["fail"]) == ids_of(rows["collect"]) == [0, 1, 2, 3, 4]
        history.write_text(json.dumps([each.to_json() for each in JOBS]))
        pump.put(inserted(OLD, 5, 4), ddl(ts(6), 5, "ALTER TABLE orders ADD COLUMN more INT").payload)
        pump.put(*(inserted(NEW, number, 5) for number in range(7, 10)))
        stubs.resolve(ts(10))
        with pytest.raises(PySparkException) as caught:
            failing.awaitTermination(400)
        assert "SchemaChanged: table shop.orders: column more was added since" in str(caught.value)
        collecting.processAllAvailable()
    finally:
        failing.stop()
        collecting.stop()
    assert ids_of(rows["collect"]) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert [row.added for row in rows["collect"]] == [None] * 6 + [{"more": "70"}, {"more": "80"}, {"more": "90"}]

    again = start("fail")
    try:
        again.processAllAvailable()
    finally:
        again.stop()
    assert ids_of(rows["fail"]) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert rows["fail"][-1].after.more == 90


OLD = table([("id", INT), ("price", INT)], handle="id", name="orders")
NEW = replace(OLD, columns=(*OLD.columns, ColumnInfo(id=3, name="more", offset=2, type=INT)))
JOBS = (
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "shop")),
    job(2, ActionType.CREATE_TABLE, 2, schema_id=1, table_id=OLD.id, table_info=OLD),
    job(5, ActionType.ADD_COLUMN, 5, schema_id=1, table_id=OLD.id, table_info=NEW),
)


def inserted(info: TableInfo, number: int, version: int) -> bytes:
    values = {1: number, 2: number, 3: number * 10}
    return transaction([(info, ("insert", {}, values))], commit_ts=ts(number), start_ts=ts(number) - 1, version=version)


def ids_of(rows: list[Any]) -> list[int]:
    return [row.after.id for row in rows]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("keys.nothing", "TablesUnfit: table keys.nothing is not in the DDL history"),
        ("keys", "ConfigError: data source binlog: option table must be database.table"),
    ],
)
def test_unknown_table_of_change_stream_fails_with_one_line(
    stubs: Stubs, spark: Any, tmp_path: Path, name: str, why: str
) -> None:
    history = tmp_path / "history.json"
    history.write_bytes(KEYS.jobs_text)
    stubs.add("a")
    with pytest.raises(PySparkException) as caught:
        reader(stubs, history)(spark.read, name)
    assert why in str(caught.value)
    assert "Traceback" not in str(caught.value)
