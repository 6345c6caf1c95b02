"""The index: a flush is one although others write at the same moment, and damage is no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import plyvel
import pytest

from pump.index.keys import COMPLETE, TS, Complete, complete_key, decode_complete, encode_complete, key_ts, ts_key
from pump.index.leveldb import DELETE_KEYS_MAX, Index, IndexFailed, IndexOptions
from pump.log.record import Pointer

SMALL = IndexOptions(block_cache_bytes=0, write_buffer_bytes=64 << 10)


def test_index_flush_is_complete_while_other_threads_write(tmp_path: Path) -> None:
    """LevelDB may take a flush and a write that is under way for one group, and then begins no new log."""
    index = Index(tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def hammer() -> None:
        try:
            while not stop.is_set():
                batch = index.batch()
                for number in range(200):
                    batch.put(b"x%d" % number, b"v" * 100)
                index.write(batch)
        except BaseException as error:  # noqa: BLE001  told by the test
            failures.append(error)

    writers = [threading.Thread(target=hammer) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(1, 31):
            index.flush(number)
            assert index.check() == number
    finally:
        stop.set()
        for writer in writers:
            writer.join()
        index.close()
    assert not failures


def damaged_table(directory: Path) -> None:
    """5,000 outcomes and completes in one table, of which one bit in the middle is turned."""
    index = Index(directory, SMALL)
    batch = index.batch()
    for ts in range(1, 5001):
        batch.outcome(ts, ts + 1)
        batch.pointer(ts, Pointer(0, ts))
        batch.complete(ts, Complete(ts, 0, 0, 30, 0, 0, 0, 0, b"head"))
    index.write(batch)
    index.flush(1)
    index.close()
    table = max(directory.glob("*.ldb"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for place in range(1, 16):  # in blocks of every kind of key
        data[len(data) * place // 16] ^= 1
    table.write_bytes(data)


@pytest.mark.parametrize("ask", [Index.outcome, Index.pointer, Index.complete])
def test_index_read_of_damaged_block_fails_with_checksum_mismatch(
    tmp_path: Path, ask: Callable[[Index, int], object]
) -> None:
    """LevelDB keeps a checksum of each block and looks at it only when asked to."""
    damaged_table(tmp_path)
    index = Index(tmp_path, SMALL)
    refused = 0
    for ts in range(1, 5001, 7):
        try:
            assert ask(index, ts) is not None
        except IndexFailed as error:
            assert str(tmp_path) in str(error) and "checksum mismatch" in str(error)
            refused += 1
    assert refused
    with pytest.raises(IndexFailed, match="checksum mismatch"):
        list(index.completes(0, 5000))
    index.close()


def test_damaged_blocks_are_not_merged_into_new_tables(tmp_path: Path) -> None:
    """Their checksums would be right."""
    damaged_table(tmp_path)
    index = Index(tmp_path, SMALL)
    refused = 0
    try:
        for number in range(2, 4):  # newer tables over the same keys: moving the old one is not enough
            batch = index.batch()
            for ts in (1, 2500, 5000):
                batch.outcome(ts, ts + 1)
                batch.complete(ts, Complete(ts, 0, 0, 30, 0, 0, 0, 0, b"head"))
            index.write(batch)
            index.flush(number)
        index._db.compact_range()
    except IndexFailed:
        refused += 1
    for ts in range(1, 5001, 7):
        try:
            assert index.outcome(ts) is not None, "a loss without a word"
        except IndexFailed:
            refused += 1
    assert refused
    index.close()


class Watched(Index):
    """Remembers where scans began."""

    def __init__(self, directory: Path) -> None:
        self.starts: list[bytes] = []
        super().__init__(directory, SMALL)

    def _scan(self, **bounds: Any) -> Generator[Any]:
        self.starts.append(bounds.get("start", b""))
        return super()._scan(**bounds)


def test_delete_until_batches_begin_behind_keys_deleted_before(tmp_path: Path) -> None:
    """LevelDB keeps a mark for each key that was deleted until it merges tables: with batches that all began at the
    first key, ten million would be stepped over ten thousand times."""
    index = Watched(tmp_path)
    batch = index.batch()
    for ts in range(1, 4001):
        batch.pointer(ts, Pointer(0, ts))
        batch.complete(ts, Complete(ts, 0, 0, 30, 0, 0, 0, 0, b"head"))
    index.write(batch)
    index.starts.clear()
    assert list(index.delete_until(TS, 3000)) == [DELETE_KEYS_MAX, DELETE_KEYS_MAX, 3000 - 2 * DELETE_KEYS_MAX]
    deleted = [DELETE_KEYS_MAX, 2 * DELETE_KEYS_MAX, 3000]
    assert index.starts == [TS, *map(ts_key, deleted)]
    assert [ts for ts, _ in index.pointers()] == list(range(3001, 4001))
    assert len(list(index.completes(0, 4000))) == 4000, "of another prefix"
    assert sum(index.delete_until(COMPLETE, 1 << 60)) == 4000
    assert not list(index.delete_until(COMPLETE, 1 << 60))
    index.close()


COMPLETES = [(ts, Complete(ts - 1, 0, 0, 30, 0, 0, 0, 0, b"the head of a commit" * 5)) for ts in range(1, 3001)]


def test_index_tables_are_written_uncompressed(tmp_path: Path) -> None:
    """Half of what a scan cost was to uncompress them."""
    index = Index(tmp_path)
    batch = index.batch()
    for ts, complete in COMPLETES:
        batch.complete(ts, complete)
    index.write(batch)
    index.flush(1)
    index.close()
    tables = b"".join(path.read_bytes() for path in tmp_path.glob("*.ldb"))
    assert all(encode_complete(complete) in tables for _, complete in COMPLETES)


def test_compressed_tables_are_served_and_do_not_empty_the_cache_of_blocks(tmp_path: Path) -> None:
    """Those of the original. What single keys are looked up in stays in memory."""
    with closing(plyvel.DB(str(tmp_path), create_if_missing=True, compression="snappy")) as db:
        for ts, complete in COMPLETES:
            db.put(complete_key(ts), encode_complete(complete))
        db.compact_range()
    index = Index(tmp_path)
    try:
        before = cached_bytes(index)
        found = [(key_ts(key), decode_complete(value)) for key, value in index.completes(0, 3000)]
        assert found == COMPLETES
        assert cached_bytes(index) == before
        assert index.complete(1500) == COMPLETES[1499][1]
        assert cached_bytes(index) > before
    finally:
        index.close()


def cached_bytes(index: Index) -> int:
    """What LevelDB holds: its table in memory, and its cache of blocks."""
    return int(index._db.get_property(b"leveldb.approximate-memory-usage"))
