"""The index in LevelDB: the position of each binlog, and which are complete. The only user of plyvel. See FORMAT.md."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any

import plyvel
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from google_crc32c import value as crc32c

from pump.index import keys
from pump.index.keys import Complete
from pump.log.record import Pointer
from pump.log.value_log import Head
from pump.metrics import ERROR_INDEX

DELETE_KEYS_MAX = 1024
FLUSH_TRIES_MAX = 100
BLOCK_BYTES = 32 << 10  # of the manifest
REMEDY = ". It is damaged: stop the pump, move the directory away and start again; the index is made anew from the log"

FAILURES = (plyvel.Error, OSError)
_HEADER = Struct("<IHB")
_MASK_DELTA = 0xA282EAD8

_log = get_logger("pump.index.leveldb")


def unbroken(data: bytes) -> bool:
    """Return whether no complete record of a manifest follows bytes that are not one. A truncated file is unbroken.

    The file has LevelDB's log format: blocks of 32 KiB. A block holds records of a header (masked CRC-32C of type and
    data, length u16, type u8) and data; at its end are zeros, fewer than a header's bytes."""
    broken = False
    for begin in range(0, len(data), BLOCK_BYTES):
        at, end = begin, min(begin + BLOCK_BYTES, len(data))
        while end - at >= _HEADER.size:
            masked, length, kind = _HEADER.unpack_from(data, at)
            past = at + _HEADER.size + length
            if past > end or kind == 0 or _masked(data[at + 6 : past]) != masked:
                broken = True
                break
            if broken:
                return False
            at = past
    return True


def manifest_unbroken(directory: Path) -> bool:
    """Return whether the manifest in use, the list of LevelDB's tables, is unbroken. If there is none, return True:
    LevelDB then makes an empty index or refuses to open.

    LevelDB's reader skips a page of zeros silently and continues at the next block. It then deletes the tables that
    were listed there, because it does not know them."""
    try:
        name = (directory / "CURRENT").read_text().strip()
        return unbroken((directory / name).read_bytes())
    except (OSError, UnicodeDecodeError, ValueError):
        return True


def _masked(data: bytes) -> int:
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


class IndexFailed(BinlogError):
    """LevelDB could not be opened or read; the message names the directory."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options of LevelDB, sizes in bytes: the section [storage.kv]."""

    block_cache_bytes: int = 8 << 20
    block_bytes: int = 4096
    block_restart_interval: int = 16
    write_buffer_bytes: int = 64 << 20


class Batch:
    """Writes that become visible together. Reads of the index do not see them before `Index.write`."""

    __slots__ = ("_needs", "put", "write")

    def __init__(self, raw: Any, needs: dict[int, int]) -> None:
        self.put, self.write = raw.put, raw.write
        self._needs = needs

    def pointer(self, ts: int, pointer: Pointer) -> None:
        self.put(keys.TS + keys.pack_ts(ts), pointer.encode())

    def outcome(self, start_ts: int, commit_ts: int) -> None:
        self.put(keys.OUTCOME + keys.pack_ts(start_ts), keys.encode_number(commit_ts))

    def complete(self, commit_ts: int, complete: Complete) -> None:
        self.put(keys.COMPLETE + keys.pack_ts(commit_ts), keys.encode_complete(complete))

    def pair(self, commit_ts: int, complete: Complete, commit_fid: int) -> None:
        """Write the entry of a commit in file `commit_fid`, which may need the file of its prewrite, too."""
        self.complete(commit_ts, complete)
        if complete.fid != commit_fid:
            self.need(complete.fid, commit_ts)

    def need(self, fid: int, commit_ts: int) -> None:
        """Record that a commit needs a prewrite in file `fid`. Commits arrive in any order: the largest commit_ts is
        kept."""
        if commit_ts > self._needs.get(fid, 0):
            self._needs[fid] = commit_ts
            self.put(keys.need_key(fid), keys.encode_number(commit_ts))

    def damage(self, pointer: Pointer, end: int) -> None:
        self.put(keys.damage_key(pointer), keys.encode_number(end))

    def head(self, head: Head) -> None:
        self.put(keys.HEAD, head.pointer.encode())
        self.put(keys.OWN_HEAD, keys.encode_head(head))


