"""Configuration files of deploy/ are what the programs take, and name what exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.runtime.config import load

from drainer.config import FLAGS as DRAINER_FLAGS
from drainer.config import PROGRAM as DRAINER_PROGRAM
from drainer.config import Config
from pump.config import load_config
from tests.support.compose import images
from tests.support.servers import ROOT

DEPLOY = ROOT / "deploy"


def drainer_config(path: Path, *arguments: str) -> Config:
    config = load(
        Config,
        component="drainer",
        argv=["-config", str(path), *arguments],
        env_prefix="BINLOG_SERVER",
        flags=DRAINER_FLAGS,
        program=DRAINER_PROGRAM,
        environ={},
    )
    config.check()
    return config


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*drainer.toml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_drainer_takes_its_file(path: Path) -> None:
    config = drainer_config(path)
    assert config.syncer.to.host and config.syncer.to.password  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("pump.toml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_pump_takes_its_file(path: Path) -> None:
    assert load_config(["-config", str(path)]).gc


def test_images_say_what_they_run() -> None:
    made = images(DEPLOY / "docker/Dockerfile")
    assert made["pump"].entrypoint == ["pump"] and made["drainer"].entrypoint == ["drainer"]
    assert made["tools"].command == ["binlogctl", "--help"]
    assert made["shop"].entrypoint == ["python", "-m", "demo.service"]
    text = (DEPLOY / "docker/Dockerfile").read_text()
    assert text.count("USER 10001:10001") == 2, "the runtime stage, and the drainer's after its packages"
    final = text[text.index("FROM runtime AS pump") :]
    assert "uv sync" not in final and "pip " not in final and "gcc" not in text


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    kept = {
        line[1:] for line in (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    sources = {
        source
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)
