"""Every file of a small store cut and flipped at every byte: a start recovers all that was acknowledged, or says which
file is damaged and where. CRASH_BYTES=all tries every byte of the index too, and every pattern."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.damaged import Judged, judged, small_store
from tests.crash.journal import Journal, check

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
async def test_recovered_or_named(memory_path: Path, pattern: str, step: int, damage: object) -> None:
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


async def test_the_damage_stays_named(tmp_path: Path) -> None:
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


async def test_a_file_of_the_log_that_is_gone(tmp_path: Path) -> None:
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
