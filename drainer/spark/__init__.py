"""All code that uses Spark: the data source "binlog", the session, and the distributed application of a batch.

`register(spark)` makes `spark.readStream.format("binlog")` known; docs/api-source.md lists options and columns.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the data source "binlog" known to a session.

    Its workers must be able to import this package. On this machine they therefore run this process's interpreter,
    unless PYSPARK_PYTHON is set (Spark's default is the `python3` on PATH).
    """
    from drainer.spark.source.data_source import BinlogSource

    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = sys.executable
    spark.dataSource.register(BinlogSource)
