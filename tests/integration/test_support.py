"""Ports and files of the real servers."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts.maven_files import folder_of, install
from tests.support.servers import ROOT, free_port

pytestmark = pytest.mark.integration


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
