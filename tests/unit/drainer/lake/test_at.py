"""Which version of each mirror is read, without Spark."""

from __future__ import annotations

from drainer.lake.at import newest, view_names
from drainer.lake.control import MirrorVersion


def test_newest_version_of_each_mirror_is_read_and_none_of_a_dropped_table() -> None:
    made = [(1, "a", 7), (3, "b", 2), (3, "b", 4), (3, "b", 3), (2, "a", 1), (3, "c", -1), (3, "c", 9), (1, "d", -1)]
    rows = [MirrorVersion(ts, path, "s", path, version) for ts, path, version in made]
    found = {one.path: one.version for one in newest(rows)}  # type: ignore[arg-type]
    assert found == {"a": 1, "b": 4}, "a DDL may have the TSO of the last merge"


def test_tables_whose_views_would_have_one_name_have_two() -> None:
    found = view_names([("a_b", "c"), ("A", "b_C"), ("a", "d")])
    assert found == {("a_b", "c"): "a_b.c", ("A", "b_C"): "A.b_C", ("a", "d"): "a_d"}
