"""The index in LevelDB: which binlog lies where, and which are complete. The only door to plyvel. See FORMAT.md."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import plyvel
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from pump import keys
from pump.keys import Complete
from pump.log import Head
from pump.manifest import manifest_unbroken
from pump.record import Pointer
from pump.storage_metrics import ERROR_INDEX

DELETE_KEYS_MAX = 1024
FLUSH_TRIES_MAX = 100
REMEDY = ". It is damaged: stop the pump, move the directory away and start again; the index is made anew from the log"

FAILURES = (plyvel.Error, OSError)

_log = get_logger("pump.index")


class IndexFailed(BinlogError):
    """LevelDB could not be opened or read; the message names the directory."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """LevelDB's knobs, in bytes: the section [storage.kv]."""

    block_cache_bytes: int = 8 << 20
    block_bytes: int = 4096
    block_restart_interval: int = 16
    write_buffer_bytes: int = 64 << 20


class Batch:
    """Writes that become visible together. Later gets on the index do not see them before `Index.write`."""

    __slots__ = ("_needs", "put")

    def __init__(self, raw: Any, needs: dict[int, int]) -> None:
        self.put = raw.put
        self._needs = needs

    def pointer(self, ts: int, pointer: Pointer) -> None:
        self.put(keys.TS + keys.pack_ts(ts), pointer.encode())

    def outcome(self, start_ts: int, commit_ts: int) -> None:
        self.put(keys.OUTCOME + keys.pack_ts(start_ts), keys.encode_number(commit_ts))

    def complete(self, commit_ts: int, complete: Complete) -> None:
        self.put(keys.COMPLETE + keys.pack_ts(commit_ts), keys.encode_complete(complete))

    def need(self, fid: int, commit_ts: int) -> None:
        """Commits come in any order: the largest stays."""
        if commit_ts > self._needs.get(fid, 0):
            self._needs[fid] = commit_ts
            self.put(keys.need_key(fid), keys.encode_number(commit_ts))

    def damage(self, pointer: Pointer, end: int) -> None:
        self.put(keys.damage_key(pointer), keys.encode_number(end))

    def head(self, head: Head) -> None:
        self.put(keys.HEAD, head.pointer.encode())
        self.put(keys.OWN_HEAD, keys.encode_head(head))


