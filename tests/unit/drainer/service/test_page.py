"""The drainer's page for people."""

from __future__ import annotations

from typing import Any

import pytest

from drainer.service.status import StartingPages, page, starting_page
from drainer.sink.retry import Failures

DOCUMENT: dict[str, Any] = {
    "PumpPos": {"p1": 5}, "Synced": False, "LastTS": 5, "TsMap": "",
    "NodeID": "d1", "Destination": "mysql:h:3306", "Phase": "", "Standbys": [], "Building": [],
    "VerifiedThrough": 0, "VerifyError": "", "Verified": [],
    "Position": 470613758409441279, "PositionTime": "2026-11-21 08:16:57.369 +00:00 #1", "Watermark": 5,
    "LagSeconds": 0.25, "RowsApplied": 12345, "DDLsApplied": 2, "LastDDL": "CREATE TABLE `a` (`b` INT)",
    "Batches": {"driver": 3, "distributed": 1}, "LastBatch": {"mode": "driver", "bytes": 2048}, "Duplicates": 0,
    "HeldBack": "", "HeldBackBy": "", "HeldBackSeconds": 0, "Slowest": "p1", "WaitingFor": "", "BatchSeconds": 0,
    "Paused": False, "PausedBy": "", "PausedSeconds": 0, "StopAt": 0, "DelaySeconds": 0.0,
    "LargeTransaction": {"step": "", "bytes": 0, "of": 0},
    "Error": "", "ErrorTime": "", "ErrorSeconds": 0, "ErrorTries": 0, "LastError": "", "LastErrorTime": "",
    "Pumps": [
        {"node": "p1", "host": "h:8250", "state": "online", "counts": True, "resolved": 470613758409441279,
         "error": "", "downSeconds": 0, "pending": 0, "oldestPending": [], "lateCommits": 0, "lateCommitTS": [],
         "leftAt": 0, "missed": 0, "missedTS": []}
    ],
}  # fmt: skip


def test_status_page_of_healthy_drainer_has_no_alarm() -> None:
    text = page(DOCUMENT)
    assert 'class="alarm' not in text
    assert "0.2 s" in text and "12,345" in text and "2026-11-21 08:16:57<" in text and "last: driver, 2 KiB" in text


def test_status_page_shows_alarm_for_each_state_that_needs_operator() -> None:
    pump = {
        **DOCUMENT["Pumps"][0],
        "error": "refused",
        "downSeconds": 90.0,
        "pending": 1,
        "oldestPending": [{"startTS": 7, "ageMs": 60_000, "ddlJobID": 3, "writer": "ab12"}],
        "lateCommits": 1,
        "lateCommitTS": [9],
    }
    held = {"HeldBack": "held back by pump p1", "HeldBackSeconds": 75}
    text = page({**DOCUMENT, "Pumps": [pump], **held, "WaitingFor": "DDL job 3"})
    assert text.count('class="alarm') == 4
    assert "for 1 min 15 s: held back by pump p1" in text
    for words in (
        "held back by pump p1",
        "Waiting for DDL job 3",
        "its resolved ts: 9",
        "pending for 1 min 0 s",
        "ab12",
    ):
        assert words in text
    assert "down for 1 min 30 s: refused" in text and "down (registered as online)" in text
    assert 'class="value warn">0.2 s' in text, "a lag beside a watermark that is held back is not good"


@pytest.mark.parametrize(("seconds", "mood"), [(2.0, "warn"), (45.0, "bad")])
def test_status_page_failure_turns_red_after_a_while(seconds: float, mood: str) -> None:
    """A DDL that waits for a lock fails for a moment."""
    text = page({**DOCUMENT, "Error": "DDL: locked", "ErrorTime": "now", "ErrorSeconds": seconds, "ErrorTries": 3})
    assert f'class="alarm {mood}">Failing since now' in text


def test_status_page_shows_failure_tries_and_missed_binlogs() -> None:
    pump = {**DOCUMENT["Pumps"][0], "missed": 2, "missedTS": [{"startTS": 5, "commitTS": 6}]}
    failing = {
        "Error": "h:3306: refused",
        "ErrorTime": "2026-11-21 10:00:00+00:00",
        "ErrorSeconds": 90,
        "ErrorTries": 31,
    }
    text = page({**DOCUMENT, "Pumps": [pump], **failing, "BatchSeconds": 95})
    assert text.count('class="alarm') == 3
    for words in ("since 2026-11-21 10:00:00", "31 tries in 1 min 30 s: h:3306: refused", "2 binlogs", "5 → 6"):
        assert words in text
    assert "has been running for 1 min 35 s" in text


def test_status_page_while_spark_starts_shows_phase() -> None:
    text = page({**DOCUMENT, "Phase": "starting Spark", "Position": 0, "Pumps": []})
    assert "starting Spark" in text and "the beginning" in text and "1970" not in text


def test_status_page_while_destination_is_opened_shows_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainer.service.status.FAILURES", Failures())  # other tests fail in this process too
    document = StartingPages("d1", "db:3306").document()
    text = starting_page(document)
    assert "opening the destination" in text and 'class="alarm' not in text
    failing = {"Error": "db:3306: refused", "ErrorTime": "now", "ErrorSeconds": 3, "ErrorTries": 4}
    assert "4 tries in 3.0 s: db:3306: refused" in starting_page({**document, **failing})


def test_status_page_shows_progress_of_large_transaction() -> None:
    large = {"step": "applying", "bytes": 120 << 20, "of": 240 << 20}
    text = page({**DOCUMENT, "LargeTransaction": large, "BatchSeconds": 95})
    assert "applying a large transaction: 120 MiB of 240 MiB in 1 min" in text.replace(".0", "")
    assert "The current batch" not in text


async def test_pages_name_standby_and_the_drainer_that_it_waits_for() -> None:
    assert " · standby: h2:8249, h3:8249" in page({**DOCUMENT, "Standbys": ["h2:8249", "h3:8249"]})
    assert "Building an index beside the stream: ALTER x (5 s)" in page({**DOCUMENT, "Building": ["ALTER x (5 s)"]})
    pages = StartingPages("d1", "mysql:h:3306")
    assert (await pages.ready()).status == 503
    pages.wait_for("h1:8249")
    assert "standby of h1:8249" in (await pages.home()).body.decode()
    assert (await pages.ready()).status == 200
    pages.wait_for("")
    assert pages.document()["Phase"] == "opening the destination"


def test_status_page_shows_pause_delay_and_end_with_their_commands() -> None:
    """A lag that is meant is no alarm."""
    text = page({**DOCUMENT, "DelaySeconds": 3600.0, "LagSeconds": 3601.0, "StopAt": 470613758409441279})
    assert 'class="alarm' not in text and 'class="value warn"' not in text
    for words in ("stays behind by", "-node-id d1 -delay 0", "stops at", "470613758409441279", "-stop-at 0"):
        assert words in text
    text = page({**DOCUMENT, "Paused": True, "PausedBy": "10.0.0.7 (ops)", "PausedSeconds": 75})
    assert text.count('class="alarm') == 1 and 'class="value warn"' in text
    assert "Paused for 1 min 15 s by 10.0.0.7 (ops); to resume: binlogctl resume-changefeed -node-id d1" in text
