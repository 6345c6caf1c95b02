"""Slots' blobs in files: what a task writes another one finds, and files go with the batch."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from binlog.envelope import encode_binlog
from binlog.runtime.security import Security

from drainer.changes.slot_blob import BlobError, folder_of, join_blobs, write_blobs
from drainer.pumps.watermark import Counted, PumpRange, RangeDiffers
from drainer.sink.base import Intent
from drainer.spark.errors import ErrorSeal
from drainer.spark.query import Query, SparkBatch
from drainer.spark.shuffle_apply import complete
from drainer.spark.source import executor
from drainer.spark.source.data_source import SourceOptions
from drainer.spark.source.executor import PullTask, read_task
from tests.support.stub_pump import StubPump

BASE = 1 << 60
INTENT = Intent(BASE, BASE + 50, 2, 10, 1, "")


def test_blob_file_has_its_head_before_each_blob(tmp_path: Path) -> None:
    references = write_blobs(str(tmp_path), {0: b"first", 1: b"", 2: b"third"}, b"head:")
    found = [join_blobs([one]) for one in references.values()]
    assert found == [[b"head:first"], [b"head:"], [b"head:third"]]


def test_blob_files_return_only_small_references(tmp_path: Path) -> None:
    references = write_blobs(str(tmp_path), {0: bytes(5 << 20), 1: b"small"})
    assert max(map(len, references.values())) < 1000
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == (5 << 20) + 5


def test_truncated_or_missing_blob_file_is_refused(tmp_path: Path) -> None:
    references = write_blobs(str(tmp_path), {0: b"first", 1: b"second"})
    (file,) = tmp_path.iterdir()
    os.truncate(file, 8)
    assert join_blobs([references[0]]) == [b"first"]
    with pytest.raises(BlobError, match="3 of its 6 bytes"):
        join_blobs([references[1]])
    file.unlink()
    with pytest.raises(FileNotFoundError):
        join_blobs([references[0]])


class ShortReads(io.FileIO):
    """Gives fewer bytes than asked for, as the kernel does of more than 2 GiB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3 if size is None or size < 0 else min(size, 3)) or b""

    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[:3]) or 0


def test_blob_returned_in_several_reads_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    references = write_blobs(str(tmp_path), {0: b"first", 1: b"the second blob" * 1000})

    def opened(path: Path, _mode: str, buffering: int = -1) -> Any:
        raw = ShortReads(path)
        return io.BufferedReader(raw) if buffering else raw

    monkeypatch.setattr(Path, "open", opened)
    assert join_blobs([references[1]]) == [b"the second blob" * 1000]


