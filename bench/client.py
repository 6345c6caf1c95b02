"""Measure transactions a second of one pump client into one pump, and the CPU that each costs the client and the pump.

    python -m bench.client [--txns 20000] [--runs 5] [-c 64]

`-c` callers share a client and its event loop. Each sends a prewrite, then its commit, then the next prewrite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence

from bench.pull import cpu_s
from bench.pump import Target, running_ours
from bench.report import Report
from pumpclient.client import PumpsClient

ROW_BYTES = 200


async def write(client: PumpsClient, starts: Sequence[int], value: bytes) -> None:
    for start_ts in starts:
        await client.write_prewrite(start_ts, start_ts.to_bytes(8, "big"), value)
        await client.commit(start_ts, start_ts + 1)


async def run(target: Target, endpoint: str, args: argparse.Namespace, report: Report) -> None:
    value = b"\x08\x01\x12" + bytes((ROW_BYTES & 0x7F | 0x80, ROW_BYTES >> 7)) + bytes(ROW_BYTES)
    figures: list[tuple[float, float, float]] = []
    async with await PumpsClient.connect(endpoint) as client:
        for _ in range(args.runs):
            base = int(time.time() * 1000) << 18
            starts = range(base, base + 4 * args.txns, 4)
            begin_s, own_s, pump_s = time.monotonic(), time.process_time(), cpu_s(target.server)
            await asyncio.gather(*(write(client, starts[n :: args.callers], value) for n in range(args.callers)))
            figures.append(
                (
                    args.txns / (time.monotonic() - begin_s),
                    (time.process_time() - own_s) / args.txns * 1e6,
                    (cpu_s(target.server) - pump_s) / args.txns * 1e6,
                )
            )
    rate, own_us, pump_us = (statistics.median(each) for each in zip(*figures, strict=True))
    report.add(f"pump client, {args.callers} callers", rate, "transactions/s")
    report.add("CPU of the client a transaction", own_us, "µs")
    report.note("each run: " + ", ".join(f"{each[1]:.1f}" for each in figures))
    report.add("CPU of the pump a transaction", pump_us, "µs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.client", description=__doc__)
    parser.add_argument("--txns", type=int, default=20_000, help="transactions in each run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-c", "--callers", type=int, default=64)
    args = parser.parse_args()
    report = Report("one pump client into one pump")
    with contextlib.ExitStack() as exits:
        target = exits.enter_context(running_ours())
        asyncio.run(run(target, target.endpoint, args, report))


if __name__ == "__main__":
    main()