class Index:
    """May be used from any thread; LevelDB locks. `open` by the constructor, for good until `close`."""

    def __init__(self, directory: Path, options: IndexOptions | None = None) -> None:
        options = options or IndexOptions()
        self._directory = directory
        self.unbroken = manifest_unbroken(directory)  # before LevelDB writes another one
        try:
            self._db = _open(directory, options)
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

    # Reading

    def _get(self, key: bytes) -> bytes | None:
        """The value of a key. LevelDB compares checksums, so that a damaged block raises instead of being returned."""
        try:
            return cast("bytes | None", self._db.get(key, verify_checksums=True))
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error

    def _scan(self, **bounds: Any) -> Generator[Any]:
        """What LevelDB's iterator gives, as of this moment; a damaged block must not look like an end."""
        try:
            return self._guarded_steps(self._db.iterator(verify_checksums=True, **bounds))
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error

    def _guarded_steps(self, found: Any) -> Generator[Any]:
        try:
            with found:
                yield from found
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error

    def pointer(self, ts: int) -> Pointer | None:
        try:  # not `_get`: this is asked for every binlog that is written
            value = self._db.get(keys.ts_key(ts), verify_checksums=True)
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error
        return None if value is None else Pointer.decode(value)

    def outcome(self, start_ts: int) -> int | None:
        """The commit_ts stored for a start_ts; 0: rolled back; None: nothing stored."""
        try:  # not `_get`: this is asked for every binlog that is written
            value = self._db.get(keys.outcome_key(start_ts), verify_checksums=True)
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error
        return None if value is None else keys.decode_number(value)

    def complete(self, commit_ts: int) -> Complete | None:
        try:  # not `_get`: this is asked for every binlog that is written
            value = self._db.get(keys.complete_key(commit_ts), verify_checksums=True)
        except FAILURES as error:
            raise self._failed("cannot be read", error) from error
        return None if value is None else keys.decode_complete(value)

    def completes(self, after_ts: int, until_ts: int) -> Iterator[tuple[bytes, bytes]]:
        """Raw (`cm:` key, value) with after_ts < commit_ts <= until_ts, ascending, as of this moment. A backlog is
        larger than the block cache, which it would only empty: that is for writes, which look up single keys."""
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
        """See `save_ended`; 0 and the log's begin where nothing was saved."""
        value = self._get(keys.ENDED)
        return (0, Pointer(0, 0)) if value is None else (keys.decode_number(value), Pointer.decode(value[8:]))

    def node(self) -> str:
        """The id of the pump that wrote here last; "" where that is not known."""
        return (self._get(keys.NODE) or b"").decode(errors="replace")

    def needs(self) -> dict[int, int]:
        """fid → largest commit_ts that needs a prewrite in it from a later file."""
        return {
            int.from_bytes(key[-4:], "big"): keys.decode_number(value) for key, value in self._scan(prefix=keys.NEED)
        }

    def check(self) -> int:
        """The number of the last checkpoint whose table is here, or 0."""
        return keys.decode_number(self._get(keys.CHECK))

    def pointers(self, after_ts: int) -> Iterator[tuple[int, Pointer]]:
        """Every record above a ts, ascending."""
        for key, value in self._scan(start=keys.ts_key(after_ts), stop=keys.TS + b"\xff" * 9, include_start=False):
            yield keys.key_ts(key), Pointer.decode(value)

    def damages(self) -> list[tuple[Pointer, int]]:
        """Stretches of the log that hold no record and no torn tail, as recovery found them: begin and end."""
        found = self._scan(prefix=keys.DAMAGE)
        return [(keys.damage_pointer(key), keys.decode_number(value)) for key, value in found]

    def largest_ts(self, until_ts: int = keys.TS_MAX) -> int:
        """The largest ts of any record in the index that is not above `until_ts`, or 0."""
        return self._last(keys.TS, until_ts)

    def largest_outcome(self, until_ts: int = keys.TS_MAX) -> int:
        """The largest start_ts with an outcome that is not above `until_ts`, or 0."""
        return self._last(keys.OUTCOME, until_ts)

    def largest_complete(self) -> int:
        """The largest commit_ts that can be served, or 0."""
        return self._last(keys.COMPLETE)

    def largest_commit(self) -> int:
        """As `largest_complete`, fakes apart. Steps over the fakes of an idle pump one by one: not for every day."""
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

    def batch(self) -> tuple[Batch, Any]:
        raw = self._db.write_batch()
        return Batch(raw, self._needs), raw

    def write(self, raw: Any) -> None:
        """IndexFailed if LevelDB refuses: the log holds the records, a restart will index them."""
        try:
            with self._guarded("a batch"):
                raw.write()
        except IndexFailed:
            ERROR_INDEX.inc()
            raise

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise self._failed(f"does not take {what}", error) from error

    def save_progress(self, *, handle: Pointer, max_commit_ts: int) -> None:
        """Where the original's recovery starts and how far it may serve (correctness rule 3). One batch, synced, and
        with it what LevelDB's log holds before it."""
        raw = self._db.write_batch(sync=True)
        raw.put(keys.HANDLE, handle.encode())
        raw.put(keys.MAX_COMMIT, keys.encode_number(max_commit_ts))
        self.write(raw)

    def flush(self, number: int) -> None:
        """Put everything written so far, and last this checkpoint's number, into tables, which LevelDB syncs and names
        in its synced manifest."""
        with self._guarded("a flush"):
            self._db.put(keys.CHECK, keys.encode_number(number))
            before = self._newest_log()
            for _ in range(FLUSH_TRIES_MAX):
                # A range without a key: nothing is compacted, but the memtable is written first, and waited for.
                self._db.compact_range(start=b"\xff", stop=b"\xff")
                # The memtable is written after a new log was begun. Where that fails, LevelDB tells nobody and goes on;
                # nor does it begin one where it took the flush and a write of another thread for one group.
                if self._newest_log() > before:
                    break
            else:
                raise IndexFailed(f"data-dir: the index {self._directory} does not take a flush: there is no new file")
            # It does not tell whether it failed; a failure refuses every later write. Another key: what proves that the
            # table is there must not be in the log too.
            self._db.put(keys.FLUSHED, b"", sync=True)

    def _newest_log(self) -> int:
        """The number of LevelDB's own newest log, or 0."""
        return max((int(path.stem) for path in self._directory.glob("*.log") if path.stem.isdecimal()), default=0)

    def save_ended(self, until_ts: int, place: Pointer) -> None:
        """The whole log, up to `place`, was read again, and binlogs up to `until_ts` may have been removed by then."""
        with self._guarded("what had ended"):
            self._db.put(keys.ENDED, keys.encode_number(until_ts) + place.encode())

    def save_node(self, node_id: str) -> None:
        with self._guarded("the node id"):
            self._db.put(keys.NODE, node_id.encode())

    def save_purged(self, purged_ts: int) -> None:
        """Synced: what is removed afterwards must never be served as if it were whole."""
        with self._guarded("the purge point"):
            self._db.put(keys.PURGED, keys.encode_number(purged_ts), sync=True)

    def delete_until(self, prefix: bytes, ts: int) -> Iterator[int]:
        """Delete the keys `prefix` + ts' with ts' <= ts in batches of at most DELETE_KEYS_MAX, and yield how many were
        in each. A batch begins behind the last one: LevelDB would step over every key deleted before, one by one."""
        start, stop = prefix, prefix + keys.pack_ts(ts)
        while True:
            bounds = {"start": start, "stop": stop, "include_start": False, "include_stop": True}
            with closing(self._scan(**bounds, include_value=False)) as scan:
                found = list(islice(scan, DELETE_KEYS_MAX))
            if not found:
                return
            with self._guarded("a removal"), self._db.write_batch() as batch:
                for key in found:
                    batch.delete(key)
            yield len(found)
            start = found[-1]

    def delete_file(self, fid: int) -> None:
        """Forget what is known of a file of the log that is gone, its records apart."""
        self._needs.pop(fid, None)
        gone = [keys.damage_key(pointer) for pointer, _ in self.damages() if pointer.fid == fid]
        with self._guarded("a removal"):
            for key in (keys.need_key(fid), *gone):
                self._db.delete(key)


