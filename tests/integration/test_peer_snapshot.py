"""The schema read from a real TiKV, against the one that the whole DDL history gives. A desk test: skipped without
PEER_BIN, in CI too. A minute.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from binlog.cluster.pd import ask_first, gc_safepoint
from binlog.pb import pdpb_pb2
from binlog.runtime.channel import open_channel

from drainer.schema.history.snapshot import SchemaSnapshot, read_snapshot
from drainer.schema.history.sources import UrlSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.state import Schema
from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.peer.marks import desk_test
from tests.support.servers import wait_until

pytestmark = desk_test(900)
ROUNDS = 5  # of ten DDLs each


@dataclass
class Upstream:
    peer: Peer

    def run(self, *statements: str) -> None:
        with contextlib.closing(self.peer.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    async def collect_up_to(self, ts: int) -> None:
        """Move PD's GC safepoint, as TiDB's GC does."""
        leader = await ask_first([self.peer.pd_url])
        channel = open_channel(leader.address)
        try:
            header = pdpb_pb2.ResponseHeader(cluster_id=leader.cluster_id)
            message = pdpb_pb2.GetGCSafePointResponse(header=header, safe_point=ts)  # the request has the same form
            move: Callable[[bytes], Any] = channel.unary_unary("/pdpb.PD/UpdateGCSafePoint")
            await move(message.SerializeToString())
        finally:
            await channel.close()
        assert await gc_safepoint(leader) == ts

    async def opened(self, position_ts: int, *, tikv: bool) -> tuple[SchemaProvider, Schema, float]:
        async def snapshot() -> SchemaSnapshot:
            return replace(await read_snapshot([self.peer.pd_url]), settled_ms=0)

        provider = SchemaProvider([UrlSource(self.peer.history_url)], Policy(), snapshot if tikv else None)
        begun_s = time.monotonic()
        schema = await provider.open(position_ts=position_ts, job_done=lambda _: False)
        return provider, schema, time.monotonic() - begun_s


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path_factory.mktemp("peer")) as peer:
        peer.our_pump(peer.place("pump"))
        peer.start_tidb()
        yield Upstream(peer)


def some_ddl(upstream: Upstream, round_: int) -> None:
    """All kinds that leave something behind, in a database of the round's own."""
    d = f"d{round_}"
    upstream.run(
        f"CREATE DATABASE {d} COLLATE latin1_bin",
        f"ALTER DATABASE {d} COLLATE utf8mb4_general_ci",
        f"CREATE TABLE {d}.t (id INT PRIMARY KEY, a INT, b VARCHAR(20) NOT NULL DEFAULT 'x', UNIQUE KEY u (a))",
        f"ALTER TABLE {d}.t ADD COLUMN c DECIMAL(10, 2) DEFAULT 1.5, DROP COLUMN b",
        f"CREATE TABLE {d}.p (id INT, v INT) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        f"ALTER TABLE {d}.p TRUNCATE PARTITION p0",
        f"ALTER TABLE {d}.t MODIFY COLUMN a VARCHAR(30)",
        f"RENAME TABLE {d}.t TO {d}.renamed",
        f"CREATE VIEW {d}.v AS SELECT id FROM {d}.renamed",
        f"CREATE TABLE {d}.short_lived (id INT)",
        f"DROP TABLE {d}.short_lived",
    )


def described(schema: Schema) -> dict[str, Any]:
    """What a schema says of databases, tables and jobs. `update_timestamp` and the like do not concern rows."""
    view = schema.view()
    catalog = schema.catalog
    return {
        "databases": {i: (found.name, found.charset, found.collate) for i, found in catalog.schemas.items()},
        "tables": {
            i: (t.schema, t.schema_id, t.name, t.current.columns, t.current.indexes, t.current.partition)
            for i, t in catalog.tables.items()
        },
        "replicated": sorted(view.tables),
        "due": view.ddl_due_version,
        "pending": list(schema._pending),
        "upcoming": view.upcoming_columns,
        "dropped": view.columns_being_dropped,
    }


