"""Lines as TiDB's tools know them (K-08), and files that are rotated and kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from binlog.runtime import log


@pytest.fixture(autouse=True)
def _restored() -> object:
    yield
    structlog.reset_defaults()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_log_line_has_format_of_tidb_tools(tmp_path: Path) -> None:
    log.setup("info", str(tmp_path / "p.log"))
    log.get_logger("pump").info("pump is serving", addr="127.0.0.1:8250", note='say "x"', count=3, empty="")
    (line,) = lines(tmp_path / "p.log")
    assert re.fullmatch(
        r"\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3} [+-]\d\d:\d\d\] \[INFO\] \[test_log\.py:\d+\] "
        r'\["pump is serving"\] \[component=pump\] \[addr=127\.0\.0\.1:8250\] \[note="say \\"x\\""\] '
        r'\[count=3\] \[empty=""\]',
        line,
    ), line


def test_log_level_filters_lines_and_traceback_is_on_one_line(tmp_path: Path) -> None:
    log.setup("warn", str(tmp_path / "p.log"))
    logger = log.get_logger("x")
    logger.info("hidden")
    logger.warning("shown")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    found = lines(tmp_path / "p.log")
    assert len(found) == 2
    assert "[WARN]" in found[0]
    assert "[ERROR]" in found[1]
    assert "ValueError: two\\nlines" in found[1]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is none of debug, info"):
        log.setup("loud")


def test_rotation_keeps_every_line(tmp_path: Path) -> None:
    file = log.RotatingFile(tmp_path / "logs" / "p.log", bytes_max=100)
    for i in range(20):
        file.write(f"line {i:02d} {'é' * 10}\n")
    file.flush()
    written = sorted("".join(p.read_text() for p in (tmp_path / "logs").iterdir()).splitlines())
    assert [line[:7] for line in written] == [f"line {i:02d}" for i in range(20)]
    assert len(list((tmp_path / "logs").iterdir())) > 5


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "p.log").write_text("old\n")
    file = log.RotatingFile(tmp_path / "p.log")
    file.write("new\n")
    file.flush()
    assert lines(tmp_path / "p.log") == ["old", "new"]


# In a process of somebody else's


def test_log_in_library_goes_to_logging_of_application(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Levels are the application's, the place is the caller's, and nothing goes to stdout or stderr by itself."""
    logger = log.get_logger("pumpclient.client")
    with caplog.at_level("INFO", logger="tidb_binlog"):
        logger.debug("hidden")
        logger.info("pump chosen", node_id="pump-1", note="two words", percent="100 %s")
        try:
            raise ValueError("bad")
        except ValueError:
            logger.exception("failed", n=1)
    first, second = caplog.records
    assert (first.name, first.levelname, first.filename) == ("tidb_binlog.pumpclient.client", "INFO", "test_log.py")
    assert first.getMessage() == 'pump chosen node_id=pump-1 note="two words" percent="100 %s"'
    assert (second.getMessage(), second.filename) == ("failed n=1", "test_log.py")
    assert second.exc_info is not None
    assert second.exc_info[0] is ValueError
    logger.warning("an application that configured nothing")
    assert capfd.readouterr() == ("", "")


def test_log_in_library_goes_to_structlog_of_application() -> None:
    seen: list[Any] = []

    def keep(_logger: object, _method: str, event: Any) -> Any:
        seen.append(dict(event))
        raise structlog.DropEvent

    logger = log.get_logger("pumpclient.client")
    structlog.configure(processors=[keep])
    logger.info("pump chosen", node_id="pump-1")
    assert seen == [{"event": "pump chosen", "component": "pumpclient.client", "node_id": "pump-1"}]
