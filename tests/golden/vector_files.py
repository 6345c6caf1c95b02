"""Files of vectors: those of codecs have a `section` in each vector, those of messages a `protocol` and a `kind`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parent / "vectors"
Vector = dict[str, Any]


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def vectors_with(member: str, given: Sequence[Path], default: Sequence[Path]) -> list[Vector]:
    """The vectors that have `member`, of the files that are given; of the default ones where none of those has any.
    UsageError for a file without vectors, and for a vector of neither form: nothing is skipped."""
    found = [vector for path in given for vector in _load(path) if member in vector]
    return found or [vector for path in default for vector in _load(path) if member in vector]


def _load(path: Path) -> list[Vector]:
    vectors: list[Vector] = json.loads(read(path))["vectors"]
    if not vectors:
        raise pytest.UsageError(f"{path}: no vectors")
    by_id = {vector.get("id"): vector for vector in vectors}
    for number, vector in enumerate(vectors):
        if "section" not in vector and not {"protocol", "kind"} <= vector.keys():
            raise pytest.UsageError(f"{path}: vector {number} has neither a section nor a protocol and a kind")
        repeated = vector.get("input") if "kind" in vector else None
        if isinstance(repeated, dict) and isinstance(repeated.get("repeat_event"), str):
            repeated["repeat_event"] = by_id[repeated["repeat_event"]]
    return vectors


def only(given: Vector, required: str, optional: str = "") -> list[Any]:
    """The fields of an input or an expectation, which has exactly these (names with spaces between them), in this
    order: those that are required, then the optional ones, None where they are missing."""
    names, more = required.split(), optional.split()
    assert set(names) <= set(given) <= {*names, *more}, f"fields {sorted(given)}, this check reads {names + more}"
    return [given.get(name) for name in names + more]