def _open(directory: Path, options: IndexOptions) -> Any:
    """A table that is damaged must not be merged into new ones, whose checksums would be right again: so LevelDB opens
    with paranoid_checks. But then it refuses a log of its own that lacks a page, which the checkpoint makes harmless:
    first, what can be read of that log is put into a table, and the log is gone."""

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
            # To uncompress blocks was half of what a scan cost (0.49 µs an entry, 0.22 without), and to compress those
            # of a transaction took 0.9 µs. As they are LevelDB reads them in the mapped table, without memory of its
            # own. The index has 170 bytes of a small transaction instead of 75.
            compression=None,
        )

    try:
        return opened(paranoid=True)
    except plyvel.CorruptionError as error:
        _log.warning("LevelDB's log is damaged; what it lacks is read from the value log", error=_text_of(error))
        opened(paranoid=False).close()
        return opened(paranoid=True)


def _is_damage(error: Exception) -> bool:
    """A table that was cut is no Corruption to LevelDB: it asks for bytes behind the end, an invalid argument."""
    return isinstance(error, plyvel.CorruptionError) or "Invalid argument" in _text_of(error)


def _text_of(error: Exception) -> str:
    """plyvel hands on what LevelDB says as bytes."""
    detail = error.args[0] if error.args else error
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(error)
