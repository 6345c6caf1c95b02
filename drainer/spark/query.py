"""The streaming query of the drainer: source "binlog" planned by the coordinator, every batch into the pipeline."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from binlog.log import get_logger
from pyspark.sql import DataFrame, SparkSession

from drainer.feed import SpreadJob
from drainer.reading import FoldOrder
from drainer.sink.protocol import SlotResult
from drainer.spark import spread
from drainer.spark.errors import SPARK_ERRORS, unwrap

_log = get_logger(__name__)


class SparkFeed:
    """One micro-batch of packed rows (drainer.pipeline.Feed)."""

    def __init__(self, packed: DataFrame) -> None:
        self._packed = packed

    def messages(self) -> Iterable[tuple[str, bytes]]:
        try:
            table = self._packed.select("pump", "blob").toArrow()
        except SPARK_ERRORS as error:
            raise unwrap(error) from error
        for pump, blob in zip(table.column("pump"), table.column("blob"), strict=True):
            yield pump.as_py(), blob.as_py()

    def check(self, order: FoldOrder) -> None:
        spread.check(self._packed, order)

    def spread(self, job: SpreadJob) -> Sequence[SlotResult]:
        return spread.spread(self._packed, job)


class Query:
    """Runs from `start` until `stop` or until a batch raises. Spark's own checkpoint is a fresh folder at every start:
    the destination's position is the truth (correctness rule 17)."""

    def __init__(self, session: SparkSession, *, options: dict[str, str]) -> None:
        self._session = session
        self._options = options
        self._checkpoint = Path(tempfile.mkdtemp(prefix="drainer-query-"))

    def start(self, batch: Callable[[SparkFeed], None], ended: Callable[[BaseException | None], None]) -> None:
        """`batch` is called with one micro-batch after another; `ended` once, with the error if there was one."""
        frame = self._session.readStream.format("binlog").options(**self._options).load()

        def each(packed: DataFrame, _batch_id: int) -> None:
            batch(SparkFeed(packed))

        writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(self._checkpoint))
        self._query = writer.queryName("drainer").start()

        def wait() -> None:
            failure: BaseException | None = None
            try:
                self._query.awaitTermination()
            except (*SPARK_ERRORS, OSError) as error:  # OSError: the JVM is gone
                failure = unwrap(error)
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            ended(failure)

        threading.Thread(target=wait, name="query", daemon=True).start()

    def stop(self) -> None:
        try:
            self._query.stop()
        except SPARK_ERRORS as error:
            _log.warning("Spark did not stop its query in time", error=str(error).splitlines()[0])
