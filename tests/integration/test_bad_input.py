"""What a user gets for a mistake: one line that names the thing and the place, the right exit code, no traceback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Etcd, MariaDB, free_port, python_module, running_etcd

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[Etcd]:
    """One etcd for all refusals: none of them changes anything."""
    with running_etcd() as server:
        yield server


def run(program: str, *argv: str, **env: str) -> tuple[int, str]:
    """Exit code and everything it printed."""
    done = subprocess.run(
        [sys.executable, "-m", program, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout.decode()


def refused(found: tuple[int, str], code: int, *texts: str) -> None:
    """The last line says it; what came before are ordinary log lines."""
    rc, output = found
    last = output.strip().splitlines()[-1]
    if last.startswith("run "):
        last = output.strip().splitlines()[-2]
    assert "Traceback" not in output, output
    for text in texts:
        assert text in last, output
    assert rc == code, output
    assert not [line for line in output.splitlines() if line.startswith(("E1", "I1", "W1"))], "gRPC's own lines"


@pytest.fixture
def busy() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    "program",
    [
        *("pump", "drainer", "pumpclient.ctl"),
        *("drainer.reparo", "drainer.kafka_check", "drainer.kafka_consumer", "drainer.arbiter"),
    ],
)
def test_unknown_flag_is_refused_with_exit_code_2(program: str) -> None:
    refused(run(program, "-nope"), 2, "flag provided but not defined: -nope")


@pytest.mark.parametrize("program", ["pump", "drainer"])
def test_invalid_config_or_log_file_is_refused_with_its_path(program: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('log-level = "info"\npd-urls = "ftp://x:1"\n')
    refused(run(program, "-config", str(tmp_path / "c.toml")), 1, f"{tmp_path}/c.toml, line 2: pd-urls: URL scheme")
    refused(run(program, "-config", str(tmp_path)), 1, f"config file {tmp_path}: Is a directory")
    refused(run(program, "-log-file", "/proc/x/y.log"), 1, "log-file /proc/x/y.log cannot be written")


def test_pump_with_unusable_data_dir_address_or_certificate_is_refused(
    cluster: Etcd, busy: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    base = ("-pd-urls", cluster.endpoint, "-addr", "127.0.0.1:0")
    refused(run("pump", *base, "-data-dir", str(tmp_path / "file")), 1, f"data-dir {tmp_path}/file cannot be used")
    refused(run("pump", *base, "-data-dir", "/proc/x"), 1, "data-dir /proc/x cannot be used")
    for inner, why in (("value", f"cannot be used: {tmp_path}/in/value: "), ("kv", f"the index {tmp_path}/in/kv")):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / inner).write_text("")
        refused(run("pump", *base, "-data-dir", str(tmp_path / "in")), 1 if inner == "value" else 2, why)
        shutil.rmtree(tmp_path / "in")
    data = ("-data-dir", str(tmp_path / "p"))
    refused(run("pump", *base, *data, "-addr", busy), 1, f"addr {busy}: cannot listen there: Address already in use")
    refused(run("pump", *base, *data, "-status-addr", busy), 1, f"status-addr {busy}: cannot listen there")
    refused(run("pump", *base, *data, "-ssl-ca", "none.pem"), 1, "ssl-ca none.pem")
    assert run("pumpclient.ctl", "pumps", "-pd-urls", cluster.endpoint)[1].count("no pumps to list") == 1, (
        "a start that failed leaves no record behind"
    )


def test_pump_with_data_dir_in_use_is_refused(cluster: Etcd, tmp_path: Path) -> None:
    argv = ("-pd-urls", cluster.endpoint, "-addr", "127.0.0.1:0", "-data-dir", str(tmp_path / "p"), "-status-addr", "")
    server = python_module("pump", *argv, output=tmp_path / "pump.log").start()
    try:
        server.wait_for_output("pump is serving")
        refused(run("pump", *argv), 2, "file already locked (another pump uses this data-dir)")
    finally:
        assert server.stop() == 0, server.tail()


def test_pump_and_binlogctl_name_unreachable_etcd(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    refused(run("pump", "-pd-urls", nobody, "-data-dir", str(tmp_path / "p")), 2, f"no connection to etcd at {nobody}")
    refused(run("pumpclient.ctl", "pumps", "-pd-urls", nobody), 3, f"no connection to etcd at {nobody}")


def drainer(cluster: Etcd, tmp_path: Path, *argv: str, to: str = "") -> tuple[int, str]:
    config = tmp_path / "drainer.toml"
    to = to or f'db-type = "sqlite"\n[syncer.to]\npath = "{tmp_path}/out.sqlite"\n'
    config.write_text(
        f'pd-urls = "{cluster.endpoint}"\naddr = "127.0.0.1:{free_port()}"\nstatus-addr = ""\n'
        f'data-dir = "{tmp_path}/d"\ninitial-commit-ts = 0\n[syncer]\n{to}'
    )
    return run("drainer", "-config", str(config), *argv)


def test_drainer_with_unusable_history_source_is_refused(cluster: Etcd, tmp_path: Path) -> None:
    history = tmp_path / "h.json"
    refused(drainer(cluster, tmp_path, "-history-file", str(history)), 2, f"{history}", "No such file")
    history.write_text('{"id":1,"type":1}\nnonsense\n')
    refused(drainer(cluster, tmp_path, "-history-file", str(history)), 2, f"{history}, line")
    dead = f"http://127.0.0.1:{free_port()}"
    refused(drainer(cluster, tmp_path, "-history-url", dead), 2, dead)


def test_drainer_with_busy_address_or_invalid_path_is_refused(cluster: Etcd, busy: str, tmp_path: Path) -> None:
    refused(drainer(cluster, tmp_path, "-addr", busy), 1, f"addr {busy}: cannot listen there: Address already in use")
    refused(drainer(cluster, tmp_path, "-status-addr", busy), 1, f"status-addr {busy}: cannot listen there")
    refused(drainer(cluster, tmp_path, "-node-id", "a/b"), 1, "node-id: node id 'a/b' must not")
    bad = f'db-type = "sqlite"\n[syncer.to]\npath = "{tmp_path}"\n'
    refused(drainer(cluster, tmp_path, to=bad), 2, f"{tmp_path} cannot be used as an SQLite file")


def test_drainer_with_wrong_database_credentials_is_refused_without_password(
    cluster: Etcd, mariadb: MariaDB, tmp_path: Path
) -> None:
    wrong = f'[syncer.to]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "nobody"\npassword = "s3cret"\n'
    found = drainer(cluster, tmp_path, to=wrong)
    refused(found, 2, "1045")
    assert "s3cret" not in found[1]
    mariadb.query("CREATE OR REPLACE USER 'poor'@'%%' IDENTIFIED BY 's3cret'")
    try:
        found = drainer(cluster, tmp_path, to=wrong.replace("nobody", "poor"))
        refused(found, 2, "tidb_binlog", "denied")
        assert "s3cret" not in found[1]
    finally:
        mariadb.query("DROP USER 'poor'@'%%'")


def test_signal_ends_drainer_waiting_for_unreachable_destination(cluster: Etcd, tmp_path: Path) -> None:
    config = tmp_path / "drainer.toml"
    config.write_text(
        f'pd-urls = "{cluster.endpoint}"\naddr = "127.0.0.1:{free_port()}"\nstatus-addr = ""\ninitial-commit-ts = 0\n'
        f'data-dir = "{tmp_path}/d"\n[syncer.to]\nport = {free_port()}\n'
    )
    server = python_module("drainer", "-config", str(config), output=tmp_path / "drainer.log").start()
    try:
        server.wait_for_output("destination: trying again")
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(deadline_s=240) == 0
        assert "stopped before the destination was open" in server.text()
    finally:
        server.kill()


@pytest.mark.usefixtures("java")
def test_drainer_with_invalid_spark_master_is_refused(cluster: Etcd, tmp_path: Path) -> None:
    refused(drainer(cluster, tmp_path, "-master", "nonsense"), 2, "Spark did not start", "spark.log")
