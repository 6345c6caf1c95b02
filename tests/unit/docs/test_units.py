"""The systemd units of docs/operations.md: what they say fits the programs, and systemd takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from drainer.config import Config
from drainer.service.daemon import STOP_BATCH_S
from pump.config import PumpConfig
from pump.process import GRACE_S, READ_WAIT_S, SEAL_S

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
PROGRAMS = ("pump", "drainer")
JVM_S = 10


def block(language: str, file: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(# {re.escape(file)}\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def unit(program: str) -> dict[str, str]:
    """The section Service."""
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block("ini", f"/etc/systemd/system/{program}.service"))
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    return dict(parser["Service"])


def settings(program: str) -> PumpConfig | Config:
    model = PumpConfig if program == "pump" else Config
    return model.model_validate(tomllib.loads(block("toml", f"/etc/binlog/{program}.toml")))


@pytest.mark.parametrize("program", PROGRAMS)
def test_its_directory_is_made_for_its_user_and_is_the_configured_one(program: str) -> None:
    service = unit(program)
    assert service["User"] == "binlog"
    assert str(settings(program).data_dir) == f"/var/lib/{service['StateDirectory']}"
    assert service["ExecStart"].split()[1:] == ["-config", f"/etc/binlog/{program}.toml"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_begins_again_after_a_failure_but_not_after_a_setting_that_is_wrong(program: str) -> None:
    """Exit codes: 0 after a signal or an order, 1 for settings, 2 for anything else."""
    service = unit(program)
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "1")


def test_a_stop_has_the_time_it_takes() -> None:
    pump, drainer = unit("pump"), unit("drainer")
    config = settings("pump")
    assert isinstance(config, PumpConfig)
    assert int(pump["TimeoutStopSec"]) >= 2 * (config.drain_wait + SEAL_S + READ_WAIT_S + GRACE_S)
    assert int(drainer["TimeoutStopSec"]) >= STOP_BATCH_S + 2 * JVM_S
    assert drainer["KillMode"] == "mixed"  # else the JVM ends under the batch in flight


@pytest.mark.parametrize("program", PROGRAMS)
def test_systemd_takes_it(program: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = block("ini", f"/etc/systemd/system/{program}.service")
    file = tmp_path / f"{program}.service"
    file.write_text(text.replace(f"/opt/binlog/bin/{program}", sys.executable))
    done = subprocess.run([analyze, "verify", str(file)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert complaints == [], done.stderr
