"""A pump's page for people."""

from __future__ import annotations

import asyncio
from typing import Any

from binlog.cluster import tso
from binlog.cluster.registry import NodeStatus, State
from binlog.errors import BinlogError

from pump.status import LastAnswer, page

NOW_MS = 1_700_000_000_000
OWN: dict[str, Any] = {
    "nodeId": "p1", "state": "online", "usurped": "", "version": "1", "resolvedTS": tso.compose(NOW_MS - 1500),
    "purgedTS": 0, "logBytes": 2048, "logBroken": "", "damage": [], "pendingCount": 0, "pending": [],
    "belowGCSafePointCount": 0, "lateCommitCount": 0, "lateCommitTS": [],
}  # fmt: skip


def draw(**changed: object) -> str:
    drainers = [NodeStatus("d1", "10.0.0.5:8249", State.ONLINE, max_commit_ts=tso.compose(NOW_MS))]
    return page({**OWN, **changed}, now_ms=NOW_MS, available_bytes=1 << 30, full=False, drainers=drainers)


def test_status_page_of_healthy_pump_has_no_alarm() -> None:
    text = draw()
    assert "alarm " not in text
    assert "1.5 s ago" in text and "2 KiB" in text and "d1" in text


def test_status_page_shows_what_is_published_to_kafka_or_why_nothing_is() -> None:
    kafka = {"topic": "t-1-p1", "publishedTS": tso.compose(NOW_MS - 2500), "error": ""}
    assert "t-1-p1" in draw(kafka=kafka) and "2.5 s ago" in draw(kafka=kafka)
    assert "no broker" in draw(kafka={**kafka, "publishedTS": 0, "error": "no broker answers"})


def test_status_page_shows_alarm_for_each_fault() -> None:
    pending = {"startTS": 5, "ageSeconds": 30.0, "ddlJobID": 0, "prewriteKey": "6b"}
    assert "pending for 30.0 s" in draw(pendingCount=1, pending=[pending])
    assert "prewrites are refused" in draw(usurped="offline")
    assert "arrived at or below the resolved ts: 7" in draw(lateCommitCount=1, lateCommitTS=[7])
    assert "until the pump is restarted" in draw(logBroken="fdatasync: EIO")
    assert "2 pending prewrites began at or below PD" in draw(belowGCSafePointCount=2)
    assert "Damage in the value log: at 5" in draw(damage=["at 5"])


# What pages show of a server that hangs or fails.


async def test_last_answer_of_server_that_hangs_is_shown_with_its_age() -> None:
    answers: list[asyncio.Future[int]] = []

    async def ask() -> int:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    last = LastAnswer("etcd", ask, 0, wait_s=0.01)
    value, problem = await last.get()
    assert value == 0 and problem.startswith("etcd has not answered for 0.") and "ago" not in problem
    answers[0].set_result(7)
    assert await last.get() == (7, "")
    value, problem = await last.get()
    assert value == 7 and problem.endswith("; as of 0 s ago")
    await asyncio.gather(last.get(), last.get())
    assert len(answers) == 2, "one question at a time"
    answers[1].set_exception(BinlogError("no leader"))
    assert await last.get() == (7, "no leader; as of 0 s ago")
