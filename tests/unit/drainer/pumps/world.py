"""A registry in memory, and pumps that answer what they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.pb.pump_ext_pb2 import InspectResp

from drainer.pumps.client import Missed, PumpClient
from drainer.pumps.survey import Membership, PumpSet
from drainer.pumps.watermark import BatchLimits, PumpMark, Stop
from tests.support.memory_etcd import MemoryEtcd

LIMITS = BatchLimits(1000)


def mark(name: str = "a", **changes: Any) -> PumpMark:
    """The answer of a pump that is resolved up to 100 and holds nothing up to there, but for the changes."""
    return replace(PumpMark(name, name, True, 100, 100, 0, 0, Stop.RESOLVED), **changes)


class Scripted:
    """A pump's client whose answer is a resolved ts or an error. `when_asked` runs before each answer."""

    def __init__(self, node_id: str, host: str, extension: bool) -> None:
        self.node_id, self.host, self.extension = node_id, host, extension
        self.answer: int | Exception = 100
        self.when_asked: Callable[[], Awaitable[None]] | None = None
        self.interrupted = False
        self.held: tuple[tuple[int, int], ...] = ()
        self.asked = 0
        self.closed = False

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark:
        self.asked += 1
        if self.when_asked is not None:
            await self.when_asked()
        if isinstance(self.answer, Exception):
            raise self.answer
        return PumpMark(self.node_id, self.host, self.extension, self.answer, self.answer, 0, 0, Stop.RESOLVED)

    async def inspect(self) -> InspectResp | None:
        return InspectResp()

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        found = tuple(pair for pair in self.held if after_ts < pair[1] <= until_ts)
        return Missed(len(found), found)

    async def close(self) -> None:
        self.closed = True


class World:
    """A registry and its pumps."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.registry = Registry(self.etcd)
        self.clients: list[Scripted] = []
        self.answers: dict[tuple[str, bool], int | Exception] = {}
        self.held: dict[str, tuple[tuple[int, int], ...]] = {}
        self.position_ts = 10
        self.begin()

    def begin(self) -> None:
        """A life of the drainer begins."""
        self.unfinished = False
        self.membership = Membership(
            self.etcd, "feed", position=lambda: self.position_ts, unfinished=lambda: self.unfinished
        )
        self.pumps = PumpSet(self.registry, self.dial, membership=self.membership)

    async def survey(self, position_ts: int) -> int:
        """The watermark that is believed at this position."""
        self.position_ts = position_ts
        return (await self.pumps.survey(after_ts=position_ts, limits=LIMITS)).ts

    def dial(self, node_id: str, host: str, extension: bool) -> PumpClient:
        client = Scripted(node_id, host, extension)
        client.answer = self.answers.get((node_id, extension), 100)
        client.held = self.held.get(node_id, ())
        self.clients.append(client)
        return client

    async def put(self, node_id: str, state: State, **more: object) -> None:
        status = NodeStatus(node_id, f"{node_id}:1", state, **more)  # type: ignore[arg-type]
        found = await self.registry.get("pumps", node_id)
        if found is None:
            await self.registry.create("pumps", status)
        else:
            await self.registry.update("pumps", status, mod_revision=found.mod_revision)

    def client(self, node_id: str) -> Scripted:
        return next(c for c in self.clients if c.node_id == node_id and not c.closed)
