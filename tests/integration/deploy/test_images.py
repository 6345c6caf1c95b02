"""deploy/docker/Dockerfile without an engine: the steps of its build stages are played below a directory of the test,
and each image's program is run from what they made, with nothing of this checkout in reach.

Left out: what needs a root file system of its own (users, Debian's Java), which tests/unit/deploy/test_dockerfile.py
reads, and the archive of the JVM's classes, which the tests of the drainer make by the same command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.compose import images
from tests.support.dockerfile import Instruction, environment, health_command, stages
from tests.support.servers import ROOT, Etcd, Server, free_port, missing, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]
FILE = ROOT / "deploy/docker/Dockerfile"
# Folders of an image that lie below the test's here.
PLACES = re.compile(r"(?<![\w.-])/(?:src|opt/tidb-binlog|srv|var/lib/tidb-binlog)\b")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Of this machine: packages are linked in place of copied, and their byte code is made when it is first needed.
HERE = {"UV_LINK_MODE": "hardlink", "UV_COMPILE_BYTECODE": "0", "UV_PYTHON": sys.executable}


@dataclass
class Played:
    """Where the image's folders lie, and the variables of the build."""

    root: Path
    uv: str
    variables: dict[str, str] = field(default_factory=dict)
    directory: Path = Path()

    def built_on(self) -> Played:
        """For a stage that begins where this one ended."""
        return replace(self, variables=dict(self.variables))

    def play(self, stage: str) -> None:
        for one in stages(FILE.read_text())[stage].instructions:
            getattr(self, f"_{one.word.lower()}", self._nothing)(one)

    def text(self, text: str) -> str:
        return PLACES.sub(lambda found: f"{self.root}{found[0]}", text)

    def environment(self) -> dict[str, str]:
        """Of every step, and how this machine reaches the package index."""
        own = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**own, "PATH": f"{Path(self.uv).parent}:{os.environ['PATH']}", **self.variables, **HERE}

    def _nothing(self, one: Instruction) -> None:
        assert one.word in ("USER", "ENTRYPOINT", "CMD"), f"line {one.line}: {one.word} is not played"

    def _arg(self, one: Instruction) -> None:
        name, _, value = one.text.partition("=")
        self.variables[name] = COMMIT if name == "COMMIT" else value

    def _env(self, one: Instruction) -> None:
        self.variables |= {name: self.text(value) for name, value in environment(one).items()}

    def _workdir(self, one: Instruction) -> None:
        self.directory = Path(self.text(one.text))
        self.directory.mkdir(parents=True, exist_ok=True)

    def _copy(self, one: Instruction) -> None:
        if one.text.startswith("--from="):
            _, made, kept = one.text.split()
            assert made == kept, "what was built knows its path"
            assert Path(self.text(made)).exists(), f"line {one.line}: {made} was not made"
            return
        *sources, target = one.text.split()
        place = Path(self.text(target)) if target.startswith("/") else self.directory / target
        for name in sources:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__", "COMMIT"))
            else:
                shutil.copy(ROOT / name, place)

    def _run(self, one: Instruction) -> None:
        if one.text.startswith("pip install"):
            return  # uv itself
        ran = subprocess.run(
            ["sh", "-c", self.text(one.text)],
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert ran.returncode == 0, f"line {one.line}: {one.text}\n{ran.stderr}"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """After the stage `build`."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    if not Path(uv).exists():
        missing("uv is not installed")
    made = Played(tmp_path_factory.mktemp("image"), uv)
    made.play("build")
    return made


@pytest.fixture(scope="module")
def with_extras(played: Played) -> Played:
    """After the stage `build-drainer`, which is built on the other one."""
    made = played.built_on()
    made.play("build-drainer")
    return made


def run(played: Played, target: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In the image's environment."""
    return subprocess.run(
        [str(played.root / "opt/tidb-binlog/bin" / words[0]), *words[1:]],
        cwd=cwd or played.root,
        env=image_environment(played, target),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def image_environment(played: Played, target: str) -> Mapping[str, str]:
    env = {name: played.text(value) for name, value in images(FILE)[target].env.items()}
    env.pop("PYTHONDONTWRITEBYTECODE")  # it was not made when the packages were installed, see HERE
    env["PATH"] = env["PATH"].replace("${PATH}", os.environ["PATH"])
    return env


def test_image_contains_only_package_built_from_given_commit(played: Played) -> None:
    where = run(played, "pump", "python", "-c", "import pump, binlog; print(pump.__file__, binlog.__file__)").stdout
    assert where.count(str(played.root / "opt/tidb-binlog")) == 2, where
    said = run(played, "pump", "pump", "-V")
    assert COMMIT in said.stdout, said.stdout + said.stderr
    assert run(played, "pump", "python", "-c", "import pytest").returncode != 0, "the tests' packages are not in it"


def test_pump_image_runs_and_health_check_follows_its_state(played: Played, etcd: Etcd, tmp_path: Path) -> None:
    """It has Kafka's client, too, for a pump with `[kafka]`, and nothing of a drainer."""
    played.built_on().play("build-pump")
    assert run(played, "pump", "python", "-c", "import binlog.topic.kafka").returncode == 0
    assert run(played, "pump", "python", "-c", "import pyarrow").returncode != 0
    image, stage = images(FILE)["pump"], stages(FILE.read_text())["pump"]
    port, status = free_port(), free_port()
    command = [
        word.replace("0.0.0.0:8250", f"127.0.0.1:{port}").replace("0.0.0.0:9250", f"127.0.0.1:{status}")
        for word in (*image.entrypoint, *image.command)
    ]
    assert f"127.0.0.1:{status}" in command
    check = stage.last("HEALTHCHECK")
    assert check is not None
    asked = [word.replace(":9250", f":{status}") for word in health_command(check)]
    env = image_environment(played, "pump")
    Path(env["PUMP_DATA_DIR"]).mkdir(parents=True)
    program = str(played.root / "opt/tidb-binlog/bin" / command[0])
    pump = Server([program, *command[1:], f"-pd-urls={etcd.endpoint}"], tmp_path / "pump.log", env).start()
    try:
        wait_until(
            lambda: run(played, "pump", *asked).returncode == 0,
            deadline_s=120,
            what=f"the health check passes\n{pump.tail()}",
        )
        assert (Path(env["PUMP_DATA_DIR"]) / ".node").exists(), "binlogs are in the volume"
        assert pump.stop(deadline_s=240) == 0, pump.tail()
    finally:
        pump.kill()
    failed = run(played, "pump", *asked)
    assert failed.returncode == 1 and str(status) in failed.stderr


def test_shop_image_runs(played: Played) -> None:
    played.built_on().play("shop")
    image = images(FILE)["shop"]
    said = run(played, "shop", *image.entrypoint, "--help", cwd=played.root / "srv")
    assert said.returncode == 0 and "--pd-urls" in said.stdout, said.stderr


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("drainer", ["--help"]),
        ("consumer", []),
        ("tools", []),
        ("tools", ["reparo", "--help"]),
        ("tools", ["kafka-check", "--help"]),
    ],
)
def test_images_with_spark_and_kafka_run_their_programs(with_extras: Played, target: str, words: list[str]) -> None:
    """Without arguments what CMD says: the help."""
    image = images(FILE)[target]
    command = [*image.entrypoint, *(words or image.command)]
    said = run(with_extras, target, *command)
    assert said.returncode == 0 and command[0] in said.stdout, said.stderr


def test_class_archive_command_is_importable_in_drainer_image(with_extras: Played) -> None:
    program = "import drainer.spark.startup.class_archive, drainer.spark.startup.executor_pod, pyspark, confluent_kafka"
    said = run(with_extras, "drainer", "python", "-c", program)
    assert said.returncode == 0, said.stderr
