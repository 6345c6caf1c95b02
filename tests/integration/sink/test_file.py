"""Files of every transaction, exactly once: a driver that dies by SIGKILL at any of its crash points. One that dies
again and again, and files that a crash of the machine has cut anywhere: test_jsonl.py."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from drainer.sink.document_position import POSITION
from tests.integration.sink.forks import children
from tests.support import file_case
from tests.support.change_replay import commits
from tests.support.file_case import binlogs, finish, parquet_rows, payloads

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EDGES = commits()[4:160:6]
POINTS = [
    "file.appended:9",
    "file.synced:9",
    "sink.before_commit:30",
    "sink.position_written:30",
    "sink.after_commit:30",
    "drainer.mid_large:5",
]
GZIP_POINTS = ["file.compressed:2", "file.compressed_renamed:2", "file.synced:20"]
PARQUET_POINTS = [*POINTS, "file.parquet_written", "file.parquet_written:9", "file.converted", "file.converted:2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it in one batch of one life."""
    directory = tmp_path_factory.mktemp("whole") / "files"
    file_case.run(directory, EDGES[-1:], "pb")
    return directory


@pytest.fixture(scope="module")
def whole_parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole-parquet") / "files"
    file_case.run(directory, EDGES[-1:], "parquet")
    finish(directory, "parquet")
    return directory


def life(directory: Path, form: str, crash: str = "") -> int:
    scratch = directory.with_name(f"{directory.name}-child")
    scratch.mkdir(exist_ok=True)
    return children().start(file_case.run, (directory, EDGES, form), scratch, crash).wait()


def recorded(directory: Path) -> Any:
    return json.loads((directory / POSITION).read_text())["body"]


@pytest.mark.parametrize("point", POINTS)
def test_pb_files_of_driver_killed_at_any_point_have_every_record_once(whole: Path, tmp_path: Path, point: str) -> None:
    directory = tmp_path / "files"
    assert life(directory, "pb", point) == -signal.SIGKILL
    assert life(directory, "pb") == 0
    assert payloads(directory) == payloads(whole)
    assert recorded(directory)["position"]["commit_ts"] == EDGES[-1]


@pytest.mark.parametrize("point", GZIP_POINTS)
def test_pb_gzip_files_of_killed_driver_have_every_record_once(whole: Path, tmp_path: Path, point: str) -> None:
    directory = tmp_path / "files"
    assert life(directory, "pb-gzip", point) == -signal.SIGKILL
    assert life(directory, "pb-gzip") == 0
    assert payloads(directory) == payloads(whole)
    finish(directory, "pb-gzip")
    assert payloads(directory) == payloads(whole)
    names = sorted(path.name for path in directory.glob("binlog-*"))
    assert len(names) > 5
    assert all(name.endswith(".gz") for name in names), names


@pytest.mark.parametrize("point", PARQUET_POINTS)
def test_parquet_files_of_driver_killed_at_any_point_have_every_row_once(
    whole_parquet: Path, tmp_path: Path, point: str
) -> None:
    directory = tmp_path / "files"
    assert life(directory, "parquet", point) == -signal.SIGKILL
    assert life(directory, "parquet") == 0
    finish(directory, "parquet")
    found, wanted = parquet_rows(directory), parquet_rows(whole_parquet)
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert len(found) > 280
    assert not list(directory.rglob("*.tmp"))
    assert not list((directory / "stage").iterdir())


def test_transaction_of_several_tables_is_one_record(whole: Path) -> None:
    found = binlogs(whole)
    rows = [one for one in found if one.query is None]
    assert [one.commit_ts for one in found] == sorted(one.commit_ts for one in found)
    assert len({one.commit_ts for one in rows}) == len(rows)
    assert max(len(one.names()) for one in rows) > 3
    assert len(list(whole.glob("binlog-*"))) > 5
