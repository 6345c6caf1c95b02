"""The contract: everything two programs must agree on."""

from binlog.version import release

__version__ = release()
