"""Which version of each mirror is read, without Spark."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from drainer.lake.at import NotThere, _mirrors, newest, view_names
from drainer.lake.control import MirrorVersion


def test_newest_version_of_each_mirror_is_read_and_none_of_a_dropped_table() -> None:
    made = [(1, "a", 7), (3, "b", 2), (3, "b", 4), (3, "b", 3), (2, "a", 1), (3, "c", -1), (3, "c", 9), (1, "d", -1)]
    rows = [MirrorVersion(ts, path, "s", path, version) for ts, path, version in made]
    found = {one.path: one.version for one in newest(rows)}  # type: ignore[arg-type]
    assert found == {"a": 1, "b": 4}, "a DDL may have the TSO of the last merge"


def test_tables_whose_views_would_have_one_name_have_two() -> None:
    found = view_names([("a_b", "c"), ("A", "b_C"), ("a", "D")])
    assert found == {("a_b", "c"): "a_b.c", ("A", "b_C"): "A.b_C", ("a", "D"): "a_D"}


def test_state_of_which_versions_have_been_removed_is_not_there() -> None:
    delta = mock.Mock(domain=lambda *_: (1, '{"position": {"commit_ts": 30}}'))
    chosen = delta.spark.read.format.return_value.load.return_value.where
    rows = [MirrorVersion(10, "a", "s", "a", 7), MirrorVersion(20, "", "", "", -1)]
    chosen.return_value.collect.return_value = rows
    assert _mirrors(delta, Path("lake"), "default", 20) == {("s", "a"): rows[0]}
    with pytest.raises(NotThere, match="before 20 have been removed"):
        _mirrors(delta, Path("lake"), "default", 19)
    chosen.assert_called_with("until_ts <= 19 OR path = ''")
