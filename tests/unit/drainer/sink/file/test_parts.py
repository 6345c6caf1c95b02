"""Lines that executors write as parts, and DDLs among them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType, Job

from drainer.batch.work import Pieces
from drainer.schema.steps import Ddl
from drainer.sink.base import Intent, Receipt
from drainer.sink.document_position import POSITION
from drainer.sink.errors import DestinationDown, DestinationRefused, Fenced, PositionMoved
from drainer.sink.file.sink import FileSink
from tests.support import jsonl_case
from tests.support.jsonl_case import WHO, in_order, lines_of
from tests.support.row_case import BEGIN_TS
from tests.unit.drainer.sink.file.test_sink import full_disk, segment, torn_behind

INTENT = Intent(BEGIN_TS, BEGIN_TS + 100, 1, 10, 1, "d")


def opened(directory: Path, *, files: int = 1, rotate_bytes: int = 1 << 20, distributed: bool = True) -> FileSink:
    destination = jsonl_case.sink(directory, files=files, rotate_bytes=rotate_bytes, distributed=distributed)
    destination.open(WHO, BEGIN_TS)
    return destination


def keys_of(directory: Path) -> list[int]:
    return [line["new"]["id"] for lines in lines_of(directory).values() for line in lines]


def refuses(*_: object) -> None:
    raise DestinationDown("no space")


def test_nothing_else_is_written_while_a_range_is_open(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.begin(INTENT)
    for attempt in (
        lambda: destination.apply(segment(0, 10, 1), 1),
        lambda: destination.begin(replace(INTENT, slots=2)),
        lambda: destination.advance(BEGIN_TS + 5, 1),
    ):
        with pytest.raises(PositionMoved):
            attempt()
    assert not lines_of(tmp_path)


def test_commit_takes_only_parts_named_by_receipts(tmp_path: Path) -> None:
    """An attempt that lost, and one of an older driver, have written too."""
    destination = opened(tmp_path, rotate_bytes=100)
    writer = pickle.loads(pickle.dumps(destination.begin(INTENT)))
    lost = writer.write(0, segment(0, 100, 1, 2, 3))
    receipt = writer.write(0, segment(0, 100, 1, 2, 3))
    assert lost.detail != receipt.detail
    assert receipt.chunks == len(json.loads(receipt.detail)) > 1
    assert not lines_of(tmp_path), "parts are no files yet"
    assert destination.commit(INTENT, [receipt], 1) is None
    assert (keys_of(tmp_path), destination.commit_ts) == ([1, 2, 3], INTENT.until_ts)
    assert not list(tmp_path.glob("*.part"))
    destination.apply(segment(100, 110, 4), 1)
    assert keys_of(tmp_path) == [1, 2, 3, 4]


def test_part_missing_or_cut_in_drivers_directory_is_not_committed(tmp_path: Path) -> None:
    """An executor on a machine with a directory of its own."""
    destination = opened(tmp_path)
    receipt = destination.begin(INTENT).write(0, segment(0, 100, 1))
    (part,) = tmp_path.glob("*.part")
    data = part.read_bytes()
    part.unlink()
    with pytest.raises(DestinationRefused, match="all executors and the driver must see one directory"):
        destination.commit(INTENT, [receipt], 1)
    part.write_bytes(data[:-1])
    with pytest.raises(DestinationRefused, match="an executor has written"):
        destination.commit(INTENT, [receipt], 1)
    assert destination.commit_ts == BEGIN_TS
    part.write_bytes(data)
    destination.commit(INTENT, [receipt, Receipt(1, 0, 0, 0)], 1)
    assert keys_of(tmp_path) == [1]


def test_failed_renaming_of_parts_is_completed_by_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position has moved; the next record must not forget what is still to be renamed."""
    destination = opened(tmp_path)
    receipt = destination.begin(INTENT).write(0, segment(0, 100, 1))

    monkeypatch.setattr("drainer.sink.file.sink.rename_parts", refuses)
    with pytest.raises(DestinationDown):
        destination.commit(INTENT, [receipt], 1)
    destination.advance(BEGIN_TS + 200, 1)
    monkeypatch.undo()
    destination.close(clean=True)
    opened(tmp_path).close(clean=True)
    assert keys_of(tmp_path) == [1]


def test_sink_without_distribution_writes_in_driver_only(tmp_path: Path) -> None:
    assert opened(tmp_path, distributed=False).parallel is None


def test_executor_with_full_disk_leaves_no_part_file(tmp_path: Path) -> None:
    """Spark tries again, and each attempt would fill the disk further."""
    writer = opened(tmp_path, rotate_bytes=700).begin(INTENT)
    with full_disk(400), pytest.raises(DestinationDown, match="File too large"):
        writer.write(0, segment(0, 100, *range(1, 10)))
    assert not list(tmp_path.glob("*.part"))


