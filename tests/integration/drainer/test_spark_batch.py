"""A distributed batch's jobs in a real Spark: what each of them runs; and errors through them, where the names of
tables are made to look like errors, or like code."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.pb import pump_ext_pb2 as ext
from binlog.tidb.row import encode_insert
from binlog.tidb.table import TableInfo

from drainer.apply.fold_order import DistributedJob, FoldOrder, PackedView
from drainer.batch.work import SegmentWork
from drainer.changes.slot_blob import HASH_VERSION
from drainer.pumps.watermark import Counted, RangeDiffers
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import UniqueConflict
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.mysql.rows.slot_writer import Phase
from drainer.spark.errors import ErrorSeal, SparkFailed
from drainer.spark.query import SparkBatch
from drainer.spark.shuffle_apply import Fold, shuffled
from drainer.spark.source.data_source import PACKED_SCHEMA
from tests.support.row_case import INT, Step, not_null, table, transaction, view_of
from tests.support.servers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

SLOTS = 4
UNIQUE = table([("k", INT), ("u", not_null(INT))], handle="k", unique={"uu": ["u"]}, table_id=71, name="unique")
BARE = table([("a", INT)], table_id=72, name="bare")
ORDER = FoldOrder(PackedView.of(view_of(UNIQUE, BARE)), SQL_TEXT, SLOTS)
INTENT = Intent(0, 1 << 40, SLOTS, 100, HASH_VERSION, "")


@dataclass(frozen=True)
class Counting:
    """Says of a slot which tables' rows it got, and how many."""

    phase: Phase = field(default=Phase.DIRECT)

    def write(self, slot: int, segment: SegmentWork, retry_for_s: float) -> Receipt:
        work = segment
        rows = sum(len(folded.rows) for folded in work.folded)
        names = {folded.shape.table for folded in work.folded} | {c.shape.table for c in work.ordered.changes}
        return Receipt(slot, rows, 1, 0, ",".join(sorted(names)))


def put(key: int, value: int) -> Step:
    return ("insert", {}, {1: key, 2: value})


def of_both(n: int) -> bytes:
    return transaction([(UNIQUE, put(n, 100 + n)), (BARE, ("insert", {}, {1: n}))], commit_ts=10 + n)


PARTS = ([of_both(n) for n in range(0, 40, 2)], [of_both(n) for n in range(1, 40, 2)])


def messages(part: Sequence[bytes]) -> bytes:
    return ext.PullRangeResp(payloads=part).SerializeToString()


def feed_of(
    spark: Any, parts: Sequence[Sequence[bytes]], *, folded: bool, order: FoldOrder = ORDER, files: str = ""
) -> SparkBatch:
    """As the source gives a batch: messages, or what reading tasks have folded."""
    rows = [(f"p{n}", 0, messages(part)) for n, part in enumerate(parts)]
    if folded:
        batches = [batch for part in parts for batch in _folded(part, order)]
        pairs = [
            (slot.as_py(), blob.as_py()) for b in batches for slot, blob in zip(b.column(0), b.column(1), strict=True)
        ]
        rows = [("", slot, blob) for slot, blob in pairs]
    return SparkBatch(spark.createDataFrame(rows, PACKED_SCHEMA).repartition(2), ErrorSeal.new(), files)


def _folded(part: Sequence[bytes], order: FoldOrder) -> Iterator[Any]:
    yield from Fold(order)(iter([pa.RecordBatch.from_pydict({"blob": [messages(part)]})]))


def planned(parts: Sequence[Sequence[bytes]]) -> Counted:
    return Counted(sum(map(len, parts)), sum(len(payload) for part in parts for payload in part))


@pytest.mark.parametrize("folded", [False, True])
def test_each_slot_gets_its_rows(spark: Any, folded: bool) -> None:
    """Rule 11: those of a table without a key are in one slot."""
    results = feed_of(spark, PARTS, folded=folded).distribute(
        DistributedJob(ORDER, INTENT, Counting(), folded, planned(PARTS))
    )
    assert sum(result.rows for result in results) == 40
    assert sorted(result.detail for result in results) == ["bare,unique", *["unique"] * (SLOTS - 1)]


def chained(key: int) -> bytes:
    """A row, and in groups of ten the row before it."""
    steps: list[Step] = [put(key, 100 + key)]
    if key % 10:
        steps.append(("update", {1: key - 1, 2: 99 + key}, {1: key - 1, 2: 99 + key}))
    return transaction([(UNIQUE, step) for step in steps], commit_ts=10 + key)


