"""deploy/systemd: units that systemd takes, hardened."""

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
from pump.cluster.membership import READ_WAIT_S, SEAL_S
from pump.config import PumpConfig
from pump.process import GRACE_S
from tests.support.servers import ROOT, missing

pytestmark = pytest.mark.slow  # needs a program that `make test` does not install

FOLDER = ROOT / "deploy/systemd"
UNITS = ("tidb-binlog-pump.service", "tidb-binlog-drainer.service")
PROGRAMS = ("pump", "drainer")
JVM_S = 10
EXPOSURE_MAX = 1.5  # of 10; what is left is the network, and the JVM's compiler


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not installed")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with the programs of this environment, which systemd looks for."""
    programs = Path(sys.executable).parent
    text = (FOLDER / request.param).read_text()
    assert "/opt/tidb-binlog/bin/" in text
    made = tmp_path / request.param
    made.write_text(text.replace("/opt/tidb-binlog/bin", str(programs)))
    return made


def test_systemd_unit_is_valid(unit: Path) -> None:
    ran = analyze("verify", "--man=no", str(unit))
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_systemd_unit_with_unknown_key_is_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nTimeoutStopp=60"))
    ran = analyze("verify", "--man=no", str(unit))
    assert "TimeoutStopp" in ran.stdout + ran.stderr


def test_systemd_unit_exposure_is_low(unit: Path) -> None:
    ran = analyze("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", ran.stdout)
    assert found and float(found[1]) <= EXPOSURE_MAX, ran.stdout


def service(program: str) -> dict[str, str]:
    """The section Service; of keys that come several times the last one."""
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / f"tidb-binlog-{program}.service").read_text())
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    return dict(parser["Service"])


def settings(program: str) -> PumpConfig | Config:
    model = PumpConfig if program == "pump" else Config
    return model.model_validate(tomllib.loads((FOLDER / f"{program}.toml").read_text()))


@pytest.mark.parametrize("program", PROGRAMS)
def test_systemd_state_directory_is_configured_data_dir(program: str) -> None:
    found = service(program)
    assert str(settings(program).data_dir) == f"/var/lib/{found['StateDirectory']}"
    assert found["ExecStart"].split()[1:] == ["-config", f"/etc/tidb-binlog/{program}.toml"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_systemd_unit_restarts_after_failure_but_not_after_invalid_settings(program: str) -> None:
    """Exit codes: 0 after a signal or an order, 1 for settings, 2 for anything else."""
    found = service(program)
    assert (found["Restart"], found["RestartPreventExitStatus"]) == ("on-failure", "1")


def test_systemd_stop_timeout_covers_shutdown_of_program() -> None:
    pump, drainer = service("pump"), service("drainer")
    config = settings("pump")
    assert isinstance(config, PumpConfig)
    assert int(pump["TimeoutStopSec"]) >= 2 * (config.drain_wait + SEAL_S + READ_WAIT_S + GRACE_S)
    assert int(drainer["TimeoutStopSec"]) >= STOP_BATCH_S + 2 * JVM_S
    assert drainer["KillMode"] == "mixed"  # else the JVM ends under the batch in flight


@pytest.mark.parametrize("name", PROGRAMS)
def test_paths_agree_in_unit_configuration_and_tmpfiles(name: str) -> None:
    unit = (FOLDER / f"tidb-binlog-{name}.service").read_text()
    config = (FOLDER / f"{name}.toml").read_text()
    tmpfiles = (FOLDER / "tidb-binlog.tmpfiles.conf").read_text()
    place = f"/var/lib/tidb-binlog/{name}"
    assert f"StateDirectory=tidb-binlog/{name}\n" in unit and f"WorkingDirectory={place}\n" in unit
    assert f'data-dir = "{place}"' in config
    assert re.search(rf"^d {place} +0700 tidb-binlog tidb-binlog", tmpfiles, re.MULTILINE)
    assert f"/etc/tidb-binlog/{name}.toml" in unit and f"/etc/tidb-binlog/{name}.toml" in tmpfiles
    assert "User=tidb-binlog\n" in unit
    assert re.search(r"^u tidb-binlog ", (FOLDER / "tidb-binlog.sysusers.conf").read_text(), re.MULTILINE)


def test_sysusers_and_tmpfiles_files_are_valid(tmp_path: Path) -> None:
    """In a root of its own: nothing of this machine is touched."""
    (tmp_path / "etc").mkdir()
    for program, file in (("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")):
        if shutil.which(program) is None:
            missing(f"{program} is not installed")
        arguments = ["--create"] if file == "tmpfiles" else []
        ran = subprocess.run(
            [program, f"--root={tmp_path}", *arguments, str(FOLDER / f"tidb-binlog.{file}.conf")],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    assert "tidb-binlog" in (tmp_path / "etc/passwd").read_text()
    assert (tmp_path / "var/lib/tidb-binlog/pump").is_dir()
