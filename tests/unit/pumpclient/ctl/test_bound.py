"""reset-tso-bound against an etcd in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
import structlog
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.timestamp import BOUND_KEY, LEADER_KEY, SOURCE_KEY
from binlog.cluster.tso import compose

from pumpclient.ctl.errors import CommandError
from pumpclient.ctl.timestamps import MARGIN_MS, decide, reset
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pumpclient.ctl.conftest import session

NOW_MS = 1_700_000_000_000
FAR_MS = (1 << 45) - 1
DAY_MS = 86_400_000


async def cluster(bound: bytes | None = str(FAR_MS).encode(), *, drainer_ts: int = 7) -> MemoryEtcd:
    etcd = MemoryEtcd()
    await etcd.put(SOURCE_KEY, b"own")
    if bound is not None:
        await etcd.put(BOUND_KEY, bound)
    await Registry(etcd).create("pumps", NodeStatus("p", "p:8250", State.ONLINE, max_commit_ts=7))
    await Registry(etcd).create("drainers", NodeStatus("d", "d:8249", State.ONLINE, max_commit_ts=drainer_ts))
    return etcd


async def bound_of(etcd: MemoryEtcd) -> bytes | None:
    found = await etcd.get(BOUND_KEY)
    return found.value if found else None


def test_decided_bound_is_above_every_position_that_is_not_far_ahead() -> None:
    """A clock that is behind the pumps' must not take time back."""
    ahead = compose(NOW_MS + 5_000, 3)
    found = decide(stored=b"%d" % FAR_MS, now_ms=NOW_MS, positions=[("pump p", ahead), ("drainer d", 7)])
    assert (found.bound_ms, found.above) == (NOW_MS + 5_000 + MARGIN_MS, ())
    found = decide(stored=b"%d" % FAR_MS, now_ms=NOW_MS, positions=[("drainer d", compose(FAR_MS))])
    assert (found.bound_ms, found.above) == (NOW_MS + MARGIN_MS, (f"drainer d at {compose(FAR_MS)}",))


@pytest.mark.parametrize(("stored", "right"), [(b"%d" % (NOW_MS + DAY_MS), True), (b"1", True), (b"soon", False),
                                               (None, False), (b"%d" % (NOW_MS + DAY_MS + 1), False)])  # fmt: skip
def test_decide_lowers_no_bound_that_is_valid_or_absent(stored: bytes | None, right: bool) -> None:
    assert (decide(stored=stored, now_ms=NOW_MS, positions=[]).bound_ms is None) == right


async def test_reset_tso_bound_lowers_bound_to_just_above_now() -> None:
    etcd = await cluster()
    await reset(session(etcd, yes=True))
    now_ms = time.time() * 1000
    assert now_ms < int(await bound_of(etcd) or 0) < now_ms + 2 * MARGIN_MS


async def test_reset_tso_bound_dry_run_reports_everything_and_writes_nothing() -> None:
    etcd = await cluster(drainer_ts=compose(FAR_MS))
    await etcd.put(LEADER_KEY, b"p:8250")
    with structlog.testing.capture_logs() as lines:
        await reset(session(etcd, dry_run=True))
    said = [line["event"] for line in lines]
    assert said == [
        "bound of timestamps",
        "the bound would become just above this clock and every position that is not far ahead",
        "the command would be refused",
        "the command would be refused",
        "dry run: nothing was written",
    ]
    assert lines[0]["time"].startswith("3084-")
    assert await bound_of(etcd) == str(FAR_MS).encode()


async def test_reset_tso_bound_below_a_position_in_use_requires_force() -> None:
    """A drainer that is above the new bound would never apply what commits below."""
    etcd = await cluster(drainer_ts=compose(FAR_MS))
    with pytest.raises(CommandError, match=r"drainer d \(online\) at \d+.*-force.*Nothing was written"):
        await reset(session(etcd, yes=True))
    assert await bound_of(etcd) == str(FAR_MS).encode()
    await reset(session(etcd, yes=True, force=True))
    assert await bound_of(etcd) != str(FAR_MS).encode()


async def test_reset_tso_bound_is_refused_while_a_pump_leads() -> None:
    etcd = await cluster()
    await etcd.put(LEADER_KEY, b"p:8250")
    with pytest.raises(CommandError, match="pump p:8250 allocates timestamps now"):
        await reset(session(etcd, yes=True, force=True))


@pytest.mark.parametrize("key", [LEADER_KEY, BOUND_KEY])
async def test_reset_tso_bound_fails_if_leader_or_bound_changes_before_its_write(key: str) -> None:
    class Meanwhile(MemoryEtcd):
        async def txn(self, *args: Any, **named: Any) -> int | None:
            if self.armed:
                await self.put(key, b"1")
            return await super().txn(*args, **named)

        armed = False

    etcd = Meanwhile()
    await etcd.put(SOURCE_KEY, b"own")
    await etcd.put(BOUND_KEY, str(FAR_MS).encode())
    etcd.armed = True
    with pytest.raises(CommandError, match="run the command again"):
        await reset(session(etcd, yes=True))


async def test_reset_tso_bound_requires_yes_or_dry_run() -> None:
    etcd = await cluster()
    with pytest.raises(CommandError, match="confirm with -yes, or preview with -dry-run"):
        await reset(session(etcd))


@pytest.mark.parametrize("source", [b"pd", None])
async def test_reset_tso_bound_is_refused_where_pd_allocates_timestamps(source: bytes | None) -> None:
    etcd = MemoryEtcd()
    if source:
        await etcd.put(SOURCE_KEY, source)
    with pytest.raises(CommandError, match="no bound to lower"):
        await reset(session(etcd, yes=True))


async def test_reset_tso_bound_keeps_valid_bound() -> None:
    etcd = await cluster(b"17")
    await reset(session(etcd, yes=True))
    assert await bound_of(etcd) == b"17"
