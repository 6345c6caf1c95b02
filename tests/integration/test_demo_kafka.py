"""The Kafka demo as a user starts it, short: both streams arrive, in order, and make the shop's tables."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import require_kafka
from tests.support.registry import require_registry
from tests.support.servers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]


def test_kafka_demo_streams_arrive_in_order_and_equal_shop_tables(tmp_path: Path) -> None:
    require_kafka()
    require_registry()
    directory = tmp_path / "demo"
    command = [sys.executable, "-m", "demo.kafka", "--seconds", "5", "--rate", "40", "--directory", str(directory)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{appended(directory, ran.stdout)}\n{tails(directory)}"
    assert ran.stdout.count("every rule holds") == 2
    assert len(re.findall(r"│ equal │", ran.stdout)) == 2 * 6
    assert "differs" not in ran.stdout
    assert "ALTER TABLE orders ADD COLUMN note" in ran.stdout
    assert "pump-1 is serving again" in ran.stdout
    for name in ("open-protocol", "avro"):
        lines = (directory / f"{name}-events.jsonl").read_text()
        assert "ADD COLUMN" in lines
        assert all(f'"event": "{kind}"' in lines for kind in ("insert", "ddl", "resolved"))


def tails(directory: Path) -> str:
    """The ends of the programs' logs."""
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in directory.glob("*.log"))


def appended(directory: Path, output: str) -> str:
    """The batches in each partition of the topics that break a rule of order. A sequence of a producer that no batch
    has was acknowledged and is lost; a batch before an `abort` is no loss; what is here and was not read was skipped by
    the reader."""
    lines = []
    for topic in sorted(set(re.findall(r"order: [a-z-]+: ([\w.-]+)\[", output))):
        for path in sorted(directory.glob(f"kafka/data/{topic}-[0-9]*/*.log")):
            data, at = path.read_bytes(), 0
            lines.append(f"{path.parent.name}:")
            while at < len(data):
                offset, length, flags, last, *times, producer, epoch, first, count = struct.unpack_from(
                    ">qi9xhiqqqhii", data, at
                )
                what = f"sequence {first}, {count} messages" if not flags & 32 else ("abort", "commit")[data[at + 69]]
                lines.append(f"  {offset}..{offset + last} at {times[0]} ms, producer {producer}/{epoch}: {what}")
                at += 12 + length
    return "\n".join(lines)
