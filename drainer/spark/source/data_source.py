"""The data source "binlog": what the pumps of one cluster serve, in commit_ts order per task.

    drainer.spark.register(spark)
    spark.readStream.format("binlog").option("pd-urls", "http://127.0.0.1:2379").load()

| option | default | |
|---|---|---|
| `pd-urls` | required | etcd, as in drainer.toml; not with `source` |
| `source` | | TiCDC's topics in place of pumps: `uri` of `[ticdc-source]` in drainer.toml; needs a DDL history |
| `source-topics` | | topics with commas between them, or regular expressions that begin with ^ |
| `cluster-id` | 0 | 0 = as etcd or PD says |
| `pd-addr`, `tso-source` | | as in drainer.toml: where the cluster's id comes from |
| `start-ts` | 0 | read what commits after this TSO |
| `end-ts` | 0 | batch reads: up to this TSO; 0 = the watermark when the query is planned. Nothing there: no rows |
| `batch-bytes-max` | 33554432 | binlog payload bytes of one micro-batch |
| `ssl-ca`, `ssl-cert`, `ssl-key` | | TLS to etcd and pumps |
| `table` | | `shop.orders`, or several with commas: typed changes of these tables, see below |
| `history-file`, `history-url` | | DDL history, as in drainer.toml; jobs that services publish in etcd need neither |
| `schema-changes` | `fail` | what a DDL does to a query: `fail`, or `collect` what it adds in a column |
| `rules-file` | | a drainer's configuration, whose rules for columns, rows and events count here, too |
| `zero-dates` | `null` | a date that Spark has not (0000-00-00) is NULL, or `fail` |

Columns with `table`: `kind` ("insert", "update", "delete"), `commit_ts` long, `commit_time` timestamp, `start_ts` long
(with `source` a hash of the row), `seq` int (the change's number in its transaction), `schema` and `table` string,
`before` and `after` structs with the tables' columns (types: drainer.spark.typed.types), and with `schema-changes` =
collect `added`, a map of strings. A transaction comes once. The columns are those that the tables have when the query
is planned.

Columns without it: `commit_ts` long, `start_ts` long, `pump` string, `ddl_job_id` long (0 for rows), `ddl_query`
string (null for rows), `payload` binary (a serialized binlog.Binlog, prewrite and commit merged). Fakes do not appear;
a transaction that lies on two pumps appears twice (same start_ts and commit_ts). One of more than 64 MiB fails the
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