class Index:
    """The index. The constructor opens it. Safe for use by several threads until `close`, because LevelDB locks."""

    def __init__(self, directory: Path, options: IndexOptions | None = None) -> None:
        options = options or IndexOptions()
        self._directory = directory
        self.unbroken = manifest_unbroken(directory)  # checked before LevelDB writes a new manifest
        try:
            self._db, self.lost_writes = _open(directory, options)
        except FAILURES as error:
            raise self._failed("cannot be opened", error) from error
        try:
            self._needs = self.needs()
        except IndexFailed:
            self.close()
            raise

    def close(self) -> None:
        self._db.close()

    def _failed(self, what: str, error: Exception) -> IndexFailed:
        text = f"data-dir: the index {self._directory} {what}: {_text_of(error)}"
        return IndexFailed(text + REMEDY if _is_damage(error) else text)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Turn a failure of LevelDB into IndexFailed. `what`: what the index does not do."""
        try:
            yield
        except FAILURES as error:
            raise self._failed(what, error) from error

    # Reading

    def _get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None. LevelDB compares checksums, so a damaged block raises IndexFailed."""
        try:  # not `_guarded`: this runs for every binlog that is written
            value: bytes | None = self._db.get(key, verify_checksums=True)
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error
        return value

    def _scan(self, **bounds: Any) -> Generator[Any]:
        """Iterate over a snapshot of the index at this moment. A damaged block raises IndexFailed; it must not look
        like the end."""
        with self._guarded("cannot be read"):
            return self._guarded_steps(self._db.iterator(verify_checksums=True, **bounds))

    def _guarded_steps(self, found: Any) -> Generator[Any]:
        with self._guarded("cannot be read"), found:
            yield from found

    def pointer(self, ts: int) -> Pointer | None:
        value = self._get(keys.ts_key(ts))
        return None if value is None else Pointer.decode(value)

    def outcome(self, start_ts: int) -> int | None:
        """Return the commit_ts stored for a start_ts; 0: rolled back; None: nothing stored."""
        value = self._get(keys.outcome_key(start_ts))
        return None if value is None else keys.decode_number(value)

    def complete(self, commit_ts: int) -> Complete | None:
        value = self._get(keys.complete_key(commit_ts))
        return None if value is None else keys.decode_complete(value)

    def completes(self, after_ts: int, until_ts: int) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the raw (`cm:` key, value) with after_ts < commit_ts <= until_ts, ascending, in a snapshot of
        this moment. The block cache is not filled: a backlog is larger than the cache and would evict the blocks that
        writes need for lookups of single keys."""
        start, stop = keys.complete_key(after_ts), keys.complete_key(until_ts)
        return self._scan(start=start, stop=stop, include_start=False, include_stop=True, fill_cache=False)

    def head(self) -> Pointer | None:
        value = self._get(keys.HEAD)
        return None if value is None else Pointer.decode(value)

    def own_head(self) -> Head | None:
        value = self._get(keys.OWN_HEAD)
        return None if value is None else keys.decode_head(value)

    def handle(self) -> Pointer | None:
        value = self._get(keys.HANDLE)
        return None if value is None else Pointer.decode(value)

    def max_commit_ts(self) -> int:
        return keys.decode_number(self._get(keys.MAX_COMMIT))

    def purged_ts(self) -> int:
        return keys.decode_number(self._get(keys.PURGED))

    def ended(self) -> tuple[int, Pointer]:
        """Return what `save_ended` stored; 0 and the log's beginning if nothing is stored."""
        value = self._get(keys.ENDED)
        return (0, Pointer(0, 0)) if value is None else (keys.decode_number(value), Pointer.decode(value[8:]))

    def node(self) -> str:
        """Return the id of the pump that wrote here last; "" if it is not known."""
        return (self._get(keys.NODE) or b"").decode(errors="replace")

    def needs(self) -> dict[int, int]:
        """Return fid → the largest commit_ts that is stored in a later file and needs a prewrite in this file."""
        return {
            int.from_bytes(key[-4:], "big"): keys.decode_number(value) for key, value in self._scan(prefix=keys.NEED)
        }

    def check(self) -> int:
        """Return the number of the last checkpoint whose table the index holds, or 0."""
        return keys.decode_number(self._get(keys.CHECK))

    def pointers(self) -> Iterator[tuple[int, Pointer]]:
        """Yield ts and position of every record, ascending by ts."""
        for key, value in self._scan(prefix=keys.TS):
            yield keys.key_ts(key), Pointer.decode(value)

    def damages(self) -> list[tuple[Pointer, int]]:
        """Return the damaged ranges of the log that recovery found: the begin, and the offset of the end. They hold no
        readable record and are no torn tail."""
        found = self._scan(prefix=keys.DAMAGE)
        return [(keys.damage_pointer(key), keys.decode_number(value)) for key, value in found]

    def largest_ts(self, until_ts: int = keys.TS_MAX) -> int:
        """Return the largest ts of any record in the index that is not above `until_ts`, or 0."""
        return self._last(keys.TS, until_ts)

    def largest_outcome(self, until_ts: int = keys.TS_MAX) -> int:
        """Return the largest start_ts with an outcome that is not above `until_ts`, or 0."""
        return self._last(keys.OUTCOME, until_ts)

    def largest_complete(self) -> int:
        """Return the largest commit_ts that can be served, or 0."""
        return self._last(keys.COMPLETE)

    def largest_commit(self) -> int:
        """Return the largest commit_ts that can be served, without fakes, or 0. This is slow on an idle pump, because
        it reads fakes one by one."""
        with closing(self._scan(prefix=keys.COMPLETE, reverse=True)) as newest:
            for key, value in newest:
                if not keys.decode_complete(value).flags & keys.FLAG_FAKE:
                    return keys.key_ts(key)
        return 0

    def _last(self, prefix: bytes, until_ts: int = keys.TS_MAX) -> int:
        stop = prefix + keys.pack_ts(until_ts)
        bounds = {"start": prefix, "stop": stop, "include_stop": True, "reverse": True, "include_value": False}
        with closing(self._scan(**bounds)) as newest:
            for key in newest:
                return keys.key_ts(key)
        return 0

    # Writing

    def batch(self, *, sync: bool = False) -> Batch:
        return Batch(self._db.write_batch(sync=sync), self._needs)

    def write(self, batch: Batch) -> None:
        """Write a batch. Raises IndexFailed if LevelDB refuses it; the log holds the records, and a restart indexes
        them."""
        try:
            with self._guarded("does not take a batch"):
                batch.write()
        except IndexFailed:
            ERROR_INDEX.inc()
            raise

    def save_progress(self, *, handle: Pointer, max_commit_ts: int) -> None:
        """Save the position where the original's recovery starts and the ts up to which it may serve (correctness rule
        3). It is one synced batch; the sync includes the earlier writes in LevelDB's log."""
        batch = self.batch(sync=True)
        batch.put(keys.HANDLE, handle.encode())
        batch.put(keys.MAX_COMMIT, keys.encode_number(max_commit_ts))
        self.write(batch)

    def flush(self, number: int) -> None:
        """Put everything written so far, and last this checkpoint's number, into tables, which LevelDB syncs and names
        in its synced manifest."""
        with self._guarded("does not take a flush"):
            self._db.put(keys.CHECK, keys.encode_number(number))
            before = self._newest_log()
            for _ in range(FLUSH_TRIES_MAX):
                # The range holds no key, so nothing is compacted. But LevelDB first writes the memtable and waits.
                self._db.compact_range(start=b"\xff", stop=b"\xff")
                # LevelDB begins a new log before it writes the memtable. If that fails, LevelDB returns no error. It
                # begins no new log either if it put the flush and another thread's write into one group.
                if self._newest_log() > before:
                    break
            else:
                raise IndexFailed(f"data-dir: the index {self._directory} does not take a flush: there is no new file")
            # LevelDB does not report a failed flush, but it refuses every write after one. This write uses another key:
            # the key that proves that the table exists must not be in LevelDB's log as well.
            self._db.put(keys.FLUSHED, b"", sync=True)

    def _newest_log(self) -> int:
        """Return the number of LevelDB's newest log, or 0."""
        return max((int(path.stem) for path in self._directory.glob("*.log") if path.stem.isdecimal()), default=0)

    def save_ended(self, until_ts: int, place: Pointer) -> None:
        """Record that the complete log up to `place` was read again, when binlogs up to `until_ts` might have been
        removed."""
        with self._guarded("does not take what had ended"):
            self._db.put(keys.ENDED, keys.encode_number(until_ts) + place.encode())

    def save_node(self, node_id: str) -> None:
        with self._guarded("does not take the node id"):
            self._db.put(keys.NODE, node_id.encode())

    def save_purged(self, purged_ts: int) -> None:
        """Save the purge point with a sync, before binlogs are removed: a range with removed binlogs must never be
        served as if it were complete."""
        with self._guarded("does not take the purge point"):
            self._db.put(keys.PURGED, keys.encode_number(purged_ts), sync=True)

    def delete_until(self, prefix: bytes, ts: int) -> Iterator[int]:
        """Delete the keys `prefix` + ts' with ts' <= ts in batches of at most DELETE_KEYS_MAX. Yield the number of keys
        of each batch. The scan for a batch begins after the previous batch; otherwise LevelDB would step over every
        deleted key, one by one."""
        start, stop = prefix, prefix + keys.pack_ts(ts)
        while True:
            bounds = {"start": start, "stop": stop, "include_start": False, "include_stop": True}
            with closing(self._scan(**bounds, include_value=False)) as scan:
                found = list(islice(scan, DELETE_KEYS_MAX))
            if not found:
                return
            with self._guarded("does not take a removal"), self._db.write_batch() as batch:
                for key in found:
                    batch.delete(key)
            yield len(found)
            start = found[-1]

    def delete_file(self, fid: int) -> None:
        """Delete the `sc:need` and `sc:damage` keys of a removed file of the log, but not the keys of its records."""
        self._needs.pop(fid, None)
        gone = [keys.damage_key(pointer) for pointer, _ in self.damages() if pointer.fid == fid]
        with self._guarded("does not take a removal"):
            for key in (keys.need_key(fid), *gone):
                self._db.delete(key)


