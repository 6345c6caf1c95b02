"""The command line of an executor's JVM, out of what Spark's driver puts into the pod's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drainer.spark.startup.executor_pod import ARGUMENTS, MAIN, NotAnExecutor, command

GIVEN = {variable: f"<{variable}>" for variable in ARGUMENTS.values()} | {"SPARK_EXECUTOR_MEMORY": "512m"}


def test_every_value_of_the_driver_is_an_argument() -> None:
    line = command(["executor"], GIVEN, "/bin/java", Path("/spark"))
    assert line[0] == "/bin/java" and line[1:5] == ["-Xms512m", "-Xmx512m", "-cp", "/spark/jars/*"]
    assert line[5] == MAIN
    assert dict(zip(line[6::2], line[7::2], strict=True)) == {name: f"<{v}>" for name, v in ARGUMENTS.items()}


def test_java_options_come_in_their_order_and_whole() -> None:
    """The tenth behind the second; an option may hold spaces."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn{number}=a b" for number in reversed(range(12))}
    line = command(["executor"], {**GIVEN, **options}, "/bin/java", Path("/spark"))
    assert line[1:13] == [f"-Dn{number}=a b" for number in range(12)]


def test_the_driver_s_settings_and_further_jars_are_on_the_class_path() -> None:
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_EXTRA_CLASSPATH": "/x.jar"}
    line = command(["executor"], {**GIVEN, **more}, "/bin/java", Path("/spark"))
    assert line[line.index("-cp") + 1] == "/spark/jars/*:/opt/spark/conf:/x.jar"


@pytest.mark.parametrize("lacking", sorted(GIVEN))
def test_a_value_that_is_lacking_is_named(lacking: str) -> None:
    with pytest.raises(NotAnExecutor, match=f"^{lacking} not set"):
        command(["executor"], {**GIVEN, lacking: ""}, "/bin/java", Path("/spark"))


@pytest.mark.parametrize("argv", [[], ["driver"], ["executor", "more"]])
def test_only_an_executor_is_started(argv: list[str]) -> None:
    with pytest.raises(NotAnExecutor, match="not 'executor'"):
        command(argv, GIVEN, "/bin/java", Path("/spark"))


def test_somebody_who_starts_it_by_hand_is_told() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "drainer.spark.startup.executor_pod", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "only Spark's driver starts this program" in ran.stderr or "needs Java" in ran.stderr