CHAINS = ([chained(n) for n in range(0, 40, 2)], [chained(n) for n in range(1, 40, 2)])


@pytest.mark.parametrize("folded", [False, True])
def test_each_slot_gets_a_complete_group_of_transactions(spark: Any, tmp_path: Path, folded: bool) -> None:
    """Rule 33: the parts are read once and divided again; and rule 22: nothing is missing on the way."""
    order = replace(ORDER, view=PackedView.of(view_of(UNIQUE, BARE)), whole=True)
    feed = feed_of(spark, CHAINS, folded=folded, order=order, files=str(tmp_path))
    feed.covers(INTENT.after_ts, INTENT.until_ts)
    (tmp_path / f"{INTENT.after_ts}-{INTENT.until_ts}").mkdir()
    job = DistributedJob(order, INTENT, Counting(), folded, planned(CHAINS))
    assert [result.rows for result in feed.distribute(job)] == [10] * SLOTS
    assert any(tmp_path.rglob("*/*")) == folded
    with pytest.raises(RangeDiffers, match="through Spark to slot"):
        feed.distribute(replace(job, planned=replace(planned(CHAINS), count=41)))


def test_rows_that_do_not_come_are_missed(spark: Any) -> None:
    """Rule 22: with less than all of the batch nothing of a slot is applied."""
    one_more = replace(planned(PARTS), count=planned(PARTS).count + 1)
    feed = feed_of(spark, PARTS, folded=True)
    with pytest.raises(RangeDiffers, match="through Spark to slot"):
        feed.distribute(DistributedJob(ORDER, INTENT, Counting(), True, one_more))


def test_a_batch_is_read_once_by_a_stage_of_its_own(spark: Any, tmp_path: Path) -> None:
    """It is read when `shuffled` returns, by the tasks before the shuffle alone; later jobs run what lies behind it."""
    context, reads = spark.sparkContext, tmp_path / "reads"

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reads.open("a") as file:
            file.write("read\n")
        yield from batches

    rows = spark.range(0, 40, numPartitions=3).selectExpr("CAST(id % 4 AS int) AS seq").mapInArrow(read, "seq int")
    context.setJobGroup("read once", "")
    by_slot = shuffled(rows.repartitionById(SLOTS, "seq"))
    assert reads.read_text() == 3 * "read\n"
    tracker = context.statusTracker()
    (job,) = wait_until(lambda: tracker.getJobIdsForGroup("read once"), deadline_s=60, what="the job is known")
    assert len(tracker.getJobInfo(job).stageIds) == 1, "nothing behind the shuffle"
    found = [{row.seq for row in rows} for rows in by_slot.rdd.glom().collect()]
    assert found == [{slot} for slot in range(SLOTS)], "a partition for each slot"
    assert by_slot.where("seq < 2").count() == 20
    assert reads.read_text() == 3 * "read\n"


def test_a_batch_of_no_task_is_empty(spark: Any) -> None:
    """An open batch whose pumps have all been given up; Spark refuses a stage without tasks."""
    nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), PACKED_SCHEMA)
    assert nothing.rdd.getNumPartitions() == 0
    assert shuffled(nothing.repartitionById(SLOTS, "seq")).count() == 0


def test_a_batch_of_another_way_to_run_queries_is_read_too(spark: Any) -> None:
    """`[spark.conf]` may turn on adaptive execution, whose plans say only when they run what is read."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        feed = feed_of(spark, PARTS, folded=False)
        results = feed.distribute(DistributedJob(ORDER, INTENT, Counting(), False, planned(PARTS)))
        assert sum(result.rows for result in results) == 40
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), PACKED_SCHEMA)
        assert shuffled(empty.repartitionById(SLOTS, "seq")).count() == 0
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")


def test_a_query_s_log_has_no_files_of_checksums(spark: Any, tmp_path: Path) -> None:
    """Hadoop starts a process for every file that it makes."""
    rows: list[int] = []

    def pulled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict(
            {"pump": ["p"], "seq": pa.array([0], pa.int32()), "blob": [messages([*PARTS[0], *PARTS[1]])]}
        )

    def apply(ticks: Any, _number: int) -> None:
        feed = SparkBatch(ticks.coalesce(1).mapInArrow(pulled, PACKED_SCHEMA), ErrorSeal.new())
        rows.append(sum(found.rows for found in feed.distribute(DistributedJob(ORDER, INTENT, Counting(), False))))

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    query = source.writeStream.foreachBatch(apply).option("checkpointLocation", tmp_path.as_uri()).start()
    try:
        wait_until(lambda: len(rows) >= 2 or query.exception(), deadline_s=240, what="two batches")
    finally:
        query.stop()
    assert rows[:2] == [40, 40], query.exception()
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert any(map(str.isdigit, names)), "the log is there, whatever Spark has deleted of it meanwhile"
    assert not [name for name in names if name.endswith(".crc")]


class Harmful:
    """What a pickle may hold: a call of anything."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._trace,)


