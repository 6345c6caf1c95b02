"""Comparisons on a schedule: when they run, and what is shown of them."""

from __future__ import annotations

import asyncio
import multiprocessing.process
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from binlog.cluster import tso
from binlog.errors import ConfigError
from prometheus_client import REGISTRY

from drainer.config import Config
from drainer.service.status import page
from drainer.service.verification import Found, Verifier, compared, until_hours_s
from drainer.sink.base import Verification
from tests.support.servers import ROOT, wait_until
from tests.unit.drainer.service.test_page import DOCUMENT

NOW = tso.compose(int(time.time() * 1000), 0)
HOUR = tso.compose(3_600_000, 0)
EQUAL, OLDER = Verification(1, "a.b", NOW, NOW), Verification(2, "a.c", NOW - HOUR, NOW - HOUR)


def config(**upstream: object) -> Config:
    return Config.model_validate({"node-id": "d", "upstream": {"host": "tidb", "check-interval": "1h"} | upstream})


async def ran(found: Sequence[Found | OSError], stored: Iterable[Verification] = (), **upstream: object) -> Verifier:
    """A verifier whose comparisons have ended as `found` says; then one is under way that does not end."""
    left, under_way = list(found), asyncio.Event()

    async def compare(_: Config) -> Found:
        if not left:
            under_way.set()
            await asyncio.Event().wait()
        result = left.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    verifier = Verifier(config(**upstream), stored, compare)
    running = asyncio.ensure_future(verifier.run())
    async with asyncio.timeout(20):
        await under_way.wait()
    running.cancel()
    return verifier


def metric(name: str) -> float | None:
    return REGISTRY.get_sample_value(f"binlog_{name}")


async def test_difference_keeps_when_a_table_was_verified_before() -> None:
    found = Found((Verification(1, "a.b", 0, NOW, 3), OLDER))
    verifier = await ran([Found((OLDER, Verification(1, "a.b", NOW - HOUR, NOW - HOUR))), found], **FREQUENT)
    assert verifier.document() == {
        "VerifiedThrough": NOW - HOUR,
        "VerifyError": "",
        "Verified": [
            {"table_id": 1, "table": "a.b", "verified_ts": NOW - HOUR, "checked_ts": NOW, "differences": 3},
            {"table_id": 2, "table": "a.c", "verified_ts": NOW - HOUR, "checked_ts": NOW - HOUR, "differences": 0},
        ],
    }
    assert metric("drainer_differing_tables") == 1
    assert metric("drainer_verified_through") == tso.physical_ms(NOW - HOUR)
    shown = page({**DOCUMENT, **verifier.document()})
    assert "Tables that differ from upstream: a.b;" in shown
    assert "2 tables compared with upstream" in shown


FREQUENT = {"check-interval": "1ms"}


async def test_table_that_could_not_be_compared_keeps_its_last_comparison() -> None:
    unknown = Verification(1, "a.b", 0, 0)
    verifier = await ran([Found((unknown,), "a.b: gone")], [EQUAL, OLDER], **FREQUENT)
    assert verifier.document()["Verified"] == [asdict(EQUAL)]
    assert verifier.document()["VerifyError"] == "a.b: gone"
    assert "Not compared with upstream: a.b: gone" in page({**DOCUMENT, **verifier.document()})


async def test_failed_comparison_keeps_all_and_the_next_one_clears_the_error() -> None:
    failed = await ran([Found(error="no TiDB")], [EQUAL], **FREQUENT)
    assert (failed.document()["VerifiedThrough"], failed.document()["VerifyError"]) == (NOW, "no TiDB")
    no_process = await ran([OSError("Cannot allocate memory")], [EQUAL], **FREQUENT)
    assert no_process.document()["VerifyError"] == "Cannot allocate memory"
    mended = await ran([Found(error="no TiDB"), Found((EQUAL,))], [EQUAL], **FREQUENT)
    assert mended.document()["VerifyError"] == ""


async def test_tables_are_compared_at_once_if_one_was_never_compared_or_is_due() -> None:
    await ran([])
    await ran([], [EQUAL, OLDER])


