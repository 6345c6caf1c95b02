"""The real servers start, answer, and are gone afterwards."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from scripts.maven_files import folder_of, install
from tests.support.kafka import Broker
from tests.support.servers import ROOT, Etcd, MariaDB, answers, free_port

pytestmark = pytest.mark.integration


def test_etcd_fixture_answers(etcd: Etcd) -> None:
    assert answers(int(etcd.endpoint.rsplit(":", 1)[1]))


def test_mariadb_fixture_answers_query(mariadb: MariaDB) -> None:
    assert mariadb.query("SELECT 1 + 1") == [(2,)]


def test_java_fixture_finds_java_for_spark(java: None) -> None:
    """The fixture itself is the check."""


def test_free_port_returns_each_port_once_over_processes() -> None:
    """Also over processes, and never one that the kernel may take for an outgoing connection."""
    ours = {free_port() for _ in range(300)}
    beside = free_port(also=1000)
    assert not {beside, beside + 1000} & ours
    child = "from tests.support.servers import free_port; print(*(free_port() for _ in range(300)))"
    printed = subprocess.run([sys.executable, "-c", child], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    theirs = {int(port) for port in printed.split()}
    assert len(ours) == len(theirs) == 300
    assert not ours & theirs
    assert max(ours | theirs) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


@pytest.mark.slow
def test_kafka_broker_keeps_transactions_after_sigkill(kafka: Broker) -> None:
    """Both kinds of reader see what they must, before and after."""
    topic = kafka.topic(2)
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for value, kept in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, value, partition=partition)
        producer.flush()
        (producer.commit_transaction if kept else producer.abort_transaction)(60)
    for _ in range(2):
        assert kafka.values(topic) == [[b"1", b"3"]] * 2
        assert kafka.values(topic, committed=False) == [[b"1", b"2", b"3"]] * 2
        kafka.kill()
        kafka.start()


def test_kafka_values_waits_for_open_transactions(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is acknowledged before readers of committed messages see it."""
    topic = kafka.topic(1)
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    assert producer.flush(60) == 0
    with monkeypatch.context() as impatient:
        impatient.setattr("tests.support.kafka.SETTLED_S", 0.0)
        assert not kafka.settle(topic)
        assert kafka.values(topic) == [[]]
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(kafka.values, topic)
        producer.commit_transaction(60)
        assert reading.result(120) == [[b"1"]]


def test_installed_files_are_checked_by_hash_and_appear_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    repository = tmp_path / "repository"
    (repository / "a").mkdir(parents=True)
    lines = []
    for name in ("one.jar", "two.jar"):
        (repository / "a" / name).write_bytes(name.encode())
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  a/{name}")
    listed = tmp_path / "list-1.txt"
    listed.write_text("# comment\n" + "\n".join(lines) + "\n")
    (repository / "a" / "two.jar").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"two\.jar has SHA-256"):
        install(listed, repository.as_uri())
    folder = folder_of(listed)
    assert list(folder.parent.iterdir()) == []
    (repository / "a" / "two.jar").write_bytes(b"two.jar")
    assert install(listed, repository.as_uri()) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["one.jar", "two.jar"]
    assert install(listed, "file:///nowhere") == folder


def test_installed_archive_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "one.jar").write_bytes(b"one")
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "inside", "lib")
    listed = tmp_path / "list-2.txt"
    listed.write_text(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  all.tar.gz\n")
    folder = install(listed, tmp_path.as_uri())
    assert [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))] == ["lib", "lib/one.jar"]
    assert (folder / "lib" / "one.jar").read_bytes() == b"one"
