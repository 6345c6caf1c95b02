"""Every file of a small store cut and flipped at every byte: a start recovers all that was acknowledged, or says which
file is damaged and where. CRASH_BYTES=all tries every byte of the index too, and every pattern."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from binlog.cluster.timestamp import BOUND_KEY
from binlog.cluster.tso import compose
from binlog.errors import ConfigError

from pump.cluster.election import Election
from pump.cluster.node import check_same_node, node_id
from pump.index.leveldb import Index
from tests.crash.damaged import Judged, judged, small_store
from tests.crash.journal import Journal, check
from tests.integration.pump.rpc import until
from tests.support.memory_etcd import MemoryEtcd

ALL = os.environ.get("CRASH_BYTES") == "all"
PATTERNS = (0x01, 0x80, 0xFF) if ALL else (0,)  # 0: another bit at each byte
INDEX_STEP = 1 if ALL else 7
LOST = ("is lost", "is neither pending nor served")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder that no disk has to sync, where the machine has one: the stores are opened two thousand times."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="damage-", dir="/dev/shm") as made:
        yield Path(made)


def cuts(data: bytes, step: int) -> Iterator[tuple[str, bytes]]:
    for at in range(0, len(data), step):
        yield f"cut at {at}", data[:at]


def flips(data: bytes, step: int) -> Iterator[tuple[str, bytes]]:
    for pattern in PATTERNS:
        for at in range(0, len(data), step):
            mask = pattern or 1 << at % 8
            yield f"byte {at} XOR {mask:#x}", data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize(
    ("pattern", "step"),
    [
        ("value/*.vlog", 1),
        ("checkpoint", 1),
        ("kv/CURRENT", 1),
        ("kv/MANIFEST-*", 3 if not ALL else 1),
        ("kv/*.ldb", INDEX_STEP),
        ("kv/*.log", INDEX_STEP),
    ],
)
async def test_store_with_damaged_byte_recovers_or_names_the_file(
    memory_path: Path, pattern: str, step: int, damage: object
) -> None:
    """No loss without a word, and whatever is damaged, nothing is served that was not written, twice or out of order.
    Where the index is refused, what its error advises brings everything back."""
    assert damage in (cuts, flips)
    source = memory_path / "store"
    journal = await small_store(source)
    count = 0
    for path in sorted(source.glob(pattern)):
        for what, data in (cuts if damage is cuts else flips)(path.read_bytes(), step):
            here = memory_path / f"{path.name}{count}"
            shutil.copytree(source, here, ignore=shutil.ignore_patterns("LOG*"))
            (here / path.relative_to(source)).write_bytes(data)
            count += 1
            case = f"{path.relative_to(source)}: {what}"
            found = await judged(here)
            judge(journal, found, here, case)
            if not found.started:
                shutil.rmtree(here / "kv")
                found = await judged(here)
                assert found.started, (case, found.named)
                check(journal.faults(found.served, found.pending), f"{case}, with a new index")
            shutil.rmtree(here)
    assert count >= 16 / step


def judge(journal: Journal, found: Judged, directory: Path, case: str) -> None:
    faults = journal.faults(found.served, found.pending) if found.started else []
    check([fault for fault in faults if not fault.endswith(LOST)], case)
    if faults or not found.started:
        assert found.names(directory), f"{case}: lost, and nobody says so: {faults[:3]} {found.named}"


async def test_damage_stays_named_after_every_start_and_new_index(tmp_path: Path) -> None:
    """A file of the log that was cut where a record ends has no damaged byte. The second start knows no less of it than
    the first, and neither does one with a new index."""
    source = tmp_path / "store"
    journal = await small_store(source)
    (path, _) = sorted(source.glob("value/*.vlog"))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\xe8\x56\x3a\x82", 0, data.rindex(b"\xe8\x56\x3a\x82"))])
    for _ in range(3):
        found = await judged(source)
        assert journal.faults(found.served, found.pending) == [], "what was cut off was pending, and is"
        assert any(f"{path} at byte {path.stat().st_size}: " in error for error in found.named), found.named
    shutil.rmtree(source / "kv")
    found = await judged(source)
    assert any(f"{path} at byte {path.stat().st_size}: the file has no footer" in error for error in found.named)


async def test_missing_log_file_is_named_and_its_prewrites_stay_pending(tmp_path: Path) -> None:
    """The one from which a start would read on: its prewrites stay pending, and the file is named."""
    source = tmp_path / "store"
    journal = await small_store(source)
    (path, _) = sorted(source.glob("value/*.vlog"))
    path.unlink()
    for _ in range(2):
        found = await judged(source)
        judge(journal, found, source, "without its first file")
        assert any(str(path) in error and "is missing" in error for error in found.named), found.named
        assert {ts for ts, sent in journal.sent.items() if sent.commit_ts < 0} <= found.pending


NODE = "pump-1.example:8250"


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damaged_node_file_is_refused_or_gives_same_node_id(
    tmp_path: Path, damage: Callable[[bytes, int], Iterator[tuple[str, bytes]]]
) -> None:
    """A pump with another name would leave its own record behind, for which drainers wait."""
    index, path = Index(tmp_path / "kv"), tmp_path / ".node"
    index.save_node(NODE)
    named = 0
    for what, data in damage(NODE.encode() + b"\n", 1):
        path.write_bytes(data)
        try:
            name = node_id(tmp_path, "", "127.0.0.1:8250")
            check_same_node(index.node(), name, "", tmp_path)
            assert name == NODE, what
        except ConfigError as error:
            assert str(path) in str(error) or "node id" in str(error), what
            named += 1
    assert named >= len(NODE) - 1
    check_same_node(index.node(), "pump-2", "pump-2", tmp_path)
    check_same_node("", "pump-2", "", tmp_path)
    index.close()


@pytest.mark.parametrize("damage", [cuts, flips])
async def test_damaged_tso_bound_is_refused_or_continues_above_given_timestamps(
    damage: Callable[[bytes, int], Iterator[tuple[str, bytes]]],
) -> None:
    """Whatever became of the allocator's record in etcd, the next one is above what was given out, or says which key
    is wrong."""
    now_ms = 1_795_366_599_239
    given_ts = compose(now_ms)
    refused = 0
    for what, data in damage(b"%d" % (now_ms + 3000), 1):
        etcd = MemoryEtcd()
        await etcd.put(BOUND_KEY, data)
        election = Election(etcd, log_ts_until=lambda _: given_ts, clock_ms=lambda: now_ms + 1)
        with structlog.testing.capture_logs() as lines:
            running = asyncio.create_task(election.run("127.0.0.1:1"))
            try:

                async def decided(election: Election = election, lines: list[Any] = lines) -> bool:
                    return election.leads or any(BOUND_KEY in str(line.get("error")) for line in lines)

                await until(decided)
                if election.leads:
                    assert await election.timestamps(1) > given_ts, what
                else:
                    refused += 1
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    assert refused >= 1
