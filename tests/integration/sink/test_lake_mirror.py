"""What changes make of a mirror's rows, with Spark and without Delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from binlog.tidb.table import TableInfo

from drainer.lake.at import with_changes
from drainer.lake.delta import HISTORY, KEY, ROLE, TableState, history_schema
from drainer.lake.fields import evolved, key_of, quoted
from drainer.lake.mirror import Range
from tests.support.row_case import INT, TEXT, not_null, table

pytestmark = pytest.mark.integration

Row = tuple[Any, ...]
ODD = ("row", "k0", "is_new", "a.b", "c`d", "s")  # names that queries use, and names that need quotes
KEYED = table([(name, not_null(INT)) for name in ODD], unique={"PRIMARY": ["row", "s"]})
BAG = table([("before", INT), ("one", TEXT)])


def schema_of(info: TableInfo) -> str:
    return ", ".join(f"{quoted(one.name)} {'INT' if one.type.tp is INT.tp else 'STRING'}" for one in info.columns)


def after(
    spark: Any, info: TableInfo, rows: Sequence[Row], changes: Sequence[tuple[int, int, int, Row | None, Row | None]],
    mirror_of: TableInfo | None = None,
) -> list[Row]:  # fmt: skip
    """The rows after changes: (commit_ts, start_ts, place, before, after). `mirror_of`: the table that the mirror has
    still."""
    was = mirror_of or info
    fields = evolved((), was, count(1), was={}, keeps=False)
    mirror = TableState(1, "m", [one.json() for one in fields], {KEY: str(list(key_of(was)))})
    older = evolved((), was, count(9, 2), was={}, keeps=True)
    newer = evolved(older, info, count(99, 2), was={3: 1} if mirror_of else {}, keeps=True)
    history = TableState(1, "h", history_schema(newer), {ROLE: HISTORY})
    image = ", ".join(f"{quoted(one.name)}: {'INT' if 'int' in one.type else 'STRING'}" for one in newer)
    columns = f"commit_ts LONG, start_ts LONG, place INT, before STRUCT<{image}>, after STRUCT<{image}>"
    found = spark.createDataFrame(list(reversed(changes)), columns)
    made = with_changes(spark.createDataFrame(rows, schema_of(was)), found, mirror, history)
    assert made.columns == [one.name for one in was.columns]
    return sorted(map(tuple, made.collect()), key=repr)


def row(one: int, two: int | None, other: int = 0) -> Row:
    return (one, other, other, other, other, two)


def test_last_image_of_each_key_counts(spark: Any) -> None:
    rows = [row(1, 1), row(1, 2), row(2, 1), row(3, 1), row(4, 1), row(5, 1), row(5, 2), row(6, None)]
    changes = [
        (10, 9, 0, row(1, 1), row(1, 1, 5)),
        (10, 9, 1, row(1, 2), None),
        (11, 9, 0, None, row(1, 2, 6)),  # deleted, and there again
        (11, 9, 1, row(2, 1), row(2, 9, 7)),  # its key changes
        (12, 1, 0, row(3, 1), row(9, 9)),  # two rows exchange their keys, over a third one
        (12, 1, 1, row(4, 1), row(3, 1, 4)),
        (12, 1, 2, row(9, 9), row(4, 1, 3)),
        (12, 2, 0, row(5, 1), row(5, 1, 1)),  # several changes of one key, in transactions with one commit_ts
        (12, 3, 0, row(5, 1, 1), row(5, 1, 2)),
        (12, 3, 7, None, row(8, 8)),
        (13, 1, 0, row(8, 8), None),  # comes and goes
        (14, 1, 0, row(6, None), row(6, None, 6)),  # a date of zeros
    ]
    wanted = [row(1, 1, 5), row(1, 2, 6), row(2, 9, 7), row(3, 1, 4), row(4, 1, 3), row(5, 1, 2), row(5, 2)]
    wanted.append(row(6, None, 6))
    assert after(spark, KEYED, rows, changes) == sorted(wanted, key=repr)


def test_rows_without_a_key_are_counted(spark: Any) -> None:
    rows = [(1, "x"), (1, "x"), (None, None), (None, None), (2, None)]
    changes = [
        (10, 9, 0, (1, "x"), None),
        (10, 9, 1, (None, None), (None, "y")),
        (10, 9, 2, None, (None, None)),
        (11, 9, 0, (None, "y"), (3, "z")),
        (12, 9, 0, None, (3, "z")),
    ]
    wanted = [(1, "x"), (2, None), (3, "z"), (3, "z"), (None, None), (None, None)]
    assert after(spark, BAG, rows, changes) == sorted(wanted, key=repr)


@pytest.mark.parametrize("key", [{"u": ["id"]}, {}], ids=["keyed", "bag"])
def test_mirror_from_before_a_change_of_type_takes_the_values_of_that_time(spark: Any, key: Any) -> None:
    was = table([("id", not_null(INT)), ("v", INT)], unique=key)
    first, second = was.columns
    info = replace(was, columns=(replace(first, id=3, type=not_null(TEXT)), replace(second, name="w")))
    # The history has the fields `id`, which is new, `w`, and `c1__before`, which was `id`.
    changes = [(10, 9, 0, (None, 0, 1), (None, 5, 1)), (11, 9, 0, None, (None, 6, 2))]
    assert after(spark, info, [(1, 0), (7, 7)], changes, mirror_of=was) == [(1, 5), (2, 6), (7, 7)]


def test_changes_of_a_range_are_those_after_its_begin_up_to_its_end(spark: Any) -> None:
    found = spark.createDataFrame([(ts,) for ts in range(10)], "commit_ts LONG").where(Range(3, 6).where)
    assert [one.commit_ts for one in found.collect()] == [4, 5, 6]
