"""Computes the watermark from all pumps (correctness rule 8: which pumps count). State of each pump for the status page
and the log, pumps that leave and rejoin, and the error of a watermark that cannot advance; then the rules; the calls
are in PumpSet."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from binlog.cluster.etcd import Etcd
from binlog.cluster.registry import ROOT, Kind, Listing, NodeRecord, NodeStatus, State
from binlog.errors import BinlogError, ClusterMismatch, EtcdError, PumpUnavailable, PurgedPosition
from binlog.pb.pump_ext_pb2 import InspectResp, PendingPrewrite
from binlog.runtime.fields import TopicSection
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security
from binlog.topic.message import topic_name

from drainer.pumps.client import SILENCE_MAX_S, ExtensionPump, Missed, NoExtension, PumpClient
from drainer.pumps.go_pump import GoPump
from drainer.pumps.topic import TopicPump, TopicSilent
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, PumpRange, Topic, Watermark, watermark_of

# A pump is reported after it has not answered for this long.
AWAY_WARN_S = 3.0
# A prewrite pending for this long is logged, and again every PENDING_EVERY_S.
PENDING_WARN_MS = 30_000
HOLDS_MS = 5_000  # a prewrite pending for this long is reported as the cause of a lag
PENDING_EVERY_S = 60.0

_log = get_logger(__name__)


def _away() -> Outage:
    return Outage(
        _log,
        "a pump holds the watermark back",
        "pump answers again",
        quiet_s=AWAY_WARN_S,
        first="a pump does not answer",
    )


def _pending() -> Outage:
    return Outage(
        _log,
        "a pending prewrite holds the watermark back; settle it with `binlogctl settle`",
        "no prewrite holds the watermark back any more",
        every_s=PENDING_EVERY_S,
    )


class HeldBack(BinlogError):
    """The watermark cannot advance now. `node_id`: the pump that prevents it, '' if it is not a single pump."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(node_id, why)
        self.node_id = node_id
        self.why = why

    def __str__(self) -> str:
        return f"held back by pump {self.node_id}: {self.why}" if self.node_id else self.why


def held_by_prewrite(watermark: Watermark) -> tuple[HeldBack, float] | None:
    """Return the pending prewrite that holds the watermark back although every pump answers, and its age in seconds;
    None: none."""
    lowest = min(watermark.marks, key=lambda mark: mark.resolved_ts, default=None)
    if lowest is None or lowest.holding is None or lowest.holding.age_ms < HOLDS_MS:
        return None
    return HeldBack(lowest.node_id, _pending_text(lowest.holding)), lowest.holding.age_ms / 1000


def _pending_text(pending: PendingPrewrite) -> str:
    job = f" of DDL job {pending.ddl_job_id}" if pending.ddl_job_id else ""
    if pending.writer:
        return (
            f"its prewrite {pending.start_ts}{job} waits for the commit of writer {bytes(pending.writer).hex()}: the "
            "pump settles it when that writer's lease in etcd expires"
        )
    return (
        f"its prewrite {pending.start_ts}{job} waits for its commit; its writer holds no lease: if the writer is gone, "
        "settle the prewrite with `binlogctl settle`"
    )


@dataclass(slots=True)
class PumpView:
    """State of one pump for the status page. `down_since`: unix seconds of its first failed call; `left_ts`: position
    at which it stopped counting; `missed`: binlogs at or below the position that it held when it rejoined."""

    node_id: str
    host: str = ""
    state: State = State.OFFLINE
    counts: bool = False
    resolved_ts: int = 0
    error: str = ""
    down_since: float | None = None
    inspection: InspectResp | None = None
    left_ts: int | None = None
    missed: Missed = field(default_factory=Missed)
    away: Outage = field(default_factory=_away, repr=False)
    pending_long: Outage = field(default_factory=_pending, repr=False)


def report_late(view: PumpView, found: InspectResp) -> None:
    before = view.inspection.late_commit_count if view.inspection else 0
    if found.late_commit_count > before:
        _log.error(
            "ALARM: a pump accepted commits at or below a resolved ts that it had published; batches read before lack "
            "them",
            pump=view.node_id,
            count=found.late_commit_count,
            commit_ts=list(found.late_commit_ts),
        )


def report_pending(view: PumpView, found: InspectResp) -> None:
    """Log a prewrite that has been pending for a long time: it holds the watermark back at its start_ts."""
    oldest = found.pending[0] if found.pending else None
    if oldest is None or oldest.age_ms < PENDING_WARN_MS:
        view.pending_long.over(pump=view.node_id)
        return
    view.pending_long.failed(
        pump=view.node_id,
        start_ts=oldest.start_ts,
        writer=bytes(oldest.writer).hex(),
        age_s=oldest.age_ms // 1000,
        ddl_job_id=oldest.ddl_job_id,
        pending=found.pending_count,
    )


