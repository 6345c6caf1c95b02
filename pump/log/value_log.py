"""The value log: files of records, of which the newest is written. See FORMAT.md.

`open` recovers the log and makes it writable at the end of its newest file. A write or sync that fails breaks the log
for good: it is then unknown which bytes the disk holds, so nothing may be written after them.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

from binlog.envelope import scan as scan_envelope
from binlog.errors import BinlogError, DecodeError, LogBroken
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger

from pump import metrics
from pump.errors import DamagedRecord, Stopping
from pump.log.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    Pointer,
    Scan,
    Scanned,
    check_record,
    decode_footer,
    encode_footer,
    encode_header,
)

FILE_BYTES_MAX = 500 << 20
JOIN_BYTES_MAX = 16 << 20  # up to this size the parts of a write are copied into one buffer
CLOSE_FOOTER_BYTES_MIN = 50 << 10
SUFFIX = ".vlog"
COPY_BYTES = 4 << 20  # a file is compared or copied in pieces of this size
LOG_INTERVAL_S = 2.0
# The clock is read after this many records or bytes.
CHECK_RECORDS = 64
CHECK_BYTES = 4 << 20

# The steps, as log lines name them.
CHECKING = "checking the newest value log file"
READING = "reading the value log"

_MID_APPEND = os.environ.get("BINLOG_CRASH_POINT", "").partition(":")[0] == "pump.mid_append"
_log = get_logger("pump.log.value_log")


@dataclass(slots=True)
class LogFile:
    """One file. `size`: the offset at which its records end. `closed`: nothing more is written to it. `finished`: a
    footer follows the records.

    The file stays open as long as a reader holds this object, so that a pull can finish after the file was removed.
    """

    fid: int
    path: Path
    fd: int
    size: int
    closed: bool
    max_ts: int = 0
    finished: bool = False

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.fd, size, offset)

    def __del__(self) -> None:
        os.close(self.fd)


def _largest_ts(payload: bytes) -> int:
    """Return the larger ts of a binlog; 0 if the payload is not a binlog (the record's CRC is right, so it was written
    in this way)."""
    try:
        envelope = scan_envelope(payload)
    except DecodeError:
        return 0
    return max(envelope.start_ts, envelope.commit_ts)


class Reading(NamedTuple):
    """The progress of one step: `bytes` of `of_bytes` have been read, the last of them from file `fid`."""

    step: str
    records: int
    bytes: int
    of_bytes: int
    fid: int

    @property
    def percent(self) -> int:
        return round(100 * self.bytes / max(1, self.of_bytes))


class ReadingProgress:
    """Progress of reading the log at a start, for log lines and the status page. The reading thread updates it. `now`
    (None before the first step) and `stop` are safe for use by other threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now: Reading | None = None
        self._clock = clock
        self._logged_s = clock()
        self._check_at = CHECK_BYTES
        self._stopping = threading.Event()

    def begin(self, step: str, of_bytes: int, fid: int) -> None:
        self.now = Reading(step, 0, 0, of_bytes, fid)
        self._check_at = CHECK_BYTES

    def reached(self, records: int, done_bytes: int, fid: int) -> None:
        """Record that `records` and `done_bytes` of this step have been read. Raises Stopping after `stop`."""
        if records % CHECK_RECORDS and done_bytes < self._check_at:
            return
        self._check_at = done_bytes + CHECK_BYTES
        assert self.now is not None, "no step has begun"
        if self._stopping.is_set():
            raise Stopping("asked to stop while the value log was read")
        self.now = found = self.now._replace(records=records, bytes=done_bytes, fid=fid)
        now_s = self._clock()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.info(
                found.step,
                records=records,
                percent=found.percent,
                bytes=done_bytes,
                of_bytes=found.of_bytes,
                fid=fid,
            )

    def stop(self) -> None:
        """Make the next `reached` raise Stopping."""
        self._stopping.set()


class Head(NamedTuple):
    """The last record of the log that the index holds: its position, its end offset, and the largest ts of its file."""

    pointer: Pointer
    end: int
    max_ts: int


