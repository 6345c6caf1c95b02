"""Files of records: their names (`D-FO-01`), the layout of a record (`D-FO-02`), and reading them in order.

magic u32 | size of the payload i64 | payload | CRC-32C of the payload u32        all little-endian

A program that is still writing, or that was killed, may leave a record that ends at the end of the file and is followed
by no complete record. In the last file this record is ignored silently. In any other file it is damage. Everything else
that is not a record is damage, including a wrong checksum (upstream: `D-FO-04`). The error names the offset. Reading
then stops there or continues at the next complete record.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

from binlog.errors import BinlogError
from google_crc32c import extend
from google_crc32c import value as crc32c

MAGIC: Final = 471532804
HEAD: Final = Struct("<Iq")
TAIL: Final = Struct("<I")
OVERHEAD: Final = HEAD.size + TAIL.size
MAGIC_BYTES: Final = HEAD.pack(MAGIC, 0)[:4]
GZIP: Final = ".gz"
_NAME: Final = re.compile(r"binlog-([0-9]{1,20})(?:-[^-]*(?:-([0-9]+)(?:\.[^-]*)?)?)?")
_TEMPORARY: Final = (".lock", ".tmp", "checkpoint")


@dataclass(frozen=True, slots=True)
class FileName:
    """A parsed name. `first_ts`: the commit_ts of the first record if the name contains it, else 0."""

    text: str
    number: int
    first_ts: int = 0

    @property
    def is_compressed(self) -> bool:
        return self.text.endswith(GZIP)


def parse_name(text: str) -> FileName | None:
    """Parse a name. Return None if it is not the name of a file of records."""
    found = None if text.endswith(_TEMPORARY) else _NAME.fullmatch(text)
    return None if found is None else FileName(text, int(found[1]), int(found[2] or 0))


def file_name(number: int, now: datetime) -> str:
    """Return the name of a file. `now`: local time, as upstream uses it."""
    return f"binlog-{number:016d}-{now:%Y%m%d%H%M%S}"


def compressed_name(text: str, first_ts: int) -> str:
    """Return the name of a complete, compressed file. `first_ts`: the commit_ts of its first record."""
    return f"{text}-{first_ts}{GZIP}"


def record(parts: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Yield the bytes of a record whose payload has these parts, of `length` bytes together."""
    yield HEAD.pack(MAGIC, length)
    crc = 0
    for part in parts:
        yield part
        crc = extend(crc, part)
    yield TAIL.pack(crc)


# No transaction of TiDB is larger than its txn-total-size-limit, at most 1 TiB; protobuf ends at 2 GiB.
PAYLOAD_BYTES_MAX: Final = (1 << 31) - 1
_STEP: Final = 1 << 20
_NOT_READ: Final = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
_TORN: Final = "the record is cut off by the end of the file"


class RecordDamaged(BinlogError):
    """A part of a file that does not hold a record. `offset`: in bytes from the beginning of the uncompressed file."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {reason}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Record:
    """A record. `offset`: in bytes from the beginning of the uncompressed file. `read_bytes`: how many bytes of the
    file on disk, compressed if the file is, have been read so far."""

    payload: bytes
    offset: int
    read_bytes: int


Skipped = Callable[[RecordDamaged, int], None]  # the damage, and how many bytes were skipped


def records(path: Path, *, is_last: bool = False, skipped: Skipped | None = None) -> Iterator[Record]:
    """Yield the records of a file. `skipped`: called for each damaged range, which is then skipped. Without it, the
    first damaged range raises RecordDamaged. Raises OSError if the file cannot be read."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        is_compressed = path.name.endswith((GZIP, ".tgz"))
        data = _opened(raw, stack) if is_compressed else raw
        reader = _Reader(path, data, raw, is_last=is_last and not is_compressed)  # a compressed file is not appended to
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
    """Return the content of a compressed file. Also unpacks a file that was put into a tar archive before
    compression."""
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
        raw.seek(0)  # the reader gets the same error again and reports it
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    return io.BytesIO()