def scope_of(changefeed: str, destination: str) -> str:
    """Return the part of an etcd key that identifies a changefeed and its destination, whichever drainer runs it."""
    return f"{changefeed}-{hashlib.blake2b(destination.encode(), digest_size=6).hexdigest()}"


# Detects pumps that left or rejoined since the last survey (correctness rule 2: pumps that return).
#
#     counts ──► offline, or paused and final: the position is stored in etcd before any watermark without the pump
#       ▲                                      is used
#       └─────── rejoins: binlogs in (stored position, current position] were never read ──► alarm; later ones are read
#
# A pump that left in order holds no such binlogs. One that an operator forced offline may: its rows are older than
# those applied since, so they cannot be applied now, and they must not count as applied either.
class Membership:
    """The positions at which pumps stopped counting, in etcd under `scope`; none are known until `load`. `position`:
    returns the commit_ts up to which everything is applied. `unfinished`: returns whether a batch after the position
    was begun, which must be finished without pumps that rejoined."""

    def __init__(
        self, etcd: Etcd, scope: str, *, position: Callable[[], int], unfinished: Callable[[], bool] = lambda: False
    ) -> None:
        self._etcd = etcd
        self._prefix = f"{ROOT}/left/{scope}/"
        self._left: dict[str, int] = {}  # by node id
        self._position = position
        self._unfinished = unfinished

    async def load(self) -> None:
        """Read the entries of earlier runs. Raises EtcdError."""
        kvs, _ = await self._etcd.range(self._prefix)
        for kv in kvs:
            node_id, text = kv.key.removeprefix(self._prefix), kv.value.decode(errors="replace")
            if text.isdigit():
                self._left[node_id] = int(text)
            else:
                _log.error("cannot parse the recorded position of a pump that left", key=kv.key, value=text)

    def left_ts(self, node_id: str) -> int | None:
        """Return the position up to which a pump was read that stopped counting; None for one that counts."""
        return self._left.get(node_id)

    async def settle(
        self,
        views: Mapping[str, PumpView],
        marks: Sequence[PumpMark],
        clients: Mapping[tuple[str, str], PumpClient],
        after_ts: int,
    ) -> None:
        """Record the position of pumps that left, before a watermark without them is used, and check rejoined pumps for
        binlogs below the position. Only for a survey at the position: one made ahead of it raises HeldBack.

        `views`: of every pump ever seen; `marks`: answers of the pumps that count; `clients`: by (node id, host).
        Raises HeldBack.
        """
        counting = {mark.node_id for mark in marks}
        leaving = [node_id for node_id in views if node_id not in counting and node_id not in self._left]
        returned = [mark for mark in marks if mark.node_id in self._left]
        if (leaving or returned) and after_ts != self._position():
            raise HeldBack("", "the list of pumps has changed")
        try:
            for node_id in leaving:
                await self._etcd.put(f"{self._prefix}{node_id}", str(after_ts).encode())
                self._left[node_id] = after_ts
            for mark in returned:
                # The watermark waits for its resolved ts anyway, and more binlogs may arrive until then.
                if mark.resolved_ts >= after_ts and not self._unfinished():
                    await self._report_missed(views[mark.node_id], mark, clients[mark.node_id, mark.host], after_ts)
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error

    async def _report_missed(self, view: PumpView, mark: PumpMark, client: PumpClient, position_ts: int) -> None:
        from_ts = self._left[mark.node_id]
        if from_ts < mark.purged_ts:
            _log.warning(
                "a pump that rejoined has purged binlogs that were never read", pump=mark.node_id, until=mark.purged_ts
            )
            from_ts = mark.purged_ts
        missed = Missed()
        if from_ts < position_ts:
            try:
                missed = await client.missed(after_ts=from_ts, until_ts=position_ts)
            except BinlogError as error:
                raise HeldBack(
                    mark.node_id, f"it rejoined and does not report which binlogs it holds: {error}"
                ) from error
        if missed.count:
            view.missed = missed
            _log.error(
                "ALARM: a pump rejoined with binlogs below the drainer's position; they are not applied",
                pump=mark.node_id,
                count=missed.count,
                start_and_commit_ts=list(missed.shown),
                after_ts=from_ts,
                until_ts=position_ts,
            )
        await self._etcd.delete(f"{self._prefix}{mark.node_id}")
        del self._left[mark.node_id]


