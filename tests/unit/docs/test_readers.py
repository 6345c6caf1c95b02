"""What docs/kafka.md says that programs of others cannot do is what a test shows."""

from __future__ import annotations

import re

from tests.support.servers import ROOT

TEST = "tests/integration/sink/test_connect.py"


def test_reader_errors_in_kafka_page_occur_in_connect_test() -> None:
    _, _, table = (ROOT / "docs/kafka.md").read_text().partition("This is what they cannot do:")
    cells = [line.split("|")[3] for line in table.splitlines() if line.startswith("|")][2:]
    told = {error for cell in cells for error in re.findall(r"[a-zT]: `([^`]+)`", cell)}
    shown = (ROOT / TEST).read_text()
    assert len(told) == 3
    assert {error for error in told if error not in shown} == set()
