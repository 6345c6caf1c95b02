"""The commands against a registry in memory and stub pumps."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tso import compose
from binlog.errors import NodeNotFound
from binlog.runtime.http import Request, Response, StatusServer

from pumpclient.ctl import nodes, settle, timestamps
from pumpclient.ctl.__main__ import COMMANDS, run
from pumpclient.ctl.errors import CommandError, Misused, NodeSilent, Refused
from pumpclient.ctl.options import Options
from pumpclient.ctl.output import LogOutput
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pumpclient.ctl.conftest import abandoned, session
from tests.unit.pumpclient.sdk.conftest import Shop
from tests.unit.pumpclient.stub_pump import Fault


@pytest.fixture
async def etcd() -> MemoryEtcd:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    update_ts = compose(1_600_000_000_000)
    for node_id, state in (("p1", State.ONLINE), ("p2", State.OFFLINE)):
        status = NodeStatus(node_id, f"{node_id}:8250", state, max_commit_ts=7, update_ts=update_ts)
        await registry.create("pumps", status)
    return etcd


async def test_pumps_command_lists_online_pumps_as_log_lines(etcd: MemoryEtcd, lines: list[Any]) -> None:
    await nodes.query(session(etcd), "pumps")
    (line,) = lines
    assert line["event"] == "query node"
    assert line["type"] == "pump"
    text = "{NodeID: p1, Addr: p1:8250, State: online, MaxCommitTS: 7, UpdateTime: 2020-09-13 "
    assert line["node"].startswith(text)


async def test_pumps_command_lists_offline_pumps_if_asked_to(etcd: MemoryEtcd, lines: list[Any]) -> None:
    await nodes.query(session(etcd, show_offline_nodes=True), "pumps")
    assert [line["node"][:12] for line in lines] == ["{NodeID: p1,", "{NodeID: p2,"]


async def test_update_pump_writes_state_and_refuses_unknown_state_or_node(etcd: MemoryEtcd, lines: list[Any]) -> None:
    await nodes.update(session(etcd, node_id="p1", state="offline"), "pumps")
    record = await Registry(etcd).get("pumps", "p1")
    assert record is not None
    assert record.status == NodeStatus(
        "p1", "p1:8250", State.OFFLINE, max_commit_ts=7, update_ts=compose(1_600_000_000_000)
    )
    with pytest.raises(CommandError, match="state gone is illegal"):
        await nodes.update(session(etcd, node_id="p1", state="gone"), "pumps")
    with pytest.raises(NodeNotFound, match="key /tidb-binlog/v1/pumps/p9 in etcd not found"):
        await nodes.update(session(etcd, node_id="p9", state="offline"), "pumps")
    with pytest.raises(CommandError, match="one of online, pausing, paused, closing, offline"):
        await nodes.update(session(etcd, node_id="p1"), "pumps")
    with pytest.raises(CommandError, match=r"-node-id is required: .*binlogctl drainers"):
        await nodes.update(session(etcd, state="offline"), "drainers")


class Answering:
    """A node's status page that says what it is told to; what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.answer = Response(b'{"message": "apply action pause success!", "code": 200, "data": null}')
        actions = {f"PUT /{place}/{{node_id}}/{{action}}": self._put for place in ("state", "changefeed")}
        self.server = StatusServer("127.0.0.1:0", {}, actions=actions)

    async def _put(self, request: Request) -> Response:
        self.asked.append((request.path["node_id"], request.path["action"]))
        self.bodies.append(request.body)
        assert request.peer == "127.0.0.1"
        return self.answer


@pytest.fixture
async def node() -> AsyncIterator[Answering]:
    made = Answering()
    await made.server.start()
    yield made
    await made.server.close()