# Decides which pumps count for the watermark (correctness rule 8: which pumps count). Pure.
#
#     list the pumps ──► ask every one that counts ──► list again ──► equal? ──► watermark
#           ▲                                                          │ no
#           └──────────────────────────────────────────────────────────┘
#
# A pump registers before it accepts a prewrite, so prewrites that a pump in neither list accepts later commit above the
# watermark. Equal means: the same ids with the same state and address, and for pumps that do not count the same
# mod_revision too, or one could have been brought online, written to, and forced offline between two equal lists.
def counts(pump: NodeStatus, *, after_ts: int, archived: bool = False) -> bool:
    """Return whether this pump may hold binlogs above `after_ts`, so that the watermark must wait for it. `archived`:
    the pumps' binlogs are also in Kafka topics, where those of an offline pump can be read."""
    if pump.state is State.OFFLINE:
        return archived and pump.max_commit_ts > after_ts
    # a final `paused` record states that nothing is pending there and nothing newer than max_commit_ts is stored (rule
    # 1: paused pumps); that of a Go pump is never final
    return not (pump.state is State.PAUSED and pump.final and pump.max_commit_ts <= after_ts)


def unchanged(
    before: Sequence[NodeRecord], after: Sequence[NodeRecord], *, after_ts: int, archived: bool = False
) -> bool:
    """Return whether answers collected between the two lists are valid."""

    def signature(record: NodeRecord) -> tuple[str, str, str, int]:
        pump = record.status
        revision = 0 if counts(pump, after_ts=after_ts, archived=archived) else record.mod_revision
        return pump.node_id, pump.state, pump.host, revision

    return {signature(record) for record in before} == {signature(record) for record in after}


ATTEMPTS_MAX = 8
PROBE_EVERY_S = 1.0


Dial = Callable[[str, str, bool], PumpClient]  # node id, host, extension


class PumpList(Protocol):
    """What lists the pumps: the registry, or what takes its place."""

    async def list(self, kind: Kind) -> Listing: ...


