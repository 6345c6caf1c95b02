"""An example of a program that reads a lake: every table as upstream was at one TSO, and a JOIN of two of them. It
needs this package with the extra `[spark]`; no drainer and no pump has to run.

    python -m demo.read_lake demo-data/lake demo-data/read-back /opt/delta/….jar,…

Each table, and the JOIN as `totals`, is written as lines of JSON to a directory of its own. Without jars Spark
downloads them.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from drainer.lake.at import at, position_of

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # For tables as small as these: few tasks, and little that is compiled.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(lake: str, output: str, jars: str = "") -> None:
    packages = {"spark.jars": jars} if jars else {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}
    spark = (
        SparkSession.builder.config(map=SETTINGS | packages)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    tables = at(spark, lake, position_of(spark, lake))
    totals = spark.sql("""
        SELECT c.id, c.name, count(*) AS orders, sum(o.total) AS total
        FROM shop_orders o JOIN shop_customers c ON o.customer = c.id
        GROUP BY c.id, c.name ORDER BY total DESC, id
    """)
    sys.stdout.write("the customers who ordered most:\n")
    sys.stdout.flush()
    totals.cache()
    totals.show(5)
    for name, rows in [*((table, rows) for (_, table), rows in tables.items()), ("totals", totals)]:
        # Spark writes three digits of a DATETIME's fraction otherwise.
        rows.write.option("timestampNTZFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS").json(f"{output}/{name}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
