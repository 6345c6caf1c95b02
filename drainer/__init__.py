"""Many logs in, one ordered stream out, applied in parallel."""

from binlog.runtime.version import release

__version__ = release()
