"""What a wheel and an sdist hold, built from this checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from binlog.runtime.version import checked_out

from tests.integration.drainer.test_kafka_consumer import write
from tests.support.kafka import Broker
from tests.support.servers import missing
from tests.unit.drainer.kafka_check.test_command import ENCODER, rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one wheel and one sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=240)
    return folder


def head() -> str:
    """The commit that is checked out; "" where there is no git or no checkout."""
    try:
        ran = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def test_wheel_contains_programs_licence_and_commit_only(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tops = {name.split("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"binlog", "drainer", "pump", "pumpclient"}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
        assert {f"{package}/py.typed" for package in ("binlog", "drainer", "pump", "pumpclient")} <= set(names)
        commit = head()
        if commit:
            assert archive.read("binlog/COMMIT").decode().splitlines()[0] == commit
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()


def test_sdist_contains_licence_build_hook_and_commit(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        assert any(name.endswith("/LICENSE") for name in names)
        assert any(name.endswith("/hatch_build.py") for name in names)
        assert not head() or any(name.endswith("/proto/binlog/COMMIT") for name in names)


def test_wheel_built_without_git_names_commit_and_build_time(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "SOURCE_DATE_EPOCH": "1000000000"}
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=240, env=env)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        commit, built = archive.read("binlog/COMMIT").decode().splitlines()
    assert (commit, built) == (checked_out(ROOT), "2001-09-09 01:46:40")


@pytest.mark.slow
def test_wheel_in_empty_environment_runs_every_command_or_names_its_extra(built: Path, tmp_path: Path) -> None:
    """Or it says which extra it lacks. This environment has them all."""
    (wheel,) = built.glob("*.whl")
    environment = installed(str(wheel), tmp_path / "environment")
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        commands = re.findall(r"^([\w-]+) = ", archive.read(entries).decode(), re.MULTILINE)
    assert {"pump", "drainer", "binlogctl", "reparo", "kafka-check", "kafka-consumer", "arbiter"} <= set(commands)
    for command in commands:
        ran = help_of(environment / "bin" / command, tmp_path)
        if command in ("pump", "binlogctl"):
            assert ran.returncode == 0 and command in ran.stdout, (command, ran.stdout, ran.stderr)
        else:
            assert ran.returncode == 2, (command, ran.stdout, ran.stderr)
            assert re.fullmatch(rf"{command}: .* not installed here: pip install '\.\[\w+\]' in .*\n", ran.stderr)
        with_extras = help_of(Path(sys.executable).with_name(command), tmp_path)
        assert with_extras.returncode == 0 and command in with_extras.stdout, (command, with_extras.stderr)


def help_of(program: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), "--help"], cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )


def installed(wheel: str, environment: Path) -> Path:
    """A new environment with this wheel alone, and what it needs."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    if not Path(uv).exists():
        missing("uv is not installed")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True, timeout=120)
    install = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin/python"), wheel]
    subprocess.run(install, check=True, timeout=280)
    return environment


@pytest.mark.slow
@pytest.mark.integration
def test_library_reads_topic_where_wheel_has_extra_kafka_alone(built: Path, kafka: Broker, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = installed(f"{wheel}[kafka]", tmp_path / "environment") / "bin/python"
    topic = kafka.topic(1)
    write(kafka, topic, [*rows((1, 10)), *ENCODER.resolved(12)])
    program = tmp_path / "read.py"
    program.write_text(
        "import importlib.util, sys\n"
        "from drainer.kafka_consumer.consumer import Consumer\n"
        "print([event.commit_ts for event in Consumer(sys.argv[1], once=True)], importlib.util.find_spec('pyspark'))\n"
    )
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    ran = subprocess.run([str(python), str(program), uri], capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout == "[10, 12] None\n", ran.stderr
