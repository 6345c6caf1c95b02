"""The folder of links that stands for Spark's: all jars but a few, made anew when it is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.spark.startup import java
from drainer.spark.startup.java import archive_of, cache_folder, home_mark, lean_home, spark_home
from drainer.spark.startup.jvm_launch import environment

JARS = ("spark-core_2.13-4.2.1.jar", "spark-mllib_2.13-4.2.1.jar", "spark-mllib-local_2.13-4.2.1.jar", "py4j.jar")


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of pyspark, and nothing in the cache."""
    found = tmp_path / "pyspark"
    for folder in ("jars", "bin", "python/lib", "sql"):
        (found / folder).mkdir(parents=True)
    for jar in JARS:
        (found / "jars" / jar).touch()
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "spark_home", lambda: found)
    return found


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_lean_spark_folder_has_all_jars_but_unneeded_ones(whole: Path) -> None:
    lean = lean_home()
    assert lean.is_relative_to(cache_folder())
    assert names(lean) == {"jars", "bin", "python"}
    assert names(lean / "jars") == {JARS[0], JARS[2], JARS[3]}
    assert (lean / "jars" / JARS[0]).resolve() == whole / "jars" / JARS[0]
    assert lean_home() == lean
    assert environment()["SPARK_HOME"] == str(lean)


def test_lean_spark_folder_is_made_again_after_upgrade(whole: Path) -> None:
    lean = lean_home()
    (whole / "jars" / JARS[0]).rename(whole / "jars" / "spark-core_2.13-4.2.2.jar")
    assert lean_home() == lean
    assert names(lean / "jars") == {"spark-core_2.13-4.2.2.jar", JARS[2], JARS[3]}
    assert names(cache_folder()) == {lean.name}


def test_damaged_lean_spark_folder_is_made_again(whole: Path) -> None:
    lean = lean_home()
    (lean / "jars" / JARS[0]).unlink()
    (lean / "jars" / JARS[0]).symlink_to("/elsewhere")
    assert lean_home() == lean
    assert (lean / "jars" / JARS[0]).resolve() == whole / "jars" / JARS[0]


def test_spark_folder_without_cache_is_whole_one(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert lean_home() == whole


def test_spark_home_of_user_is_used_unchanged(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert lean_home() == spark_home() == Path("/opt/spark")


def test_class_archive_path_depends_on_spark_installation(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM uses one only for the paths that it was made with."""
    mark, archive = home_mark(), archive_of("17")
    monkeypatch.setattr(java, "spark_home", lambda: whole.with_name("other"))
    assert home_mark() != mark
    assert archive_of("17") != archive


def test_jars_left_out_exist_in_installed_spark() -> None:
    """Else a new version has other names, and the start takes a second longer without a word."""
    left_out = [jar.name for jar in (spark_home() / "jars").iterdir() if jar.name.startswith(java.LEFT_OUT)]
    assert len(left_out) == len(java.LEFT_OUT)
