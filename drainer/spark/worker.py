"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from.

Everything a task imports is imported here once, before the first fork, and frozen: a worker starts in milliseconds
instead of a second, and the collection that Spark runs after every task passes over it (50 ms of CPU to 5). None
of these modules starts a thread on import; grpc opens its channels in the workers only. pandas is missing on purpose:
pyspark asks for it to be installed, but mapInArrow never imports it, and it would take half of the time here.
"""

from __future__ import annotations

import gc

import grpc  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.daemon
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker

import drainer.sink.table
import drainer.spark.read
import drainer.spark.spread  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