@pytest.mark.parametrize("upstream", [{}, {"check-interval": "0"}], ids=["not due", "no interval"])
async def test_nothing_is_compared_before_it_is_due(upstream: dict[str, object]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await Verifier(config(**upstream), [EQUAL], _unexpected).run()


@pytest.mark.parametrize(
    ("hours", "at", "hours_left"),
    [
        ("", 3, 0), ("22:00-05:30", 22, 0), ("22:00-05:30", 5, 0), ("22:00-05:30", 5.5, 16.5), ("22:00-05:30", 21, 1),
        ("01:00-02:00", 0, 1), ("01:00-02:00", 1.5, 0), ("01:00-02:00", 2, 23), ("07:00-07:00", 6, 0),
    ],
)  # fmt: skip
def test_time_until_the_hours_of_comparisons(hours: str, at: float, hours_left: float) -> None:
    assert until_hours_s(hours, 5 * 86_400 + at * 3600) == hours_left * 3600


async def test_nothing_is_compared_outside_its_hours() -> None:
    begin, end = (time.strftime("%H:%M", time.gmtime(time.time() + hours * 3600)) for hours in (2, 4))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await Verifier(config(**{"check-hours": f"{begin}-{end}"}), [], _unexpected).run()
    await ran([], **{"check-hours": f"{end}-{begin}"})


@pytest.mark.parametrize("hours", ["22-05", "24:00-01:00", "22:00", "1:00-2:00"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match="check-hours"):
        config(**{"check-hours": hours})


async def _unexpected(_: Config) -> Found:
    raise AssertionError("compared")


async def test_comparison_is_a_process_that_says_why_it_failed() -> None:
    found = await compared(Config.model_validate({"node-id": "d"}))
    assert found == Found(
        error="upstream.host: name a TiDB to read; a service has no store to read, see Service.snapshot"
    )


async def process_of(comparing: asyncio.Future[Found]) -> list[multiprocessing.process.BaseProcess]:
    """The call starts it before it first waits."""
    await asyncio.wait([comparing], timeout=0)
    found = multiprocessing.active_children()
    assert found
    return found


async def test_process_ends_with_the_drainer() -> None:
    comparing = asyncio.ensure_future(compared(config()))
    children = await process_of(comparing)
    comparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await comparing
    assert all(not child.is_alive() for child in children)


KILLED = """
import asyncio, multiprocessing
from drainer.config import Config
from drainer.service import check, verification

async def endless(*_):
    await asyncio.Event().wait()

def process(*arguments):
    check.check = endless
    verification._process(*arguments)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=process, args=(context.Pipe()[1], Config.model_validate({"node-id": "d"})))
    child.start()
    print(child.pid, flush=True)
    child.join()
"""


def test_process_ends_when_the_drainer_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    drainer = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    assert drainer.stdout is not None
    pid = int(drainer.stdout.readline())
    wait_until(lambda: is_running(pid), what="the process has begun")
    drainer.kill()
    drainer.wait(30)
    drainer.stdout.close()
    wait_until(lambda: not is_running(pid), what="the process has ended")


def is_running(pid: int) -> bool:
    """One that has ended, and whose parent has not asked for it, has no command line; nor has one for a moment that is
    being started."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


async def test_process_that_dies_is_an_error() -> None:
    comparing = asyncio.ensure_future(compared(config()))
    for child in await process_of(comparing):
        child.kill()
    assert "ended early" in (await comparing).error


def test_page_names_some_of_many_tables_that_differ() -> None:
    found = [Verification(n, f"a.t{n:02}", 0, NOW, 1) for n in range(12)]
    shown = page({**DOCUMENT, **Verifier(config(), found).document()})
    assert "a.t08, a.t09 and 2 more" in shown
    assert "not all tables yet" in shown


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"upstream": {"check-interval": "1h"}}, "upstream.check-interval needs upstream.host"),
        (
            {"upstream": {"host": "h", "check-interval": "1h"}, "syncer": {"db-type": "file"}},
            "a destination of db-type file has no tables",
        ),
    ],
)
def test_schedule_that_cannot_be_kept_is_refused(values: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config.model_validate({"node-id": "d"} | values).check()
