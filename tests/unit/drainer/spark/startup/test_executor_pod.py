"""The command line of an executor's JVM, out of what Spark's driver puts into the pod's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drainer.spark.startup.executor_pod import ARGUMENTS, MAIN, NotAnExecutor, command

GIVEN = {variable: f"<{variable}>" for variable in ARGUMENTS.values()} | {"SPARK_EXECUTOR_MEMORY": "512m"}


def test_executor_command_passes_every_value_of_driver() -> None:
    line = command(["executor"], GIVEN, "/bin/java", Path("/spark"))
    assert line[0] == "/bin/java" and line[1:5] == ["-Xms512m", "-Xmx512m", "-cp", "/spark/jars/*"]
    assert line[5] == MAIN
    assert dict(zip(line[6::2], line[7::2], strict=True)) == {name: f"<{v}>" for name, v in ARGUMENTS.items()}


def test_executor_command_keeps_order_of_java_options() -> None:
    """The tenth behind the second; an option may hold spaces."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn{number}=a b" for number in reversed(range(12))}
    line = command(["executor"], {**GIVEN, **options}, "/bin/java", Path("/spark"))
    assert line[1:13] == [f"-Dn{number}=a b" for number in range(12)]


def test_executor_class_path_has_driver_settings_and_further_jars() -> None:
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_EXTRA_CLASSPATH": "/x.jar"}
    line = command(["executor"], {**GIVEN, **more}, "/bin/java", Path("/spark"))
    assert line[line.index("-cp") + 1] == "/spark/jars/*:/opt/spark/conf:/x.jar"


@pytest.mark.parametrize("lacking", sorted(GIVEN))
def test_executor_command_without_required_value_is_refused_by_name(lacking: str) -> None:
    with pytest.raises(NotAnExecutor, match=f"^{lacking} not set"):
        command(["executor"], {**GIVEN, lacking: ""}, "/bin/java", Path("/spark"))


@pytest.mark.parametrize("argv", [[], ["driver"], ["executor", "more"]])
def test_executor_command_refuses_other_roles(argv: list[str]) -> None:
    with pytest.raises(NotAnExecutor, match="not 'executor'"):
        command(argv, GIVEN, "/bin/java", Path("/spark"))


def test_executor_program_started_by_hand_exits_with_reason() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "drainer.spark.startup.executor_pod", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "only Spark's driver starts this program" in ran.stderr or "needs Java" in ran.stderr
