"""Checkpoint file: the position in the value log up to which the index is known to be on disk.

FORMAT.md, "Checkpoint" and "Recovery", says why a checkpoint proves that and the head in the index does not.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger
from google_crc32c import value as crc32c

from pump.index.keys import decode_head, encode_head
from pump.index.leveldb import Index
from pump.log.record import POINTER_BYTES, Pointer
from pump.log.value_log import Head

FILE_NAME = "checkpoint"
MAGIC = 0x6B706C62  # "blpk"
HEAD_BYTES = 28

_FIXED = Struct("<IQQ")  # magic, number, purged_ts
_CRC = Struct("<I")
NO_BOOT = bytes(16)
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")  # of Linux
FILE_BYTES = _FIXED.size + HEAD_BYTES + POINTER_BYTES + len(NO_BOOT) + _CRC.size

_log = get_logger("pump.index.checkpoint")


class Checkpoint(NamedTuple):
    """`head`: the last indexed record, None for an empty index. No prewrite before `handle` is pending. `boot`: during
    which the checkpoint was written."""

    number: int
    purged_ts: int
    head: Head | None
    handle: Pointer
    boot: bytes = NO_BOOT

    @property
    def start(self) -> Pointer:
        """Position in the log at which recovery starts reading."""
        return Pointer(0, 0) if self.head is None else min(self.head.pointer, self.handle)


_NO_HEAD = Head(Pointer(0, 0), 0, 0)  # every record ends above 0


def encode_checkpoint(found: Checkpoint) -> bytes:
    body = _FIXED.pack(MAGIC, found.number, found.purged_ts) + encode_head(found.head or _NO_HEAD)
    body += found.handle.encode() + found.boot
    return body + _CRC.pack(crc32c(body))


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """Decode the file's bytes; None if size, magic or CRC do not match."""
    if len(data) != FILE_BYTES or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(data[: -_CRC.size]):
        return None
    magic, number, purged_ts = _FIXED.unpack_from(data)
    at = _FIXED.size
    head = decode_head(data[at : at + HEAD_BYTES])
    boot_at = at + HEAD_BYTES + POINTER_BYTES
    handle = Pointer.decode(data[at + HEAD_BYTES : boot_at])
    boot = data[boot_at : -_CRC.size]
    return Checkpoint(number, purged_ts, head if head.end else None, handle, boot) if magic == MAGIC else None


def boot_id() -> bytes:
    """Return the 16 bytes of the machine's current boot; NO_BOOT if they cannot be read."""
    try:
        return UUID(BOOT_FILE.read_text().strip()).bytes
    except (OSError, ValueError):
        return NO_BOOT


class Checkpoints:
    """Reads and writes the checkpoint file. Call `trusted` once at start, then `save` and `purge` from any thread; all
    raise OSError and IndexFailed when the disk fails."""

    def __init__(self, directory: Path, index: Index) -> None:
        self._path = directory / FILE_NAME
        self._index = index
        self._writing = threading.Lock()
        self._last = self._read() or Checkpoint(0, 0, None, Pointer(0, 0))

    def _read(self) -> Checkpoint | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            if self._index.head() is not None:
                _log.warning("no checkpoint; reading the whole value log", file=str(self._path))
            return None
        found = decode_checkpoint(data)
        if found is None:
            _log.error("the checkpoint is damaged; reading the whole value log", file=str(self._path))
        return found

    def trusted(self) -> Checkpoint | None:
        """Return the last checkpoint if the index still holds everything that was flushed up to it. Otherwise return
        None; the complete log must then be read.

        If the index has an older purge point than the checkpoint, restore it from the checkpoint.
        """
        last = self._last
        if last.purged_ts > self._index.purged_ts():
            _log.error("the index has no purge point; restoring it from the checkpoint", purged_ts=last.purged_ts)
            self._index.save_purged(last.purged_ts)
        if self._index.unbroken and self._index.check() >= last.number:
            return last
        _log.error("index tables are missing; rebuilding the index from the whole value log", checkpoint=last.number)
        return None

    def index_is_complete(self) -> bool:
        """Return whether the index surely has every acknowledged record: the machine has not restarted since the last
        checkpoint, so that the pump was stopped or killed and nothing that it wrote is missing. Call it after `trusted`
        has returned a checkpoint."""
        own = self._index.own_head()
        return (
            self._last.boot == boot_id() != NO_BOOT
            and not self._index.lost_writes
            and self._index.head() == (own.pointer if own is not None else None)  # else the original wrote here
        )

    def save(self, head: Head | None, handle: Pointer) -> None:
        """Flush the index and write a checkpoint. The caller has written every record up to `head` to the index."""
        with self._writing:
            number = max(self._last.number, self._index.check()) + 1
            self._index.flush(number)
            self._put(Checkpoint(number, self._index.purged_ts(), head, handle, boot_id()))

    def purge(self, purged_ts: int) -> None:
        """Store the purge point in the checkpoint and the index; called before files are removed."""
        with self._writing:
            self._index.save_purged(purged_ts)
            self._put(self._last._replace(purged_ts=purged_ts))

    def _put(self, found: Checkpoint) -> None:
        """Replace the file atomically and sync its directory."""
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(encode_checkpoint(found))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        sync_directory(self._path.parent)
        self._last = found
