"""Read the records of a directory's files in commit order, from the wanted start to the end."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from google_crc32c import value as crc32c

from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file import (
    OVERHEAD,
    FileBinlog,
    FileName,
    Record,
    RecordDamaged,
    decode,
    parse_name,
    records,
    sorted_files,
)
from drainer.sink.document_position import POSITION

# The error that stops reparo. Its message names file and offset, if there are any.


class ReparoError(BinlogError):
    """Files that cannot be read on, or a record that cannot be applied."""


# Recognise records that an original drainer wrote again after it was killed. Pure.
#
# It appends to the file with which it ended, from an earlier commit_ts on, and a record has nothing that tells the
# second copy from the first. So a record is a repeat if its commit_ts is below the highest one. At the highest
# commit_ts it is one if as many records with the same bytes were received as this stretch of records has. A stretch
# begins where the commit_ts went back, and with another copy of the commit_ts's first record.
class Repeats:
    """The records of the highest commit_ts so far, by the CRC-32C of their payload."""

    def __init__(self) -> None:
        self._highest_ts = 0
        self._received: list[int] = []
        self._stretch: Counter[int] = Counter()

    def is_repeat(self, commit_ts: int, crc: int) -> bool:
        """Return whether this record was received before; if not, it counts as received."""
        if commit_ts < self._highest_ts:
            self._stretch.clear()
            return True
        if commit_ts > self._highest_ts:
            self._highest_ts, self._received = commit_ts, []
        if self._received[:1] in ([], [crc]):
            self._stretch.clear()
        self._stretch[crc] += 1
        if self._stretch[crc] <= self._received.count(crc):
            return True
        self._received.append(crc)
        return False


_PARQUET_STAGE = "stage"  # the directory that db-type = "file" with format = "parquet" has beside its tables

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The last applied record: its file, begin and end in it before compression, CRC-32C of its payload, commit_ts."""

    file_number: int
    begin: int
    end: int
    crc: int
    commit_ts: int

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> FilePosition | None:
        """Parse what `text` returned; "" is no position. Raises ReparoError."""
        try:
            return cls(**json.loads(text)) if text else None
        except (ValueError, TypeError) as error:
            raise ReparoError(f"the stored position is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class Entry:
    """A wanted record. `where`: file and offset, for errors; `position`: the destination's after it is applied."""

    binlog: FileBinlog
    where: str
    position: FilePosition


Advanced = Callable[[int, int], None]  # the number of a file, and how many of its bytes have been read


@dataclass(eq=False)
class Stream:
    """Read a directory once, from `start_ts` to `stop_ts`, both inclusive; 0: no limit.

    An original drainer writes transactions again after it was killed; these are skipped (Repeats). A directory with
    the position of this project's drainer has each transaction once."""

    directory: Path
    start_ts: int = 0
    stop_ts: int = 0
    position: FilePosition | None = None
    skips_damage: bool = False
    advanced: Advanced = lambda _number, _read_bytes: None

    def __post_init__(self) -> None:
        """Raises ReparoError if there are no files, or if the position's file is missing."""
        self._repeats = None if (self.directory / POSITION).exists() else Repeats()
        self._passed_over = 0
        self._last_number = -1
        self.files = self._chosen()

    def _chosen(self) -> list[FileName]:
        try:
            found = sorted_files(self.directory, parse_name)
        except OSError as error:
            raise ReparoError(f"{self.directory} cannot be read: {error}") from error
        if not found:
            has_stage = (self.directory / _PARQUET_STAGE).is_dir()
            why = '; it is one of Parquet files, and reparo reads those of format = "pb"' if has_stage else ""
            raise ReparoError(f"{self.directory} has no files of a drainer (binlog-<number>-<time>){why}")
        self._last_number = found[-1].number
        if self.position is not None:
            number = self.position.file_number
            if number not in {name.number for name in found}:
                raise ReparoError(
                    f"the destination's position is in file {number}, which is not in {self.directory}: restore the "
                    f"file, or give another -name to start from the beginning"
                )
            found = [name for name in found if name.number >= number]
        return self._whole(self._in_range(found))

    def _in_range(self, files: Sequence[FileName]) -> list[FileName]:
        """Return the files from the last one whose first record is not after the start, to the last one whose first
        record is not after the stop. A file without records has no known place in time, so no other file is left out
        because of it."""
        chosen: list[FileName] = []
        for name in files:
            first = name.first_ts or self._first_ts(name)
            if first and self.stop_ts and first > self.stop_ts:
                break
            # Not if they are equal: the transactions of one commit_ts may be in two files.
            if first and first < self.start_ts and self.position is None:
                chosen = []
            chosen.append(name)
        return chosen

    def _first_ts(self, name: FileName) -> int:
        try:
            for one in self._records(name):
                return self._decoded(name, one).commit_ts
        except OSError as error:
            raise ReparoError(f"{self.directory / name.text}: {error}") from error
        return 0

    def _whole(self, files: list[FileName]) -> list[FileName]:
        for before, name in itertools.pairwise(files):
            if name.number != before.number + 1:
                text = f"{self.directory}: {before.text} is followed by {name.text}, so files are missing in between"
                if not self.skips_damage:
                    raise ReparoError(f"{text}; -skip-damaged continues without them")
                _log.warning(text)
        return files

    def total_bytes(self) -> int:
        """Return the size of all chosen files on the disk, in bytes."""
        return sum((self.directory / name.text).stat().st_size for name in self.files)

    def __iter__(self) -> Iterator[Entry]:
        """Raises ReparoError naming file and offset."""
        for name in self.files:
            path = self.directory / name.text
            try:
                for one in self._behind(name):
                    entry = self._entry(name, one)
                    if entry is not None:
                        yield entry
                    self.advanced(name.number, one.read_bytes)
                self.advanced(name.number, path.stat().st_size)
            except OSError as error:
                raise ReparoError(f"{path}: {error}") from error
        if self._passed_over:
            _log.info("records that are in the files twice were skipped", records=self._passed_over)

    def _records(self, name: FileName) -> Iterator[Record]:
        def skipped(damage: RecordDamaged, length: int) -> None:
            _log.warning("damaged bytes are skipped (-skip-damaged)", error=str(damage), bytes=length)

        path = self.directory / name.text
        try:
            yield from records(
                path, is_last=name.number == self._last_number, skipped=skipped if self.skips_damage else None
            )
        except RecordDamaged as error:
            raise ReparoError(f"{error}; -skip-damaged continues after it") from error

    def _behind(self, name: FileName) -> Iterator[Record]:
        """The records of a file behind the stored position, whose own record must still be there, unchanged."""
        position = self.position
        if position is None or name.number != position.file_number:
            yield from self._records(name)
            return
        found = False
        for one in self._records(name):
            if one.offset == position.begin:
                found = crc32c(one.payload) == position.crc
            if one.offset < position.end:
                self._is_repeated(self._decoded(name, one).commit_ts, crc32c(one.payload))
            else:
                self._expect(name, position, found=found)
                yield one
        self._expect(name, position, found=found)

    def _expect(self, name: FileName, position: FilePosition, *, found: bool) -> None:
        if not found:
            raise ReparoError(
                f"{self.directory / name.text} does not have, at byte {position.begin}, the record of commit_ts "
                f"{position.commit_ts} that was applied last: these are not the files that were replayed before; give "
                f"another -name to start from the beginning"
            )

    def _decoded(self, name: FileName, one: Record) -> FileBinlog:
        try:
            return decode(one.payload)
        except MessageError as error:
            raise ReparoError(f"{self.directory / name.text}: record at byte {one.offset}: {error}") from error

    def _entry(self, name: FileName, one: Record) -> Entry | None:
        """Return the entry of a record; None if it is not wanted."""
        binlog = self._decoded(name, one)
        crc = crc32c(one.payload)
        if self._is_repeated(binlog.commit_ts, crc):
            self._passed_over += 1
            return None
        if binlog.commit_ts < self.start_ts or (self.stop_ts and binlog.commit_ts > self.stop_ts):
            return None
        where = f"{self.directory / name.text}, record at byte {one.offset}"
        end = one.offset + len(one.payload) + OVERHEAD
        return Entry(binlog, where, FilePosition(name.number, one.offset, end, crc, binlog.commit_ts))

    def _is_repeated(self, commit_ts: int, crc: int) -> bool:
        return self._repeats is not None and self._repeats.is_repeat(commit_ts, crc)
