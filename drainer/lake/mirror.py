"""Mirrors: the rows of a table as upstream has them, merged from its history.

A mirror that has come to a commit_ts has upstream's rows at that commit_ts: it is the version that the changefeed has
committed to the table (Delta's `txn`). A merge takes the last image of each key since then. A table without a key is a
bag of rows: what was inserted is added, and what was deleted is taken away once for each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drainer.lake.delta import Delta, TableState, errors
from drainer.lake.fields import Field, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ORDER = "commit_ts, start_ts, place, half"


@dataclass(frozen=True, slots=True)
class Range:
    """The changes of (after_ts, until_ts]."""

    after_ts: int
    until_ts: int

    @property
    def where(self) -> str:
        return f"commit_ts > {self.after_ts} AND commit_ts <= {self.until_ts}"


def twins(mirror: TableState, history: TableState) -> list[tuple[Field, Field | None]]:
    """The mirror's fields that have a column, each with the history's field of the column."""
    of = {field.physical: field for field in history.fields}
    by_column = {field.column_id: field for field in history.fields if field.column_id >= 0}
    return [
        (field, by_column.get(field.column_id) or of.get(field.physical))
        for field in mirror.fields
        if field.column_id >= 0
    ]


def last_images(changes: DataFrame, pairs: Sequence[tuple[Field, Field | None]], key: Sequence[int]) -> DataFrame:
    """Return for each key that `changes` touch a row: the key's columns as `k0`, `k1`, …, and `row`, a struct of the
    mirror's fields; NULL if the key has gone."""
    keys = [(theirs or ours).name for ours, theirs in pairs if ours.column_id in key]

    def image(side: str, half: int) -> str:
        fields = ", ".join(
            f"{'NULL' if theirs is None else f'{side}.{quoted(theirs.name)}'} AS {quoted(ours.name)}"
            for ours, theirs in pairs
        )
        of_key = ", ".join(f"{side}.{quoted(name)} AS k{at}" for at, name in enumerate(keys))
        row = f"struct({fields})"
        row = f"CASE WHEN {half} = 1 THEN {row} END"
        return f"CASE WHEN {side} IS NOT NULL THEN struct({of_key}, {half} AS half, {row} AS row) END"

    both = f"explode(array_compact(array({image('before', 0)}, {image('after', 1)}))) AS one"
    spread = changes.selectExpr("commit_ts", "start_ts", "place", both)
    names = [f"k{at}" for at in range(len(keys))]
    flat = spread.selectExpr(
        "commit_ts", "start_ts", "place", "one.half", "one.row", *(f"one.{name}" for name in names)
    )
    from pyspark.sql import functions

    last = functions.expr(f"max_by(struct(row), struct({_ORDER})).row")
    return flat.groupBy(*names).agg(last.alias("row"))


def key_pairs(pairs: Sequence[tuple[Field, Field | None]], key: Sequence[int]) -> list[Field]:
    """The mirror's fields of the key, in the order of `k0`, `k1`, …"""
    return [ours for ours, _ in pairs if ours.column_id in key]


def merge(delta: Delta, app: str, mirror_path: Path, mirror: TableState, history_path: Path, of: Range) -> None:
    """Merge the changes of a range into a mirror that has come to its begin. It may be repeated."""
    history = delta.state(history_path)
    assert history is not None, f"{history_path} has a mirror"
    pairs = twins(mirror, history)
    with errors(mirror_path):
        changes = delta.spark.read.format("delta").load(str(history_path)).where(of.where)
        if mirror.key:
            _merge_keyed(delta, app, mirror_path, pairs, mirror.key, changes, of)
        else:
            with delta.as_app(mirror_path, app, of.until_ts) as spark:
                rows = spark.read.format("delta").load(str(mirror_path))
                bag(rows, changes, pairs).write.format("delta").mode("overwrite").save(str(mirror_path))


def _merge_keyed(
    delta: Delta,
    app: str,
    path: Path,
    pairs: Sequence[tuple[Field, Field | None]],
    key: Sequence[int],
    changes: DataFrame,
    of: Range,
) -> None:
    view = "tidb_binlog_touched"
    with delta.as_app(path, app, of.until_ts) as spark:
        last_images(changes, pairs, key).createOrReplaceTempView(view)
        on = " AND ".join(f"t.{quoted(field.name)} <=> s.k{at}" for at, field in enumerate(key_pairs(pairs, key)))
        names = [quoted(ours.name) for ours, _ in pairs]
        sets = ", ".join(f"t.{name} = s.row.{name}" for name in names)
        values = ", ".join(f"s.row.{name}" for name in names)
        spark.sql(
            f"MERGE INTO delta.{quoted(str(path))} t USING {view} s ON {on} "
            f"WHEN MATCHED AND s.row IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND s.row IS NOT NULL THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )
        spark.catalog.dropTempView(view)


def bag(rows: DataFrame, changes: DataFrame, pairs: Sequence[tuple[Field, Field | None]]) -> DataFrame:
    """Return the rows after the changes."""

    def images(side: str) -> DataFrame:
        fields = [
            f"{'NULL' if theirs is None else f'{side}.{quoted(theirs.name)}'} AS {quoted(ours.name)}"
            for ours, theirs in pairs
        ]
        return changes.where(f"{side} IS NOT NULL").selectExpr(*fields)

    return rows.unionAll(images("after")).exceptAll(images("before"))
