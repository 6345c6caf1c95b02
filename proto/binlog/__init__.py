"""The formats, protocols and cluster clients that all programs share."""

from binlog.runtime.version import release

__version__ = release()
