"""Fake binlogs: what moves a Go drainer's merge on when nobody writes (`P-FAKE-01`, `P-FAKE-02`)."""

from __future__ import annotations

import asyncio

from binlog.errors import BinlogError
from binlog.log import get_logger

from pump.store import Store

_log = get_logger("pump.fake")


async def write_fakes(store: Store, interval_s: float) -> None:
    """One fake per interval in which no write was accepted. Refused writes do not count as writes."""
    seen = store.activity
    while True:
        await asyncio.sleep(interval_s)
        if store.activity == seen:
            try:
                await store.write_fake()
            except BinlogError as error:
                _log.warning("no fake binlog", error=error)
        seen = store.activity
