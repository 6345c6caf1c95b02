"""Send one large transaction through a pump to MariaDB, and measure the seconds and the peak memory of each process.

    python -m bench.large [--mib 240] [--heap 512m]

The memory of drainer, JVM and workers does not depend on the transaction's size. The pump needs memory of its size
once, while it is written (see docs/operations.md).
"""

from __future__ import annotations

import argparse
import time

from bench.drainer import applied, make_archive, own_cluster_id
from bench.report import Report
from bench.sbtest import SBTEST, TABLE_ID, jobs
from bench.stack import running_stack
from tests.integration.drainer.large_case import peak_rss, sbtest_rows, transaction, watched, write

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.large", description=__doc__)
    parser.add_argument("--mib", type=int, default=240, help="size of the rows; pumps refuse 1000 and more")
    parser.add_argument("--heap", default="512m", help="spark.driver.memory")
    args = parser.parse_args()
    make_archive()
    with running_stack(pumps=1) as (stack, mariadb):
        cluster = own_cluster_id(stack.endpoint)
        mariadb.query("CREATE DATABASE bench")
        mariadb.query(SBTEST.create("bench"))
        (server,) = stack.servers
        assert server.process is not None
        pump_pid = server.process.pid
        idle = peak_rss(pump_pid)
        prewrite, commit, rows, _ = transaction(sbtest_rows(args.mib * MIB), TABLE_ID)
        report = Report(f"one transaction of {len(prewrite) / MIB:,.0f} MiB, {rows:,} rows, heap {args.heap}")
        begin = time.perf_counter()
        write(stack.pump_ports[0], cluster, prewrite, commit)
        report.add("writing it to the pump", time.perf_counter() - begin, "s")
        del prewrite
        report.add("pump, idle", idle / MIB, "MiB")
        report.add("pump, peak while it was written", peak_rss(pump_pid) / MIB, "MiB")
        history = stack.directory / "jobs.json"
        history.write_text(jobs())
        config = stack.config(mariadb, schema=f'history-file = "{history}"')
        config.write_text(config.read_text() + f'[spark.conf]\n"spark.driver.memory" = "{args.heap}"\n')
        begin = time.perf_counter()
        drainer = stack.start_drainer(config, "--until-now")
        assert drainer.process is not None
        with watched(drainer.process.pid) as memory:
            code = drainer.wait(deadline_s=3600)
        report.add("draining it, with the start of Spark", time.perf_counter() - begin, "s")
        for name, size in sorted(memory.peaks.items()):
            report.add(f"peak of {name}", size / MIB, "MiB")
        report.add("peak of the drainer in all", memory.total / MIB, "MiB")
        report.add("pump, peak in all", peak_rss(pump_pid) / MIB, "MiB")
        if code != 0 or applied(mariadb) != rows:
            raise SystemExit(f"exit code {code}, {applied(mariadb)} of {rows} rows:\n{drainer.tail()}")


if __name__ == "__main__":
    main()
