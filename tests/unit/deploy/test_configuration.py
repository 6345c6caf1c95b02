"""Configuration files of deploy/ are what the programs take, and name what exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.runtime.config import load

from drainer.config import FLAGS as DRAINER_FLAGS
from drainer.config import PROGRAM as DRAINER_PROGRAM
from drainer.config import Config
from pump.config import load_config
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
def test_drainer_toml_files_are_valid_drainer_configuration(path: Path) -> None:
    config = drainer_config(path)
    assert config.syncer.to.host and config.syncer.to.password  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("pump.toml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_pump_toml_files_are_valid_pump_configuration(path: Path) -> None:
    assert load_config(["-config", str(path)]).gc
