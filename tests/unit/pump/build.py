"""What the pump's tests are made of: binlogs, a clock to set, a store in a directory."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from binlog.envelope import encode_binlog, encode_fake, encode_varint, merge
from binlog.errors import TimestampUnavailable

from pump.index.checkpoint import FILE_NAME, decode_checkpoint, encode_checkpoint
from pump.index.leveldb import IndexOptions
from pump.log.record import Pointer, encode_header
from pump.log.value_log import CHECK_RECORDS, ReadingProgress, ValueLog
from pump.store.group_commit import StoreOptions
from pump.store.store import Store

__all__ = [
    "ROW",
    "HeldReading",
    "SetClock",
    "binlogs_of",
    "commit",
    "copy_running",
    "encode_fake",
    "merged",
    "opened",
    "power_cut",
    "prewrite",
    "refused",
    "rollback",
    "write",
]


ROW = b"\x08\x01\x12\x03row"  # a TableMutation: table_id 1, one inserted row


def appended(log: ValueLog, payloads: Sequence[bytes], max_ts: int) -> list[Pointer]:
    """Records written together. `max_ts`: the largest ts of them."""
    fid, at, pointers = log.tail.fid, log.tail.size, []
    for payload in payloads:
        pointers.append(Pointer(fid, at))
        at += len(encode_record(payload))
    log.write([part for each in payloads for part in (encode_header(each), each)], max(log.tail.max_ts, max_ts))
    return pointers


def encode_record(payload: bytes) -> bytes:
    return encode_header(payload) + payload


def prewrite(
    start_ts: int,
    *,
    row: bytes = ROW,
    schema_version: int = 5,
    job: int = 0,
    key: bytes = b"k",
    writer: bytes = b"",
) -> bytes:
    value = b"\x08" + bytes([schema_version]) + b"\x12" + encode_varint(len(row)) + row
    if job:
        return encode_binlog(
            tp=0,
            start_ts=start_ts,
            prewrite_key=key,
            ddl_query=b"CREATE TABLE t (a INT);",
            ddl_job_id=job,
            writer=writer,
        )
    return encode_binlog(tp=0, start_ts=start_ts, prewrite_key=key, prewrite_value=value, writer=writer)


def commit(start_ts: int, commit_ts: int, *, key: bytes = b"k") -> bytes:
    return encode_binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key)


def rollback(start_ts: int, *, key: bytes = b"k") -> bytes:
    return encode_binlog(tp=2, start_ts=start_ts, prewrite_key=key)


def merged(start_ts: int, commit_ts: int, *, row: bytes = ROW) -> bytes:
    """What a pull serves for prewrite(start_ts) and commit(start_ts, commit_ts)."""
    return merge(prewrite(start_ts, row=row), commit(start_ts, commit_ts))


class SetClock:
    """Timestamps as the test says. `ts` is the next answer; it grows by one a time unless held."""

    def __init__(self, ts: int = 1000, *, held: bool = False) -> None:
        self.ts = ts
        self.held = held
        self.down = False

    async def get(self) -> int:
        if self.down:
            raise TimestampUnavailable("the test's clock is down")
        if not self.held:
            self.ts += 1
        return self.ts


class HeldReading(ReadingProgress):
    """Stands still in the middle of a step until it is released or stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.go_on = threading.Event()

    def reached(self, records: int, done_bytes: int, fid: int) -> None:
        if records == 2 * CHECK_RECORDS and not self.reading.is_set():
            super().reached(records, done_bytes, fid)
            self.reading.set()
            assert self.go_on.wait(120)
        super().reached(records, done_bytes, fid)

    def stop(self) -> None:
        super().stop()
        self.go_on.set()


@contextlib.asynccontextmanager
async def opened(directory: Path, clock: SetClock | None = None, **options: object) -> AsyncIterator[Store]:
    """A recovered store that serves; closed at the end."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240  the local disk of a test
    store = Store(
        directory,
        clock or SetClock(),
        StoreOptions(index=IndexOptions(write_buffer_bytes=1 << 20), **options),  # type: ignore[arg-type]
    )
    await store.open()
    try:
        await store.serve()
        yield store
    finally:
        await store.close()


async def write(store: Store, *payloads: bytes) -> None:
    """Written together, and nothing refused."""
    assert await store.writes.write(payloads) == [None] * len(payloads)


async def refused(store: Store, payload: bytes) -> BaseException | None:
    """Why it was refused; None when it was not."""
    (error,) = await store.writes.write([payload])
    return error


async def binlogs_of(
    store: Store, after_ts: int = 0, until_ts: int | None = None, *, fakes: bool = False
) -> list[bytes]:
    """All that is served in a range, up to the resolved ts by default."""
    until_ts = store.resolved_ts if until_ts is None else until_ts
    return [
        served.payload
        async for chunk in store.reads.pull(after_ts, until_ts, bytes_max=1000, fakes=fakes)
        for served in chunk
    ]


def copy_running(source: Path, target: Path) -> None:
    """A copy of a running store as SIGKILL would leave it: its threads replace files behind an acknowledgement, too,
    and a copy from before and after that is none."""
    for _ in range(1000):
        with contextlib.suppress(OSError):  # a file that was gone when its turn came
            before = _files(source)
            shutil.copytree(source, target)
            if _files(source) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(0.01)
    raise AssertionError(f"{source} never stands still")


def power_cut(directory: Path) -> None:
    """The machine of this stopped store has restarted, so the checkpoint in it is of another boot."""
    path = directory / FILE_NAME
    found = decode_checkpoint(path.read_bytes())
    assert found is not None
    path.write_bytes(encode_checkpoint(found._replace(boot=bytes(range(16)))))


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.lstat() for path in directory.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}
