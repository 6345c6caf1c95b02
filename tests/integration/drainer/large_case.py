"""A large transaction written to a pump, and the memory of whoever handles it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from binlog.envelope import encode_binlog, encode_varint
from binlog.pb import pump_pb2
from binlog.tidb.datum import encode_value
from binlog.tidb.mutation import PrewriteValue

from tests.support.processes import descendants

UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
SAMPLE_S = 0.1


def insert_row(number: int, k: int, c: bytes, pad: bytes) -> bytes:
    """A row of bench.sbtest as TiDB writes an insert: the handle, then columns."""
    values = (1, number, 2, k, 3, c, 4, pad)
    return encode_value(number) + b"".join(map(encode_value, values))


def sbtest_rows(total_bytes: int, *, base: int = 1, seed: int = 1) -> Iterator[bytes]:
    """Encoded inserts of about so many bytes together."""
    rng = random.Random(seed)
    size, number = 0, base
    while size < total_bytes:
        row = insert_row(number, rng.randrange(1_000_000), b"%0120d" % rng.getrandbits(63), b"%060d" % number)
        yield row
        size += len(row)
        number += 1


def transaction(rows: Iterator[bytes], table_id: int, *, schema_version: int = 1) -> tuple[bytes, bytes, int, int]:
    """(prewrite, commit, rows, start_ts) of inserts, timestamps from the clock as bench.fill makes them."""
    value = PrewriteValue(schema_version)
    for row in rows:
        value.insert(table_id, row)
    start_ts = int(time.time() * 1000) << 18 | 1 << 17
    prewrite = encode_binlog(tp=0, start_ts=start_ts, prewrite_key=b"large", prewrite_value=value.serialize())
    commit = encode_binlog(tp=1, start_ts=start_ts, commit_ts=start_ts + 1, prewrite_key=b"large")
    return prewrite, commit, len(value), start_ts


def write(port: int, cluster_id: int, *payloads: bytes) -> None:
    """Through upstream's service, as TiDB does."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        call = channel.unary_unary("/binlog.Pump/WriteBinlog")
        for payload in payloads:
            head = b"\x08" + encode_varint(cluster_id) + b"\x12" + encode_varint(len(payload))
            pump_pb2.WriteBinlogResp.FromString(call(head + payload, timeout=300))


@dataclass
class Memory:
    """Peaks in bytes: of each program among a process and its descendants, of all together, and of the largest process
    of each. Memory that processes share is shared out among them (Pss), so that nothing counts twice."""

    pid: int
    peaks: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def sample(self) -> None:
        found: dict[str, int] = {}
        for pid in (self.pid, *descendants(self.pid)):
            with contextlib.suppress(OSError, ValueError):
                name, size = self._program(pid), _pss(pid)
                if name:
                    found[name] = found.get(name, 0) + size
                    self.largest[name] = max(self.largest.get(name, 0), size)
        for name, size in found.items():
            self.peaks[name] = max(self.peaks.get(name, 0), size)
        self.total = max(self.total, sum(found.values()))

    def _program(self, pid: int) -> str:
        """The program of a process; "" for one that was started by vfork and has not yet called exec: its memory is
        that of its parent, which is counted already."""
        if pid == self.pid:
            return "driver"
        if Path(f"/proc/{pid}/exe").readlink().name == "java":
            # The JVM's main thread is called java. A child is called as the thread that starts it.
            return "JVM" if Path(f"/proc/{pid}/comm").read_text().strip() == "java" else ""
        return "" if _command(pid) == _command(self.pid) else "workers"


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def peak_rss(pid: int) -> int:
    """The most memory a process ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Memory]:
    """Samples until the block ends."""
    memory, over = Memory(pid), threading.Event()

    def run() -> None:
        while not over.wait(SAMPLE_S):
            memory.sample()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()
