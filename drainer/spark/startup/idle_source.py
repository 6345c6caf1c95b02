"""A data source of dummy rows for warmup.py. It imports little, as planned_reader.py does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from drainer.spark.source.data_source import PACKED_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

BLOB = bytes(1 << 10)


class IdleSource(DataSource):  # type: ignore[misc]  # mypy does not follow pyspark
    """A few packed dummy rows, as a table or as a stream."""

    @classmethod
    def name(cls) -> str:
        return "binlog-warm-up"

    def schema(self) -> str:
        return PACKED_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["tasks"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(int(self.options["tasks"]))


class _Reader(DataSourceReader):  # type: ignore[misc]  # mypy does not follow pyspark
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class _StreamReader(DataSourceStreamReader):  # type: ignore[misc]  # mypy does not follow pyspark
    """An endless stream of batches."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._last = 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


def _rows() -> Iterator[pa.RecordBatch]:
    from drainer.spark.source.executor import packed

    yield packed("", list(range(4)), [BLOB] * 4)
