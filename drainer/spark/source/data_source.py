"""The data source "binlog": what the pumps of one cluster serve, in commit_ts order per task.

    drainer.spark.register(spark)
    spark.readStream.format("binlog").option("pd-urls", "http://127.0.0.1:2379").load()

docs/api-source.md lists its options and columns, docs/changes.md says what those with `table` mean.

Without `table` fakes do not appear, a transaction that lies on two pumps appears twice (same start_ts and commit_ts),
and a binlog of more than 64 MiB fails the query: a row is one value, which Spark copies several times. With `packed`,
as the drainer reads it, a row is one message of a pull, unread: `pump`, `seq`, and `blob`, a serialized
binlog.ext.PullRangeResp; of a binlog above 4 MiB a part, and the next rows hold the rest.

The offset of a stream is `{"commit_ts": N}`: everything at or below N is final and has been read. It is the watermark
of all pumps that count (correctness rule 8), cut to `batch-bytes-max`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from drainer.spark.source.options import SourceOptions, one_line_errors

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SCHEMA = "commit_ts long, start_ts long, pump string, ddl_job_id long, ddl_query string, payload binary"
PACKED_SCHEMA = "pump string, seq int, blob binary"

Batches = Iterator["RecordBatch"]


class BinlogSource(DataSource):  # type: ignore[misc]  # mypy does not follow pyspark
    """Creates the readers of the source."""

    @classmethod
    def name(cls) -> str:
        return "binlog"

    @one_line_errors
    def schema(self) -> StructType | str:
        options = SourceOptions.parse(self.options)
        if options.tables:
            from drainer.spark.typed.reader import schema_for

            return schema_for(options)
        return PACKED_SCHEMA if options.packed else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options)
        if options.planner:
            from drainer.spark.source.executor import PlannedReader

            return PlannedReader(options)
        if options.tables:
            from drainer.spark.typed.reader import ChangesStreamReader

            return ChangesStreamReader(options, schema)
        from drainer.spark.source.stream import StreamReader

        return StreamReader(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        if options.tables:
            from drainer.spark.typed.reader import ChangesBatchReader

            return ChangesBatchReader(options, schema)
        from drainer.spark.source.stream import BatchReader

        return BatchReader(options)
