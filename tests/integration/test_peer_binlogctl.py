"""The original's binlogctl on records of ours, labels included. A desk test: skipped without PEER_BIN, in CI too."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.runtime.encrypt import KEY_VARIABLE, decrypt

from pumpclient.ctl.__main__ import main
from tests.integration.pump.test_process import pump
from tests.peer.cluster import peer_bin
from tests.peer.marks import desk_test
from tests.support.servers import Etcd, free_port

BINARIES = peer_bin()

pytestmark = desk_test(600)


def binlogctl(etcd: Etcd, *words: str) -> str:
    argv = [str((BINARIES or Path()) / "binlogctl"), "-pd-urls", etcd.endpoint, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True)
    return ran.stdout + ran.stderr


def test_go_binlogctl_lists_and_updates_labelled_pump_and_keeps_labels(etcd: Etcd) -> None:
    """R-02: it lists a pump that is paused, final, and forces it offline; what the pump said of itself stays."""

    async def with_registry(work: Callable[[Registry], Awaitable[NodeStatus | None]]) -> NodeStatus | None:
        store = connect_etcd([etcd.endpoint])
        try:
            return await work(Registry(store))
        finally:
            await store.close()

    async def put(registry: Registry) -> None:
        labels = {"status": "127.0.0.1:9250", "final": "true"}
        status = NodeStatus("p1", "127.0.0.1:8250", State.PAUSED, label=labels, max_commit_ts=42, update_ts=1 << 58)
        await registry.create("pumps", status)

    async def read(registry: Registry) -> NodeStatus | None:
        found = await registry.get("pumps", "p1")
        return found.status if found else None

    asyncio.run(with_registry(put))
    assert "NodeID: p1, Addr: 127.0.0.1:8250, State: paused, MaxCommitTS: 42" in binlogctl(etcd, "-cmd", "pumps")
    binlogctl(etcd, "-cmd", "update-pump", "-node-id", "p1", "-state", "offline")
    left = asyncio.run(with_registry(read))
    assert left is not None
    assert (left.state, left.max_commit_ts) == (State.OFFLINE, 42)
    assert left.label == {"status": "127.0.0.1:9250", "final": "true"}


def test_go_binlogctl_takes_our_pump_offline(tmp_path: Path, etcd: Etcd) -> None:
    """Over HTTP at the address of gRPC, which is the one it finds in the registry. Pauses, and drainers:
    test_peer_migration.py."""
    server = pump(tmp_path, etcd, "p1", free_port()).start()
    try:
        server.wait_for_output("pump is serving")
        binlogctl(etcd, "-cmd", "offline-pump", "-node-id", "p1")
        assert server.wait(deadline_s=240) == 0, server.tail()
    finally:
        server.kill()

    async def read() -> State | None:
        store = connect_etcd([etcd.endpoint])
        try:
            found = await Registry(store).get("pumps", "p1")
            return found.status.state if found else None
        finally:
            await store.close()

    assert asyncio.run(read()) is State.OFFLINE


@pytest.mark.parametrize("key", ["", "00112233445566778899aabbccddeeff"])
def test_text_encrypted_by_go_binlogctl_is_decrypted(key: str, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-13: with its own key, which is public, and with one of the operator's."""
    monkeypatch.setenv(KEY_VARIABLE, key)
    said = binlogctl(etcd, "-cmd", "encrypt", "-text", "pässw0rd =]")
    assert decrypt(said.partition("[encrypted=")[2].partition("]")[0].strip('"')) == "pässw0rd =]"


_LINE = re.compile(r'\[[^\]]+\] \[(INFO|FATAL)\] \[[^\]]+\] \["?([^"\]]*)"?\](.*)')
_FACT = re.compile(r' \[(\w+)=("(?:[^"\\]|\\.)*"|[^\]]*)\]')


def lines_of(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """(level, message, facts) of each line of a log."""
    found = [match for line in text.splitlines() if (match := _LINE.match(line))]
    return [
        (match[1], match[2], {name: value.strip('"') for name, value in _FACT.findall(match[3])}) for match in found
    ]


@pytest.mark.parametrize("words", [["-cmd", "pumps"], ["-cmd", "drainers"], ["-cmd", "fly"]], ids=" ".join)
def test_binlogctl_prints_same_lines_as_go_binlogctl(
    words: list[str], etcd: Etcd, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts read them. Ours says where nothing is listed, and more of an error. An unknown command is a bad command
    line here, which both end with 2; theirs ends with 1 for this one (docs/compatibility.md)."""

    async def put() -> None:
        store = connect_etcd([etcd.endpoint])
        try:
            status = NodeStatus("p1", "127.0.0.1:8250", State.PAUSED, max_commit_ts=42, update_ts=1 << 58)
            await Registry(store).create("pumps", status)
        finally:
            await store.close()

    asyncio.run(put())
    argv = ["-pd-urls", etcd.endpoint, *words]
    program = str((BINARIES or Path()) / "binlogctl")
    theirs = subprocess.run([program, *argv], capture_output=True, text=True, timeout=240, check=False)
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert (stopped.value.code, theirs.returncode) == ((2, 1) if words[-1] == "fly" else (0, 0))
    wanted = lines_of(theirs.stdout + theirs.stderr)
    found = lines_of(capsys.readouterr().out)
    assert len(wanted) == (0 if words[-1] == "drainers" else 1)
    for (level, message, facts), (our_level, our_message, ours) in zip(wanted, found, strict=False):
        assert (our_level, our_message) == (level, message)
        for name in facts.keys() - {"errorVerbose", "stack"}:
            said = facts[name].partition("UpdateTime: ")[0]
            assert ours[name][: len(said)] == said, name
