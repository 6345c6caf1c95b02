"""Asks all pumps how far they are (correctness rule 8). The rules are in counting.py; here are the calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from binlog.errors import BinlogError, ClusterMismatch, EtcdError, PumpUnavailable, PurgedPosition
from binlog.log import get_logger
from binlog.node import State
from binlog.registry import NodeRecord, Registry
from binlog.security import Security

from drainer.pumps.client import ExtensionPump, Inspection, NoExtension, PumpClient
from drainer.pumps.counting import Listed, counts, unchanged
from drainer.pumps.go import GoPump
from drainer.pumps.left import Left, Missed
from drainer.pumps.mark import Limits, PumpMark, Watermark, watermark_of

ATTEMPTS_MAX = 8
COMPLAIN_EVERY_S = 10.0
# A transaction may take long; one that takes this long is worth a line, and another every so often.
PENDING_WARN_MS = 30_000
PENDING_EVERY_S = 60.0
PROBE_EVERY_S = 1.0

_log = get_logger(__name__)

Dial = Callable[[str, str, bool], PumpClient]  # node id, host, extension


class HeldBack(BinlogError):
    """The watermark cannot move now; `node_id` is the pump that holds it ('' = the list keeps changing)."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(node_id, why)
        self.node_id = node_id
        self.why = why

    def __str__(self) -> str:
        return f"held back by pump {self.node_id}: {self.why}" if self.node_id else self.why


@dataclass(slots=True)
class PumpView:
    """What is known of one pump, for the status page. `down_since`: unix seconds of its first unanswered question;
    `left_ts`: it does not count since the position was there; `missed`: what it brought back that had been passed."""

    node_id: str
    host: str = ""
    state: State = State.OFFLINE
    counts: bool = False
    resolved_ts: int = 0
    pulled_ts: int = 0
    error: str = ""
    down_since: float | None = None
    inspection: Inspection | None = None
    left_ts: int | None = None
    missed: Missed = field(default_factory=Missed)
    complained_at: float = field(default=-COMPLAIN_EVERY_S, repr=False)
    pending_told_at: float = field(default=-PENDING_EVERY_S, repr=False)