@dataclass(eq=False)
class ValueLog:
    """The value log. Only one thread may `write`; the other methods are safe for use by several threads. No file is
    opened before `open`.

    `sync`: makes a file durable; None: writes do not wait for the disk (`sync-log = false`). `progress` records how far
    `open` has read. `on_broken`: called once, in the thread that broke the log. `broken`: why the log accepts no more
    writes, or None."""

    _directory: Path
    _: KW_ONLY
    file_bytes_max: int = FILE_BYTES_MAX
    sync: Callable[[int], None] | None = os.fdatasync
    progress: ReadingProgress = field(default_factory=ReadingProgress)
    on_broken: Callable[[], object] = lambda: None
    broken: str | None = None
    _files: dict[int, LogFile] = field(default_factory=dict)

    # Opening

    def open(
        self, checked: Head | None = None, known: Head | None = None, *, known_is_all: bool = False
    ) -> list[DamagedRecord]:
        """Open every file and make the newest one writable. Return the damage found in the checked part of that file.

        The newest file is checked from `checked` on, or from its beginning. `known` is the index's head: the records
        before it were once complete, so unreadable bytes before it are damage. Unreadable bytes after it are a torn
        tail and are truncated (upstream leaves them, `P-ST-05`). `known_is_all`: no record after `known` was
        acknowledged, so the newest file is truncated before the first one that cannot be read.
        """
        head = max((each for each in (checked, known) if each is not None), default=None)
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._directory.glob("*" + SUFFIX)):
            if not path.stem.isdecimal():
                raise BinlogError(f"{path} is not a value log file: its name must be a number")
            self._files[int(path.stem)] = self._open_file(int(path.stem), path)
        if head is not None and head.pointer.fid > max(self._files, default=-1):
            raise BinlogError(
                f"the index names file {head.pointer.fid}, but the newest file in {self._directory} is older: value "
                "log files are missing"
            )
        damage: list[DamagedRecord] = []
        if self._files:
            newest = self.tail
            if head is not None and head.pointer.fid == newest.fid and head.end > newest.size:
                _log.error(
                    "the index has records beyond the end of the newest value log file; starting a new file",
                    file=str(newest.path),
                )
                self._find_max_ts(newest)
                newest.closed = True
            else:
                begin, floor = _in_file(checked, newest.fid), _in_file(known, newest.fid).end
                cut_from = floor if known_is_all else None
                damage = self._recover(newest, begin.end, begin.max_ts, floor=floor, cut_from=cut_from)
        if not self._files or self.tail.closed:
            self._create(max(self._files, default=-1) + 1)
        for file in self._files.values():
            if not file.max_ts and file.fid != self.tail.fid:
                self._find_max_ts(file)
        return damage

    def _open_file(self, fid: int, path: Path) -> LogFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(fd).st_size
        file = LogFile(fid, path, fd, size, False)
        max_ts = decode_footer(file.read(max(0, size - FOOTER_BYTES), FOOTER_BYTES))
        if max_ts is not None:
            file.size, file.closed, file.max_ts, file.finished = size - FOOTER_BYTES, True, max_ts, True
        return file

    def _create(self, fid: int) -> None:
        self._files[fid] = self._open_file(fid, self.path(fid))
        sync_directory(self._directory)

    def _recover(
        self, file: LogFile, begin: int, max_ts: int, *, floor: int, cut_from: int | None = None
    ) -> list[DamagedRecord]:
        """Find where the records of the newest file end, truncate the file there, and sync its records. Return the
        damage found.

        `begin`: the records up to this offset are known to be complete, and `max_ts` is their largest ts. `floor`: the
        records up to this offset were complete once. `cut_from`: the records end before the first broken one at or
        after this offset; None: records may follow it. Raises BinlogError if the records cannot be made durable."""
        whole = file.size + (FOOTER_BYTES if file.closed else 0)
        if file.closed:
            end, found_ts, damage = self._records_end(file, begin, file.size, floor, cut_from)
            if end == file.size:
                return damage
            # The four bytes of the footer were the end of a payload, or the file is torn.
            file.closed = file.finished = False
        end, found_ts, damage = self._records_end(file, begin, whole, floor, cut_from)
        if end < whole:
            _log.warning(
                "incomplete record at the end of the value log removed",
                file=str(file.path),
                offset=end,
                bytes=whole - end,
            )
            os.ftruncate(file.fd, end)
            os.fsync(file.fd)
        file.size, file.max_ts = end, max(max_ts, found_ts)
        self._write_again(file, begin)
        return damage

    def _find_max_ts(self, file: LogFile) -> None:
        """Set `max_ts` of a file that has no footer with it."""
        file.max_ts = self._records_end(file, 0, file.size)[1]

    def _write_again(self, file: LogFile, begin: int) -> None:
        """Write the records from `begin` on again and sync them. A process that died, or whose sync failed, may have
        left them only in the page cache. After a failed sync such pages count as clean although the disk does not have
        them, so a sync alone would not write them."""
        if self.sync is None:
            return
        fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)  # without O_APPEND, with which a write ignores its offset
        try:
            for at in range(begin, file.size, COPY_BYTES):
                data = os.pread(fd, min(COPY_BYTES, file.size - at), at)
                if os.pwrite(fd, data, at) != len(data):
                    raise OSError(errno.EIO, "a short write")
            self.sync(fd)
        except OSError as error:
            raise BinlogError(f"value log {file.path} cannot be synced: {error}") from error
        finally:
            os.close(fd)

    def _records_end(
        self, file: LogFile, begin: int, end: int, floor: int | None = None, cut_from: int | None = None
    ) -> tuple[int, int, list[DamagedRecord]]:
        """Return the end of the last complete record, the largest ts, and the damage before that end. `floor`: records
        ended at this offset once, so everything before it that is not a record is damage, and after it a write may have
        been cut off; None: in the complete file no write was. `cut_from`: see `recover`."""
        last, max_ts = begin, 0
        damage: list[DamagedRecord] = []
        self.progress.begin(CHECKING, end - begin, file.fid)
        for records, step in enumerate(Scan(file.read, begin, end, floor, cut_from), 1):
            self.progress.reached(records, step.end - begin, file.fid)
            if step.payload is not None:
                last = step.end
                max_ts = max(max_ts, _largest_ts(step.payload))
            elif step.end < end:
                damage.append(
                    DamagedRecord(str(file.path), step.offset, f"{step.reason}, {step.end - step.offset} bytes")
                )
        if floor is not None and last < floor <= end:
            damage.append(DamagedRecord(str(file.path), last, f"the index knows records in these {floor - last} bytes"))
            last = floor
        return last, max_ts, damage

    # Writing

    @property
    def tail(self) -> LogFile:
        """The file that is written."""
        return self._files[max(self._files)]

    def write(self, parts: list[bytes], max_ts: int) -> None:
        """Write and sync complete records, headers included, at the end of the newest file. A file that is then too
        large is finished, and a new one begins. `max_ts`: the largest ts of the file with these records.

        Raises LogBroken if this or an earlier write failed: it is then unknown which records the disk holds.
        """
        if self.broken is not None:
            raise LogBroken(self.broken)
        began_s = time.monotonic()
        file = self.tail
        self._write(file, parts, max_ts)
        if file.size > self.file_bytes_max:
            self._rotate(file)
        metrics.SIZE_BATCH.observe(sum(map(len, parts[1::2])))
        metrics.TIME_BATCH.observe(time.monotonic() - began_s)

    def _write(self, file: LogFile, parts: list[bytes], max_ts: int) -> None:
        size = sum(map(len, parts))
        if size <= JOIN_BYTES_MAX or _MID_APPEND:
            parts = [b"".join(parts)]
        crash_point("pump.before_append")
        began_s = time.monotonic()
        try:
            if _MID_APPEND:
                half = size // 2
                os.write(file.fd, parts[0][:half])
                crash_point("pump.mid_append")
                parts = [parts[0][half:]]
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[os.write(file.fd, view) :]
            crash_point("pump.after_append")
            if self.sync is not None:
                written_s = time.monotonic()
                self.sync(file.fd)
                metrics.TIME_FSYNC.observe(time.monotonic() - written_s)
        except OSError as error:
            raise self._break(f"value log {file.path} is broken since a write failed: {error}") from error
        metrics.TIME_TO_DISK.observe(time.monotonic() - began_s)
        crash_point("pump.after_sync")
        file.size = os.fstat(file.fd).st_size if _MID_APPEND else file.size + size
        file.max_ts = max_ts

    def _rotate(self, file: LogFile) -> None:
        began_s = time.monotonic()
        self._finish(file)
        try:
            self._create(file.fid + 1)
        except OSError as error:
            raise self._break(f"value log cannot create file {file.fid + 1}: {error}") from error
        metrics.TIME_ROTATE.observe(time.monotonic() - began_s)

    def _finish(self, file: LogFile) -> None:
        try:
            if os.write(file.fd, encode_footer(file.max_ts)) != FOOTER_BYTES:
                raise OSError(errno.EIO, "a short write")
            os.fdatasync(file.fd)
        except OSError as error:
            raise self._break(f"value log {file.path} is broken since its footer failed: {error}") from error
        file.closed = file.finished = True

    def give_up(self, reason: str) -> None:
        """Refuse every later write, because a step after the append failed: it is unknown which of the last records
        count as stored."""
        if self.broken is None:
            self._break(reason)

    def _break(self, reason: str) -> LogBroken:
        self.broken = reason
        metrics.ERROR_WRITE_BATCH.inc()
        _log.error("value log broken", reason=reason)
        self.on_broken()
        return LogBroken(reason)

    def close(self) -> None:
        """Close the log. Write the footer of the newest file if the file is large enough (`P-ST-03`). Files in use by
        readers stay open."""
        if self._files and self.broken is None and not self.tail.closed and self.tail.size >= CLOSE_FOOTER_BYTES_MIN:
            self._finish(self.tail)
        self._files.clear()

    # Reading

    def file(self, fid: int) -> LogFile:
        """Return a file. Raises DamagedRecord if it is missing: the index then points to a lost part of the log."""
        found = self._files.get(fid)
        if found is None:
            raise DamagedRecord(str(self.path(fid)), 0, "the file is missing")
        return found

    def path(self, fid: int) -> Path:
        return self._directory / f"{fid:06d}{SUFFIX}"

    def read(self, pointer: Pointer, length: int | None = None) -> bytes:
        """Return the payload of a record. `length`: the payload's bytes according to the index, if known. Raises
        DamagedRecord if the record cannot be read."""
        file = self.file(pointer.fid)
        if length is None:
            length = min(int.from_bytes(file.read(pointer.offset, HEADER_BYTES)[4:12], "little"), file.size)
        data = file.read(pointer.offset, HEADER_BYTES + length)
        if len(data) < HEADER_BYTES:
            raise DamagedRecord(str(file.path), pointer.offset, "the file ends before it")
        return check_record(data, 0, length=length, place=str(file.path), offset=pointer.offset)

    def holds(self, pointer: Pointer, payload: bytes) -> bool:
        """Return whether the record is complete and has exactly this payload. The record is read piece by piece. Use
        `read` to find out why it is False."""
        file = self._files.get(pointer.fid)
        header = encode_header(payload)
        if file is None or file.read(pointer.offset, HEADER_BYTES) != header:
            return False
        begin, view = pointer.offset + HEADER_BYTES, memoryview(payload)
        return all(
            file.read(begin + at, min(COPY_BYTES, len(view) - at)) == view[at : at + COPY_BYTES]
            for at in range(0, len(view), COPY_BYTES)
        )

    def scan(self, start: Pointer) -> Iterator[tuple[Pointer, Scanned]]:
        """Yield every record from `start` on, in the order written, and every range of bytes that is not a record."""
        for fid in sorted(self._files):
            if fid < start.fid:
                continue
            file = self._files[fid]
            begin = start.offset if fid == start.fid else 0
            for step in Scan(file.read, begin, file.size):
                yield Pointer(fid, step.offset), step

    def files(self) -> list[LogFile]:
        """Return the files, ascending by number."""
        return [self._files[fid] for fid in sorted(self._files)]

    def has(self, fid: int) -> bool:
        """Return whether the file exists in the log. Safe for use by several threads."""
        return fid in self._files

    def remove(self, fid: int) -> None:
        """Remove and unlink a file that is not the newest. Pulls that still read from it can finish."""
        file = self._files.pop(fid)
        file.path.unlink()

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(file.size for file in self._files.values())


def _in_file(head: Head | None, fid: int) -> Head:
    """Return the head if it is in this file, else the file's beginning."""
    return head if head is not None and head.pointer.fid == fid else Head(Pointer(fid, 0), 0, 0)