def known(found: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Without TiDB's own tables that no job created."""
    return {**found, "tables": {i: t for i, t in found["tables"].items() if i in other["tables"] or t[0] != "mysql"}}


async def equal_at(upstream: Upstream, position_ts: int) -> tuple[int, int, float, float]:
    whole, by_history, history_s = await upstream.opened(position_ts, tikv=False)
    tail, by_tikv, tikv_s = await upstream.opened(position_ts, tikv=True)
    one, other = described(by_history), described(by_tikv)
    assert known(other, one) == one | {"databases": other["databases"], "replicated": other["replicated"]}
    assert set(one["databases"]) <= set(other["databases"]) and set(one["replicated"]) <= set(other["replicated"])
    return len(whole._history), len(tail._history), history_s, tikv_s


async def test_schema_from_tikv_equals_that_of_the_whole_history(upstream: Upstream) -> None:
    for n in range(ROUNDS):
        some_ddl(upstream, n)
    old_ts = await upstream.peer.now_ts()
    upstream.run("ALTER TABLE d0.p ADD COLUMN before_gc INT")
    await upstream.collect_up_to(await upstream.peer.now_ts())
    same_ts = await upstream.peer.now_ts()
    newest = (await upstream.opened(same_ts, tikv=False))[0]._history.greatest_version
    assert (await read_snapshot([upstream.peer.pd_url])).version == newest
    some_ddl(upstream, 1000)
    upstream.run("ALTER TABLE d1.renamed ADD COLUMN later INT", "DROP DATABASE d2")
    new_ts = await upstream.peer.now_ts()
    some_ddl(upstream, 1001)
    for position_ts in (new_ts, same_ts, await upstream.peer.now_ts()):
        jobs, tail, history_s, tikv_s = await equal_at(upstream, position_ts)
        print(f"history: {jobs} jobs in {history_s:.2f} s; TiKV: {tail} jobs in {tikv_s:.2f} s")
        assert tail < 40 < jobs
    jobs, tail, *_ = await equal_at(upstream, old_ts)  # TiKV no longer has the schema at this position
    assert jobs == tail


@pytest.mark.parametrize(("ddl", "usable"), [("ADD INDEX late (v)", True), ("ADD COLUMN late INT", False)])
async def test_job_that_runs_at_the_snapshot_is_not_in_it(upstream: Upstream, ddl: str, usable: bool) -> None:
    table = f"held{int(usable)}"
    upstream.run("CREATE DATABASE IF NOT EXISTS r", f"CREATE TABLE r.{table} (id INT PRIMARY KEY, v INT)")
    with contextlib.closing(upstream.peer.connect(autocommit=False)) as holds, ThreadPoolExecutor(1) as pool:
        with holds.cursor() as cursor:  # a transaction with the table keeps the DDL in its first state
            cursor.execute(f"INSERT INTO r.{table} VALUES (1, 1)")
            job = pool.submit(upstream.run, f"ALTER TABLE r.{table} {ddl}")
            await_first_state(upstream, table)
            await upstream.collect_up_to(await upstream.peer.now_ts())
            begun_ts = await upstream.peer.now_ts()
            snapshot = await read_snapshot([upstream.peer.pd_url])
            holds.commit()
        job.result(60)
    ended_ts = await upstream.peer.now_ts()
    assert [each.table_name for each in snapshot.running] == [table]
    for position_ts in (begun_ts, ended_ts):
        jobs, tail, *_ = await equal_at(upstream, position_ts)
        assert (tail < jobs) == (usable or position_ts == ended_ts)


def await_first_state(upstream: Upstream, table: str) -> None:
    def begun() -> bool:
        with contextlib.closing(upstream.peer.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("ADMIN SHOW DDL JOBS 3")
            return any(table in row and "public" not in row and "none" not in row for row in cursor.fetchall())

    wait_until(begun, deadline_s=60, what="the DDL is in its first state")
