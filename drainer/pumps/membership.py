"""Detects pumps that left or rejoined since the last survey (correctness rule 2: pumps that return); see
departed_pumps.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from binlog.errors import BinlogError, EtcdError
from binlog.runtime.log import get_logger

from drainer.pumps.client import PumpClient
from drainer.pumps.departed_pumps import DepartedPumps, Missed
from drainer.pumps.health import HeldBack, PumpView
from drainer.pumps.watermark import PumpMark

_log = get_logger(__name__)


class Membership:
    """`departed`: records of pumps that left, already loaded from etcd. `position`: returns the commit_ts up to which
    everything is applied. `unfinished`: returns whether a batch after
    the position was begun, which must be finished without pumps that rejoined."""

    def __init__(
        self, departed: DepartedPumps, *, position: Callable[[], int], unfinished: Callable[[], bool] = lambda: False
    ) -> None:
        self._departed = departed
        self._position = position
        self._unfinished = unfinished

    def left_ts(self, node_id: str) -> int | None:
        """Return the position at which a pump stopped counting; None for one that counts."""
        return self._departed.ts(node_id)

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
        leaving = [node_id for node_id in views if node_id not in counting and self._departed.ts(node_id) is None]
        returned = [mark for mark in marks if self._departed.ts(mark.node_id) is not None]
        if (leaving or returned) and after_ts != self._position():
            raise HeldBack("", "the list of pumps has changed")
        try:
            for node_id in leaving:
                await self._departed.leave(node_id, after_ts)
            for mark in returned:
                # The watermark waits for its resolved ts anyway, and more binlogs may arrive until then.
                if mark.resolved_ts >= after_ts and not self._unfinished():
                    await self._report_missed(views[mark.node_id], mark, clients[mark.node_id, mark.host], after_ts)
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error

    async def _report_missed(self, view: PumpView, mark: PumpMark, client: PumpClient, position_ts: int) -> None:
        from_ts = self._departed.ts(mark.node_id) or 0
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
        await self._departed.forget(mark.node_id)
