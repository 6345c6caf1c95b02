"""Commit of one row to its being visible downstream: two pumps otherwise idle, MariaDB, 30 times.

python -m bench.latency [--rounds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from pathlib import Path

from bench.report import Report, spread
from bench.stack import Stack, running_stack
from pumpclient.sdk import BigInt, Column, Service, Table, VarChar
from tests.support import MariaDB, wait_until


async def measure(stack: Stack, mariadb: MariaDB, rounds: int) -> list[float]:
    """Seconds from the commit's acknowledgement to the first SELECT that sees the row, polled every 2 ms."""
    found: list[float] = []
    async with await Service.connect(stack.endpoint) as service:
        await service.create_database("bench")
        table = await service.create_table(
            "bench", Table("t", Column("id", BigInt(), primary_key=True), Column("name", VarChar(40)))
        )
        await asyncio.to_thread(
            wait_until, lambda: mariadb.query("SHOW TABLES FROM bench LIKE 't'"), deadline_s=60, what="table downstream"
        )
        connection = mariadb.connect()
        for number in range(rounds):
            async with service.transaction() as txn:
                txn.insert(table, {"id": number, "name": f"row {number}"})
            begin = time.perf_counter()
            while True:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 FROM bench.t WHERE id = %s", (number,))
                    if cursor.fetchone():
                        break
                if time.perf_counter() - begin > 60:
                    raise SystemExit(
                        f"row {number} not visible after 60 s\n{stack.drainer.tail() if stack.drainer else ''}"
                    )
                await asyncio.sleep(0.002)
            found.append(time.perf_counter() - begin)
            await asyncio.sleep(0.37)  # not in step with the drainer's trigger
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    with running_stack(pumps=2) as (stack, mariadb):
        stack.start_drainer(stack.config(mariadb))
        report = Report("commit to visible, one row, two idle pumps")
        values = asyncio.run(measure(stack, mariadb, args.rounds))
        ordered = sorted(values)
        report.add("median", ordered[len(ordered) // 2] * 1000, "ms")
        report.add("worst", ordered[-1] * 1000, "ms")
        report.note(spread(values) + " s; the original's with two pumps: 2.6 s median, 4.6 s worst")
    shutil.rmtree(Path("spark-warehouse"), ignore_errors=True)


if __name__ == "__main__":
    main()
