"""The contract: everything two programs must agree on."""

from binlog.runtime.version import release

__version__ = release()
