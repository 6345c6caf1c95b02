"""An append-only binlog served over gRPC. FORMAT.md is its disk format."""

from binlog.runtime.version import release

__version__ = release()
