"""Writes fake binlogs, so that a Go drainer's merge advances while no binlogs arrive (`P-FAKE-01`, `P-FAKE-02`)."""

from __future__ import annotations

import asyncio

from binlog.errors import BinlogError, LogBroken
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.store.store import Store

_log = get_logger("pump.tasks.fake_binlogs")


async def write_fakes(store: Store, interval_s: float) -> None:
    """Write one fake binlog per interval in which no write was accepted. Refused writes do not count.

    Returns when the log is broken and accepts nothing more.
    """
    seen = store.writes.activity
    outage = Outage(_log, "no fake binlog", "fake binlogs are written again")
    while True:
        await asyncio.sleep(interval_s)
        if store.writes.activity == seen:
            try:
                await store.writes.write_fake()
                outage.over()
            except LogBroken:
                return
            except BinlogError as error:
                outage.failed(error=error)
        seen = store.writes.activity
