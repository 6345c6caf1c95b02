"""`[syncer.to]` of a directory of files, and of one of JSON lines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from binlog.errors import ConfigError
from binlog.runtime.fields import ByteSize, Duration, Retention, ZoneName
from pydantic import Field

from drainer.sink.settings import ToSection


class FileSection(ToSection):
    """The directory, format and rotation of the files."""

    dir: str = Field("", description="the directory; created if it does not exist")
    format: Literal["pb", "parquet"] = Field(
        "pb",
        description="pb: TiDB-Binlog's own files, which reparo reads; parquet: columns with the row before and after",
    )
    rotate_bytes: ByteSize = Field(
        512 << 20, ge=1, description="size at which a file is complete and the next one begins"
    )
    rotate_interval: Duration = Field(
        timedelta(hours=1),
        description="age at which a file is complete and the next one begins; 0: only its size counts",
    )
    compression: Literal["", "gzip"] = Field(
        "", description="compression of complete pb files; Parquet files always use zstd"
    )
    retention_time: Retention = Field(
        timedelta(0),
        description="age after which complete files are removed; a plain number is days; 0: never",
    )
    time_zone: ZoneName = Field(
        "UTC", description="time zone of the text of TIMESTAMPs in pb files; reparo must use the same one"
    )

    def address(self) -> str:
        return f"file:{Path(self.dir).absolute()}"

    def check(self) -> None:
        if not self.dir:
            raise ConfigError("syncer.to.dir: a file destination needs its directory")
        if self.compression and self.format != "pb":
            raise ConfigError("syncer.to.compression: pb files alone are compressed as a whole; leave it out")
        for name, value in (("rotate-interval", self.rotate_interval), ("retention-time", self.retention_time)):
            if value < timedelta(0):
                raise ConfigError(f"syncer.to.{name} must not be negative")


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

    def address(self) -> str:
        return f"jsonl:{Path(self.path).absolute()}"

    def check(self) -> None:
        if not self.path:
            raise ConfigError("syncer.to.path: a jsonl destination needs the path of its directory")
