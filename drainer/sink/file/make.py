"""Makes the sink of `db-type = "file"`."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from drainer.sink.file.files import Rotation
from drainer.sink.file.format import FileFormat
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.section import FileSection
from drainer.sink.file.sink import FileSink
from drainer.sink.settings import SyncerSettings


def make(to: FileSection, syncer: SyncerSettings) -> FileSink:
    """Return the sink, not opened yet."""
    zone = UTC if to.time_zone == "UTC" else ZoneInfo(to.time_zone)
    format_: FileFormat = PbFormat(zone, compresses=to.compression == "gzip") if to.format == "pb" else ParquetFormat()
    rotation = Rotation(to.rotate_bytes, int(to.rotate_interval / timedelta(milliseconds=1)))
    return FileSink(Path(to.dir), format_, rotation=rotation, retention=to.retention_time)
