"""Everything that touches Spark: the data source "binlog", the session, and the spread way of applying a batch.

`register(spark)` makes `spark.readStream.format("binlog")` known; see source/data_source.py for options and columns.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the data source "binlog" known to a session.

    Its workers must find this package: on this machine they run the interpreter that runs us, unless PYSPARK_PYTHON
    says otherwise (Spark's default is whatever `python3` is on PATH).
    """
    from drainer.spark.source.data_source import BinlogSource

    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = sys.executable
    spark.dataSource.register(BinlogSource)
