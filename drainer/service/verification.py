"""Compares the tables with upstream's every `upstream.check-interval`, as `drainer check` does, while the drainer runs.

The comparison is a process of its own at low priority: the stream waits neither for its CPU nor for its memory. What it
found is stored in the destination, and shown by /status, the page and metrics.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Final

from binlog.cluster import tso
from binlog.errors import BinlogError
from binlog.runtime import log, metrics

from drainer.config import Config
from drainer.sink.base import Verification

_PRIORITY: Final = 10  # added to the process's niceness
_DAY_S: Final = 86_400.0
_RETRY_S: Final = 600.0  # after a comparison that failed

_VERIFIED = metrics.gauge(
    "drainer_verified_through",
    "every compared table was equal to upstream's at this time or later, physical ms; 0: not all were",
)
_DIFFERING = metrics.gauge("drainer_differing_tables", "tables that differed from upstream's when last compared")
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one comparison. `tables`: all, none if it failed as a whole; `error`: why it did, or why some tables
    were not compared."""

    tables: tuple[Verification, ...] = ()
    error: str = ""


async def compared(config: Config) -> Found:
    """Compare all tables in a child process. Cancelling this call ends the process."""
    context = multiprocessing.get_context("spawn")  # a fork would have the threads' locks
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_process, args=(sender, config), daemon=True)
    process.start()
    sender.close()
    receiving: asyncio.Future[Found] = asyncio.ensure_future(asyncio.to_thread(receiver.recv))
    try:
        return await asyncio.shield(receiving)
    except EOFError:
        return Found(error="the process that compares ended early; the reason is in the drainer's output")
    finally:
        process.terminate()
        await asyncio.gather(receiving, return_exceptions=True)
        await asyncio.to_thread(process.join)
        receiver.close()


def _process(sender: Connection, config: Config) -> None:
    os.nice(_PRIORITY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the drainer gets it, too, and ends this process
    threading.Thread(target=_end_with_drainer, daemon=True).start()
    log.setup(config.log_level, "")
    from drainer.service.check import CheckOptions, check

    try:
        checks = asyncio.run(check(config, CheckOptions(), asyncio.Event()))
    except BinlogError as error:
        sender.send(Found(error=str(error)))
        return
    errors = [f"{one.table}: {one.error}" for one in checks if one.error]
    more = f", and {len(errors) - 1} other tables" if len(errors) > 1 else ""
    sender.send(Found(tuple(one.verification() for one in checks), "".join(errors[:1]) + more))


def _end_with_drainer() -> None:
    """A drainer that was killed ends nothing; its next life would compare beside this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def until_hours_s(hours: str, now_s: float) -> float:
    """Return the seconds until the time of day is within `hours`, such as 22:00-05:30 (UTC); 0.0: it is, or `hours` is
    empty."""
    begin_s, end_s = ((int(text[:2]) * 60 + int(text[3:])) * 60 for text in (hours or "00:00-00:00").split("-"))
    at_s = (now_s - begin_s) % _DAY_S
    return 0.0 if at_s < ((end_s - begin_s) % _DAY_S or _DAY_S) else _DAY_S - at_s


class Verifier:
    """`found`: the comparisons that the destination has stored; `compare`: compares all tables."""

    def __init__(
        self,
        config: Config,
        found: Iterable[Verification] = (),
        compare: Callable[[Config], Awaitable[Found]] = compared,
    ) -> None:
        self._config = config
        self._compare = compare
        self._interval_s = config.upstream.check_interval.total_seconds()
        self._error = ""
        self._show(found)

    async def run(self) -> None:
        """Run until cancelled."""
        if not self._interval_s:
            await asyncio.Event().wait()
        pause_s = self._due_s()
        while True:
            await asyncio.sleep(pause_s)
            await asyncio.sleep(until_hours_s(self._config.upstream.check_hours, time.time()))
            began_s = time.monotonic()
            try:
                found = await self._compare(self._config)
            except OSError as error:  # no process can be started, or it died within its answer
                found = Found(error=str(error))
            self._error = found.error
            if found.tables:
                before = {one.table_id: one for one in self._tables}
                self._show(one.after(before.get(one.table_id)) for one in found.tables)
            if found.error:
                _log.warning("comparison with upstream failed for some tables", error=found.error)
            for one in found.tables:
                if one.differences:
                    _log.warning("table differs from upstream; run `drainer check` to see the rows", table=one.table)
            every_s = min(self._interval_s, _RETRY_S) if found.error else self._interval_s
            pause_s = max(0.0, every_s - (time.monotonic() - began_s))

    def document(self) -> dict[str, object]:
        """Fields of /status. `VerifiedThrough`: every compared table was equal at this TSO or later, 0: not all."""
        tables = [asdict(one) for one in self._tables]
        return {"VerifiedThrough": self._through_ts(), "VerifyError": self._error, "Verified": tables}

    def _show(self, found: Iterable[Verification]) -> None:
        self._tables = sorted(found, key=lambda one: one.table)
        _VERIFIED.set(tso.physical_ms(self._through_ts()))
        _DIFFERING.set(sum(1 for one in self._tables if one.differences))

    def _through_ts(self) -> int:
        return min((one.verified_ts for one in self._tables), default=0)

    def _due_s(self) -> float:
        """Return in how many seconds the table that was compared longest ago is due."""
        oldest_s = min((tso.physical_ms(one.checked_ts) / 1000 for one in self._tables), default=0.0)
        return max(0.0, oldest_s + self._interval_s - time.time())
