"""A file of the value log, and where its records end when the log is opened. See FORMAT.md."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from binlog.envelope import scan as scan_envelope
from binlog.errors import BinlogError, DecodeError
from binlog.runtime.log import get_logger

from pump.errors import DamagedRecord
from pump.log.read_progress import CHECKING, ReadingProgress
from pump.log.record import FOOTER_BYTES, Scan

COPY_BYTES = 4 << 20  # a file is compared or copied in pieces of this size

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


class FileEnds:
    """Finds the ends of a log's files while the log is opened."""

    def __init__(self, sync: Callable[[int], None] | None, progress: ReadingProgress) -> None:
        """`sync`: makes a file durable; None: nothing is made durable. `progress` records what has been read."""
        self._sync = sync
        self._progress = progress

    def recover(
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

    def find_max_ts(self, file: LogFile) -> None:
        """Set `max_ts` of a file that has no footer with it."""
        file.max_ts = self._records_end(file, 0, file.size)[1]

    def _write_again(self, file: LogFile, begin: int) -> None:
        """Write the records from `begin` on again and sync them. A process that died, or whose sync failed, may have
        left them only in the page cache. After a failed sync such pages count as clean although the disk does not have
        them, so a sync alone would not write them."""
        if self._sync is None:
            return
        fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)  # without O_APPEND, with which a write ignores its offset
        try:
            for at in range(begin, file.size, COPY_BYTES):
                data = os.pread(fd, min(COPY_BYTES, file.size - at), at)
                if os.pwrite(fd, data, at) != len(data):
                    raise OSError(errno.EIO, "a short write")
            self._sync(fd)
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
        self._progress.begin(CHECKING, end - begin, file.fid)
        for records, step in enumerate(Scan(file.read, begin, end, floor, cut_from), 1):
            self._progress.reached(records, step.end - begin, file.fid)
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


def _largest_ts(payload: bytes) -> int:
    """Return the larger ts of a binlog; 0 if the payload is not a binlog (the record's CRC is right, so it was written
    in this way)."""
    try:
        envelope = scan_envelope(payload)
    except DecodeError:
        return 0
    return max(envelope.start_ts, envelope.commit_ts)
