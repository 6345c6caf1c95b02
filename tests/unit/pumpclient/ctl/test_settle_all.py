"""settle -all: everything old, of all pumps, with its DDLs as their jobs say and living writers left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from binlog.cluster.writers import key_of_version, living_writers
from binlog.tidb.job import ActionType, Job

from pumpclient.ctl import settle
from pumpclient.ctl.errors import CommandError
from pumpclient.writer import DdlFields, prewrite_payload
from tests.unit.pumpclient.ctl.conftest import session
from tests.unit.pumpclient.sdk.conftest import Shop

JOB = Job(
    id=7, type=ActionType.CREATE_SCHEMA, schema_state=5, schema_id=1, table_id=0, schema_name="s", table_name="",
    query="CREATE DATABASE s", schema_version=1, start_ts=300, real_start_ts=300, finished_ts=305,
)  # fmt: skip


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """Pump a has a transaction of TiDB, one of a dead service, one of a living one; b two DDLs, one published."""
    made = Shop()
    a, b = await made.add("a"), await made.add("b")
    await made.service()
    (living,) = await living_writers(made.etcd)
    a.store(prewrite_payload(100, b"k", b""))
    a.store(prewrite_payload(110, b"k", b"", b"d" * 16))
    a.store(prewrite_payload(120, b"k", b"", living))
    b.store(prewrite_payload(300, b"k", None, ddl=DdlFields(7, b"CREATE DATABASE s", 5)))
    b.store(prewrite_payload(310, b"k", None, ddl=DdlFields(8, b"CREATE DATABASE t", 5)))
    await made.etcd.put(key_of_version(1), JOB.dump())
    yield made
    await made.close()


ALL = {"all": True, "rollback": True, "older_than": "0s"}


async def test_settle_all_dry_run_lists_outcomes_and_changes_nothing(shop: Shop, lines: list[Any]) -> None:
    await settle.settle(session(shop.etcd, **ALL, dry_run=True))
    told = {line["start_ts"]: line["how"] for line in lines if line["event"] == "prewrite to settle"}
    assert told == {
        100: "rollback", 110: "rollback", 120: "left alone: its writer is alive and may still commit it (-force)",
        300: "commit at 305, because its job is published", 310: "rollback",
    }  # fmt: skip
    assert sum(len(pump.pending) for pump in shop.pumps.values()) == 5


async def test_settle_all_ends_old_prewrites_and_spares_living_writers(shop: Shop, lines: list[Any]) -> None:
    await settle.settle(session(shop.etcd, **ALL, yes=True))
    assert set(shop.pumps["a"].pending) == {120}
    assert not shop.pumps["b"].pending
    assert shop.pumps["b"].commits == {300: 305}
    assert {line["node_id"]: line["count"] for line in lines if line["event"] == "settled"} == {"a": 2, "b": 2}


async def test_settle_all_of_one_pump_with_force_ends_prewrites_of_living_writer(shop: Shop) -> None:
    await settle.settle(session(shop.etcd, **ALL, yes=True, force=True, node_id="a"))
    assert not shop.pumps["a"].pending
    assert len(shop.pumps["b"].pending) == 2


async def test_settle_all_spares_prewrites_younger_than_older_than(shop: Shop) -> None:
    """The stub's are 1.5 s old; by default a minute is young."""
    await settle.settle(session(shop.etcd, all=True, rollback=True, yes=True))
    assert len(shop.pumps["a"].pending) == 3
    await settle.settle(session(shop.etcd, **{**ALL, "older_than": "2s"}, yes=True))
    assert len(shop.pumps["a"].pending) == 3
    await settle.settle(session(shop.etcd, **{**ALL, "older_than": "1"}, yes=True))
    assert len(shop.pumps["a"].pending) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"all": True, "yes": True}, "-all requires -rollback"),
        ({**ALL, "commit_ts": 7, "yes": True}, "-all requires -rollback"),
        ({**ALL, "start_ts": 7, "yes": True}, "-all requires -rollback"),
        (ALL, "settling 4 transactions cannot be undone: confirm with -yes, or preview with -dry-run"),
    ],
)
async def test_settle_all_refuses_contradictory_or_unconfirmed_options(
    shop: Shop, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(CommandError, match=why):
        await settle.settle(session(shop.etcd, **options))
    assert sum(len(pump.pending) for pump in shop.pumps.values()) == 5


async def test_settle_all_ends_with_error_for_silent_pump(shop: Shop) -> None:
    await shop.pumps["b"].stop()
    with pytest.raises(CommandError, match="no answer from b"):
        await settle.settle(session(shop.etcd, **ALL, yes=True))
    assert set(shop.pumps["a"].pending) == {120}
