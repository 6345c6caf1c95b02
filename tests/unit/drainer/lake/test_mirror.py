"""Which field of a history has a mirror's column."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from binlog.tidb.types import FieldType, Tp

from drainer.lake.delta import HISTORY, ROLE, TableState, history_schema
from drainer.lake.fields import Field, evolved
from drainer.lake.mirror import column_pairs
from tests.support.row_case import INT, TEXT, table


def pairs(mirror: tuple[Field, ...], history: tuple[Field, ...]) -> dict[str, str | None]:
    of_mirror = TableState(1, "m", [one.json() for one in mirror])
    found = column_pairs(of_mirror, TableState(1, "h", history_schema(history), {ROLE: HISTORY}))
    return {ours.name: theirs.physical if theirs else None for ours, theirs in found}


def test_column_that_the_mirror_has_rewritten_is_found_by_its_id_and_a_dropped_one_by_its_place_in_files() -> None:
    fine, coarse = (FieldType(Tp.DATETIME, decimal=digits) for digits in (3, 0))
    before = table([("t", fine), ("n", INT), ("gone", TEXT)])
    columns = (replace(before.columns[0], id=4, type=coarse), before.columns[1])
    info = replace(before, columns=columns)
    mirror = evolved((), before, count(1), was={}, keeps=False)
    history = evolved((), before, count(9, 2), was={}, keeps=True)
    newer = evolved(history, info, count(99, 2), before=before, was={4: 1}, keeps=True)
    rewritten = evolved(mirror, info, count(50), before=before, was={4: 1}, keeps=False)
    assert pairs(rewritten, newer) == {"t": "c1", "n": "c2"}
    assert {one.name: one.physical for one in rewritten}["t"] == "c4"
    assert pairs(mirror, newer) == {"t": "c1", "n": "c2", "gone": "c3"}
    assert pairs(rewritten, ()) == {"t": None, "n": None}
