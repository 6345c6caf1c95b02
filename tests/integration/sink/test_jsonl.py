"""Lines of every change, exactly once: a driver that dies by SIGKILL at any of its crash points, and files that a crash
of the machine has cut anywhere."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from drainer.sink.document_position import POSITION
from drainer.sink.errors import DestinationRefused
from drainer.sink.file.files import Files
from drainer.sink.file.lines import JsonlFormat
from drainer.sink.file.sink import FileSink
from tests.integration.sink.forks import children
from tests.support import jsonl_case
from tests.support.jsonl_case import WHO, commits, in_order, lines_of, recorded

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EDGES = commits()[4:160:6]
POINTS = [
    "file.appended:9",
    "file.synced:9",
    "sink.before_commit:30",
    "sink.position_written:30",
    "sink.after_commit:30",
    "file.part_written:2",
    "file.committed",
    "file.committed:2",
    "file.renamed",
    "file.renamed:4",
    "drainer.after_intent",
    "drainer.before_commit:2",
    "drainer.mid_large:5",
]
AGAIN = ["file.synced:2", "file.part_written", "sink.position_written:7", "file.committed", "file.renamed"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it in one batch of one life."""
    directory = tmp_path_factory.mktemp("whole")
    jsonl_case.run(directory, EDGES[-1:])
    return directory


def life(directory: Path, crash: str = "") -> int:
    scratch = directory.with_name(f"{directory.name}-child")
    scratch.mkdir(exist_ok=True)
    return children().start(jsonl_case.run, (directory, EDGES), scratch, crash).wait()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_json_lines_of_driver_killed_at_any_point_have_every_change_once(
    whole: Path, tmp_path: Path, point: str
) -> None:
    directory = tmp_path / "lines"
    assert life(directory, point) == -signal.SIGKILL
    assert life(directory) == 0
    assert in_order(directory) == in_order(whole)
    assert not list(directory.glob("*.part"))
    assert set(lines_of(directory)) == {"000", "001", "002"}, "as many slots as files, however a batch would be cut"
    assert (recorded(directory)["position"]["commit_ts"], recorded(directory)["position"]["intent"]) == (
        EDGES[-1],
        None,
    )


def test_json_lines_of_driver_killed_repeatedly_have_every_change_once(whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "lines"
    died = 0
    for point in (
        "file.synced:2",
        "file.part_written",
        "sink.position_written:7",
        "file.committed",
        "file.renamed",
    ):
        died += life(directory, point) == -signal.SIGKILL
    assert died == len(AGAIN)
    assert life(directory) == 0
    assert in_order(directory) == in_order(whole)


def opened(directory: Path) -> FileSink:
    destination = jsonl_case.sink(directory, files=3, rotate_bytes=4000)
    destination.open(WHO, 1)
    return destination


def repaired(directory: Path) -> FileSink:
    """The part of a start that looks at files."""
    form = JsonlFormat(3)
    Files(directory, form).repair(form.notes_of(recorded(directory)["notes"]).current)
    return jsonl_case.sink(directory)


def current_files(directory: Path) -> dict[Path, int]:
    current = recorded(directory)["notes"]["current"].items()
    return {directory / f"{int(slot):03d}-{number:09d}.jsonl": length for slot, (number, length) in current}


def test_current_file_of_any_length_is_truncated_or_refused_at_start(whole: Path, tmp_path: Path) -> None:
    """What a machine's crash may leave of a current file: every length from nothing to a line too much."""
    directory = shutil.copytree(whole, tmp_path / "lines")
    path, length = next(iter(current_files(directory).items()))
    committed = path.read_bytes()
    assert len(committed) == length > 100
    written = committed + b'{"commit_ts": 1, "never": "committed"}\n'
    for size in range(len(written) + 1):
        path.write_bytes(written[:size])
        start = opened if size % 500 == 0 or size == length else repaired
        if size < length:
            with pytest.raises(DestinationRefused, match=f"has {size} bytes, and {length} are committed"):
                start(directory)
        else:
            start(directory).close(clean=True)
            assert path.read_bytes() == committed
    assert in_order(directory) == in_order(whole)


def test_uncommitted_files_and_parts_are_removed_at_start(whole: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(whole, tmp_path / "lines")
    for path in current_files(directory):
        slot, _, number = path.stem.partition("-")
        (directory / f"{slot}-{int(number) + 1:09d}.jsonl").write_text("never committed\n")
    (directory / "002-9-9-0-ff.part").write_text("never committed\n")
    opened(directory).close(clean=True)
    assert in_order(directory) == in_order(whole)
    assert not list(directory.glob("*.part"))


def test_position_file_cut_or_missing_stops_start(whole: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(whole, tmp_path / "lines")
    text = (directory / POSITION).read_bytes()
    for size in range(0, len(text) - 1, 7):
        (directory / POSITION).write_bytes(text[:size])
        with pytest.raises(DestinationRefused):
            opened(directory)
    (directory / POSITION).unlink()
    with pytest.raises(DestinationRefused, match=r"position.json does not: restore position.json, or empty"):
        opened(directory)
    (directory / POSITION).write_bytes(text)
    opened(directory).close(clean=True)
    assert in_order(directory) == in_order(whole)


def test_committed_part_that_is_missing_stops_start(whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "lines"
    assert life(directory, "file.committed") == -signal.SIGKILL
    part, name = recorded(directory)["notes"]["renames"][0]
    data = (directory / part).read_bytes()
    (directory / part).unlink()
    with pytest.raises(DestinationRefused, match=f"{name} is committed"):
        opened(directory)
    (directory / part).write_bytes(data[:-1])
    with pytest.raises(DestinationRefused, match="are committed"):
        opened(directory)
    (directory / name).rename(directory / part)
    (directory / part).write_bytes(data)
    assert life(directory) == 0
    assert in_order(directory) == in_order(whole)


def test_every_json_line_has_kind_timestamps_and_images(whole: Path) -> None:
    lines = in_order(whole)
    assert {line["kind"] for line in lines} == {"ddl", "insert", "update", "delete"}
    assert len(lines) > 300
    for line in lines:
        assert line["commit_ts"] > line["start_ts"] > 0
        if line["kind"] != "ddl":
            wanted = (line["kind"] != "insert", line["kind"] != "delete")
            assert (line["old"] is not None, line["new"] is not None) == wanted
    assert json.dumps(lines[0])