@pytest.mark.parametrize("kind", ["pump", "drainer"])
@pytest.mark.parametrize(("word", "action"), [("pause", "pause"), ("offline", "close")])
@pytest.mark.parametrize("label", [True, False], ids=["ours", "the original's"])
async def test_pause_and_offline_commands_send_action_to_status_address(
    node: Answering, lines: list[Any], kind: str, word: str, action: str, label: bool
) -> None:
    """Ours say in a label where their page is; the original's answer at the address of their record."""
    etcd, addr = MemoryEtcd(), node.server.addr
    host, labels = ("h:8250", {"status": addr}) if label else (addr, None)
    status = NodeStatus("host 1:8250", host, State.ONLINE, label=labels)
    await Registry(etcd).create("pumps" if kind == "pump" else "drainers", status)
    await COMMANDS[f"{word}-{kind}"](session(etcd, node_id="host 1:8250"))
    assert node.asked == [("host 1:8250", action)]
    assert lines[-1]["event"] == "Apply action on node success"


@pytest.mark.parametrize(
    ("command", "flags", "action", "body"),
    [
        ("pause-changefeed", {}, "pause", {}),
        ("resume-changefeed", {}, "resume", {}),
        ("update-changefeed", {"delay": "1h"}, "update", {"delay": "1h"}),
        ("update-changefeed", {"delay": "0", "stop_at": "7"}, "update", {"delay": "0", "stop-at": "7"}),
        ("decide-ddl", {"job_id": 7, "skip": True}, "decide-ddl", {"job-id": 7, "action": "skip"}),
        ("decide-ddl", {"job_id": 7, "run_again": True}, "decide-ddl", {"job-id": 7, "action": "run-again"}),
        ("decide-ddl", {"job_id": 7, "sql": "x"}, "decide-ddl", {"job-id": 7, "action": "replace", "sql": "x"}),
        (
            "decide-transaction",
            {"commit_ts": 7, "skip": True, "yes": True},
            "decide-transaction",
            {"commit-ts": 7, "action": "skip"},
        ),
        (
            "decide-transaction",
            {"commit_ts": 7, "run_again": True},
            "decide-transaction",
            {"commit-ts": 7, "action": "run-again"},
        ),
    ],
)
async def test_changefeed_commands_ask_the_drainer(
    node: Answering, lines: list[Any], command: str, flags: dict[str, Any], action: str, body: dict[str, object]
) -> None:
    etcd = MemoryEtcd()
    await Registry(etcd).create("drainers", NodeStatus("d:1", node.server.addr, State.ONLINE))
    await COMMANDS[command](session(etcd, node_id="d:1", **flags))
    assert node.asked == [("d:1", action)] and json.loads(node.bodies[0]) == body
    assert lines[-1]["event"] == "Changefeed request success"


async def test_changefeed_command_fails_if_the_drainer_refuses_or_a_flag_is_missing(node: Answering) -> None:
    etcd = MemoryEtcd()
    await Registry(etcd).create("drainers", NodeStatus("d", node.server.addr, State.ONLINE))
    node.answer = Response(b'{"message": "stop-at 5: applied", "code": 409, "data": null}', status=409)
    with pytest.raises(Refused, match=r"drainer d at .*: stop-at 5: applied"):
        await COMMANDS["update-changefeed"](session(etcd, node_id="d", stop_at="5"))
    for flags in ({}, {"job_id": 7}, {"job_id": 7, "skip": True, "sql": "x"}):
        with pytest.raises(Misused, match="needs -job-id, and one of"):
            await COMMANDS["decide-ddl"](session(etcd, node_id="d", **flags))
    for flags in ({"skip": True}, {"commit_ts": 7}, {"commit_ts": 7, "skip": True, "run_again": True}):
        with pytest.raises(Misused, match="needs -commit-ts, and one of"):
            await COMMANDS["decide-transaction"](session(etcd, node_id="d", **flags))
    with pytest.raises(Refused, match="will be lost downstream: confirm with -yes"):
        await COMMANDS["decide-transaction"](session(etcd, node_id="d", commit_ts=7, skip=True))
    with pytest.raises(Misused, match="needs -delay, -stop-at, or both"):
        await COMMANDS["update-changefeed"](session(etcd, node_id="d"))
    await node.server.close()
    with pytest.raises(NodeSilent, match=r"drainer d .* does not answer"):
        await COMMANDS["pause-changefeed"](session(etcd, node_id="d"))


