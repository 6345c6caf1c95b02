"""Fills pumps with sbtest transactions: by the original's pumpload if it is given, else by this project's batched
writer.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import grpc
from binlog.pb import binlog_pb2, pump_ext_pb2
from binlog.runtime.channel import stub_of
from binlog.tidb.datum import encode_value
from binlog.tidb.mutation import PrewriteValue

from bench.sbtest import SBTEST, TABLE_ID, Table, rows
from bench.stack import peer_binary

Pair = tuple[bytes, bytes]


def transactions(
    count: int, rows_each: int, *, base: int = 1, seed: int = 0, table: Table = SBTEST, table_id: int = TABLE_ID
) -> Iterator[Pair]:
    """Yield (prewrite, commit) payloads of inserts of ids from `base` on, with timestamps from the wall clock, as
    pumpload has. Transactions of different seeds, up to 15, are different: a drainer applies one copy of a transaction
    that two pumps hold."""
    last = 0
    source = rows(count * rows_each, seed, first=base, table=table)
    rng = random.Random(seed)
    for _ in range(count):
        value = PrewriteValue(1)
        for _ in range(rows_each):
            i, k, c, pad = next(source)
            row = b"".join(encode_value(v) for v in (1, i, 2, k, 3, c.encode(), 4, pad.encode()))
            value.insert(table_id, encode_value(i) + row)
        # The upper half of the millisecond's counter, because a pump's fakes use the lower half.
        last = max(last + 16, int(time.time() * 1000) << 18 | 1 << 17 | seed)
        start, last = last, last + 16 * (1 + rng.randrange(3))
        key = start.to_bytes(8, "big")
        prewrite = binlog_pb2.Binlog(
            tp=binlog_pb2.Prewrite, start_ts=start, commit_ts=0, prewrite_key=key, prewrite_value=value.serialize(),
            ddl_job_id=0, ddl_schema_state=0,
        )  # fmt: skip
        commit = binlog_pb2.Binlog(
            tp=binlog_pb2.Commit, start_ts=start, commit_ts=last, prewrite_key=key, ddl_job_id=0, ddl_schema_state=0
        )
        yield prewrite.SerializeToString(), commit.SerializeToString()


def fill_batched(port: int, cluster_id: int, pairs: Iterable[Pair], *, batch: int = 500) -> float:
    """Write the pairs over the extension's stream, the prewrites of a batch first. Return the seconds that it took. All
    are durable then.
    """
    stub = stub_of(grpc.insecure_channel(f"127.0.0.1:{port}"), pump_ext_pb2.DESCRIPTOR, "PumpExt")

    def requests() -> Iterator[pump_ext_pb2.WriteBatchReq]:
        number = 0
        rest = iter(pairs)
        while part := list(islice(rest, batch)):
            for kind in (0, 1):
                number += 1
                yield pump_ext_pb2.WriteBatchReq(
                    cluster_id=cluster_id, batch_id=number, payloads=[pair[kind] for pair in part]
                )

    begin = time.perf_counter()
    for answer in stub.WriteBatch(requests()):
        if answer.errors:
            raise SystemExit(f"the pump refused: {answer.errors[0]}")
    return time.perf_counter() - begin


def fill_with_pumpload(port: int, cluster_id: int, *, txns: int, rows_each: int, base: int, concurrency: int = 64,
                       table_id: int = TABLE_ID, timeout: str = "") -> str:  # fmt: skip
    """Run pumpload; return the line that it prints. `timeout`: the deadline of each call, if pumpload can set one."""
    binary = peer_binary("pumpload")
    assert binary is not None
    argv = [str(binary), "-addr", f"127.0.0.1:{port}", "-cluster", str(cluster_id), "-table", str(table_id),
            "-txns", str(txns), "-rows", str(rows_each), "-base", str(base), "-c", str(concurrency)]  # fmt: skip
    if timeout and "-timeout" in subprocess.run([binary, "-h"], capture_output=True, text=True, check=False).stderr:
        argv += ["-timeout", timeout]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"pumpload: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout.strip().splitlines()[-1]
