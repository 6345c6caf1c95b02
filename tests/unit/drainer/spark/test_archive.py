"""Where the archive of classes is, and that a JVM without one is started as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.spark.java import archive_of, java_options


def test_an_archive_is_of_one_spark_and_one_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive_of("17.0.1").parent == tmp_path / "drainer"
    assert archive_of("17.0.1") != archive_of("17.0.2")


def test_only_an_archive_that_is_there_is_used(tmp_path: Path) -> None:
    classes = tmp_path / "classes.jsa"
    assert "SharedArchiveFile" not in java_options(tmp_path / "log4j2.properties", classes, "")
    classes.touch()
    assert f'-XX:SharedArchiveFile="{classes}"' in java_options(tmp_path / "log4j2.properties", classes, "-Xss2m")
    assert java_options(tmp_path / "log4j2.properties", None, "-Xss2m").endswith("-Xss2m")
