"""A pump process of a crash test, its journal, and those who read it: across as many lives as the test gives it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from binlog.cluster.timestamp import TimestampSource

from tests.crash.journal import Journal, check
from tests.crash.load import Load, Stream
from tests.integration.pump.rpc import Client, until
from tests.support.servers import Etcd, Server, free_port, python_module

PENDING_MAX = 10_000
CALL_S = 120.0


@dataclass
class Life:
    """One place of a pump. `module` says which program serves there; `before`: another module and its arguments, which
    runs it."""

    directory: Path
    etcd: Etcd
    name: str
    cluster_id: int
    module: str = "tests.crash.small_pump"
    args: tuple[str, ...] = ()
    before: Sequence[str] = ()
    urls: str = ""  # where not this etcd
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    number: int = 0

    def __post_init__(self) -> None:
        self.journal = Journal(self.name)
        self.streams = (Stream(ranges=True), Stream(ranges=False))
        self.server: Server | None = None

    @property
    def data(self) -> Path:
        return self.directory / self.name

    def start(self, *, under: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv) -> Server:
        """The next life; does not wait until it serves. `under` makes of its command the one that is run."""
        self.number += 1
        own = ["-addr", f"127.0.0.1:{self.port}", "-pd-urls", self.urls or self.etcd.endpoint]
        own += ["-data-dir", str(self.data), "-node-id", self.name, "-status-addr", "", "-drain-wait", "1"]
        own += ["-fake-binlog-interval", "0"]
        output = self.directory / f"{self.name}.{self.number}.log"
        own += [] if "-tso-source" in self.args else ["-tso-source", "own"]
        first, *words = *self.before, self.module, *own, *self.args
        self.server = python_module(first, *words, output=output, **self.env)
        self.server.argv = under(self.server.argv)
        return self.server.start()

    async def serving(self) -> None:
        await self.says("pump is serving")

    async def says(self, text: str) -> None:
        """Wait until this life's log has that text."""
        assert self.server is not None
        await asyncio.to_thread(self.server.wait_for_output, text, deadline_s=120)

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    def client(self) -> Client:
        """Whose calls end because the pump is gone, not because the machine is slow."""
        return Client(f"127.0.0.1:{self.port}", self.cluster_id, timeout_s=CALL_S)

    def load(self, source: TimestampSource, chance: random.Random) -> Load:
        return Load(self.journal, source, chance)

    async def has_acknowledged(self, commits: int) -> None:
        """Wait until so many transactions are committed and acknowledged."""

        async def enough() -> bool:
            return sum(each.outcome_acked and each.commit_ts > 0 for each in self.journal.sent.values()) >= commits

        await until(enough, deadline_s=120)

    async def pending(self, client: Client) -> set[int]:
        return {entry.start_ts for entry in (await client.inspect(PENDING_MAX)).pending}

    async def check(self, client: Client, what: object) -> None:
        """What is stored now, read from the beginning, and what is pending; while nobody writes."""
        stream = Stream(ranges=True)
        resolved_ts, pending = await stream.read_resolved(client), await self.pending(client)
        check(self.journal.faults(stream.served, pending, read_until_ts=resolved_ts), what)
        # A prewrite may come after its start_ts was resolved, but not commit below that.
        late = [ts for ts in pending if 0 < self.journal.sent[ts].commit_ts <= resolved_ts]
        assert not late, f"{what}: {self.name} says resolved {resolved_ts}, and commits of {late[:5]} come below it"

    async def check_streams(self, client: Client, what: object) -> None:
        """What was read through all lives, to the last commit that was acknowledged. Nothing is pending now."""
        last = max((each.commit_ts for each in self.journal.sent.values() if each.outcome_acked), default=0)
        pending = await self.pending(client)
        for stream in self.streams:
            await stream.read_until(client, last)
            check(self.journal.faults(stream.served, pending), (what, stream))
