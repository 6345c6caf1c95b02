"""The lake demo as a user starts it, short: its mirrors and a JOIN of two of them are the shop's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_demo_kafka import tails
from tests.support.lake_case import jars
from tests.support.servers import ROOT, require_java

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(900)]


def test_lake_demo_mirrors_and_their_join_equal_shop_tables(tmp_path: Path) -> None:
    require_java()
    assert jars()
    directory = tmp_path / "demo"
    command = [sys.executable, "-m", "demo.lake", "--seconds", "5", "--rate", "40", "--directory", str(directory)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{tails(directory)}"
    assert len(re.findall(r"│ equal │", ran.stdout)) == 7
    assert re.search(r"│ totals +│ +[1-9]", ran.stdout)
    assert "differs" not in ran.stdout
    assert "ALTER TABLE orders ADD COLUMN note" in ran.stdout
    assert "pump-1 is serving again" in ran.stdout
    versions = re.search(r"versions of the mirrors: (.*)", ran.stdout)
    assert versions is not None
    assert all(int(count) > 1 for count in re.findall(r"\d+", versions[1])), versions[1]