class PumpSet:
    """The clients of all pumps, one by node id and address; made when first needed, closed together."""

    def __init__(
        self,
        registry: Registry,
        dial: Dial,
        *,
        left: Left | None = None,
        position: Callable[[], int] = lambda: 0,
        unfinished: Callable[[], bool] = lambda: False,
    ) -> None:
        """`left`: loaded; who has a `position` that survives keeps there how far pumps were read that do not count.
        `unfinished`: whether a batch was begun behind that position, which is finished without those that are back."""
        self._registry = registry
        self._dial = dial
        self._left = left
        self._position = position
        self._unfinished = unfinished
        self._probed_at: dict[str, float] = {}
        self._clients: dict[tuple[str, str], PumpClient] = {}
        self._list: list[Listed] | None = None
        self.views: dict[str, PumpView] = {}

    async def survey(self, *, after_ts: int, limits: Limits) -> Watermark:
        """The watermark of all pumps that count for a position of `after_ts`.

        Raises HeldBack while a pump that counts does not answer, ClusterMismatch and PurgedPosition for good.
        The second list of one survey is the first of the next: equal lists around a longer time prove no less.
        """
        for _ in range(ATTEMPTS_MAX):
            before = self._list if self._list is not None else await self._read_list(after_ts)
            asked = [pump for pump in before if counts(pump, after_ts=after_ts)]
            answers = await asyncio.gather(
                *(self._ask(pump, after_ts, limits) for pump in asked), return_exceptions=True
            )
            self._list = await self._read_list(after_ts)
            if not unchanged(before, self._list, after_ts=after_ts):
                continue
            marks = tuple(self._believe(p, a) for p, a in zip(asked, answers, strict=True))
            if self._left is not None:
                await self._keep_books(self._left, before, marks, after_ts)
            return watermark_of(marks, floor_ts=after_ts)
        raise HeldBack("", f"the list of pumps changed {ATTEMPTS_MAX} times while they were asked")

    async def inspect(self) -> None:
        """Refresh what operators look at: pending prewrites and late commits. A pump that fails keeps its last."""

        async def one(key: tuple[str, str], client: PumpClient) -> None:
            view = self.views.get(key[0])
            try:
                found = await client.inspect()
            except BinlogError:
                return  # the survey reports a pump that is down
            if view is not None and found is not None:
                _report_late(view, found)
                _report_pending(view, found)
                view.inspection = found

        current = {(p.node_id, p.host) for p in self._list or () if p.state is not State.OFFLINE}
        await asyncio.gather(*(one(key, c) for key, c in self._clients.items() if key in current))

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))

    async def _read_list(self, after_ts: int) -> list[Listed]:
        try:
            listing = await self._registry.list("pumps")
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error
        if listing.unreadable:
            raise HeldBack(listing.unreadable[0], "its record in the registry cannot be read")
        pumps = [listed(record) for record in listing.nodes]
        for pump in pumps:
            view = self.views.setdefault(pump.node_id, PumpView(pump.node_id))
            view.host, view.state, view.counts = pump.host, pump.state, counts(pump, after_ts=after_ts)
            view.left_ts = self._left.ts(pump.node_id) if self._left is not None else None
            if not view.counts:
                view.error, view.down_since = "", None
        here = {pump.node_id for pump in pumps}
        for view in self.views.values():
            if view.node_id not in here:  # nothing of ours removes a record
                view.counts, view.error, view.down_since = False, "its record was removed from the registry", None
        await self._drop_clients({(pump.node_id, pump.host) for pump in pumps if pump.state is not State.OFFLINE})
        return pumps

    async def _drop_clients(self, wanted: set[tuple[str, str]]) -> None:
        for key in [key for key in self._clients if key not in wanted]:
            await self._clients.pop(key).close()

    async def _keep_books(self, left: Left, pumps: Sequence[Listed], marks: Sequence[PumpMark], after_ts: int) -> None:
        """Rule 2: write down where a pump is left before anything is believed without it, and look at what one that is
        back holds below the position. Only at the position itself: a question asked ahead must be asked again."""
        here = {mark.node_id for mark in marks}
        known = dict.fromkeys([*(pump.node_id for pump in pumps), *self.views])
        leaving = [node_id for node_id in known if node_id not in here and left.ts(node_id) is None]
        returned = [mark for mark in marks if left.ts(mark.node_id) is not None]
        if (leaving or returned) and after_ts != self._position():
            raise HeldBack("", "the list of pumps has changed")
        try:
            for node_id in leaving:
                await left.leave(node_id, after_ts)
            for mark in returned:
                if (
                    mark.resolved_ts >= after_ts and not self._unfinished()
                ):  # until then nothing moves, and more may come
                    await self._look_back(left, mark, after_ts)
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error

    async def _look_back(self, left: Left, mark: PumpMark, position_ts: int) -> None:
        view, from_ts = self.views[mark.node_id], left.ts(mark.node_id) or 0
        if from_ts < mark.purged_ts:
            _log.warning(
                "what a pump held below its purge point is not known", pump=mark.node_id, purged=mark.purged_ts
            )
            from_ts = mark.purged_ts
        missed = Missed()
        if from_ts < position_ts:
            try:
                missed = await self._clients[mark.node_id, mark.host].missed(after_ts=from_ts, until_ts=position_ts)
            except BinlogError as error:
                raise HeldBack(mark.node_id, f"it is back, and does not tell what it holds: {error}") from error
        if missed.count:
            view.missed = missed
            _log.error(
                "ALARM: a pump is back with binlogs that were passed without it; they are not applied",
                pump=mark.node_id,
                count=missed.count,
                start_and_commit_ts=list(missed.shown),
                after_ts=from_ts,
                until_ts=position_ts,
            )
        await left.forget(mark.node_id)

    async def _ask(self, pump: Listed, after_ts: int, limits: Limits) -> PumpMark:
        key = (pump.node_id, pump.host)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._dial(pump.node_id, pump.host, True)
        elif client.interrupted and not client.extension:
            found = await self._probe(pump, after_ts, limits)
            if found is not None:
                return found
        try:
            return await client.mark(after_ts=after_ts, limits=limits)
        except NoExtension:
            await client.close()
            client = self._clients[key] = self._dial(pump.node_id, pump.host, False)
            return await client.mark(after_ts=after_ts, limits=limits)

    async def _probe(self, pump: Listed, after_ts: int, limits: Limits) -> PumpMark | None:
        """A Go pump's connection was lost: one of ours may have taken its place. Its answer then, else None."""
        key, now = (pump.node_id, pump.host), time.monotonic()
        if now - self._probed_at.get(pump.node_id, -PROBE_EVERY_S) < PROBE_EVERY_S:
            return None
        self._probed_at[pump.node_id] = now
        old, new = self._clients[key], self._dial(pump.node_id, pump.host, True)
        try:
            found = await new.mark(after_ts=after_ts, limits=limits)
        except BinlogError as error:
            old.interrupted = not isinstance(error, NoExtension)  # it answers, and is what it was
            await new.close()
            return None
        self._clients[key] = new
        await old.close()
        _log.info("a pump of ours runs where a Go pump was", pump=pump.node_id, host=pump.host)
        return found

    def _believe(self, pump: Listed, answer: PumpMark | BaseException) -> PumpMark:
        view = self.views[pump.node_id]
        if isinstance(answer, PumpMark):
            if view.down_since is not None:
                _log.info("pump answers again", pump=pump.node_id, down_s=round(time.time() - view.down_since, 1))
            view.resolved_ts, view.error, view.down_since = answer.resolved_ts, "", None
            return answer
        if isinstance(answer, ClusterMismatch | PurgedPosition) or not isinstance(answer, BinlogError):
            raise answer
        view.error = str(answer)
        view.down_since = view.down_since or time.time()
        if time.monotonic() - view.complained_at >= COMPLAIN_EVERY_S:
            view.complained_at = time.monotonic()
            _log.warning(
                "a pump holds everything back",
                pump=pump.node_id,
                state=pump.state,
                error=view.error,
                since_s=round(time.time() - view.down_since, 1),
            )
        why = f"{pump.state}, does not answer: {answer}" if isinstance(answer, PumpUnavailable) else str(answer)
        raise HeldBack(pump.node_id, why) from answer


