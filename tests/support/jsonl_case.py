"""A recording through a pipeline into a directory of JSON lines, without Spark, and what its files then say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drainer.sink.document_position import POSITION
from drainer.sink.file.files import Rotation
from drainer.sink.file.lines import JsonlFormat
from drainer.sink.file.sink import FileSink
from tests.support.change_replay import WHO, commits, replay_changes

__all__ = ["WHO", "commits", "in_order", "lines_of", "place", "recorded", "run", "sink"]

Line = dict[str, Any]


def sink(directory: Path, *, files: int = 4, rotate_bytes: int = 1 << 20, distributed: bool = True) -> FileSink:
    return FileSink(directory, JsonlFormat(files), rotation=Rotation(rotate_bytes), distributed=distributed)


def run(directory: Path, edges: Sequence[int], *, parts: int = 2, rotate_bytes: int = 4000, files: int = 3) -> None:
    """See change_replay.replay_changes."""
    replay_changes(sink(directory, files=files, rotate_bytes=rotate_bytes), edges, parts=parts)


def lines_of(directory: Path) -> dict[str, list[Line]]:
    """Of each slot its lines, file after file."""
    found: dict[str, list[Line]] = {}
    for path in sorted(directory.glob("*.jsonl")):
        found.setdefault(path.name[:3], []).extend(json.loads(line) for line in path.read_text().splitlines())
    return found


def in_order(directory: Path) -> list[Line]:
    """All lines in upstream's order. AssertionError where a slot is not in it, or a line is there twice."""
    for slot, lines in lines_of(directory).items():
        places = [place(line) for line in lines]
        assert places == sorted(places), f"slot {slot}"
    merged = sorted((line for lines in lines_of(directory).values() for line in lines), key=place)
    rows = [place(line) for line in merged]
    assert len(rows) == len(set(rows))
    return merged


def place(line: Line) -> tuple[int, int, int, int]:
    """A DDL stands behind what has its commit_ts: one that runs early has that of the row before it."""
    is_ddl = line["kind"] == "ddl"
    return line["commit_ts"], is_ddl, 0 if is_ddl else line["start_ts"], line["place"]


def recorded(directory: Path) -> Line:
    body: Line = json.loads((directory / POSITION).read_text())["body"]
    return body
