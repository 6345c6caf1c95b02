"""A drainer that is killed at any of its crash points: each change is in a history once, and mirrors are merged."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from drainer.lake.control import DOMAIN, control_path
from drainer.lake.mirror import Range
from drainer.lake.section import LakeSection
from drainer.lake.sink import LakeSink
from tests.support.change_replay import WHO
from tests.support.killing import Killed
from tests.support.lake_case import Story
from tests.support.memory_delta import MemoryDelta

STORY = Story(7)
EDGES = [*sorted(STORY.states)[2:-1:4], max(STORY.states)]
MODULES = [f"drainer.lake.{name}" for name in ("control", "history", "merging", "sink", "tables")]


class Merging(LakeSink):
    """Merges after every batch that executors have written."""

    def commit(self, *args: Any) -> None:
        super().commit(*args)
        self.merge_now()


def live(delta: MemoryDelta, directory: Path, edges: list[int], *, dies_at: int = 0, interval_h: int = 0) -> int:
    """Return how many crash points were passed. `dies_at`: the number of the one at which it is killed; `interval_h`:
    between two commits of changes, in hours."""
    sink, passed = Merging(LakeSection(dir=str(directory), history_interval=timedelta(hours=interval_h))), 0
    sink.session = mock.Mock()

    def merge(_: Any, app: str, path: Path, mirror: Any, history: Path, of: Range) -> None:
        delta.commit(path, [{"txn": {"appId": app, "version": of.until_ts}}], app=app, after=of.after_ts)

    def pass_point(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed == dies_at:
            raise Killed

    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch(f"{module}.crash_point", pass_point))
        stack.enter_context(mock.patch("drainer.lake.sink.Delta", lambda *_: delta))
        stack.enter_context(mock.patch("drainer.lake.merging.merge", merge))
        with contextlib.suppress(Killed):
            STORY.replay(sink, edges)
            sink.close(clean=True)
        sink.close(clean=False)
    return passed


def found(delta: MemoryDelta, directory: Path) -> dict[str, Any]:
    """What a lake has, whenever it was killed."""
    _, text = delta.domain(control_path(directory, WHO.changefeed), DOMAIN)
    histories = {path.name: delta.rows(path) for path in delta.commits if path.name.endswith("__changes")}
    places = {name: sorted((row["commit_ts"], row["place"]) for row in rows) for name, rows in histories.items()}
    fields = {
        path.name: [field.name for field in state.fields] for path in delta.commits if (state := delta.state(path))
    }
    body = json.loads(text or "")
    shown = {key: body[key] for key in ("position", "notes")}
    shown["position"].pop("epoch", None)
    for one in shown["notes"]["tables"]:
        one.pop()  # the version of a mirror that was truncated counts commits
    return {"places": places, "fields": fields, **shown}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """How many crash points one life has, and the lake after it."""
    delta, directory = MemoryDelta(), tmp_path_factory.mktemp("whole")
    return live(delta, directory, EDGES), found(delta, directory)


@pytest.mark.parametrize("part", range(5))
def test_lake_of_a_killed_drainer_has_every_change_once(whole: Any, tmp_path: Path, part: int) -> None:
    passes, wanted = whole
    for number in range(1 + part, passes + 1, 25):
        delta, directory = MemoryDelta(), tmp_path / str(number)
        live(delta, directory, EDGES, dies_at=number, interval_h=part % 2)
        live(delta, directory, [edge + 1 for edge in EDGES[:-1:2]] + EDGES[-1:])  # batches end elsewhere now
        assert found(delta, directory) == wanted, number
