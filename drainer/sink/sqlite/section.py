"""`[syncer.to]` of a SQLite file."""

from __future__ import annotations

from pathlib import Path

from binlog.errors import ConfigError
from pydantic import Field

from drainer.sink.settings import ToSection


class SQLiteSection(ToSection):
    """The file's path."""

    path: str = Field("", description="the database file; created if missing")

    def address(self) -> str:
        return f"sqlite:{Path(self.path).absolute()}"

    def check(self) -> None:
        if not self.path:
            raise ConfigError("syncer.to.path: a sqlite destination needs the path of its file")
