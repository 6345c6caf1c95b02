"""A drainer that is started again and again over one data-dir, and dies at the crash points it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.integration.drainer.writer import Writer
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import Server, free_port, python_module


class Lives:
    """Subclasses say the configuration from `[syncer]` on. Batches are small, in the driver and distributed."""

    cluster: Cluster
    directory: Path
    writer: Writer
    lives: int
    deadline_s = 300.0

    @property
    def syncer(self) -> str:
        raise NotImplementedError

    def check(self) -> None:
        """What is downstream is what was written."""
        raise NotImplementedError

    def configuration(self, data_dir: Path) -> str:
        return (
            f'pd-urls = "{self.cluster.url}"\ntso-source = "own"\nnode-id = "d1"\naddr = "127.0.0.1:{free_port()}"\n'
            f'status-addr = ""\ndata-dir = "{data_dir}"\ninitial-commit-ts = 0\n'
            f"driver-bytes-max = 4096\ndistributed-bytes-min = 1\nbatch-bytes-max = 16384\n{self.syncer}"
        )

    def drainer(self, point: str = "") -> Server:
        self.lives += 1
        config = self.directory / "drainer.toml"
        config.write_text(self.configuration(self.directory / "drainer"))
        output = self.directory / f"drainer-{self.lives}.log"
        env = {"BINLOG_CRASH_POINT": point} if point else {}
        return python_module("drainer", "-config", str(config), "--until-now", output=output, **env).start()

    def drain(self) -> None:
        asyncio.run(self.cluster.settled())
        drainer = self.drainer()
        assert drainer.wait(deadline_s=self.deadline_s) == 0, drainer.tail()

    def die_at(self, point: str) -> None:
        """A drainer dies by the point itself, or gives up (2) when a worker dies of it time and again.

        Enough tries get even a batch through whose workers die at every nth chunk (0): each goes on behind the marks.
        """
        spark_log = self.directory / "drainer" / "spark.log"  # what workers say, of all lives
        before = spark_log.stat().st_size if spark_log.exists() else 0
        drainer = self.drainer(point)
        code = drainer.wait(deadline_s=self.deadline_s)
        said = drainer.text() + spark_log.read_bytes()[before:].decode(errors="replace")
        assert f"crash point {point.partition(':')[0]} reached" in said, drainer.tail()
        assert code in (-9, 2, 0), drainer.tail()

    def die_among_rows(self, points: Sequence[str], transactions: int = 40) -> None:
        for point in points:
            self.writer.write(transactions)
            self.die_at(point)

    def die_around_ddl(self, points: Sequence[str], before: int = 3) -> None:
        """With rows on both sides of each DDL."""
        for point in points:
            self.writer.write(before)
            self.writer.alter()
            self.writer.write(3)
            self.die_at(point)

    def drain_and_check(self) -> None:
        self.drain()
        self.check()
