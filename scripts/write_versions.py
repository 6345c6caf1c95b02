"""Writes the versions and limits of docs/versions.md: `python scripts/write_versions.py DOCS`, a folder.

The page is written by hand, except what is in it between `<!-- KIND WORDS -->` and `<!-- end -->`: KINDS has what each
kind of value is. Versions are of what CI installs or runs; limits are constants and settings of the code. A test
compares the committed page with the output of this script.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from binlog.runtime.command_line import default_text, settings, size_text
from pydantic import BaseModel

from drainer.config import Config
from pump.config import PumpConfig

ROOT: Final = Path(__file__).resolve().parents[1]
MARKED: Final = re.compile(r"(<!-- (\w+)((?: [\w.-]+)*) -->)(.*?)(<!-- end -->)")
# Debian's packages, whose numbers no file of the project has: in CI a test asks the programs.
DEBIAN_NUMBERS: Final = {
    "python3": "3.11",
    "openjdk-17-jre-headless": "17",
    "mariadb-server": "10.11",
    "prometheus": "2.42",
    "systemd": "252",
}
# Programs of PEER_BIN that do not tell their version, with a Go module that is built into that version; the test with
# PEER_BIN looks for it. The other programs of PEER_BIN are those of the recordings.
PEERS: Final = {
    "pd-server": ("6.6.0", "github.com/pingcap/tidb-dashboard\tv0.0.0-20230209052558-a58fc2a7e924"),
    "ticdc-kafka-consumer": ("8.1.0", "github.com/pingcap/tidb\tv1.1.0-beta.0.20240415145106-cd9c676e9ba4"),
}


def locked(root: Path, package: str) -> str:
    """Return the version of a Python package in uv.lock."""
    packages = tomllib.loads((root / "uv.lock").read_text())["package"]
    (version,) = {one["version"] for one in packages if one["name"] == package}
    return str(version)


def jar(root: Path, listed: str, artifact: str) -> str:
    """Return the version of an artifact in a list of scripts/jars."""
    (file,) = (root / "scripts" / "jars").glob(f"{listed}-[0-9]*.txt")
    (version,) = re.findall(rf"/{re.escape(artifact)}/([^/\s]+)/", file.read_text())
    return str(version).removesuffix(".Final")


def debian(root: Path, package: str) -> str:
    """Describe a package of the Debian that CI runs in. Raises LookupError if scripts/need.sh does not name it."""
    if not re.search(rf"\b{re.escape(package)}\b", (root / "scripts" / "need.sh").read_text()):
        raise LookupError(f"scripts/need.sh does not name {package}")
    release = re.findall(r"bare Debian (\d+)", (root / ".ci" / "run").read_text())[0]
    return f"{DEBIAN_NUMBERS.get(package, 'the newest')}: Debian {release}'s `{package}`"


def go(root: Path, module: str) -> str:
    """Return the version of a Go program that scripts/need.sh builds."""
    (version,) = re.findall(rf"/{re.escape(module)}@v([\d.]+)", (root / "scripts" / "need.sh").read_text())
    return str(version)


def recorded_versions(root: Path) -> dict[str, str]:
    """Return what a recording says of the programs that made it."""
    meta = root / "tests" / "golden" / "captures" / "keys" / "meta.json.gz"
    versions: dict[str, str] = json.loads(gzip.decompress(meta.read_bytes()))["versions"]
    return versions


def recorded(root: Path, program: str) -> str:
    """Return the commit of a program that made the recordings: `tidb_go_module`, which has a date, or `tidb_binlog`."""
    text = recorded_versions(root)[program]
    dated = re.search(r"(\d{4})(\d\d)(\d\d)\d{6}-(\w+)$", text)
    return f"`{dated[4]}` of {dated[1]}-{dated[2]}-{dated[3]}" if dated else f"`{text.split()[0]}`"


def peer(root: Path, program: str) -> str:
    return PEERS[program][0]


def vectors(root: Path, pattern: str) -> str:
    """Return the number of test vectors in the files of tests/golden/vectors whose names contain `pattern`."""
    files = (root / "tests" / "golden" / "vectors").glob(f"*{pattern}*_vectors.json.gz")
    return str(sum(len(json.loads(gzip.decompress(file.read_bytes()))["vectors"]) for file in files))


def _setting(model: type[BaseModel], key: str, variant: str = "") -> str:
    """Return the default of a setting and its bounds. `variant`: the destination, if several have the setting."""
    (info,) = (
        info
        for path, info in settings(model)
        if ".".join(path) == key and (info.description or "").startswith(f"{variant}: " if variant else "")
    )
    text = default_text(info)
    given = [(name, getattr(data, name, 0)) for data in info.metadata for name in ("ge", "le")]
    bounds = {name: _number(bound, "iB" in text) for name, bound in given if bound > 1}
    text = _number(int(text), False) if text.isdecimal() else text
    if len(bounds) == 2:
        return f"{text} ({bounds['ge']} to {bounds['le']})"
    return text + "".join(f" (at {'least' if name == 'ge' else 'most'} {bound})" for name, bound in bounds.items())


def pump(root: Path, key: str) -> str:
    return _setting(PumpConfig, key)


def drainer(root: Path, key: str, variant: str = "") -> str:
    return _setting(Config, key, variant)


def code(root: Path, module: str, name: str) -> str:
    """Return a constant of a module, or the default of a field of a dataclass: `Class.field`."""
    found = importlib.import_module(module)
    owner, _, field = name.rpartition(".")
    if owner:
        value: Any = {one.name: one.default for one in dataclasses.fields(getattr(found, owner))}[field]
    else:
        value = getattr(found, name)
    if name.upper().endswith("_S"):
        return f"{value:g} s"
    return _number(value, "BYTES" in name.upper())


def _number(value: int, is_size: bool) -> str:
    text = size_text(value) if is_size else str(value)
    return f"{value:,}" + " bytes" * is_size if text == str(value) else text


KINDS: Final[Mapping[str, Callable[..., str]]] = {
    kind.__name__: kind for kind in (locked, jar, debian, go, recorded, peer, vectors, pump, drainer, code)
}


def with_values(text: str, root: Path = ROOT) -> str:
    """Return the page with every value made again. Raises LookupError or ValueError for one that does not exist."""
    return MARKED.sub(lambda found: f"{found[1]}{KINDS[found[2]](root, *found[3].split())}{found[5]}", text)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: write_versions.py DOCS")
    page = Path(sys.argv[1]) / "versions.md"
    page.write_text(with_values(page.read_text()))


if __name__ == "__main__":
    main()