async def test_pause_command_fails_if_node_refuses_or_does_not_answer(node: Answering) -> None:
    """Upstream's tool calls both a success."""
    etcd = MemoryEtcd()
    await Registry(etcd).create("pumps", NodeStatus("p", node.server.addr, State.PAUSED))
    node.answer = Response(b'{"message": "this pump\'s state is paused, apply pause failed!", "code": 3, "data": null}')
    with pytest.raises(CommandError, match="this pump's state is paused, apply pause failed!"):
        await nodes.ask(session(etcd, node_id="p"), "pumps", "pause")
    node.answer = Response(b"404: Not Found")
    with pytest.raises(CommandError, match="not the answer of a node: b'404"):
        await nodes.ask(session(etcd, node_id="p"), "pumps", "pause")
    await node.server.close()
    with pytest.raises(CommandError, match=r"does not answer.*SIGTERM.*update-pump -node-id p -state offline"):
        await nodes.ask(session(etcd, node_id="p"), "pumps", "close")
    with pytest.raises(NodeNotFound):
        await nodes.ask(session(etcd, node_id="q"), "pumps", "close")


async def test_run_refuses_unknown_command_and_invalid_pd_urls() -> None:
    with pytest.raises(Misused, match="cmd fly not supported"):
        await run(Options(cmd="fly"), LogOutput())
    with pytest.raises(CommandError, match="-pd-urls ftp://x:1"):
        await run(Options(pd_urls="ftp://x:1"), LogOutput())


# --- generate_meta ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["", "+08:00", "Asia/Shanghai", "UTC"])
def test_savepoint_file_is_toml_with_time_in_comment(zone: str, tmp_path: Path) -> None:
    """Upstream's time lines made the file unreadable; they are comments here."""
    commit_ts = compose(1_600_000_000_000, 5)
    text = timestamps.savepoint_text(commit_ts, timestamps.parse_zone(zone) if zone else None)
    path = timestamps.write_savepoint(tmp_path / "new" / "dir", text)
    assert path.name == "savepoint"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o644
    assert tomllib.loads(path.read_text()) == {"commitTS": commit_ts}
    assert ("20:26:40 +0800" in text) is (zone in ("+08:00", "Asia/Shanghai"))
    timestamps.write_savepoint(tmp_path / "new" / "dir", "commitTS = 1\n")
    assert [p.name for p in path.parent.iterdir()] == ["savepoint"]


def test_parse_zone_reads_local_and_refuses_unknown_zone() -> None:
    with pytest.raises(CommandError, match="Mars/Olympus"):
        timestamps.parse_zone("Mars/Olympus")
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert moment.astimezone(timestamps.parse_zone("Local")) == moment  # Go's name for this machine's
    assert timestamps.parse_zone("Local").utcoffset(None) == datetime.now().astimezone().utcoffset()


# --- settle ----------------------------------------------------------------------------------------------------------


async def test_settle_without_start_ts_lists_pending_prewrites(shop: Shop, lines: list[Any]) -> None:
    await abandoned(shop)
    await settle.settle(session(shop.etcd))
    inspected, pending = [line for line in lines if line["log_level"] == "info"][-2:]
    assert (inspected["event"], inspected["node_id"], inspected["pending"]) == ("inspect", "a", 1)
    assert (pending["event"], pending["start_ts"], pending["bytes"], pending["key"]) == (
        "pending prewrite",
        100,
        18,
        "7401",
    )


