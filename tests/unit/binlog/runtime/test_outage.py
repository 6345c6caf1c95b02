"""A line when something begins to fail, one a minute while it lasts, one at its end with its length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from binlog.runtime.log import Outage, get_logger
from structlog.testing import capture_logs


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def run(clock: Clock, outage: Outage, *, failing_s: float, every_s: float = 0.5) -> list[tuple[str, Any]]:
    """(event, the rest) of each line while it fails for so long, then works."""
    with capture_logs() as lines:
        end_s = clock.now_s + failing_s
        while clock.now_s <= end_s:
            outage.failed(error="away")
            clock.now_s += every_s
        clock.now_s = end_s
        outage.over()
        outage.over()
    return [(f"{line['log_level']}: {line['event']}", line.get("lasted_s", line.get("since_s"))) for line in lines]


def test_outage_logs_begin_each_minute_and_end() -> None:
    clock = Clock()
    outage = Outage(get_logger("t"), "it fails", "it works", clock=clock)
    for _ in range(2):
        assert run(clock, outage, failing_s=130) == [
            ("warning: it fails", None),
            ("warning: it fails", 60.0),
            ("warning: it fails", 120.0),
            ("info: it works", 130.0),
        ]


def test_outage_shorter_than_quiet_time_logs_no_warning() -> None:
    clock = Clock()
    outage = Outage(get_logger("t"), "it fails", "it works", quiet_s=3, first="no answer", clock=clock)
    assert run(clock, outage, failing_s=2) == [("info: no answer", None), ("info: it works", 2.0)]
    lines = run(clock, outage, failing_s=5)
    assert lines == [("info: no answer", None), ("warning: it fails", 3.0), ("info: it works", 5.0)]
    silent = Outage(get_logger("t"), "it fails", "it works", quiet_s=3, clock=clock)
    assert run(clock, silent, failing_s=2) == []


def test_outage_logs_given_level_and_end_message() -> None:
    clock = Clock()
    outage = Outage(get_logger("t"), "it fails", "it works", level="error", clock=clock)
    with capture_logs() as lines:
        outage.failed(error="x", place="here")
        clock.now_s += 1.26
        assert round(outage.lasts_s, 2) == 1.26
        outage.over("it was taken away", place="here")
        assert outage.lasts_s == 0
    assert [{name: line[name] for name in line if name != "component"} for line in lines] == [
        {"event": "it fails", "error": "x", "place": "here", "log_level": "error"},
        {"event": "it was taken away", "place": "here", "lasted_s": 1.3, "log_level": "info"},
    ]


def test_outage_catches_errors_of_its_kinds_and_notes_success() -> None:
    outage = Outage(get_logger("t"), "it fails", "it works", clock=Clock())
    with capture_logs() as lines:
        for error in (OSError("away"), ValueError("no"), None):
            with outage.catching(OSError, ValueError):
                if error is not None:
                    raise error
        with pytest.raises(KeyError), outage.catching(OSError):
            raise KeyError("a mistake")
    assert [(line["event"], line.get("error")) for line in lines] == [("it fails", "away"), ("it works", None)]


ROOT = Path(__file__).resolve().parents[4]
SOURCES = [path for name in ("proto/binlog", "pump", "pumpclient", "drainer") for path in (ROOT / name).rglob("*.py")]


def warnings_at_every_try(tree: ast.AST) -> Iterator[str]:
    """Texts of warnings that a failure in a loop brings, again and again."""
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.While):
            continue
        for handler in (node for node in ast.walk(loop) if isinstance(node, ast.ExceptHandler)):
            for call in (node for node in ast.walk(handler) if isinstance(node, ast.Call)):
                function = call.func
                named = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
                if named and function.value.id in ("log", "_log") and function.attr in ("warning", "error"):
                    yield ast.unparse(call.args[0])


def test_warnings_in_retry_loops_use_outage() -> None:
    code = 'while True:\n    try:\n        f()\n    except OSError:\n        _log.warning("away")\n'
    assert list(warnings_at_every_try(ast.parse(code))) == ["'away'"]
    found = [text for path in SOURCES for text in warnings_at_every_try(ast.parse(path.read_text()))]
    assert found == ["'planner connection refused'"]  # one of somebody else each time
