"""docs/versions.md: what it says of versions is what CI installs and runs, and the tests that it names use it."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peer.cluster import peer_bin
from tests.support.scripts import write_versions
from tests.support.servers import ROOT

PAGE = (ROOT / "docs" / "versions.md").read_text()
# What occurs in each test of a program, by the first words of its line; if it is not here, its name.
USES = {
    "TiDB": r"\bPeer\b|\btidb\b",
    "its recordings": "CaptureSet",
    "its encoding": "vectors_with",
    "TiKV": r"\bPeer\b",
    "PD": r"real_pds|\bPeer\b",
    "TiDB-Binlog in Go": r"\bPeer\b|peer_bin",
    "Kafka": r"\bBroker\b",
    "confluent-kafka": r"\bBroker\b",
    "Apicurio": "schema_registry",
    "moto": "running_s3",
    "TiCDC's `kafka-consumer`": "ticdc-kafka-consumer",
    "TiCDC's messages": "ticdc",
    "Debezium": "jdbc_sink",
    "Delta Lake": "USING delta",
    "pyarrow": "pyarrow|parquet",
    "gRPC for Python": "import grpc",
    "gRPC for Java": "grpc-java",
    "Prometheus": "promtool",
    "Chromium": "support.browser",
    "Kubernetes": "kubernetes_validate",
}
NEW = "987"


def rows(section: str) -> list[list[str]]:
    """Cells of the table of a section, without its head."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what the script reads of versions."""
    for name in ("uv.lock", "scripts/need.sh", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "scripts" / "jars", tmp_path / "scripts" / "jars")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


def test_page_equals_what_the_script_writes() -> None:
    pytest.importorskip("pyspark")
    assert write_versions().with_values(PAGE) == PAGE, "run `make docs`"


def test_every_program_names_tests_that_exist_and_use_it() -> None:
    programs = rows("Tested")
    assert len(programs) > 25
    for program, _, _, tests in programs:
        named = re.findall(r"`(tests/[\w/]+\.py)`", tests)
        if (program, tests) == ("Python", "all"):
            continue
        uses = [pattern for name, pattern in USES.items() if re.match(rf"{re.escape(name)}(?![\w-])", program)]
        assert named, program
        for file in named:
            assert re.search("|".join(uses) or f"(?i){program}", (ROOT / file).read_text()), f"{program}: {file}"


def test_versions_and_limits_are_not_written_by_hand() -> None:
    for section, column in (("Tested", 1), ("Limits", 1)):
        for cells in rows(section):
            by_hand = write_versions().MARKED.sub("", cells[column])
            assert not re.search(r"\d", by_hand), cells
            assert by_hand != cells[column] or by_hand in ("the same", "that of Python"), cells


@pytest.mark.parametrize(
    ("files", "version", "program"),
    [
        ("scripts/jars/kafka-[0-9]*.txt", r"(?<=/kafka_2\.13/)[^/]+", "Kafka"),
        ("scripts/jars/kafka-connect-*.txt", r"(?<=/debezium-connector-jdbc/)[^/]+", "Debezium's JDBC sink"),
        ("uv.lock", r'(?<=name = "pyspark"\nversion = ")[^"]+', "Spark"),
        ("scripts/need.sh", r"(?<=/h2spec@v)[\d.]+", "h2spec"),
        (".ci/run", r"(?<=bare Debian )\d+", "MariaDB"),
    ],
)
def test_version_that_ci_changes_changes_the_page(root: Path, files: str, version: str, program: str) -> None:
    (file,) = root.glob(files)
    text, count = re.subn(version, NEW, file.read_text())
    assert count
    file.write_text(text)
    changed = write_versions().with_values(PAGE.split("\n## Limits\n")[0], root)
    (line,) = (line for line in changed.splitlines() if line.startswith(f"| {program} |"))
    assert NEW in line and NEW not in PAGE


LOCKED = ("locked no-such-package", "jar kafka no-such-artifact", "debian no-such-package", "recorded no_such_program")
OTHERS = ("peer no-such-program", "pump no-such-setting", "drainer syncer.to.time-zone", "code binlog.envelope NO_MAX")


@pytest.mark.parametrize("value", [*LOCKED, *OTHERS, "no_such_kind"])
def test_value_that_does_not_exist_or_is_ambiguous_is_an_error(value: str) -> None:
    with pytest.raises((LookupError, ValueError, AttributeError)):
        write_versions().with_values(f"<!-- {value} --><!-- end -->")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif("CI" not in os.environ, reason="the page says what CI runs")
def test_debian_packages_of_ci_have_the_numbers_of_the_page() -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:{Path.home()}/.cache/tidb-binlog/promtool"
    commands = {
        "python3": [sys.executable, "-V"],
        "openjdk-17-jre-headless": ["java", "-version"],
        "mariadb-server": ["mariadbd", "--version"],
        "prometheus": ["promtool", "--version"],
        "systemd": ["systemd-analyze", "--version"],
    }
    numbers = write_versions().DEBIAN_NUMBERS
    assert numbers.keys() == commands.keys()
    for package, (program, *arguments) in commands.items():
        found = shutil.which(program, path=path)
        assert found, package
        told = subprocess.run([found, *arguments], capture_output=True, text=True, check=True)
        assert re.search(rf"(?<![\d.]){re.escape(numbers[package])}(?!\d)", told.stdout + told.stderr), package


@pytest.mark.slow
@pytest.mark.skipif(peer_bin() is None, reason="PEER_BIN does not name a folder of the peer's binaries")
def test_peers_programs_are_built_from_what_the_page_says() -> None:
    script, folder = write_versions(), peer_bin()
    assert folder is not None
    tidb = script.recorded_versions(ROOT)["tidb_go_module"].replace(" ", "\t")
    built = {"tidb-server": tidb, "unitikv": tidb, **{name: module for name, (_, module) in script.PEERS.items()}}
    for name, module in built.items():
        with (folder / name).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
            assert program.find(module.encode()) >= 0, f"{name}: {module}"