def listed(record: NodeRecord) -> Listed:
    """A registry record as rule 8 needs it."""
    status = record.status
    return Listed(
        status.node_id,
        status.host,
        status.state,
        record.mod_revision,
        status.max_commit_ts,
        final=status.final,
    )


def _report_late(view: PumpView, found: Inspection) -> None:
    before = view.inspection.late_count if view.inspection else 0
    if found.late_count > before:
        _log.error(
            "ALARM: commits arrived at or below a resolved ts already given out; what was read before lacks them",
            pump=view.node_id,
            count=found.late_count,
            commit_ts=list(found.late_ts),
        )


def _report_pending(view: PumpView, found: Inspection) -> None:
    """A prewrite without its commit holds everything back at its start_ts; its writer may be gone."""
    oldest = found.pending[0] if found.pending else None
    if oldest is None or oldest.age_ms < PENDING_WARN_MS:
        return
    if time.monotonic() - view.pending_told_at >= PENDING_EVERY_S:
        view.pending_told_at = time.monotonic()
        _log.warning(
            "a prewrite waits for its commit and holds everything back; `binlogctl settle` ends it",
            pump=view.node_id,
            start_ts=oldest.start_ts,
            age_s=oldest.age_ms // 1000,
            ddl_job_id=oldest.ddl_job_id,
            pending=found.pending_count,
        )


def dial_with(cluster_id: int, security: Security) -> Dial:
    """Clients of this cluster's pumps."""

    def dial(node_id: str, host: str, extension: bool) -> PumpClient:
        if extension:
            return ExtensionPump(node_id, host, cluster_id=cluster_id, security=security)
        return GoPump(node_id, host, cluster_id=cluster_id, security=security)

    return dial
