"""Everything that touches Spark: the data source "binlog", the session, and the spread way of applying a batch.

`register(spark)` makes `spark.readStream.format("binlog")` known; see drainer.spark.source for options and columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the data source "binlog" known to a session."""
    from drainer.spark.source import BinlogSource

    spark.dataSource.register(BinlogSource)
