"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from, see worker_imports.py."""

from __future__ import annotations

from drainer.spark.startup import worker_imports

if __name__ == "__main__":
    import pyspark.daemon

    from drainer.spark.startup import node_requirements

    node_requirements.check_build()
    worker_imports.load()
    pyspark.daemon.manager()
