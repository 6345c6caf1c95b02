"""The data source "binlog": what the pumps of one cluster serve, in commit_ts order per task.

    drainer.spark.register(spark)
    spark.readStream.format("binlog").option("pd-urls", "http://127.0.0.1:2379").load()

| option | default | |
|---|---|---|
| `pd-urls` | required | etcd, as in drainer.toml |
| `cluster-id` | 0 | 0 = as etcd or PD says |
| `pd-addr`, `tso-source` | | as in drainer.toml: where the cluster's id comes from |
| `start-ts` | 0 | read what commits after this TSO |
| `end-ts` | 0 | batch reads: up to this TSO; 0 = the watermark when the query is planned. Nothing there: no rows |
| `batch-bytes-max` | 33554432 | binlog payload bytes of one micro-batch |
| `ssl-ca`, `ssl-cert`, `ssl-key` | | TLS to etcd and pumps |

Columns: `commit_ts` long, `start_ts` long, `pump` string, `ddl_job_id` long (0 for rows), `ddl_query` string (null
for rows), `payload` binary (a serialized binlog.Binlog, prewrite and commit merged). Fakes do not appear; a
transaction that lies on two pumps appears twice (same start_ts and commit_ts). One of more than 64 MiB fails the
query: a row is one value, which Spark copies several times.

The offset of a stream is `{"commit_ts": N}`: everything at or below N is final and has been read. It is the watermark
of all pumps that count (correctness rule 8), cut to `batch-bytes-max`.

With `packed` = true, as the drainer reads it, a row is one message of a pull, unread: `pump` string, `seq` int, `blob`
binary (a serialized binlog.ext.PullRangeResp; of a binlog above 4 MiB a part, and the next rows hold the rest).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from drainer.spark.options import SourceOptions, one_line_errors

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SCHEMA = "commit_ts long, start_ts long, pump string, ddl_job_id long, ddl_query string, payload binary"
PACKED_SCHEMA = "pump string, seq int, blob binary"

Batches = Iterator["RecordBatch"]


class BinlogSource(DataSource):  # type: ignore[misc]  # mypy does not follow pyspark
    """Names the readers; they do the work."""

    @classmethod
    def name(cls) -> str:
        return "binlog"

    @one_line_errors
    def schema(self) -> str:
        return PACKED_SCHEMA if SourceOptions.parse(self.options).packed else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options)
        if options.planner:
            from drainer.spark.planned import PlannedReader

            return PlannedReader(options)
        from drainer.spark.stream import StreamReader

        return StreamReader(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from drainer.spark.stream import BatchReader

        return BatchReader(SourceOptions.parse(self.options))