def distributed(destination: FileSink, after: int, *keys: int) -> None:
    intent = replace(INTENT, after_ts=BEGIN_TS + after, until_ts=BEGIN_TS + after + 100)
    receipt = destination.begin(intent).write(0, segment(after, after + 100, *keys))
    assert destination.commit(intent, [receipt], 1) is None


@pytest.mark.parametrize("then", ["apply", "distributed"])
def test_batch_after_failed_renaming_keeps_committed_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Of the same life: neither is the committed part forgotten, nor what is appended behind it."""
    destination = opened(tmp_path)

    with monkeypatch.context() as patched:
        patched.setattr("drainer.sink.file.sink.rename_parts", refuses)
        with pytest.raises(DestinationDown):
            distributed(destination, 0, 1)
    if then == "apply":
        destination.apply(segment(100, 200, 2), 1)
    else:
        distributed(destination, 100, 2)
    destination.close(clean=True)
    opened(tmp_path).close(clean=True)
    assert keys_of(tmp_path) == [1, 2]


def test_start_succeeds_without_complete_files(tmp_path: Path) -> None:
    """As docs/jsonl.md says, whatever wrote them last."""
    destination = opened(tmp_path, rotate_bytes=100)
    distributed(destination, 0, 1, 2, 3)
    destination.close(clean=False)
    *complete, current = sorted(tmp_path.glob("*.jsonl"))
    assert complete
    for path in complete:
        path.unlink()
    again = opened(tmp_path, rotate_bytes=100)
    assert again.commit_ts == BEGIN_TS + 100
    assert sorted(tmp_path.glob("*.jsonl")) == [current]


def test_start_succeeds_without_complete_files_renamed_by_former_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = opened(tmp_path, rotate_bytes=100)
    with monkeypatch.context() as patched, pytest.raises(DestinationDown):
        patched.setattr("drainer.sink.file.sink.rename_parts", refuses)
        distributed(destination, 0, 1, 2, 3)
    destination.close(clean=False)
    opened(tmp_path).close(clean=False)
    for path in sorted(tmp_path.glob("*.jsonl"))[:-1]:
        path.unlink()
    assert opened(tmp_path).commit_ts == BEGIN_TS + 100


def test_fenced_driver_renames_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one has done so, and goes on in those files."""
    old = opened(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(DestinationDown):
        patched.setattr("drainer.sink.file.sink.rename_parts", refuses)
        distributed(old, 0, 1)
    old._opened().close()
    new = opened(tmp_path)
    new.apply(segment(100, 200, 2), 1)
    before = (tmp_path / POSITION).read_bytes()
    with pytest.raises(Fenced):
        distributed(old, 100, 3)
    assert (tmp_path / POSITION).read_bytes() == before
    new.apply(segment(200, 210, 4), 1)
    assert keys_of(tmp_path) == [1, 2, 4]


def test_lines_of_failed_attempt_are_cut_before_parts_follow(tmp_path: Path) -> None:
    """Executors' parts follow the file that the driver had begun to append to."""
    destination = opened(tmp_path)
    destination.apply(segment(0, 10, 1), 1)
    with pytest.raises(DestinationDown):
        destination.apply_pieces(Pieces(BEGIN_TS + 10, BEGIN_TS + 90, torn_behind(segment(10, 90, 77))), 1)
    assert keys_of(tmp_path) == [1, 77]
    distributed(destination, 10, 2)
    assert keys_of(tmp_path) == [1, 2]
    destination.close(clean=True)
    opened(tmp_path)
    assert keys_of(tmp_path) == [1, 2]


def test_ddl_lines_of_one_commit_ts_are_numbered_in_run_order_across_files(tmp_path: Path) -> None:
    """Of several that run early neither ids nor start_ts tell which was first; they may be in several files, and the
    drainer may have been started again between them."""
    ran = [(30, 10), (20, 10), (40, 10), (10, 20), (50, 20)]
    for job_id, after in ran:
        destination = opened(tmp_path, files=4)
        job = Job(job_id, ActionType.CREATE_TABLE, schema_version=9, start_ts=BEGIN_TS - job_id)
        step = Ddl(job, BEGIN_TS + after, True, f"d{job_id}", "", ("x",), "x", 0, ())
        destination.ddl(step)
        if job_id == 20:
            destination.apply(segment(10, 10), 1)
        destination.close(clean=False)
    assert len(lines_of(tmp_path)) > 1
    assert [(line["job_id"], line["place"]) for line in in_order(tmp_path)] == [
        (30, 0), (20, 1), (40, 2), (10, 0), (50, 1),
    ]  # fmt: skip
