"""`[syncer.to]` of a lake."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, Literal

from binlog.errors import ConfigError
from binlog.runtime.fields import Duration
from pydantic import Field

from drainer.lake import files
from drainer.schema.filter import PatternError, TablePatterns
from drainer.sink.settings import ToSection

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"

_KEEP_MIN: Final = timedelta(hours=1)  # a file that has been written is committed within less
_KEEP_MAX: Final = timedelta(days=30)  # Delta keeps its log as long


class LakeSection(ToSection):
    """The directory of the tables, which of them have a mirror, and how often mirrors are merged."""

    shows_lost: ClassVar[bool] = True
    dir: str = Field(
        "",
        description="the directory of all tables; created if it does not exist. Executors must have it, too. Or "
        "`s3://bucket/prefix`, `hdfs://host/path`",
    )
    mirror: tuple[str, ...] = Field(
        ("*.*",), description="patterns of tables that get a mirror beside their history; the last one that fits counts"
    )
    history: tuple[str, ...] = Field(
        ("*.*",),
        description="patterns of tables whose history is kept for good; of other tables changes older than `keep` are "
        "removed from it when the mirror has them. Every change is written to it first",
    )
    history_interval: Duration = Field(
        timedelta(0),
        description="how often changes that have been written are committed to the histories, and the position moves: "
        "later means fewer commits; 0: after each batch",
    )
    merge_interval: Duration = Field(
        timedelta(minutes=2), description="how often the rows that have come are merged into the mirrors"
    )
    compaction_share: float = Field(
        0.1, description="how much of the time small files may be written together, from 0 (never) to 1"
    )
    keep: Duration = Field(
        timedelta(days=7), description="how long earlier versions of the tables are kept, from 1h to 30d"
    )
    deletion_vectors: bool = Field(
        True,
        description="true: a merge marks rows as deleted; false: it writes the files that hold them anew, for readers "
        "that do not know deletion vectors",
    )
    zero_dates: Literal["null", "fail"] = Field("null", description="what becomes of dates that Spark cannot hold")

    def address(self) -> str:
        return f"delta:{files.place(self.dir)}"

    def check(self) -> None:
        if not self.dir:
            raise ConfigError("syncer.to.dir: a lake needs its directory")
        try:
            files.place(self.dir)
        except ConfigError as error:
            raise ConfigError(f"syncer.to.dir: {error}") from error
        if self.merge_interval <= timedelta(0):
            raise ConfigError("syncer.to.merge-interval must be above 0")
        if self.history_interval < timedelta(0):
            raise ConfigError("syncer.to.history-interval must not be negative")
        if not 0 <= self.compaction_share <= 1:
            raise ConfigError("syncer.to.compaction-share must be between 0 and 1")
        if not _KEEP_MIN <= self.keep <= _KEEP_MAX:
            raise ConfigError("syncer.to.keep must be between 1h and 30d (720h)")
        _ = self.mirrored, self.kept

    @cached_property
    def mirrored(self) -> TablePatterns | None:
        """The tables with a mirror; None: no table. Raises ConfigError."""
        return _patterns(self.mirror, "mirror")

    @cached_property
    def kept(self) -> TablePatterns | None:
        """The tables whose history is kept for good; None: no table. Raises ConfigError."""
        return _patterns(self.history, "history")

    def spark_settings(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """A user who names jars has Delta's, too."""
        place = files.place(self.dir)
        more, excluded = files.packages(place)
        packages = {} if "spark.jars" in given else {"spark.jars.packages": f"{PACKAGE},{more}".rstrip(",")}
        if packages and excluded:
            packages["spark.jars.excludes"] = excluded
        return {
            **packages,
            **files.spark_settings(place),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The state of a table is read by this many tasks (50): seconds for each commit on a small machine.
            "spark.databricks.delta.snapshotPartitions": "2",
            # As safe on a local disk as the usual one, which starts chmod as a process for each file of a log.
            "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        }


def _patterns(given: tuple[str, ...], what: str) -> TablePatterns | None:
    try:
        return TablePatterns.parse(given, whose="syncer.to", what=what) if given else None
    except PatternError as error:
        raise ConfigError(f"syncer.to.{what}: {error}") from error