def test_blob_file_that_fails_to_write_is_removed(tmp_path: Path) -> None:
    """A full disk: a task is attempted four times, and what each leaves would be there until the batch has ended."""
    program = (
        "import resource, signal, sys\n"
        "from drainer.changes.slot_blob import write_blobs\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        "    write_blobs(sys.argv[1], {0: bytes(1 << 19), 1: bytes(1 << 20)})\n"
        "except OSError:\n"
        "    print('refused')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout == "refused\n"
    assert not list(tmp_path.iterdir())


def test_blob_file_write_without_its_folder_fails(tmp_path: Path) -> None:
    """It must not bring back the folder, which nobody would remove."""
    with pytest.raises(FileNotFoundError):
        write_blobs(str(tmp_path / "1-2"), {0: b"x"})


class Line:
    """The driver, which has tasks that fold, or not."""

    def __init__(self, fold: Any) -> None:
        self.fold = fold

    def tasks(self, start_ts: int, until_ts: int) -> Any:
        return ((), ()), self.fold


@pytest.mark.parametrize(
    ("base", "fold", "there"), [("files", object(), True), ("files", None, False), ("", object(), False)]
)
def test_folding_tasks_get_blob_folder_of_their_batch(tmp_path: Path, base: str, fold: Any, there: bool) -> None:
    folder = str(tmp_path / base) if base else ""
    options = SourceOptions.parse({"planner": "p", "packed": "true", **({"blob-folder": folder} if folder else {})})
    reader = executor.PlannedReader(options)
    reader._line = Line(fold)  # type: ignore[assignment]
    for _ in range(2):  # Spark may ask again
        tasks = reader.partitions({"commit_ts": 3}, {"commit_ts": 8})
    wanted = folder_of(folder, 3, 8) if there else ""
    assert [task.folder for task in tasks] == [wanted] * 2  # type: ignore[attr-defined]
    assert [one for one in tmp_path.rglob("*") if one.is_dir() and "-" in one.name] == ([Path(wanted)] if there else [])


def test_blob_files_are_removed_with_last_reference_to_batch(tmp_path: Path) -> None:
    for range_ in ((1, 5), (5, 9)):
        Path(folder_of(str(tmp_path), *range_)).mkdir()
        write_blobs(folder_of(str(tmp_path), *range_), {0: b"x"})
    batch: Any = SparkBatch(None, ErrorSeal.new(), str(tmp_path))  # type: ignore[arg-type]
    batch.covers(1, 5)
    kept = [batch]
    del batch
    gc.collect()
    assert {one.name for one in tmp_path.iterdir()} == {"1-5", "5-9"}
    kept.clear()
    gc.collect()
    assert {one.name for one in tmp_path.iterdir()} == {"5-9"}


def test_tasks_of_cluster_get_no_blob_folder() -> None:
    assert "blob-folder" not in Query(None, options={})._options  # type: ignore[arg-type]
    assert Query(None, options={}, one_machine=True)._options["blob-folder"]  # type: ignore[arg-type]
    SparkBatch(None, ErrorSeal.new()).covers(1, 5)  # type: ignore[arg-type]  # and nothing is removed


class Order:
    """What a reading task does with binlogs, for two slots: all of them go into the first one."""

    view = SimpleNamespace(token="a view of nothing")
    slots = 2
    left_out = 1

    def decoder(self) -> object:
        return object()

    def builder(self, _decoder: object) -> Order:
        self.payloads: list[bytes] = []
        self.add_all = self.payloads.extend
        return self

    def add_in_order(self, payloads: list[bytes], size: int) -> None:
        assert size == sum(map(len, payloads))
        self.payloads += payloads

    def cut(self, builder: Order) -> dict[int, bytes]:
        return {0: b"".join(builder.payloads)}


@pytest.mark.parametrize("in_files", [True, False])
def test_slot_from_files_or_rows_is_whole_or_refused(tmp_path: Path, in_files: bool) -> None:
    """Rule 22: each slot hears of all parts, one without rows, too."""
    pump = StubPump()
    payloads = [
        encode_binlog(tp=1, start_ts=BASE + n, commit_ts=BASE + n + 1, prewrite_key=b"k", prewrite_value=b"\x08\x01")
        for n in (10, 20, 30)
    ]
    pump.put(*payloads)
    pump.resolve(BASE + 100)
    parts = [PumpRange("p", pump.host, True, BASE + after, BASE + after + 25) for after in (0, 25)]
    folder = str(tmp_path) if in_files else ""
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for part in parts:
        task = PullTask((part,), 1, Security(), True, Order(), folder=folder)  # type: ignore[arg-type]
        for batch in read_task(task):
            for slot, blob in zip(batch.column("seq").to_pylist(), batch.column("blob").to_pylist(), strict=True):
                found[slot].append(blob)
    pump.stop()
    planned = Counted(3, sum(map(len, payloads)))
    blobs, left_out = complete(0, found[0], INTENT, planned)
    assert (sorted(blobs), left_out) == (sorted([b"".join(payloads[:2]), payloads[2]]), 2)
    assert complete(1, found[1], INTENT, planned) == ([], 2)
    assert len(list(tmp_path.iterdir())) == (2 if in_files else 0)
    with pytest.raises(RangeDiffers):
        complete(1, found[1][1:], INTENT, planned)