def _open(directory: Path, options: IndexOptions) -> tuple[Any, bool]:
    """Open LevelDB with paranoid_checks (the end of FORMAT.md says why, and why once more without them if its own log
    lacks a page). Return it, and whether its own log lacked writes."""

    def opened(*, paranoid: bool) -> Any:
        return plyvel.DB(
            str(directory),
            create_if_missing=True,
            paranoid_checks=paranoid,
            lru_cache_size=options.block_cache_bytes,
            block_size=options.block_bytes,
            block_restart_interval=options.block_restart_interval,
            write_buffer_size=options.write_buffer_bytes,
            bloom_filter_bits=10,
            # Decompression took half of the time of a scan (0.49 µs an entry, 0.22 without), and compression took
            # 0.9 µs a transaction. LevelDB reads uncompressed blocks in the mapped table, without memory of its own.
            # The index takes 170 bytes for a small transaction instead of 75.
            compression=None,
        )

    try:
        return opened(paranoid=True), False
    except plyvel.CorruptionError as error:
        _log.warning("LevelDB's log is damaged; its missing entries are read from the value log", error=_text_of(error))
        opened(paranoid=False).close()
        return opened(paranoid=True), True


def _is_damage(error: Exception) -> bool:
    """Return whether LevelDB's error means damage. For a truncated table LevelDB reports an invalid argument instead of
    corruption, because it reads after the end of the file."""
    return isinstance(error, plyvel.CorruptionError) or "Invalid argument" in _text_of(error)


def _text_of(error: Exception) -> str:
    """Return the text of an error. plyvel passes LevelDB's text as bytes."""
    detail = error.args[0] if error.args else error
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(error)
