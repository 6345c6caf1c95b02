"""Files of the real servers."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from scripts.maven_files import folder_of, install

pytestmark = pytest.mark.integration


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
