"""A slot that has failed and then succeeds fails no more, for the status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drainer.sink import retry
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Retry
from drainer.sink.mysql.rows import slot_writer
from drainer.sink.retry import TRIES_REPORTED, Failures


def test_slot_that_succeeds_after_failures_is_cleared_from_status(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Failures()
    monkeypatch.setattr(retry, "FAILURES", failures)
    monkeypatch.setattr(retry, "_PAUSE_S_FIRST", 0.001)
    tries = 0

    def done(_run: object) -> int:
        nonlocal tries
        tries += 1
        if tries <= TRIES_REPORTED:
            raise Retry("deadlock")
        assert failures.now is not None and failures.now.what.startswith("slot 3 of (10, 20] in h:3306")
        return 0

    for name, to in (("_done", done), ("_from", lambda *_: None), ("_keep", lambda *_: None)):
        monkeypatch.setattr(slot_writer._SlotRun, name, to)
    target: Any = SimpleNamespace(
        config=ServerConfig(host="h"), intent=SimpleNamespace(after_ts=10, until_ts=20, chunk_rows=1)
    )
    receipt = slot_writer._SlotRun(target, 3, [], 60.0).run()
    assert (receipt.slot, tries) == (3, TRIES_REPORTED + 1)
    assert failures.now is None and failures.last is not None
