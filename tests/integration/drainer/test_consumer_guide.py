"""The program of docs/api-consumer.md, run on a real broker."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from drainer.batch.work import Kind
from tests.integration.drainer.test_kafka_consumer import changed, write
from tests.support.kafka import Broker
from tests.support.servers import ROOT
from tests.unit.drainer.kafka_check.test_command import ENCODER, rows

pytestmark = pytest.mark.timeout(300)


def test_program_in_consumer_page_counts_every_change_once(kafka: Broker, tmp_path: Path) -> None:
    (text,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/api-consumer.md").read_text(), re.MULTILINE | re.DOTALL
    )
    program: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, "docs/api-consumer.md", "exec"), program)
    topic, file = kafka.topic(2), tmp_path / "counts.db"
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    write(kafka, topic, [*rows((1, 10)), *ENCODER.resolved(20)], [*rows((2, 11), (3, 30)), *ENCODER.resolved(20)])

    def counted() -> list[tuple[str, int]]:
        program["main"](uri, file, once=True)
        database = sqlite3.connect(file)
        found = database.execute("SELECT name, changes FROM counts").fetchall()
        database.close()
        return found

    assert counted() == [("db.t", 2)], "the row at 30 is not resolved"
    assert counted() == [("db.t", 2)], "nothing is counted again"
    write(kafka, topic, [*changed(Kind.DELETE, 1, 0, 31), *ENCODER.resolved(40)], [*ENCODER.resolved(40)])
    assert counted() == [("db.t", 4)]
