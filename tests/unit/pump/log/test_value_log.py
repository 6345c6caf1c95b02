"""The value log: what a reopening finds, and what breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.errors import BinlogError, LogBroken

from pump.errors import DamagedRecord
from pump.log.record import END_MAGIC, FOOTER_BYTES, Pointer, encode_footer
from pump.log.value_log import CLOSE_FOOTER_BYTES_MIN, Head, ValueLog
from tests.unit.pump.build import appended, encode_record, prewrite

END_BYTES = END_MAGIC.to_bytes(4, "little")


def opened(directory: Path, **options: object) -> ValueLog:
    log = ValueLog(directory, **options)  # type: ignore[arg-type]
    assert log.open() == []
    return log


def contents(log: ValueLog) -> list[bytes]:
    return [found.payload for _, found in log.scan(Pointer(0, 0)) if found.payload is not None]


def append(log: ValueLog, *ts: int) -> list[Pointer]:
    return [pointer for t in ts for pointer in appended(log, [prewrite(t)], t)]


def test_value_log_reads_written_records_before_and_after_reopening(tmp_path: Path) -> None:
    """Pointers read what was written, before and after a reopening."""
    log = opened(tmp_path)
    pointers = append(log, 1, 2, 3)
    assert pointers[0] == Pointer(0, 0)
    assert [log.read(p) for p in pointers] == [prewrite(1), prewrite(2), prewrite(3)]
    log.close()
    log = opened(tmp_path)
    assert contents(log) == [prewrite(1), prewrite(2), prewrite(3)]
    assert log.tail.max_ts == 3
    assert append(log, 4)[0] == Pointer(0, 3 * len(encode_record(prewrite(1))))


def test_value_log_rotates_file_after_write_that_passes_size_limit(tmp_path: Path) -> None:
    """P-ST-03: a file that passes the limit gets its footer and the next number begins."""
    log = opened(tmp_path, file_bytes_max=100)
    pointers = append(log, *range(1, 11))
    assert [p.fid for p in pointers] == sorted(p.fid for p in pointers)
    assert len({p.fid for p in pointers}) > 2
    assert contents(log) == [prewrite(ts) for ts in range(1, 11)]
    first = (tmp_path / "000000.vlog").read_bytes()
    assert first.endswith(END_BYTES)
    log.close()
    again = opened(tmp_path, file_bytes_max=100)
    assert contents(again) == [prewrite(ts) for ts in range(1, 11)]
    for file in again.files()[:-1]:
        assert file.max_ts == max(i + 1 for i, p in enumerate(pointers) if p.fid == file.fid)


def test_closed_large_file_gets_footer_and_next_start_begins_new_file(tmp_path: Path) -> None:
    """P-ST-03: only a file worth one gets a footer; then the next start begins a new file."""
    log = opened(tmp_path)
    appended(log, [bytes(CLOSE_FOOTER_BYTES_MIN)], 9)
    log.close()
    assert (tmp_path / "000000.vlog").read_bytes().endswith(END_BYTES)
    assert opened(tmp_path).tail.fid == 1


@pytest.mark.parametrize("tail", [END_BYTES, b"\0" * 8 + END_BYTES])
def test_payload_that_ends_like_a_footer_is_kept(tmp_path: Path, tail: bytes) -> None:
    """Four bytes do not make a footer (P-ST-02) where a record would be lost by it."""
    log = opened(tmp_path)
    appended(log, [b"data" + tail], 5)
    log.close()
    again = opened(tmp_path)
    assert contents(again) == [b"data" + tail]
    assert again.tail.fid == 0


def test_torn_tail_is_cut_off_at_any_byte_and_writing_continues(tmp_path: Path) -> None:
    """The last record cut anywhere: the ones before it stay, the file ends after them, and writing goes on there."""
    log = opened(tmp_path / "whole")
    pointers = append(log, 1, 2, 3)
    log.close()
    data = (tmp_path / "whole" / "000000.vlog").read_bytes()
    for cut in range(len(data)):
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / "000000.vlog").write_bytes(data[:cut])
        log = opened(directory)
        whole = sum(1 for p in (*pointers[1:], Pointer(0, len(data))) if p.offset <= cut)
        assert contents(log) == [prewrite(ts) for ts in range(1, whole + 1)], cut
        append(log, 9)
        log.close()
        assert contents(opened(directory)) == [*(prewrite(ts) for ts in range(1, whole + 1)), prewrite(9)]


@pytest.mark.parametrize("known_is_all", [False, True])
def test_records_in_a_record_that_was_cut_off_at_any_byte(tmp_path: Path, known_is_all: bool) -> None:
    """FORMAT.md, recovery 3: whether the index is known to be complete or not."""
    log = opened(tmp_path / "whole")
    (first, last) = appended(log, [prewrite(1), b"row" + encode_record(prewrite(8)) * 2 + encode_footer(9)], 9)
    log.close()
    data = (tmp_path / "whole" / "000000.vlog").read_bytes()
    path = tmp_path / "000000.vlog"
    for cut in range(last.offset, len(data)):
        path.write_bytes(data[:cut])
        log = ValueLog(tmp_path, sync=None)
        assert log.open(known=Head(first, last.offset, 1), known_is_all=known_is_all) == []
        assert contents(log) == [prewrite(1)], cut
        log.close()
        assert path.stat().st_size == last.offset


def test_torn_footer_is_cut_off_and_record_kept(tmp_path: Path) -> None:
    """A crash while the footer was written: the file goes on being the newest."""
    log = opened(tmp_path)
    appended(log, [bytes(CLOSE_FOOTER_BYTES_MIN)], 9)
    log.close()
    path = tmp_path / "000000.vlog"
    whole = path.read_bytes()
    for cut in range(1, FOOTER_BYTES):
        path.write_bytes(whole[:-cut])
        assert len(contents(opened(tmp_path))) == 1
        assert path.stat().st_size == len(whole) - FOOTER_BYTES


def test_damage_within_log_is_reported_and_following_records_are_read(tmp_path: Path) -> None:
    """Not cut off: what follows it was acknowledged."""
    log = opened(tmp_path)
    pointers = append(log, 1, 2, 3)
    log.close()
    path = tmp_path / "000000.vlog"
    data = bytearray(path.read_bytes())
    data[pointers[1].offset + 20] ^= 1
    path.write_bytes(data)
    again = ValueLog(tmp_path)
    (damage,) = again.open()
    assert str(path) in str(damage)
    assert damage.offset == pointers[1].offset
    assert contents(again) == [prewrite(1), prewrite(3)]
    with pytest.raises(DamagedRecord, match=f"at byte {pointers[1].offset}: checksum mismatch"):
        again.read(pointers[1])
    assert path.stat().st_size == len(data)


def test_value_log_open_checks_only_records_behind_index_head(tmp_path: Path) -> None:
    """Only what follows the index's head is checked; its max_ts is taken over."""
    log = opened(tmp_path)
    pointers = append(log, 100, 2)
    log.close()
    again = ValueLog(tmp_path)
    end = pointers[1].offset + len(encode_record(prewrite(2)))
    again.open(Head(pointers[1], end, 100))
    assert (again.tail.size, again.tail.max_ts) == (end, 100)


