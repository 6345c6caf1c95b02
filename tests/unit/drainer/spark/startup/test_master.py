"""Which addresses a master's text names, and what is said when none of them answers."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("pyspark")

import subprocess
import sys
from pathlib import Path

import pytest

from drainer.spark.startup.executor_pod import ARGUMENTS, MAIN, command
from drainer.spark.startup.java import SparkUnavailable
from drainer.spark.startup.jvm_launch import addresses_of, check_master
from tests.support.servers import free_port


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("local", []),
        ("local[*]", []),
        ("local-cluster[2,1,1024]", []),
        ("yarn", []),
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:1,b.example.com:2", [("a", 1), ("b.example.com", 2)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("k8s://https://10.0.0.1:6443", [("10.0.0.1", 6443)]),
        ("k8s://http://10.0.0.1/x", [("10.0.0.1", 80)]),
        ("k8s://10.0.0.1", [("10.0.0.1", 443)]),
        ("k8s://10.0.0.1:6443", [("10.0.0.1", 6443)]),
    ],
)
def test_master_text_gives_hosts_and_ports(master: str, addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(master) == addresses


@pytest.mark.parametrize(
    "master", ["spark://", "spark://a", "spark://a:b", "spark://a:0", "spark://a:1,", "spark://:1"]
)
def test_invalid_master_text_is_refused_with_expected_form(master: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"is not host:port; a list is spark://a:7077,b:7077"):
        addresses_of(master)


def test_master_check_accepts_one_reachable_of_several() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{server.getsockname()[1]}")


def test_master_check_names_every_unreachable_master() -> None:
    one, two = free_port(), free_port()
    with pytest.raises(SparkUnavailable) as refused:
        check_master(f"spark://127.0.0.1:{one},127.0.0.1:{two}")
    text = str(refused.value)
    assert "no Spark master answers" in text
    assert f"127.0.0.1:{one}: Connection refused; 127.0.0.1:{two}: Connection refused" in text


def test_master_check_times_out_on_host_that_drops_packets() -> None:
    with socket.socket() as full:  # nobody accepts, so its queue is soon full, and it answers no more
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            waiting.append(client)
        with pytest.raises(SparkUnavailable, match="timed out"):
            check_master(f"spark://127.0.0.1:{full.getsockname()[1]}", wait_s=0.3)
        for client in waiting:
            client.close()


# The command line of an executor's JVM, out of what Spark's driver puts into the pod's environment.


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
    with pytest.raises(SparkUnavailable, match=f"^{lacking} not set"):
        command(["executor"], {**GIVEN, lacking: ""}, "/bin/java", Path("/spark"))


@pytest.mark.parametrize("argv", [[], ["driver"], ["executor", "more"]])
def test_executor_command_refuses_other_roles(argv: list[str]) -> None:
    with pytest.raises(SparkUnavailable, match="not 'executor'"):
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
