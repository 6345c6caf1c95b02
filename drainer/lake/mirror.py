"""Mirrors: the rows of a table as upstream has them, merged from its history.

A mirror that is merged up to a commit_ts has upstream's rows at that commit_ts, which is the version that the
changefeed has committed to the table (Delta's `txn`). A merge takes the last image of each key since then. A table
without a key is a multiset of rows: each insert adds a row, and each delete removes one of the rows that are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainer.lake.delta import Delta, TableState, errors
from drainer.lake.fields import INTEGERS, Field, quoted
from drainer.lake.files import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ORDER = "commit_ts, start_ts, place, is_new"


@dataclass(frozen=True, slots=True)
class Range:
    """The changes of (after_ts, until_ts]."""

    after_ts: int
    until_ts: int

    @property
    def where(self) -> str:
        return f"commit_ts > {self.after_ts} AND commit_ts <= {self.until_ts}"


Pairs = Sequence[tuple[Field, Field | None]]


def column_pairs(mirror: TableState, history: TableState) -> Pairs:
    """The mirror's fields that have a column, each with the history's field of the column."""
    of = {field.physical: field for field in history.fields}
    by_column = {field.column_id: field for field in history.fields if field.column_id >= 0}
    return [
        (field, by_column.get(field.column_id) or of.get(field.physical))
        for field in mirror.fields
        if field.column_id >= 0
    ]


def _columns(side: str, pairs: Pairs) -> list[str]:
    """SQL of the mirror's columns, from an image of the history: `before` or `after`."""
    return [
        f"{'NULL' if theirs is None else f'{side}.{quoted(theirs.name)}'} AS {quoted(ours.name)}"
        for ours, theirs in pairs
    ]


def last_images(changes: DataFrame, pairs: Pairs, key: Sequence[int]) -> DataFrame:
    """Return for each key that `changes` touch a row: the key's columns as `k0`, `k1`, …, and `row`, a struct of the
    mirror's fields; NULL if the key has been deleted."""
    keys = [(theirs or ours).name for ours, theirs in pairs if ours.column_id in key]

    def image(side: str, is_new: int) -> str:
        of_key = ", ".join(f"{side}.{quoted(name)} AS k{at}" for at, name in enumerate(keys))
        row = f"CASE WHEN {is_new} = 1 THEN struct({', '.join(_columns(side, pairs))}) END"
        return f"CASE WHEN {side} IS NOT NULL THEN struct({of_key}, {is_new} AS is_new, {row} AS row) END"

    both = f"explode(array_compact(array({image('before', 0)}, {image('after', 1)}))) AS one"
    spread = changes.selectExpr("commit_ts", "start_ts", "place", both)
    names = [f"k{at}" for at in range(len(keys))]
    flat = spread.selectExpr(
        "commit_ts", "start_ts", "place", "one.is_new", "one.row", *(f"one.{name}" for name in names)
    )
    from pyspark.sql import functions

    last = functions.expr(f"max_by(struct(row), struct({_ORDER})).row")
    return flat.groupBy(*names).agg(last.alias("row"))


def same_key(pairs: Pairs, key: Sequence[int]) -> str:
    """Return, as SQL, the condition that a row `t` of the mirror and a row `s` of `last_images` have the same key."""
    names = [quoted(ours.name) for ours, _ in pairs if ours.column_id in key]
    return " AND ".join(f"t.{name} <=> s.k{at}" for at, name in enumerate(names))


def merge(delta: Delta, app: str, mirror_path: Place, mirror: TableState, history_path: Place, of: Range) -> None:
    """Merge the changes of a range into a mirror that has been merged up to its begin. It may be repeated."""
    history = delta.state(history_path)
    assert history is not None, f"{history_path} has a mirror"
    pairs = column_pairs(mirror, history)
    with errors(mirror_path), delta.as_app(mirror_path, app, of.until_ts) as spark:
        changes = spark.read.format("delta").load(str(history_path)).where(of.where)
        loaded = mirror.version == 0 and changes.where("start_ts <> commit_ts").isEmpty()  # all are of a first load
        if mirror.key and not loaded:
            _merge_keyed(spark, mirror_path, pairs, mirror.key, changes)
            return
        made, mode = changes.selectExpr(*_columns("after", pairs)), "append"
        if not loaded and not changes.where("before IS NOT NULL").isEmpty():
            rows = spark.read.format("delta").load(str(mirror_path))
            made, mode = with_multiset(rows, changes, pairs), "overwrite"
        made.write.format("delta").mode(mode).save(str(mirror_path))


def _merge_keyed(spark: SparkSession, path: Place, pairs: Pairs, key: Sequence[int], changes: DataFrame) -> None:
    """Delete the rows of all keys that the changes touch, and insert the new ones: so of the mirror only the key is
    read."""
    from pyspark.sql import functions

    view = "tidb_binlog_touched"
    last = last_images(changes, pairs, key).persist()  # Delta reads it two or three times
    try:
        touched = last.withColumn("is_new", functions.lit(False))
        touched = touched.unionAll(last.where("row IS NOT NULL").withColumn("is_new", functions.lit(True)))
        touched.createOrReplaceTempView(view)
        of_key = next(ours for ours, _ in pairs if ours.column_id in key)
        bounds = ""
        if of_key.type in INTEGERS:  # files whose keys are all outside are not read
            low, high = last.agg(functions.min("k0"), functions.max("k0")).collect()[0]
            bounds = f" AND t.{quoted(of_key.name)} BETWEEN {low} AND {high}" if low is not None else ""
        names = ", ".join(quoted(ours.name) for ours, _ in pairs)
        values = ", ".join(f"s.row.{quoted(ours.name)}" for ours, _ in pairs)
        spark.sql(
            f"MERGE INTO delta.{quoted(str(path))} t USING {view} s ON NOT s.is_new AND {same_key(pairs, key)}{bounds} "
            f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.is_new THEN INSERT ({names}) VALUES ({values})"
        )
    finally:
        last.unpersist()


def with_multiset(rows: DataFrame, changes: DataFrame, pairs: Pairs) -> DataFrame:
    """Return the rows of a table without a key after the changes."""
    new, old = (changes.where(f"{side} IS NOT NULL").selectExpr(*_columns(side, pairs)) for side in ("after", "before"))
    return rows.unionAll(new).exceptAll(old)