def test_head_past_end_of_log_begins_new_file(tmp_path: Path) -> None:
    """FORMAT.md, recovery 5: an old pointer must not find a new record."""
    log = opened(tmp_path)
    append(log, 1)
    log.close()
    again = ValueLog(tmp_path)
    again.open(Head(Pointer(0, 500), 600, 7))
    assert append(again, 2)[0] == Pointer(1, 0)
    assert contents(again) == [prewrite(1), prewrite(2)]


def test_value_log_open_fails_if_file_named_by_index_head_is_missing(tmp_path: Path) -> None:
    """A value directory that was emptied is a clear error, not a fresh start."""
    with pytest.raises(BinlogError, match="index names file 3"):
        ValueLog(tmp_path).open(Head(Pointer(3, 0), 10, 1))


def test_value_log_takes_no_writes_after_failed_sync(tmp_path: Path) -> None:
    """The disk may hold the record or not: nothing follows it."""
    fail = False

    def sync(_fd: int) -> None:
        if fail:
            raise OSError(5, "Input/output error")

    log = opened(tmp_path, sync=sync)
    append(log, 1)
    fail = True
    with pytest.raises(LogBroken, match="Input/output error"):
        append(log, 2)
    fail = False
    with pytest.raises(LogBroken, match="broken since"):
        append(log, 3)
    assert "000000.vlog" in (log.broken or "")
    log.close()
    assert contents(opened(tmp_path))[0] == prewrite(1)


def test_value_log_open_fails_on_file_name_that_is_not_a_number(tmp_path: Path) -> None:
    """A name that is no number stops the pump before it guesses."""
    (tmp_path / "backup.vlog").write_bytes(b"")
    with pytest.raises(BinlogError, match=r"backup\.vlog"):
        ValueLog(tmp_path).open()


def test_removed_file_is_still_readable_through_open_handle(tmp_path: Path) -> None:
    """GC does not pull a file from under a pull."""
    log = opened(tmp_path, file_bytes_max=10)
    append(log, 1, 2)
    held = log.file(0)
    log.remove(0)
    assert held.read(0, 4)
    with pytest.raises(DamagedRecord, match="file is missing"):
        log.read(Pointer(0, 0))
