"""Delta's tables in memory, for tests of a lake without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq

from drainer.lake.delta import TableState, txn_action
from drainer.sink.errors import Fenced


class MemoryDelta:
    """Delta's tables in memory: `commits`, the actions of each version of a table by its path. `written`: the tables
    that statements of an app have written, in order."""

    def __init__(self) -> None:
        self.commits: dict[Path, list[list[dict[str, Any]]]] = {}
        self.written = list[Path]()
        self.spark, self.read = mock.MagicMock(), mock.MagicMock()

    def _of(self, path: Path, kind: str, version: int | None = None) -> list[Any]:
        commits = self.commits.get(path, [])[: None if version is None else version + 1]
        return [one[kind] for commit in commits for one in commit if kind in one]

    def state(self, path: Path) -> TableState | None:
        found, version = self._of(path, "metaData"), len(self.commits.get(path, ())) - 1
        schema = [json.loads(one["schemaString"])["fields"] for one in found]
        return TableState(version, found[-1]["id"], schema[-1], found[-1]["configuration"]) if found else None

    def committed(self, path: Path, app: str, version: int | None = None) -> int:
        found = [one["version"] for one in self._of(path, "txn", version) if app in ("", one["appId"])]
        return max(found, default=-1)

    @contextmanager
    def as_app(self, path: Path, app: str, version: int) -> Iterator[Any]:
        yield self.spark
        if self.committed(path, app) < version:
            self.written.append(path)
            self.commit(path, [txn_action(app, version)])

    def domain(self, path: Path, name: str) -> tuple[int, str | None]:
        found = [one["configuration"] for one in self._of(path, "domainMetadata")]
        return len(self.commits[path]) - 1, found[-1] if found else None

    def commit(self, path: Path, actions: Any, *, app: str = "", after: int = -1, version: int = -2) -> int:
        commits = self.commits.setdefault(path, [])
        if (app and self.committed(path, app) != after) or version not in (-2, len(commits) - 1):
            raise Fenced("another one")
        commits.append(list(actions))
        return len(commits) - 1

    def sync(self, path: Path) -> None:
        """Memory has nothing to sync."""

    def delete(self, path: Path, where: str) -> None:
        """Rows of mirrors are not in memory."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Of the files that were added, with physical names."""
        return [row for one in self._of(path, "add") for row in pq.read_table(path / one["path"]).to_pylist()]
