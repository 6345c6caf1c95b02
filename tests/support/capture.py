"""Recordings of a real TiDB: what it wrote, what a pump must serve, the jobs, and the tables that must come out.

A set is a folder of plain files as recorded (`writes.bin`, `expected/…`) or of the compressed copies in
tests/golden/captures (`writes.bin.gz`, `expected.tar.gz`).
"""

from __future__ import annotations

import gzip
import json
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "captures"


def frames(data: bytes) -> Iterator[bytes]:
    """[uint32 BE length][payload]… as in writes.bin and binlogs.bin; ValueError at a torn frame, with its offset."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise ValueError(f"torn frame header at byte {at}")
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 4 + length
        if end > len(data):
            raise ValueError(f"frame at byte {at} wants {length} bytes, {len(data) - at - 4} are left")
        yield data[at + 4 : end]
        at = end


@dataclass(frozen=True)
class CaptureSet:
    """One recording. `name` is its folder's name."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    def read(self, name: str) -> bytes:
        plain = self.directory / name
        if plain.exists():
            return plain.read_bytes()
        return gzip.decompress((self.directory / f"{name}.gz").read_bytes())

    def has(self, name: str) -> bool:
        return (self.directory / name).exists() or (self.directory / f"{name}.gz").exists()

    @cached_property
    def meta(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read("meta.json"))
        return found

    @cached_property
    def writes(self) -> list[bytes]:
        """What TiDB sent, in its order, its bootstrap first."""
        early = list(frames(self.read("writes_bootstrap.bin"))) if self.has("writes_bootstrap.bin") else []
        return early + list(frames(self.read("writes.bin")))

    @cached_property
    def binlogs(self) -> list[bytes]:
        return list(frames(self.read("binlogs.bin")))

    @cached_property
    def jobs_text(self) -> bytes:
        return self.read("ddl_history.json")

    def _documents(self, folder: str) -> dict[str, str]:
        plain = self.directory / folder
        if plain.is_dir():
            return {path.name: path.read_text() for path in sorted(plain.iterdir())}
        packed = self.directory / f"{folder}.tar.gz"
        if not packed.exists():
            return {}
        with tarfile.open(packed) as archive:
            return {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]

    def tables(self, folder: str = "expected") -> dict[str, dict[str, Any]]:
        """`schema.table` → {"create", "columns", "rows"}; folder is `expected` (TiDB) or `downstream` (Go's)."""
        if folder not in self._read_tables:
            self._read_tables[folder] = {
                name.removesuffix(".json"): json.loads(text)
                for name, text in self._documents(folder).items()
                if not name.startswith("_")
            }
        return self._read_tables[folder]

    @cached_property
    def _read_tables(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By folder."""
        return {}


def find_sets(path: Path) -> list[CaptureSet]:
    """The set at `path`, or every set below it."""
    here = CaptureSet(path)
    if here.has("writes.bin"):
        return [here]
    return [CaptureSet(p) for p in sorted(path.iterdir()) if p.is_dir() and CaptureSet(p).has("writes.bin")]
