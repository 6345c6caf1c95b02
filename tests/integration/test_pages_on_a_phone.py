"""Status pages on a narrow screen: nothing lies beside it, and every label and cell can be read, also of what fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from drainer.service.status import page as drainer_page
from tests.support.browser import PHONE, look, running_chromium
from tests.unit.drainer.service.test_page import DOCUMENT
from tests.unit.pump.status.test_page import draw

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NODE = "binlog-pump-0.binlog-pump.tidb-cluster.svc.cluster.local:8250"
REFUSED = "pump 10.11.12.13:8250 does not answer: [Errno 111] Connect call failed ('10.11.12.13', 8250)"
LONG_WORD = 40  # it does not fit into a line
PENDING = {"startTS": 470613758409441279, "ageMs": 90_000, "ddlJobID": 12345, "writer": "ab12" * 8}
DOWN = {
    **DOCUMENT["Pumps"][0], "node": NODE, "host": NODE, "error": REFUSED, "downSeconds": 90.0, "pending": 1,
    "oldestPending": [PENDING], "lateCommits": 1, "lateCommitTS": [470613758409441279], "missed": 2,
    "missedTS": [{"startTS": 470613758409441279, "commitTS": 470613758409441280}],
}  # fmt: skip
FAILING = {
    **DOCUMENT, "Pumps": [DOWN, *DOCUMENT["Pumps"]], "NodeID": NODE, "Error": REFUSED, "ErrorTries": 31,
    "ErrorTime": "2026-11-21 10:00:00+00:00", "ErrorSeconds": 90, "HeldBack": f"held back by pump {NODE}",
    "HeldBackSeconds": 75, "WaitingFor": "DDL job 3", "LagSeconds": 100_000.0, "BatchSeconds": 95,
    "LastDDL": "CREATE TABLE `shop`.`a_table_with_a_name_that_is_rather_long_for_a_table` (`id` BIGINT PRIMARY KEY)",
}  # fmt: skip
PAGES = {
    "drainer": lambda: drainer_page(DOCUMENT),
    "drainer-failing": lambda: drainer_page(FAILING),
    "pump": draw,
    "pump-failing": lambda: draw(
        nodeId=NODE, state="pausing", usurped="offline", lateCommitCount=1, lateCommitTS=[PENDING["startTS"]],
        logBroken=f"value log /var/lib/tidb-binlog/{NODE}/value/000123.vlog is broken since a write failed: EIO",
        damage=[f"/var/lib/tidb-binlog/{NODE}/value/000123.vlog at byte 123456789: checksum mismatch"],
        pendingCount=1, belowGCSafePointCount=1,
        pending=[{"startTS": PENDING["startTS"], "ageSeconds": 90.0, "ddlJobID": 1, "prewriteKey": "74800000" * 8}],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_in_sight(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(PAGES[name]())
    found = look(browser, path.as_uri(), tmp_path / f"{name}.png", size=PHONE, dark=False)
    assert found.width <= PHONE[0], "it must be moved sideways"
    assert found.hidden == []
    assert found.problems == []
    assert [word for word in found.cut if len(word) < LONG_WORD] == []


@pytest.mark.parametrize(
    "style", ["td{white-space:nowrap!important}", "td.prose{display:none!important}", "td::before{display:none}"]
)
def test_what_is_out_of_sight_is_found(browser: Browser, tmp_path: Path, style: str) -> None:
    path = tmp_path / "broken.html"
    path.write_text(PAGES["drainer-failing"]().replace("</style>", style + "</style>"))
    found = look(browser, path.as_uri(), tmp_path / "broken.png", size=PHONE, dark=False)
    assert found.hidden != [] or found.width > PHONE[0]