class _Reader:
    """Reads records. Reads ahead no further than the current record, except in `resume`."""

    def __init__(self, path: Path, file: Any, raw: BinaryIO, *, is_last: bool) -> None:
        self._path = path
        self._file = file
        self._raw = raw
        self._is_last = is_last
        self._held = bytearray()  # bytes read but not returned yet, from `_offset` on
        self._offset = 0
        self._ended = False
        self._broken = ""  # why no more can be read, if the reason is not the end of the file

    def next(self) -> Record | RecordDamaged | None:
        """Return the next record, the damage found in its place, or None at the end."""
        if self._ended:
            return None
        payload = self._payload()
        if isinstance(payload, str):
            return self._damaged(payload) if payload else self._at_end()
        offset = self._offset
        self._drop(len(payload) + OVERHEAD)
        return Record(payload, offset, self._raw.tell())

    def _payload(self) -> bytes | str:
        """Return the payload of the record that begins here, or why there is none: "" if the file ends before it."""
        if self._ensure(HEAD.size) < HEAD.size:
            return ""
        magic, size = HEAD.unpack_from(self._held)
        if magic != MAGIC:
            return f"magic number {magic:#010x} is not {MAGIC:#010x}"
        if not 0 <= size <= PAYLOAD_BYTES_MAX:
            return f"a record cannot have {size} bytes"
        if self._ensure(size + OVERHEAD) < size + OVERHEAD:
            return ""
        payload = bytes(memoryview(self._held)[HEAD.size : HEAD.size + size])
        (wanted,) = TAIL.unpack_from(self._held, HEAD.size + size)
        found = crc32c(payload)
        return payload if found == wanted else f"CRC-32C is {found:#010x}, not {wanted:#010x} as recorded"

    def resume(self) -> int:
        """Skip to the next complete record, or to the end of the file. Return the offset."""
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
            if isinstance(self._payload(), bytes):
                return self._offset
            self._drop(1)

    def _at_end(self) -> RecordDamaged | None:
        """Return whether nothing more can be read and the buffered bytes do not hold a complete record."""
        if self._broken:
            return self._damaged(self._broken)
        if not self._held or (self._is_last and not self._followed()):
            return None
        return self._damaged(_TORN)

    def _followed(self) -> bool:
        """Return whether a complete record follows in the buffered bytes, which reach to the end of the file."""
        ahead = _Reader(self._path, io.BytesIO(bytes(self._held)), self._raw, is_last=True)
        ahead.resume()
        return bool(ahead._held)

    def _damaged(self, reason: str) -> RecordDamaged:
        return RecordDamaged(str(self._path), self._offset, reason)

    def _ensure(self, count: int) -> int:
        """Buffer at least `count` bytes, unless the file ends before. Return how many are buffered."""
        while len(self._held) < count and self._more(count - len(self._held)):
            pass
        return len(self._held)

    def _more(self, wanted: int = _STEP) -> bool:
        """Buffer more bytes, at most one step at a time, however large a size field claims the record to be."""
        if self._broken:
            return False
        try:
            data = self._file.read(min(max(wanted, 1 << 16), _STEP))
        except _NOT_READ as error:
            self._broken = f"the file cannot be decompressed: {error}"
            return False
        self._held += data
        return bool(data)

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._offset += count


def sorted_files(directory: Path, parse: Callable[[str], FileName | None]) -> list[FileName]:
    """Return the files of records, ordered by number. If a file exists both compressed and not, the uncompressed one is
    returned: its compression is not complete, or it is about to be removed. Raises OSError if the directory cannot be
    read."""
    found: dict[int, FileName] = {}
    for path in sorted(directory.iterdir()):
        name = parse(path.name)
        if name is not None and (name.number not in found or not name.is_compressed):
            found[name.number] = name
    return [found[number] for number in sorted(found)]
