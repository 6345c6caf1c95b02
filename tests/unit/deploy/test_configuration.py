"""Configuration files of deploy/ are what the programs take, and name what exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.runtime.config import load

from drainer.config import PROGRAM as DRAINER
from drainer.config import Config
from pump.config import PROGRAM as PUMP
from tests.support.servers import ROOT

DEPLOY = ROOT / "deploy"


def drainer_config(path: Path, *arguments: str) -> Config:
    config = load(DRAINER, ["-config", str(path), *arguments], environ={})
    config.check()
    return config


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*drainer.toml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_drainer_toml_files_are_valid_drainer_configuration(path: Path) -> None:
    config = drainer_config(path)
    assert config.syncer.to.host and config.syncer.to.password  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("pump.toml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_pump_toml_files_are_valid_pump_configuration(path: Path) -> None:
    assert load(PUMP, ["-config", str(path)], environ={}).gc
