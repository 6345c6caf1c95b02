"""What ends a pump's program, and what lets it begin again."""

from __future__ import annotations

import os
import signal

import pytest
from binlog.runtime.config import load

from pump import __main__ as program
from pump.config import PROGRAM


class Stopped:
    """A pump that asks for `action`; while it stops, its process gets a signal, or none."""

    def __init__(self, action: str, number: int | None) -> None:
        self._action = action
        self._number = number
        self.stopped_as: list[str] = []

    async def start(self) -> None: ...

    async def requested(self) -> str:
        return self._action

    async def stop(self, action: str) -> None:
        self.stopped_as.append(action)
        if self._number is not None:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize(
    ("action", "number", "code"),
    [
        ("restart", None, program.RESTART),
        ("restart", signal.SIGTERM, 0),
        ("restart", signal.SIGINT, 0),
        ("pause", None, 0),
        ("close", None, 0),
    ],
)
async def test_a_signal_during_a_restart_ends_the_pump(
    monkeypatch: pytest.MonkeyPatch, action: str, number: int | None, code: int
) -> None:
    """The signal is for the process, which would begin again and know nothing of it."""
    pump = Stopped(action, number)
    monkeypatch.setattr(program, "Pump", lambda config: pump)
    assert await program._run(load(PROGRAM, [], environ={})) == code
    assert pump.stopped_as == ["pause" if action == "restart" else action]
