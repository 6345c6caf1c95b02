"""SparkUnavailable, in a module without pyspark, whose import takes half a second."""

from __future__ import annotations

from binlog.errors import BinlogError


class SparkUnavailable(BinlogError):
    """Spark cannot be started; the text gives the cause."""
