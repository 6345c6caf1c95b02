"""Correctness rule 2 around a survey: who has left since the last one, and who is back. left_pumps.py: what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from binlog.errors import BinlogError, EtcdError
from binlog.runtime.log import get_logger

from drainer.pumps.client import PumpClient
from drainer.pumps.health import HeldBack, PumpView
from drainer.pumps.left_pumps import Left, Missed
from drainer.pumps.watermark import PumpMark

_log = get_logger(__name__)


class Books:
    """Kept at a `position`, up to which everything has been applied. `left`: loaded; `unfinished`: whether a batch
    was begun behind the position, which is finished without pumps that are back."""

    def __init__(
        self, left: Left, *, position: Callable[[], int], unfinished: Callable[[], bool] = lambda: False
    ) -> None:
        self._left = left
        self._position = position
        self._unfinished = unfinished

    def left_ts(self, node_id: str) -> int | None:
        """Where a pump was left that does not count."""
        return self._left.ts(node_id)

    async def settle(
        self,
        views: Mapping[str, PumpView],
        marks: Sequence[PumpMark],
        clients: Mapping[tuple[str, str], PumpClient],
        after_ts: int,
    ) -> None:
        """Write down where a pump is left before anything is believed without it, and look at what one that is back
        holds below the position. Only at the position itself: a question asked ahead must be asked again.

        `views`: of every pump ever seen; `marks`: the answers of those that count, by `clients`. Raises HeldBack.
        """
        counting = {mark.node_id for mark in marks}
        leaving = [node_id for node_id in views if node_id not in counting and self._left.ts(node_id) is None]
        returned = [mark for mark in marks if self._left.ts(mark.node_id) is not None]
        if (leaving or returned) and after_ts != self._position():
            raise HeldBack("", "the list of pumps has changed")
        try:
            for node_id in leaving:
                await self._left.leave(node_id, after_ts)
            for mark in returned:
                # Until it is resolved there nothing moves, and more may come.
                if mark.resolved_ts >= after_ts and not self._unfinished():
                    await self._look_back(views[mark.node_id], mark, clients[mark.node_id, mark.host], after_ts)
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error

    async def _look_back(self, view: PumpView, mark: PumpMark, client: PumpClient, position_ts: int) -> None:
        from_ts = self._left.ts(mark.node_id) or 0
        if from_ts < mark.purged_ts:
            _log.warning("what a returned pump held is purged, and not known", pump=mark.node_id, until=mark.purged_ts)
            from_ts = mark.purged_ts
        missed = Missed()
        if from_ts < position_ts:
            try:
                missed = await client.missed(after_ts=from_ts, until_ts=position_ts)
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
        await self._left.forget(mark.node_id)
