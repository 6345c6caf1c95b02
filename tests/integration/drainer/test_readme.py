"""README's three steps, as they stand there: its commands, its programs (twice) and its drainer.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import ROOT, Etcd, MariaDB, Server, free_port, python_module

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

README = (ROOT / "README.md").read_text()
# Warnings of what fails and is retried, which a slow machine may cause; all others are about the settings.
RETRIED = (
    "the batch failed and is retried",
    "destination: trying again",
    "heartbeat failed",
    "cannot renew an etcd lease",
    "cannot get timestamps",
    "a pump holds the watermark back",
    "a batch waits",
)


def blocks(language: str) -> list[str]:
    """The code blocks of the section on running it."""
    section = README.split("\n## Installation\n")[1].split("\n## ")[0]
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


class Machines:
    """The machines of README are all this one."""

    def __init__(self, etcd: Etcd, mariadb: MariaDB, directory: Path) -> None:
        self.directory = directory
        self._places = {
            "http://10.0.0.9:2379": etcd.endpoint,
            "10.0.0.5:8249": f"127.0.0.1:{free_port()}",
            'host = "10.0.0.7"': f'host = "{mariadb.host}"',
            "port = 3306": f"port = {mariadb.port}",
            'user = "drainer"': f'user = "{mariadb.user}"',
            'password = "…"': f'password = "{mariadb.password}"',
        }

    def here(self, text: str, **more: str) -> str:
        for there, here in {**self._places, **more}.items():
            text = text.replace(there, here)
        assert "10.0.0." not in re.sub(r"#.*", "", text), text
        return text

    def pump(self, number: int) -> Server:
        (command,) = [block for block in blocks("sh") if block.startswith("pump ")]
        places = {"10.0.0.1:8250": f"127.0.0.1:{free_port()}", "/var/lib/pump": str(self.directory / f"pump-{number}")}
        _, *arguments = self.here(command, **places).split()
        return python_module("pump", *arguments, output=self.directory / f"pump-{number}.log")

    def program(self, text: str) -> None:
        file = self.directory / "service.py"
        file.write_text(self.here(text))
        done = subprocess.run([sys.executable, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    def drainer(self) -> Server:
        (text,) = [block for block in blocks("toml") if block.startswith("# drainer.toml\n")]
        file = self.directory / "drainer.toml"
        file.write_text(self.here(text))
        (commands,) = [block for block in blocks("sh") if block.startswith("drainer ")]
        assert "drainer -config drainer.toml --until-now" in commands
        arguments = ["-config", str(file), "--until-now", "-data-dir", str(self.directory / "data.drainer")]
        return python_module("drainer", *arguments, output=self.directory / "drainer.log")


@pytest.fixture
def machines(etcd: Etcd, mariadb: MariaDB, java: None, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(etcd, mariadb, tmp_path)
    pumps = [made.pump(number).start() for number in (1, 2)]
    try:
        for pump in pumps:
            pump.wait_for_output("pump is serving")
        yield made
    finally:
        for pump in pumps:
            pump.kill()


def test_readme_steps_bring_every_row_into_destination(machines: Machines, mariadb: MariaDB) -> None:
    tasks, threads = blocks("python")
    for program in (tasks, threads, tasks, threads):
        machines.program(program)
    drainer = machines.drainer().start()
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    assert "starting from the oldest binlog" in drainer.text()
    rows = mariadb.query("SELECT note, COUNT(*) FROM shop.orders GROUP BY note ORDER BY note")
    assert rows == [("from a task", 2), ("from a thread", 2)]
    warned = [line for line in drainer.text().splitlines() if "[WARN]" in line]
    assert [line for line in warned if not any(text in line for text in RETRIED)] == []
