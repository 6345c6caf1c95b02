"""reparo's settings, under upstream's names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from binlog.cluster import tso
from binlog.errors import ConfigError
from binlog.runtime.command_line import Flag, Program
from binlog.runtime.fields import Names, Section, Tso, ZoneName
from pydantic import Field

from drainer.original_settings import TableName
from drainer.schema.filter import Filter
from drainer.sink.replay import ReplaySettings

PRINT: Final = "print"


class DestSection(Section):
    """`[dest-db]`."""

    host: str = Field("127.0.0.1", description="the server")
    port: int = Field(3306, ge=1, le=65535, description="the server's port")
    user: str = Field("root", description="user at the server")
    password: str = Field("", repr=False, description="password of the user; never logged or shown")
    path: str = Field("", description="for a sqlite destination: its file; created if it does not exist")


class ReparoConfig(Section):
    """All of it."""

    data_dir: str = Field("", description="directory of the files")
    start_datetime: str = Field(
        "",
        description="time of the first transaction, such as 2026-11-20 10:00 (local unless it names a zone) or -2h; "
        "takes precedence over start-tso",
    )
    stop_datetime: str = Field(
        "", description="time of the last transaction, in the same form; takes precedence over stop-tso"
    )
    start_tso: Tso = Field(0, ge=0, description="commit_ts of the first transaction, inclusive; 0: from the beginning")
    stop_tso: Tso = Field(0, ge=0, description="commit_ts of the last transaction, inclusive; 0: to the end")
    dest_type: str = Field(PRINT, description="print, or a database: mysql, tidb, mariadb, sqlite")
    dest_db: DestSection = Field(default_factory=lambda: DestSection.model_validate({}))
    txn_batch: int = Field(20, ge=1, description="maximum number of transactions that are applied in one")
    worker_count: int = Field(
        16, ge=1, description="accepted, without effect: one worker applies everything, in commit order"
    )
    safe_mode: bool = Field(
        False, description="rows may already exist or be missing: REPLACE for INSERT, DELETE and REPLACE for UPDATE"
    )
    name: str = Field(
        "reparo", max_length=100, description="name of this replay; the destination stores the position under it"
    )
    skip_damaged: bool = Field(
        False, description="continue after a damaged place of a file, with a warning, instead of stopping"
    )
    ignore_txn_commit_ts: tuple[int, ...] = Field((), description="commit_ts of transactions and DDLs that are skipped")
    time_zone: ZoneName = Field(
        "UTC",
        description="time zone of TIMESTAMPs in the files: the drainer's `time-zone`, or that of the machine "
        "of the original's drainer",
    )
    replicate_do_db: Names = Field((), description="databases to apply; `~` begins a regular expression")
    replicate_do_table: tuple[TableName, ...] = Field((), description="tables to apply")
    replicate_ignore_db: Names = Field((), description="databases to leave out")
    replicate_ignore_table: tuple[TableName, ...] = Field((), description="tables to leave out")
    log_file: str = Field("", description="file for the log; empty: standard error")
    log_level: str = Field("info", description="debug, info, warn, error or fatal")

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""
        if not self.data_dir:
            raise ConfigError("data-dir is empty: give the directory of the drainer's files")
        if not Path(self.data_dir).is_dir():
            raise ConfigError(f"data-dir {self.data_dir} is no directory")
        if self.stop_ts and self.stop_ts < self.start_ts:
            raise ConfigError(f"the stop, {self.stop_ts}, is before the start, {self.start_ts}")

    @property
    def start_ts(self) -> int:
        return _ts("start-datetime", self.start_datetime) if self.start_datetime else self.start_tso

    @property
    def stop_ts(self) -> int:
        return _ts("stop-datetime", self.stop_datetime) if self.stop_datetime else self.stop_tso

    def filter(self) -> Filter:
        """Return the filter. Raises ConfigError for an invalid pattern."""
        return Filter.create(
            do_dbs=self.replicate_do_db,
            do_tables=[(one.db_name, one.tbl_name) for one in self.replicate_do_table],
            ignore_tables=[(one.db_name, one.tbl_name) for one in self.replicate_ignore_table],
            ignore_schemas=self.replicate_ignore_db,
        )

    def replay(self) -> ReplaySettings:
        return ReplaySettings(
            "reparo",
            "reparo_position",
            self.name,
            safe=self.safe_mode,
            zone=self.time_zone,
            remedy="put {commit_ts} into ignore-txn-commit-ts",
        )


def _ts(name: str, text: str) -> int:
    try:
        return tso.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


FLAGS: Final = (
    *map(Flag, ("data-dir", "start-datetime", "stop-datetime", "start-tso", "stop-tso", "dest-type", "txn-batch")),
    *map(Flag, ("safe-mode", "name", "skip-damaged", "time-zone", "log-file")),
    Flag("c", "worker-count"),
    Flag("L", "log-level"),
)
PROGRAM: Final = Program(
    "reparo",
    ReparoConfig,
    FLAGS,
    env_prefix="REPARO",
    about="Prints the drainer's pb files, or applies them to a database in commit order, each transaction once.",
    examples=(
        "reparo -data-dir /var/lib/changes -start-datetime '2024-02-29 13:00:00'",
        "reparo -config reparo.toml -dest-type mysql",
    ),
)
