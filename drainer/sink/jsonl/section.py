"""`[syncer.to]` of a directory of JSON lines."""

from __future__ import annotations

from pathlib import Path

from binlog.errors import ConfigError
from binlog.runtime.fields import ByteSize
from pydantic import Field

from drainer.sink.settings import ToSection


class JsonlSection(ToSection):
    """The directory and the size of the files."""

    path: str = Field(
        "", description="the directory; created if it does not exist. Executors must have it under this path"
    )
    files: int = Field(
        4,
        ge=1,
        le=999,
        description="number of files that are written at the same time; a table's lines are all in one of them",
    )
    rotate_bytes: ByteSize = Field(
        256 << 20, ge=1, description="size at which a file is complete and the next one begins"
    )

    def place(self) -> str:
        return f"jsonl:{Path(self.path).absolute()}"

    def check(self) -> None:
        if not self.path:
            raise ConfigError("syncer.to.path: a jsonl destination needs the path of its directory")
