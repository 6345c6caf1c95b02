"""The error of a Spark that cannot be started, for modules that must not import pyspark, which takes half a second."""

from __future__ import annotations

from binlog.errors import BinlogError


class SparkUnavailable(BinlogError):
    """Spark cannot be started; the text says what is missing."""
