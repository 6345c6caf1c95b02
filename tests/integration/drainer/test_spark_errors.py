"""Errors through real Spark jobs, where the names of tables are made to look like errors, or like code."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import DecodeError
from binlog.pb import pump_ext_pb2 as ext
from binlog.tidb.row import encode_insert
from binlog.tidb.table import TableInfo

from drainer.apply.fold_order import FoldOrder, PackedView
from drainer.apply.micro_batch import DistributedJob
from drainer.batch.work import SegmentWork
from drainer.order.slot import HASH_VERSION
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import UniqueConflict
from drainer.sink.mysql.rows.chunks import Phase
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.spark.errors import ErrorSeal, SparkFailed
from drainer.spark.query import SparkBatch
from drainer.spark.source.data_source import PACKED_SCHEMA
from tests.support.row_case import INT, table, transaction, view_of

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

SLOTS = 4


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


def feed_of(spark: Any, seal: ErrorSeal, *binlogs: bytes) -> SparkBatch:
    message = ext.PullRangeResp(payloads=binlogs).SerializeToString()
    return SparkBatch(spark.createDataFrame([("p", 0, message)], PACKED_SCHEMA), seal)


def order_of(info: TableInfo) -> FoldOrder:
    return FoldOrder(PackedView.of(view_of(info)), SQL_TEXT, SLOTS)


def job_of(info: TableInfo, target: Refusing) -> DistributedJob:
    return DistributedJob(order_of(info), Intent(0, 1 << 40, SLOTS, 100, HASH_VERSION, ""), target, folded=False)


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
        feed_of(spark, seal, torn).check(order_of(info))
    assert name in raised.value.what
    assert raised.value.detail
    assert not trace.exists()


def test_destination_error_quoting_hostile_name_survives_spark(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    name = hostile(trace, seal)
    with pytest.raises(UniqueConflict) as raised:
        feed_of(spark, seal, *rows(info)).distribute(job_of(info, Refusing(name)))
    assert raised.value.table == name
    assert str(raised.value) in {f"slot {slot}" for slot in range(SLOTS)}
    assert not trace.exists()
    # What Spark said, which goes to its log, gives nobody the means to write such a mark.
    assert seal.secret not in str(raised.value.__cause__)


def test_foreign_error_in_spark_becomes_spark_failed_text(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    with pytest.raises(SparkFailed, match="OSError: file"):
        feed_of(spark, seal, *rows(info)).distribute(job_of(info, Refusing(hostile(trace, seal), plain=True)))
    assert not trace.exists()


def test_slot_receipts_come_back_from_spark_as_values(spark: Any, trace: Path) -> None:
    seal = ErrorSeal.new()
    info = table_named("t")
    name = hostile(trace, seal)
    results = feed_of(spark, seal, *rows(info)).distribute(job_of(info, Refusing(detail=name)))
    assert sum(result.rows for result in results) == 20
    assert all(
        result == Receipt(result.slot, result.rows, 1 << 20, 0, name) and type(result.rows) is int for result in results
    )
    assert len({result.slot for result in results}) == len(results) > 1
    assert not trace.exists()
