"""Records of one file, one after another, with what is damaged told from what is not written yet.

A record that is cut off by the end of the file, and behind which no whole record follows, is what a program that is
still writing, or that was killed, leaves: it is passed over in silence in the last file, and damage in any other. All
else that is no record is damage, a wrong checksum like any other (upstream: `D-FO-04`): it names its offset, and
reading stops there, or goes on at the next whole record.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from binlog.errors import BinlogError
from google_crc32c import value as crc32c

from drainer.protocol.pb_file.records import GZIP, HEAD, MAGIC, MAGIC_BYTES, OVERHEAD, TAIL, FileName

# No transaction of TiDB is larger than its txn-total-size-limit, at most 1 TiB; protobuf ends at 2 GiB.
PAYLOAD_BYTES_MAX: Final = (1 << 31) - 1
_STEP: Final = 1 << 20
_NOT_READ: Final = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
_TORN: Final = "the record is cut off by the end of the file"


class RecordDamaged(BinlogError):
    """A place of a file that holds no record. `offset` counts from its beginning, before compression."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: damaged at byte {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Record:
    """`offset`: where it begins in the file, before compression; `read_bytes`: how much of the file as it lies on the
    disk has been read with it."""

    payload: bytes
    offset: int
    read_bytes: int


Skipped = Callable[[RecordDamaged, int], None]  # what was damaged, and how many bytes were passed over


def records(path: Path, *, is_last: bool = False, skipped: Skipped | None = None) -> Iterator[Record]:
    """Of one file. `skipped`: is told of every damaged stretch, which is passed over; without it the first raises
    RecordDamaged. OSError where the file cannot be read."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        is_compressed = path.name.endswith((GZIP, ".tgz"))
        data = _opened(raw, stack) if is_compressed else raw
        reader = _Reader(path, data, raw, is_last=is_last and not is_compressed)  # nobody appends to a compressed one
        while True:
            found = reader.next()
            if isinstance(found, Record):
                yield found
            elif found is None:
                return
            else:
                if skipped is None:
                    raise found
                skipped(found, reader.resume() - found.offset)


def _opened(raw: BinaryIO, stack: ExitStack) -> Any:
    """What is in a compressed file, also where it was put into a tar archive before."""
    plain = stack.enter_context(gzip.GzipFile(fileobj=raw))
    try:
        start = plain.peek(len(MAGIC_BYTES))[: len(MAGIC_BYTES)]
        if start == MAGIC_BYTES[: len(start)]:
            return plain
        archive = stack.enter_context(tarfile.open(fileobj=plain, mode="r|"))  # noqa: SIM115  entered right here
        for member in archive:
            inner = archive.extractfile(member)
            if inner is not None:
                return inner
    except _NOT_READ:
        raw.seek(0)  # the reader meets it again, and says it
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    return io.BytesIO()


class _Reader:
    """Reads ahead no more than the record at hand, but for `resume`."""

    def __init__(self, path: Path, file: Any, raw: BinaryIO, *, is_last: bool) -> None:
        self._path = path
        self._file = file
        self._raw = raw
        self._is_last = is_last
        self._held = bytearray()  # read and not given, from `_offset` on
        self._offset = 0
        self._ended = False
        self._broken = ""  # why the file gives no more, where that is not its end

    def next(self) -> Record | RecordDamaged | None:
        """The next record, what is wrong in its place, or None at the end."""
        if self._ended:
            return None
        if self._ensure(HEAD.size) < HEAD.size:
            return self._at_end()
        magic, size = HEAD.unpack_from(self._held)
        if magic != MAGIC:
            return self._damaged(f"magic number {magic:#010x} is not {MAGIC:#010x}")
        if not 0 <= size <= PAYLOAD_BYTES_MAX:
            return self._damaged(f"a record of {size} bytes cannot be")
        whole = size + OVERHEAD
        if self._ensure(whole) < whole:
            return self._at_end()
        payload = bytes(memoryview(self._held)[HEAD.size : HEAD.size + size])
        (wanted,) = TAIL.unpack_from(self._held, HEAD.size + size)
        found = crc32c(payload)
        if found != wanted:
            return self._damaged(f"CRC-32C is {found:#010x}, and {wanted:#010x} was written")
        offset = self._offset
        self._drop(whole)
        return Record(payload, offset, self._raw.tell())

    def resume(self) -> int:
        """Go on at the next whole record, or at the end: where that is."""
        start = self._offset + 1
        self._drop(1)
        while True:
            at = self._held.find(MAGIC_BYTES)
            if at < 0:
                self._drop(max(len(self._held) - len(MAGIC_BYTES) + 1, 0))
                if not self._more():
                    self._drop(len(self._held))
                    self._ended = True
                    return max(self._offset, start)
                continue
            self._drop(at)
            if self._is_whole():
                return self._offset
            self._drop(1)

    def _is_whole(self) -> bool:
        """Whether a record begins here, its checksum included."""
        if self._ensure(HEAD.size) < HEAD.size:
            return False
        _, size = HEAD.unpack_from(self._held)
        if not 0 <= size <= PAYLOAD_BYTES_MAX or self._ensure(size + OVERHEAD) < size + OVERHEAD:
            return False
        (wanted,) = TAIL.unpack_from(self._held, HEAD.size + size)
        return bool(crc32c(bytes(memoryview(self._held)[HEAD.size : HEAD.size + size])) == wanted)

    def _at_end(self) -> RecordDamaged | None:
        """Nothing more can be read, and what is held is no whole record."""
        if self._broken:
            return self._damaged(self._broken)
        if not self._held or (self._is_last and not self._followed()):
            return None
        return self._damaged(_TORN)

    def _followed(self) -> bool:
        """Whether a whole record follows in what is held, which goes to the end of the file."""
        ahead = _Reader(self._path, io.BytesIO(bytes(self._held)), self._raw, is_last=True)
        ahead.resume()
        return bool(ahead._held)

    def _damaged(self, reason: str) -> RecordDamaged:
        return RecordDamaged(str(self._path), self._offset, reason)

    def _ensure(self, count: int) -> int:
        """How many bytes are held, at least `count` unless the file ends."""
        while len(self._held) < count and self._more(count - len(self._held)):
            pass
        return len(self._held)

    def _more(self, wanted: int = _STEP) -> bool:
        """Hold more bytes; at most a step at a time, whatever a size field asks for."""
        if self._broken:
            return False
        try:
            data = self._file.read(min(max(wanted, 1 << 16), _STEP))
        except _NOT_READ as error:
            self._broken = f"it cannot be decompressed: {error}"
            return False
        self._held += data
        return bool(data)

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._offset += count


def sorted_files(directory: Path, parse: Callable[[str], FileName | None]) -> list[FileName]:
    """Files of records by number. Where one is there compressed and not, the latter: it is not compressed to its end,
    or about to be removed. OSError where the directory cannot be read."""
    found: dict[int, FileName] = {}
    for path in sorted(directory.iterdir()):
        name = parse(path.name)
        if name is not None and (name.number not in found or not name.is_compressed):
            found[name.number] = name
    return [found[number] for number in sorted(found)]
