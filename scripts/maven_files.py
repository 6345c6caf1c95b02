"""Downloads the files of a fixed list from Maven Central, checks them, and installs all of them or none.

    python3 scripts/maven_files.py scripts/jars/kafka-4.4.0.txt

It needs only Python, not Maven. A .tar.gz is unpacked. The files are installed in ~/.cache/tidb-binlog/<name of the
list>/, which all checkouts of this user share. If that folder exists, it is complete. MAVEN_CENTRAL names another
repository with the same content.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CENTRAL = "https://repo1.maven.org/maven2"
ATTEMPTS = 4


def folder_of(listed: Path) -> Path:
    return Path.home() / ".cache" / "tidb-binlog" / listed.stem


def entries(listed: Path) -> list[tuple[str, str]]:
    """Return (SHA-256, path in the repository) of each file of a list."""
    lines = [line.split() for line in listed.read_text().splitlines() if line and not line.startswith("#")]
    return [(checksum, path) for checksum, path in lines]


def fetched(repository: str, path: str, checksum: str) -> bytes:
    """Download a file. Raises OSError if the download fails, ValueError if the checksum differs."""
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(f"{repository}/{path}", timeout=60) as answer:
                data: bytes = answer.read()
            break
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code in (403, 404)
            if refused or attempt == ATTEMPTS - 1:
                raise OSError(f"{repository}/{path}: {error}; MAVEN_CENTRAL=URL sets a mirror") from error
            time.sleep(2**attempt)
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        raise ValueError(f"{repository}/{path} has SHA-256 {found}, and {checksum} was expected")
    return data


def install(listed: Path, repository: str) -> Path:
    """Install the files of a list and return their folder. Safe for use by several processes at the same time: a
    process that finds the folder complete in the end discards its own files."""
    folder = folder_of(listed)
    if folder.is_dir():
        return folder
    wanted = entries(listed)
    sys.stderr.write(f"getting {listed.stem}: {len(wanted)} files from {repository}\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        beside = Path(scratch) / "files"
        beside.mkdir()
        with ThreadPoolExecutor(6) as pool:
            got = pool.map(lambda one: fetched(repository, one[1], one[0]), wanted)
            for (_, path), data in zip(wanted, got, strict=True):
                _put(beside, Path(path).name, data)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(beside)
    return folder


def _put(folder: Path, name: str, data: bytes) -> None:
    if not name.endswith(".tar.gz"):
        (folder / name).write_bytes(data)
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        # The parameter `filter` of extractall came with Python 3.11.4; this attribute is ignored before.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)


def main() -> int:
    repository = os.environ.get("MAVEN_CENTRAL", CENTRAL).rstrip("/")
    for name in sys.argv[1:]:
        try:
            sys.stdout.write(f"{install(Path(name), repository)}\n")
        except (OSError, ValueError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
