"""The status pages of a pump that starts and reads its value log."""

from __future__ import annotations

from typing import Any

from binlog.runtime.chart import bytes_text
from binlog.runtime.page import Alarm, Fact, Mood, render
from binlog.runtime.version import release

from pump.log.read_progress import Reading


def starting_text(reading: Reading | None) -> str:
    """Return the progress in one line."""
    if reading is None:
        return "the pump is starting"
    return f"the pump is starting: {reading.step}, {reading.percent} %"


def starting_document(node_id: str, reading: Reading | None) -> dict[str, Any]:
    """Return the document that replaces the "pump" document of /status during a start. `recovery` is null before the
    log is opened."""
    recovery = None
    if reading is not None:
        recovery = {
            "step": reading.step,
            "percent": reading.percent,
            "records": reading.records,
            "bytes": reading.bytes,
            "ofBytes": reading.of_bytes,
            "fid": reading.fid,
        }
    return {"nodeId": node_id, "state": "starting", "version": release(), "recovery": recovery}


def starting_page(node_id: str, reading: Reading | None) -> str:
    facts = [Fact("state", "starting", mood=Mood.WARN)]
    if reading is not None:
        facts += [
            Fact(reading.step, f"{reading.percent} %", f"file {reading.fid:06d}"),
            Fact("read", bytes_text(reading.bytes), f"of {bytes_text(reading.of_bytes)}"),
            Fact("binlogs", f"{reading.records:,}", "in this step"),
        ]
    text = "The pump reads its value log and takes no calls before that has ended."
    return render(f"pump {node_id}", f"version {release()}", facts=facts, alarms=[Alarm(text, Mood.WARN)])
