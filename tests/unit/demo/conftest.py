from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def java_without_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java is the only program in PATH, and the home directory, which is `tmp_path`, has no jars."""
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
