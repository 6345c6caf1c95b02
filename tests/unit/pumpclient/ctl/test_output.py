"""What a person and a program see of binlogctl's answers."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tso import compose

from pumpclient.ctl import nodes, settle
from pumpclient.ctl.output import JsonOutput, Listing, LogOutput, TableOutput, form_of, open_output
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pumpclient.ctl.conftest import abandoned, session
from tests.unit.pumpclient.sdk.conftest import Shop


async def register(etcd: MemoryEtcd, node_id: str, state: State, *, age_s: float) -> None:
    update_ts = compose(int((time.time() - age_s) * 1000))
    status = NodeStatus(node_id, f"{node_id}:8250", state, max_commit_ts=7, update_ts=update_ts)
    await Registry(etcd).create("pumps", status)


@pytest.fixture
async def etcd() -> MemoryEtcd:
    etcd = MemoryEtcd()
    await register(etcd, "alive", State.ONLINE, age_s=1)
    await register(etcd, "dead", State.ONLINE, age_s=4000)
    await register(etcd, "stopped", State.PAUSED, age_s=90_000)
    await register(etcd, "left", State.OFFLINE, age_s=500_000)
    return etcd


async def test_table_output_marks_online_node_without_heartbeat(etcd: MemoryEtcd) -> None:
    """A process that died in state online stays online in its record: only its heartbeat's age tells."""
    out, err = io.StringIO(), io.StringIO()
    await nodes.query(session(etcd, TableOutput(out, err), show_offline_nodes=True), "pumps")
    heading, *rows = out.getvalue().splitlines()
    assert heading.split("  ")[0] == "NODE ID"
    assert [row.split()[0] for row in rows] == ["alive", "dead", "left", "stopped"]
    alive, dead, left, stopped = rows
    at = heading.index("STATE")
    assert alive[at:].startswith("online   ")
    assert dead[at:].startswith("online, but no heartbeat")
    assert "1 h 6 min ago" in dead
    assert left[at:].startswith("offline  ")
    assert stopped[at:].startswith("paused  ")
    assert err.getvalue() == ""


async def test_offline_nodes_that_are_hidden_are_counted() -> None:
    etcd = MemoryEtcd()
    await register(etcd, "left", State.OFFLINE, age_s=1)
    out, err = io.StringIO(), io.StringIO()
    await nodes.query(session(etcd, TableOutput(out, err)), "pumps")
    assert out.getvalue() == "no pumps to list\n"
    assert err.getvalue() == "offline pumps are not listed; -show-offline-nodes lists them: offline 1\n"


async def test_json_output_of_several_commands_is_one_document(etcd: MemoryEtcd) -> None:
    out = io.StringIO()
    output = JsonOutput(out, line=False)
    await nodes.query(session(etcd, output), "pumps")
    await etcd.put("/tidb-binlog/v1/pumps/broken", b"{")
    await nodes.query(session(etcd, output), "drainers")
    await nodes.update(session(etcd, output, node_id="dead", state="offline"), "pumps")
    output.end()
    document = json.loads(out.getvalue())
    assert [(row["node_id"], row["state"], row["heartbeat_missing"]) for row in document["pumps"]] == [
        ("alive", "online", False),
        ("dead", "online", True),
        ("stopped", "paused", False),
    ]
    assert document["drainers"] == []
    assert [done["before"] for done in document["done"]] == ["online"]


async def test_inspect_lists_pumps_and_pending_prewrites_as_table_and_json(shop: Shop) -> None:
    await abandoned(shop)
    out, kept = io.StringIO(), io.StringIO()
    await settle.inspect(session(shop.etcd, TableOutput(out, io.StringIO())))
    pumps, pending = out.getvalue().splitlines()[1::2]
    assert pumps.split()[0] == pending.split()[0] == "a"
    assert pending.split()[1] == "100"
    output = JsonOutput(kept, line=False)
    await settle.inspect(session(shop.etcd, output))
    output.end()
    document = json.loads(kept.getvalue())
    assert [row["pending"] for row in document["pumps"]] == [1]
    assert [row["start_ts"] for row in document["pending_prewrites"]] == [100]


def test_table_output_aligns_cells_and_shows_missing_values_as_dash() -> None:
    out = io.StringIO()
    listing = Listing("things", {"a": "A", "b": "LONG HEADING", "c": "C"}, "thing")
    TableOutput(out, io.StringIO()).rows(listing, [{"a": 1, "b": None, "c": [2, 3]}, {"a": "x" * 5, "b": "y", "c": []}])
    assert out.getvalue() == "A      LONG HEADING  C\n1      -             2,3\nxxxxx  y             -\n"


def test_auto_output_to_a_pipe_is_log_lines() -> None:
    """Scripts that read the original's output go on working; a test's stdout is no terminal."""
    assert isinstance(open_output(form_of("auto"), sys.stdout, sys.stderr), LogOutput)
    assert isinstance(open_output("log", sys.stdout, sys.stderr), LogOutput)
    assert isinstance(open_output("table", sys.stdout, sys.stderr), TableOutput)
    assert isinstance(open_output("json", sys.stdout, sys.stderr), JsonOutput)
