"""Reads a lake as upstream was at one TSO, in any Spark session with Delta. Nothing is written.

    from drainer.lake.at import at
    tables = at(spark, "/lake", tso)          # and views `shop_orders`, …
    spark.sql("SELECT * FROM shop_orders JOIN shop_customers USING (customer_id)")

Of each mirror the last version at or before the TSO is read, and the changes that its history has between the two are
applied to it. So all tables show one state of upstream, whenever each of them was merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from binlog.errors import BinlogError

from drainer.lake.control import DOMAIN, control_path
from drainer.lake.delta import Delta, TableState
from drainer.lake.fields import quoted
from drainer.lake.mirror import Range, column_pairs, last_images, same_key, with_multiset
from drainer.lake.tables import CHANGES, SINCE
from drainer.sink.base import TableLoad, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


class NotThere(BinlogError):
    """The lake has no state of this TSO."""


def at(
    spark: SparkSession, directory: str | Path, tso: int, *, changefeed: str = "default"
) -> dict[TableName, DataFrame]:
    """Return every table that has a mirror as it was at `tso`, and register it as a view `<database>_<table>`. Raises
    NotThere if the position is below that TSO, or a mirror has no version as old."""
    root, delta = Path(directory).absolute(), Delta(spark)
    control = control_path(root, changefeed)
    position = _position(delta, root, changefeed)
    if tso > position:
        raise NotThere(f"{root}: its position is {position}, before {tso}; wait until the drainer has reached it")
    rows = spark.read.format("delta").load(str(control)).where(f"until_ts <= {tso}").collect()
    found = {}
    for row in newest(rows):
        name = (row.schema, row.table)
        found[name] = _table(spark, delta, root, row, tso)
        found[name].createOrReplaceTempView(quoted("_".join(name)))
    return found


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return of each mirror the row with its newest version; none of a mirror whose table has been dropped since."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row.until_ts, row.version < 0, row.version)):
        found[row.path] = row
    return [row for row in found.values() if row.version >= 0]


def position_of(spark: SparkSession, directory: str | Path, *, changefeed: str = "default") -> int:
    """Return the newest TSO that `at` can show. Raises NotThere."""
    return _position(Delta(spark), Path(directory).absolute(), changefeed)


def _position(delta: Delta, root: Path, changefeed: str) -> int:
    _, text = delta.domain(control_path(root, changefeed), DOMAIN)
    if text is None:
        raise NotThere(f"{root} has no lake of changefeed {changefeed!r}")
    body = json.loads(text)
    if any(not TableLoad(**one).is_complete for one in body.get("loads", ())):
        raise NotThere(f"{root}: its first load is not complete")
    return int(body["position"]["commit_ts"])


def _table(spark: SparkSession, delta: Delta, root: Path, row: Row, tso: int) -> DataFrame:
    path, history_path = root / row.path, root / f"{row.path}{CHANGES}"
    history = delta.state(history_path)
    mirror = delta.state(path, row.version)
    if history is None or mirror is None:
        raise NotThere(f"{path}: its version {row.version} is gone")
    since = int(delta.domain(history_path, SINCE)[1] or 0)
    if tso < since:
        raise NotThere(f"{history_path}: changes up to {since} have been removed, so {tso} cannot be shown")
    rows = spark.read.format("delta").option("versionAsOf", row.version).load(str(path))
    changes = spark.read.format("delta").load(str(history_path)).where(Range(row.until_ts, tso).where)
    return with_changes(rows, changes, mirror, history)


def with_changes(rows: DataFrame, changes: DataFrame, mirror: TableState, history: TableState) -> DataFrame:
    """Return a mirror's rows after these changes of its history."""
    pairs = column_pairs(mirror, history)
    if not mirror.key:
        return with_multiset(rows, changes, pairs)
    from pyspark.sql import functions

    last = last_images(changes, pairs, mirror.key).alias("s")
    stays = rows.alias("t").join(last, functions.expr(same_key(pairs, mirror.key)), "left_anti")
    return stays.unionByName(last.where("row IS NOT NULL").selectExpr("row.*"))
