"""The data source "binlog", its change stream of a table, and the drainer's Parquet files, as another Spark program
would use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from binlog import envelope
from binlog.cluster.registry import State
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, TableInfo
from pyspark.errors import PySparkException

from drainer.schema.job_policy import Policy
from drainer.sink.base import Identity
from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import parquet_rows, record, settle, sink
from tests.support.row_case import INT, table, transaction
from tests.support.schema_case import ddl, job, ts
from tests.support.servers import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CAPTURE = CaptureSet(GOLDEN / "keys")
END = CAPTURE.meta["scenario_end_ts"]
SERVED = [(e.commit_ts, e.start_ts, e.ddl_job_id, p) for p in CAPTURE.binlogs if not (e := envelope.scan(p)).is_fake]


def load(stubs: Stubs, source: Any, **options: object) -> Any:
    source = source.format("binlog").option("pd-urls", stubs.etcd.endpoint).option("tso-source", "own")
    return source.options(**{name.replace("_", "-"): str(value) for name, value in options.items()}).load()


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

    first = [row for row in SERVED if row[0] <= half]
    assert served(load(stubs, spark.read).collect()) == sorted(first)
    some = [row for row in first if row[0] <= first[5][0]]
    assert served(load(stubs, spark.read, end_ts=first[5][0]).collect()) == sorted(some)

    batches: list[list[Any]] = []

    def drain() -> None:
        stream = load(stubs, spark.readStream, batch_bytes_max=4096).writeStream
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

    for options in ({}, {"start_ts": 100}, {"start_ts": 1 << 50}):
        frame = load(stubs, spark.read, **options)
        assert frame.collect() == []
        assert frame.columns == ["commit_ts", "start_ts", "pump", "ddl_job_id", "ddl_query", "payload"]
    stream = load(stubs, spark.readStream).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.format("memory").queryName("nothing").trigger(availableNow=True).start()
    assert query.awaitTermination(400)
    assert spark.table("nothing").collect() == []


def test_unreachable_etcd_of_binlog_source_fails_with_one_line(spark: Any) -> None:
    frame = spark.read.format("binlog").option("pd-urls", "http://127.0.0.1:1").load()
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert "no connection to etcd at http://127.0.0.1:1" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_parquet_files_of_a_recording_are_read_by_spark(spark: Any, tmp_path: Path) -> None:
    """Every type, and tables whose columns changed."""
    capture, files = CaptureSet(GOLDEN / "types"), tmp_path / "files"
    record(capture, sink(files, "parquet", rotate_bytes=1 << 20), tmp_path / "jobs.json", Policy())
    destination = sink(files, "parquet", rotate_bytes=1)
    destination.open(Identity(capture.meta["cluster_id"], "golden", "golden"), 1)
    settle(destination)
    destination.close(clean=True)
    wanted: dict[str, list[tuple[object, ...]]] = {}
    for _, row in parquet_rows(files):
        wanted.setdefault(row["of"][0], []).append((row["commit_ts"], row.get("kind"), row.get("query")))
    assert len(wanted) > 5
    for folder, rows in wanted.items():
        found = [row.asDict() for row in spark.read.parquet(str(files / folder)).collect()]
        assert sorted((row["commit_ts"], row.get("kind"), row.get("query")) for row in found) == sorted(rows), folder


def reader(stubs: Stubs, history: Path) -> Callable[..., Any]:
    """Reads the changes of a table."""

    def read(source: Any, table: str, **options: object) -> Any:
        return load(stubs, source, history_file=history, table=table, **options)

    return read


def serve_with_a_go_pump(stubs: Stubs) -> None:
    """In the place of pump a: on one of ours, one from before the extension, and every third binlog on both."""
    ours, go = stubs.add("b"), stubs.add("go", extension=False)
    for number, payload in enumerate(CAPTURE.binlogs):
        if number % 3 != 1:
            ours.put(payload)
        if number % 3 != 0:
            go.put(payload)
    go.put(envelope.encode_fake(END))
    stubs.resolve(END)
    stubs.register("a", State.OFFLINE)


def test_change_stream_read_as_batch_and_stream_has_each_row_once(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    """The types of the columns, a batch read, a bounded one; and the same rows, each of them once, from pumps of which
    two hold it, by a batch read and through a stream in small batches."""
    history = tmp_path / "history.json"
    history.write_bytes(CAPTURE.jobs_text)
    stubs.add("a").put(*CAPTURE.binlogs)
    stubs.resolve(END)
    read = reader(stubs, history)
    tables = CAPTURE.tables()
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

    serve_with_a_go_pump(stubs)
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


def test_rules_of_a_drainers_configuration_apply_to_change_stream(stubs: Stubs, spark: Any, tmp_path: Path) -> None:
    history, rules = tmp_path / "history.json", tmp_path / "drainer.toml"
    history.write_text(json.dumps([each.to_json() for each in JOBS[:2]]))
    stubs.add("a").put(*(inserted(OLD, number, 2) for number in range(5)))
    stubs.resolve(ts(4))
    rules.write_text(
        '[[syncer.columns]]\nschema-pattern = "shop"\nmask = { price = "constant:0" }\n'
        '[[syncer.rows]]\nschema-pattern = "shop"\nwhere = "price >= 3"\n'
    )
    read = reader(stubs, history)
    rows = read(spark.read, "shop.orders", rules_file=rules).orderBy("commit_ts").collect()
    assert [(row.kind, row.after.id, row.after.price) for row in rows] == [("insert", 3, 0), ("insert", 4, 0)]
    rules.write_text('[[syncer.columns]]\nschema-pattern = "shop"\nleave-out = ["id"]\n')
    with pytest.raises(PySparkException, match=r"syncer.columns 1 cannot be applied to table shop.orders: column id"):
        read(spark.read, "shop.orders", rules_file=rules)


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
        ("keys", "ConfigError: data source binlog: option table: it must be database.table"),
    ],
)
def test_unknown_table_of_change_stream_fails_with_one_line(
    stubs: Stubs, spark: Any, tmp_path: Path, name: str, why: str
) -> None:
    history = tmp_path / "history.json"
    history.write_bytes(CAPTURE.jobs_text)
    stubs.add("a")
    with pytest.raises(PySparkException) as caught:
        reader(stubs, history)(spark.read, name)
    assert why in str(caught.value)
    assert "Traceback" not in str(caught.value)
