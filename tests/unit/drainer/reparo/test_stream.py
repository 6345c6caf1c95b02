"""Which files and records are read: range, position, repeats of a drainer that was killed, gaps and damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from drainer.protocol.pb_file import ddl_binlog, dml_head
from drainer.reparo.stream import FilePosition, ReparoError, Stream
from tests.support.file_case import framed


def write(directory: Path, *files: Sequence[int | bytes]) -> list[Path]:
    """A number is the commit_ts of an empty transaction, bytes are a payload."""
    paths = []
    for number, content in enumerate(files):
        path = directory / f"binlog-{number:016d}-20240101000000"
        path.write_bytes(b"".join(framed(one if isinstance(one, bytes) else dml_head(one, 0)) for one in content))
        paths.append(path)
    return paths


def stamps(directory: Path, start: int = 0, stop: int = 0, position: FilePosition | None = None) -> list[int]:
    return [one.binlog.commit_ts for one in Stream(directory, start, stop, position)]


def test_range_ends_are_inclusive_and_only_needed_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, [1, 2], [3, 4], [5, 6], [7])
    for start in range(9):
        for stop in range(9):
            wanted = [ts for ts in range(1, 8) if ts >= start and (not stop or ts <= stop)]
            assert stamps(tmp_path, start, stop) == wanted, (start, stop)
    assert [name.number for name in Stream(tmp_path, 4, 5).files] == [1, 2]


def test_last_file_without_records_loses_no_records(tmp_path: Path) -> None:
    """Upstream's reparo takes it for the one to begin with, and leaves the file before it out."""
    write(tmp_path, [1, 2], [3, 4], [])
    assert stamps(tmp_path, 3) == [3, 4]
    assert stamps(tmp_path, 9) == []


def test_transactions_of_one_commit_ts_in_two_files_are_all_read(tmp_path: Path) -> None:
    write(tmp_path, [1, 2], [ddl_binlog(2, "x"), 3])
    assert stamps(tmp_path, 2) == [2, 2, 3]


def test_records_rewritten_by_killed_upstream_drainer_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, [1, 2, 3], [2, 3, 4, 4, 5], [ddl_binlog(5, "x"), 6])
    assert stamps(tmp_path) == [1, 2, 3, 4, 5, 5, 6]


A, B, C = ddl_binlog(5, "a"), ddl_binlog(5, "b"), ddl_binlog(5, "c")


@pytest.mark.parametrize(
    ("payloads", "wanted"),
    [
        ([4, A, B, 4, A, B, C], [4, A, B, C]),
        ([4, A, B, A, B, C], [4, A, B, C]),
        ([4, A, B, B, 3, 4, A, B, B, B], [4, A, B, B, B]),
        ([4, A, B, B, 4, A, B, B], [4, A, B, B]),
        ([A, 4, A, 4, A, B], [A, B]),
        ([A, B, B], [A, B, B]),
    ],
)
def test_records_of_one_commit_ts_rewritten_by_upstream_are_read_once(
    tmp_path: Path, payloads: list[int | bytes], wanted: list[int | bytes]
) -> None:
    """Also behind every position where a killed reparo may have ended."""
    write(tmp_path, payloads)
    entries = list(Stream(tmp_path))
    assert [entry.binlog.query or entry.binlog.commit_ts for entry in entries] == [
        one if isinstance(one, int) else one[-1:].decode() for one in wanted
    ]
    for n, entry in enumerate(entries):
        assert list(Stream(tmp_path, position=entry.position)) == entries[n + 1 :]


def test_equal_records_beside_position_file_are_all_read(tmp_path: Path) -> None:
    """It writes each transaction once, so two equal ones are two."""
    write(tmp_path, [A, A, 6, 6])
    assert stamps(tmp_path) == [5, 6]
    (tmp_path / "position.json").write_text("{}")
    assert stamps(tmp_path) == [5, 5, 6, 6]


def test_stream_resumes_after_any_record(tmp_path: Path) -> None:
    write(tmp_path, [1, 2, ddl_binlog(2, "x")], [3], [ddl_binlog(4, "y"), 5])
    entries = list(Stream(tmp_path))
    for n, entry in enumerate(entries):
        rest = [one.position for one in Stream(tmp_path, position=FilePosition.parse(entry.position.text()))]
        assert rest == [one.position for one in entries[n + 1 :]]


def test_position_of_other_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [1, 2], [3])
    entry = list(Stream(tmp_path))[1]
    write(tmp_path, [1, 9], [10])
    with pytest.raises(ReparoError, match=r"does not have, at byte \d+, the record of commit_ts 2 .*-name"):
        stamps(tmp_path, position=entry.position)
    with pytest.raises(ReparoError, match="position is in file 7, which is not in"):
        stamps(tmp_path, position=FilePosition(7, 0, 20, 1, 1))
    with pytest.raises(ReparoError, match="does not have, at byte 5000"):
        stamps(tmp_path, position=FilePosition(0, 5000, 5020, 1, 1))
    with pytest.raises(ReparoError, match="the stored position is damaged"):
        FilePosition.parse('{"file_number": 1}')


def test_missing_file_in_between_or_directory_without_files_is_refused(tmp_path: Path) -> None:
    paths = write(tmp_path, [1], [2], [3])
    paths[1].unlink()
    with pytest.raises(ReparoError, match="files are missing in between"):
        Stream(tmp_path)
    assert stamps(tmp_path, 4) == []
    assert [one.binlog.commit_ts for one in Stream(tmp_path, skips_damage=True)] == [1, 3]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ReparoError, match=r"has no files of a drainer \(binlog-<number>-<time>\)$"):
        Stream(empty)
    (empty / "stage").mkdir()
    with pytest.raises(ReparoError, match=r'it is one of Parquet files, and reparo reads those of format = "pb"$'):
        Stream(empty)
    with pytest.raises(ReparoError, match="cannot be read"):
        Stream(tmp_path / "nowhere")


def test_damaged_record_is_refused_with_file_and_offset_or_skipped(tmp_path: Path) -> None:
    paths = write(tmp_path, [1, 2, 3], [4])
    data = bytearray(paths[0].read_bytes())
    size = len(framed(dml_head(1, 0)))
    data[size + 13] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(ReparoError, match=rf"binlog-0+-\d+: damaged at byte {size}: CRC-32C .*-skip-damaged"):
        stamps(tmp_path)
    assert [one.binlog.commit_ts for one in Stream(tmp_path, skips_damage=True)] == [1, 3, 4]


def test_record_that_is_not_binlog_is_refused_with_its_offset(tmp_path: Path) -> None:
    write(tmp_path, [1, b"\xff\xff"])
    with pytest.raises(ReparoError, match=r"record at byte \d+: the record is not a binlog"):
        stamps(tmp_path)


def test_progress_sums_to_bytes_of_files(tmp_path: Path) -> None:
    paths = write(tmp_path, [1, 2], [3])
    read: dict[int, int] = {}
    stream = Stream(tmp_path, advanced=lambda number, count: read.update({number: count}))
    assert len(list(stream)) == 3
    assert sum(read.values()) == stream.total_bytes() == sum(path.stat().st_size for path in paths)
