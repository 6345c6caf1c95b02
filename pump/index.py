"""The index in LevelDB: which binlog lies where, and which are complete. The only door to plyvel. See FORMAT.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import plyvel
from binlog.errors import BinlogError

from pump import keys
from pump.keys import Complete
from pump.log import Head
from pump.record import Pointer

DELETE_KEYS_MAX = 1024


class IndexFailed(BinlogError):
    """LevelDB could not be opened or read; the message names the directory."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """LevelDB's knobs, in bytes (`1.1`, [storage.kv])."""

    block_cache_bytes: int = 8 << 20
    block_bytes: int = 4096
    block_restart_interval: int = 16
    write_buffer_bytes: int = 64 << 20


class Batch:
    """Writes that become visible together. Later gets on the index do not see them before `Index.write`."""

    __slots__ = ("put",)

    def __init__(self, raw: Any) -> None:
        self.put = raw.put

    def pointer(self, ts: int, pointer: Pointer) -> None:
        self.put(keys.TS + keys.pack_ts(ts), pointer.encode())

    def outcome(self, start_ts: int, commit_ts: int) -> None:
        self.put(keys.OUTCOME + keys.pack_ts(start_ts), keys.encode_number(commit_ts))

    def complete(self, commit_ts: int, complete: Complete) -> None:
        self.put(keys.COMPLETE + keys.pack_ts(commit_ts), keys.encode_complete(complete))

    def need(self, fid: int, commit_ts: int) -> None:
        self.put(keys.need_key(fid), keys.encode_number(commit_ts))

    def head(self, head: Head) -> None:
        self.put(keys.HEAD, head.pointer.encode())
        self.put(keys.OWN_HEAD, keys.encode_head(head))


class Index:
    """May be used from any thread; LevelDB locks. `open` by the constructor, for good until `close`."""

    def __init__(self, directory: Path, options: IndexOptions | None = None) -> None:
        options = options or IndexOptions()
        try:
            self._db = plyvel.DB(
                str(directory),
                create_if_missing=True,
                lru_cache_size=options.block_cache_bytes,
                block_size=options.block_bytes,
                block_restart_interval=options.block_restart_interval,
                write_buffer_size=options.write_buffer_bytes,
                bloom_filter_bits=10,
            )
        except (plyvel.Error, OSError) as error:
            raise IndexFailed(f"index {directory}: {error}") from error

    def close(self) -> None:
        self._db.close()

    # Reading

    def pointer(self, ts: int) -> Pointer | None:
        value = self._db.get(keys.ts_key(ts))
        return None if value is None else Pointer.decode(value)

    def outcome(self, start_ts: int) -> int | None:
        """The commit_ts stored for a start_ts; 0: rolled back; None: nothing stored."""
        value = self._db.get(keys.outcome_key(start_ts))
        return None if value is None else keys.decode_number(value)

    def complete(self, commit_ts: int) -> Complete | None:
        value = self._db.get(keys.complete_key(commit_ts))
        return None if value is None else keys.decode_complete(value)

    def completes(self, after_ts: int, until_ts: int) -> Iterator[tuple[bytes, bytes]]:
        """Raw (`cm:` key, value) with after_ts < commit_ts <= until_ts, ascending, as of this moment."""
        iterator = self._db.iterator(
            start=keys.complete_key(after_ts),
            stop=keys.complete_key(until_ts),
            include_start=False,
            include_stop=True,
        )
        return cast("Iterator[tuple[bytes, bytes]]", iterator)

    def head(self) -> Pointer | None:
        value = self._db.get(keys.HEAD)
        return None if value is None else Pointer.decode(value)

    def own_head(self) -> Head | None:
        value = self._db.get(keys.OWN_HEAD)
        return None if value is None else keys.decode_head(value)

    def handle(self) -> Pointer | None:
        value = self._db.get(keys.HANDLE)
        return None if value is None else Pointer.decode(value)

    def max_commit_ts(self) -> int:
        return keys.decode_number(self._db.get(keys.MAX_COMMIT))

    def purged_ts(self) -> int:
        return keys.decode_number(self._db.get(keys.PURGED))

    def needs(self) -> dict[int, int]:
        """fid → largest commit_ts that needs a prewrite in it from a later file."""
        found = self._db.iterator(prefix=keys.NEED)
        return {int.from_bytes(key[-4:], "big"): keys.decode_number(value) for key, value in found}

    def largest_ts(self) -> int:
        """The largest ts of any record in the index, or 0."""
        return self._last(keys.TS)

    def largest_outcome(self) -> int:
        """The largest start_ts with an outcome, or 0."""
        return self._last(keys.OUTCOME)

    def largest_complete(self) -> int:
        """The largest commit_ts that can be served, or 0."""
        return self._last(keys.COMPLETE)

    def largest_commit(self) -> int:
        """As `largest_complete`, fakes apart. Steps over the fakes of an idle pump one by one: not for every day."""
        with self._db.iterator(prefix=keys.COMPLETE, reverse=True) as newest:
            for key, value in newest:
                if not keys.decode_complete(value).flags & keys.FLAG_FAKE:
                    return keys.key_ts(key)
        return 0

    def _last(self, prefix: bytes) -> int:
        with self._db.iterator(prefix=prefix, reverse=True, include_value=False) as newest:
            for key in newest:
                return keys.key_ts(key)
        return 0

    # Writing

    def batch(self) -> tuple[Batch, Any]:
        raw = self._db.write_batch()
        return Batch(raw), raw

    def write(self, raw: Any) -> None:
        """IndexFailed if LevelDB refuses: the log holds the records, a restart will index them."""
        try:
            raw.write()
        except (plyvel.Error, OSError) as error:
            raise IndexFailed(f"index: a batch failed: {error}") from error

    def save_progress(self, *, handle: Pointer, max_commit_ts: int) -> None:
        """Where recovery starts and how far the original may serve (correctness rule 3). One batch."""
        batch, raw = self.batch()
        batch.put(keys.HANDLE, handle.encode())
        batch.put(keys.MAX_COMMIT, keys.encode_number(max_commit_ts))
        self.write(raw)

    def save_purged(self, purged_ts: int) -> None:
        """Synced: what is removed afterwards must never be served as if it were whole."""
        self._db.put(keys.PURGED, keys.encode_number(purged_ts), sync=True)

    def delete_until(self, prefix: bytes, ts: int) -> int:
        """Delete at most DELETE_KEYS_MAX keys `prefix` + ts' with ts' <= ts; how many there were."""
        count = 0
        stop = prefix + keys.pack_ts(ts)
        with (
            self._db.iterator(start=prefix, stop=stop, include_stop=True, include_value=False) as found,
            self._db.write_batch() as batch,
        ):
            for key in found:
                batch.delete(key)
                count += 1
                if count >= DELETE_KEYS_MAX:
                    break
        return count

    def delete_need(self, fid: int) -> None:
        self._db.delete(keys.need_key(fid))