@dataclass(frozen=True)
class Refusing:
    """A destination whose error quotes a name, as all of them do; `detail` is what it says of a slot otherwise."""

    name: str = ""
    detail: str = ""
    plain: bool = False
    phase: Phase = field(default=Phase.DIRECT)

    def write(self, slot: int, segment: SegmentWork, retry_for_s: float) -> Receipt:
        if self.plain:
            raise OSError(f"file {self.name}")
        if self.name:
            raise UniqueConflict(f"slot {slot}", schema="db", table=self.name, key="k")
        return Receipt(slot, sum(len(folded.rows) for folded in segment.folded), 1 << 20, 0, self.detail)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Is there when somebody's code ran."""
    return tmp_path / "called"


def hostile(trace: Path, seal: ErrorSeal) -> str:
    """A name that is a pickle, as it was once unpickled; that pickle in the form of today; and a mark as somebody makes
    it who knows all but the secret."""
    pickled = base64.b64encode(pickle.dumps((Harmful(trace), (), {}))).decode()
    forged = str(ErrorSeal("guessed").carry(UniqueConflict("7", schema="db", table="other", key="k")))
    name = f"<binlog-error:{pickled}><binlog-error:{pickled}:{'0' * 64}>{forged}"
    assert seal.secret not in name
    return name


def sealed(spark: Any, seal: ErrorSeal, *binlogs: bytes) -> SparkBatch:
    return SparkBatch(spark.createDataFrame([("p", 0, messages(binlogs))], PACKED_SCHEMA), seal)


def order_of(info: TableInfo) -> FoldOrder:
    return FoldOrder(PackedView.of(view_of(info)), SQL_TEXT, SLOTS)


def job_of(info: TableInfo, target: Refusing) -> DistributedJob:
    return DistributedJob(order_of(info), INTENT, target, folded=False)


def rows(info: TableInfo, count: int = 20) -> list[bytes]:
    return [transaction([(info, ("insert", {}, {1: n, 2: n}))], commit_ts=10 + n) for n in range(count)]


def table_named(name: str) -> TableInfo:
    return table([("id", INT), ("v", INT)], handle="id", name=name)


def test_error_of_unreadable_row_survives_spark_with_hostile_table_name(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    name = hostile(trace, seal)
    info = table_named(name)
    whole = transaction([(info, ("insert", {}, {1: 1, 2: 2}))], commit_ts=10)
    torn = whole.replace(
        encode_insert(info, {1: 1, 2: 2}, rowid=1), encode_insert(info, {1: 1, 2: 2}, rowid=1)[:-2] + b"\x63\x04"
    )
    assert torn != whole
    with pytest.raises(DecodeError) as raised:
        sealed(spark, seal, torn).check(order_of(info))
    assert name in raised.value.what
    assert raised.value.detail
    assert not trace.exists()


def test_destination_error_quoting_hostile_name_survives_spark(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    name = hostile(trace, seal)
    with pytest.raises(UniqueConflict) as raised:
        sealed(spark, seal, *rows(info)).distribute(job_of(info, Refusing(name)))
    assert raised.value.table == name
    assert str(raised.value) in {f"slot {slot}" for slot in range(SLOTS)}
    assert not trace.exists()
    # What Spark said, which goes to its log, gives nobody the means to write such a mark.
    assert seal.secret not in str(raised.value.__cause__)


def test_foreign_error_in_spark_becomes_spark_failed_text(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    with pytest.raises(SparkFailed, match="OSError: file"):
        sealed(spark, seal, *rows(info)).distribute(job_of(info, Refusing(hostile(trace, seal), plain=True)))
    assert not trace.exists()


def test_slot_receipts_come_back_from_spark_as_values(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    name = hostile(trace, seal)
    results = sealed(spark, seal, *rows(info)).distribute(job_of(info, Refusing(detail=name)))
    assert sum(result.rows for result in results) == 20
    assert all(
        result == Receipt(result.slot, result.rows, 1 << 20, 0, name) and type(result.rows) is int for result in results
    )
    assert len({result.slot for result in results}) == len(results) > 1
    assert not trace.exists()