async def test_inspect_suggests_rollback_for_copy_committed_on_another_pump(shop: Shop, lines: list[Any]) -> None:
    pump, service = await abandoned(shop)
    other = await shop.add("b")
    other.store(pump.payloads[-1])
    await service.client.commit(100, 105)
    await settle.inspect(session(shop.etcd))
    assert lines[-1]["settle_with"] == "-rollback (another pump has its commit at 105)"


@pytest.mark.parametrize("how", [{"commit_ts": 105}, {"rollback": True}])
async def test_settle_commits_or_rolls_back_named_prewrite(shop: Shop, how: dict[str, Any]) -> None:
    pump, _ = await abandoned(shop)
    await settle.settle(session(shop.etcd, node_id="a", start_ts=100, yes=True, **how))
    assert not pump.pending
    assert pump.commits == ({100: 105} if "commit_ts" in how else {})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"node_id": "a", "start_ts": 100, "rollback": True}, "confirm with -yes"),
        ({"node_id": "a", "start_ts": 100, "yes": True}, "-commit-ts N or -rollback is required"),
        (
            {"node_id": "a", "start_ts": 100, "commit_ts": 105, "rollback": True, "yes": True},
            "-commit-ts N or -rollback is required",
        ),
        ({"node_id": "a", "start_ts": 100, "commit_ts": 99, "yes": True}, "commit ts 99 is not after start ts 100"),
        ({"node_id": "a", "start_ts": 101, "rollback": True, "yes": True}, "has no pending prewrite 101"),
        ({"node_id": "z", "start_ts": 100, "rollback": True, "yes": True}, "there is no pump z"),
        ({"start_ts": 100, "rollback": True, "yes": True}, "-node-id is required"),
        ({"commit_ts": 105}, "-start-ts or -all is required"),
    ],
)
async def test_settle_refuses_incomplete_or_contradictory_options(
    shop: Shop, options: dict[str, Any], why: str
) -> None:
    pump, _ = await abandoned(shop)
    with pytest.raises(CommandError, match=why):
        await settle.settle(session(shop.etcd, **options))
    assert set(pump.pending) == {100}


async def test_settle_of_ddl_prewrite_requires_outcome_of_published_job(shop: Shop, lines: list[Any]) -> None:
    """The writer died after publishing the job, before the commit: it is committed, at FinishedTS and nothing else."""
    service = await shop.service()
    pump = shop.pumps["a"]
    pump.faults.extend([Fault.ERRMSG] * 100_000)
    pump.only = lambda envelope: envelope.commit_ts != 0
    task = asyncio.create_task(service.create_database("shop"))
    while not await shop.jobs():  # noqa: ASYNC110  the etcd in memory has nothing else to wait on
        await asyncio.sleep(0.005)
    task.cancel()
    (job,) = await shop.jobs()
    await settle.inspect(session(shop.etcd))
    assert lines[-1]["settle_with"] == f"-commit-ts {job.finished_ts}"
    asked = {"node_id": "a", "start_ts": job.start_ts, "yes": True}
    with pytest.raises(CommandError, match=f"settle it with -commit-ts {job.finished_ts}"):
        await settle.settle(session(shop.etcd, rollback=True, **asked))
    with pytest.raises(CommandError, match="or -force"):
        await settle.settle(session(shop.etcd, commit_ts=job.finished_ts + 1, **asked))
    await settle.settle(session(shop.etcd, commit_ts=job.finished_ts, **asked))
    assert pump.commits == {job.start_ts: job.finished_ts}


async def test_inspect_reports_other_pumps_before_error_for_silent_ones(shop: Shop, lines: list[Any]) -> None:
    await abandoned(shop)
    gone = await shop.add("b")
    go = await shop.add("c", extension=False)
    await gone.stop()
    with pytest.raises(CommandError, match="no answer from b, c"):
        await settle.inspect(session(shop.etcd))
    assert any(line["event"] == "inspect" and line["node_id"] == "a" for line in lines)
    assert any("is not one of our pumps" in line.get("error", "") for line in lines)
    assert go.addr