@dataclass(eq=False)
class PumpSet:
    """Clients of all pumps by (node id, host), created on demand and closed together. `membership`: None for a reader
    without a stored position. `archived`: see `counts`."""

    registry: PumpList
    dial: Dial
    membership: Membership | None = None
    archived: bool = False
    views: dict[str, PumpView] = field(default_factory=dict)
    _probed_at: dict[str, float] = field(default_factory=dict)
    _clients: dict[tuple[str, str], PumpClient] = field(default_factory=dict)
    _list: Sequence[NodeRecord] | None = None

    async def survey(self, *, after_ts: int, limits: BatchLimits) -> Watermark:
        """Return the watermark of all pumps that count at position `after_ts`.

        Raises HeldBack while a pump that counts does not answer (retry), ClusterMismatch and PurgedPosition (fatal).
        The second list of one survey is the first of the next: equal lists over a longer time prove the same.
        """
        for _ in range(ATTEMPTS_MAX):
            before = self._list if self._list is not None else await self._read_list(after_ts)
            asked = [record.status for record in before if self._counts(record.status, after_ts)]
            answers = await asyncio.gather(
                *(self._ask(pump, after_ts, limits) for pump in asked), return_exceptions=True
            )
            self._list = await self._read_list(after_ts)
            if not unchanged(before, self._list, after_ts=after_ts, archived=self.archived):
                continue
            found = (self._accept(p, a) for p, a in zip(asked, answers, strict=True))
            marks = tuple(mark for mark in found if mark is not None)
            if self.membership is not None:
                await self.membership.settle(self.views, marks, self._clients, after_ts)
            return watermark_of(marks, floor_ts=after_ts)
        raise HeldBack("", f"the list of pumps changed {ATTEMPTS_MAX} times while the pumps were queried")

    async def count(self, part: PumpRange) -> Counted | None:
        """Return number and bytes of the binlogs that a pull of `part` must return; None if its pump does not know.
        Raises HeldBack."""
        client = self._clients.get((part.node_id, part.host))
        if client is None or client.extension is not part.extension:
            raise HeldBack(part.node_id, "its record changed while it was queried")
        try:
            return await client.count(after_ts=part.after_ts, until_ts=part.until_ts)
        except BinlogError as error:
            if isinstance(error, ClusterMismatch | PurgedPosition):
                raise
            raise HeldBack(part.node_id, str(error)) from error

    async def inspect(self) -> None:
        """Refresh pending prewrites and late commits for the status page; after a failure the last values stay."""

        async def one(key: tuple[str, str], client: PumpClient) -> None:
            view = self.views.get(key[0])
            try:
                found = await client.inspect()
            except BinlogError:
                return  # a pump that is down is reported by the survey
            if view is not None and found is not None:
                report_late(view, found)
                report_pending(view, found)
                view.inspection = found

        current = self._readable(self._list or ())
        await asyncio.gather(*(one(key, c) for key, c in self._clients.items() if key in current))

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))

    def _counts(self, pump: NodeStatus, after_ts: int) -> bool:
        return counts(pump, after_ts=after_ts, archived=self.archived)

    def _readable(self, records: Sequence[NodeRecord]) -> set[tuple[str, str]]:
        """Return the keys of the clients of the pumps from which something can still be read."""
        pumps = (record.status for record in records)
        return {(pump.node_id, pump.host) for pump in pumps if self.archived or pump.state is not State.OFFLINE}

    async def _read_list(self, after_ts: int) -> Sequence[NodeRecord]:
        try:
            listing = await self.registry.list("pumps")
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error
        if listing.unreadable:
            raise HeldBack(listing.unreadable[0], "its record in the registry cannot be read")
        for pump in (record.status for record in listing.nodes):
            view = self.views.setdefault(pump.node_id, PumpView(pump.node_id))
            view.host, view.state, view.counts = pump.host, pump.state, self._counts(pump, after_ts)
            view.left_ts = self.membership.left_ts(pump.node_id) if self.membership is not None else None
            if not view.counts:
                view.error, view.down_since = "", None
                view.away.over("a pump that does not answer no longer counts for the watermark", pump=pump.node_id)
        here = {record.status.node_id for record in listing.nodes}
        for view in self.views.values():
            if view.node_id not in here:  # only an operator removes a record
                view.counts, view.error, view.down_since = False, "its record was removed from the registry", None
                view.away.over("a pump that does not answer was removed from the registry", pump=view.node_id)
        wanted = self._readable(listing.nodes)
        for key in [key for key in self._clients if key not in wanted]:
            await self._clients.pop(key).close()
        return listing.nodes

    async def _ask(self, pump: NodeStatus, after_ts: int, limits: BatchLimits) -> PumpMark:
        key = (pump.node_id, pump.host)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self.dial(pump.node_id, pump.host, True)
        elif client.interrupted and not client.extension:
            found = await self._probe(pump, after_ts, limits)
            if found is not None:
                return found
        try:
            return await client.mark(after_ts=after_ts, limits=limits)
        except NoExtension:
            await client.close()
            client = self._clients[key] = self.dial(pump.node_id, pump.host, False)
            return await client.mark(after_ts=after_ts, limits=limits)

    async def _probe(self, pump: NodeStatus, after_ts: int, limits: BatchLimits) -> PumpMark | None:
        """After the connection to a Go pump was lost, return the answer of a Python pump that replaced it; None if
        there is none."""
        key, now = (pump.node_id, pump.host), time.monotonic()
        if now - self._probed_at.get(pump.node_id, -PROBE_EVERY_S) < PROBE_EVERY_S:
            return None
        self._probed_at[pump.node_id] = now
        old, new = self._clients[key], self.dial(pump.node_id, pump.host, True)
        try:
            found = await new.mark(after_ts=after_ts, limits=limits)
        except BinlogError as error:
            old.interrupted = not isinstance(error, NoExtension)  # the pump answers and is still a Go pump
            await new.close()
            return None
        self._clients[key] = new
        await old.close()
        _log.info("a Python pump replaced a Go pump", pump=pump.node_id, host=pump.host)
        return found

    def _accept(self, pump: NodeStatus, answer: PumpMark | BaseException) -> PumpMark | None:
        """Return the mark; None if an offline pump's topic has been read to its end."""
        view = self.views[pump.node_id]
        if isinstance(answer, PumpMark):
            view.away.over(pump=pump.node_id)
            view.resolved_ts, view.error, view.down_since = answer.resolved_ts, "", None
            return answer
        if pump.state is State.OFFLINE and isinstance(answer, TopicSilent):
            view.away.over(pump=pump.node_id)
            return None
        if isinstance(answer, ClusterMismatch | PurgedPosition) or not isinstance(answer, BinlogError):
            raise answer
        view.error = str(answer)
        view.down_since = view.down_since or time.time()
        view.away.failed(pump=pump.node_id, state=pump.state, error=view.error)
        why = f"{pump.state}, does not answer: {answer}" if isinstance(answer, PumpUnavailable) else str(answer)
        raise HeldBack(pump.node_id, why) from answer


def dial_with(cluster_id: int, security: Security, *, silence_max_s: float = SILENCE_MAX_S) -> Dial:
    """Return a factory of clients for this cluster's pumps. `silence_max_s`: see go_pump.py."""

    def dial(node_id: str, host: str, extension: bool) -> PumpClient:
        if extension:
            return ExtensionPump(node_id, host, cluster_id=cluster_id, security=security)
        return GoPump(node_id, host, cluster_id=cluster_id, security=security, silence_max_s=silence_max_s)

    return dial


def dial_topics(section: TopicSection, cluster_id: int, *, silence_max_s: float = SILENCE_MAX_S) -> Dial:
    """Return a factory of clients that read the topics of this cluster's pumps in their place."""
    client = tuple(section.client_settings().items())

    def dial(node_id: str, host: str, _extension: bool) -> PumpClient:
        topic = Topic(topic_name(section.topic_prefix, cluster_id, node_id), client)
        return TopicPump(node_id, host, topic, silence_max_s=silence_max_s)

    return dial
