"""The drainer's settings (spec 3.1). Names, defaults and units are upstream's where it has the setting.

TOML keys are the fields with dashes; `FLAGS` lists what the command line takes. Keys of parts that do not exist yet
(Kafka, files, Oracle, relay, table-migrate rules) are refused as unknown rather than ignored.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Literal

from binlog.config import ByteSize, Flag, HostPort, Names, Section, SecuritySection, UpstreamSection, default_host
from binlog.errors import ConfigError
from pydantic import Field

from drainer.filter import IGNORE_SCHEMAS_DEFAULT, Filter
from drainer.schema.policy import Policy
from drainer.schema.rewrite import RewriteRule, RewriteRules

PORT = 8249


class TableName(Section):
    """One table in a filter list; `~` begins a regular expression (D-FI-01)."""

    db_name: str
    tbl_name: str


class DdlRewrite(Section):
    """What runs downstream in place of one DDL."""

    job_id: int | None = Field(None, description="the DDL's job id; or")
    commit_ts: int | None = Field(None, description="the commit_ts of its binlog")
    sql: str | tuple[str, ...] = Field("", description="text to run instead; empty: nothing runs")

    def statements(self) -> tuple[str, ...]:
        if isinstance(self.sql, str):
            return (self.sql,) if self.sql else ()
        return self.sql


class SchemaSection(Section):
    """`[schema]`: where DDL jobs come from, beside those that embedding services publish in etcd."""

    history_file: str = Field("", description="TiDB's /ddl/history as a file: a JSON array, or a job on each line")
    history_url: str = Field(
        "", description="a TiDB status port, as http://host:10080, read again when a job is missing"
    )


class DestinationSection(Section):
    """`[syncer.to]`."""

    host: str = Field("127.0.0.1", description="server of a mysql, tidb or mariadb destination")
    port: int = Field(3306, ge=1, le=65535)
    user: str = Field("root")
    password: str = Field("", repr=False)
    params: dict[str, str] = Field(default_factory=dict, description="session variables")
    security: SecuritySection = Field(default_factory=lambda: SecuritySection.model_validate({}))
    path: str = Field("", description="the file of a sqlite destination")


class SyncerSection(Section):
    """`[syncer]`."""

    db_type: Literal["mysql", "tidb", "mariadb", "sqlite"] = Field("mysql", description="kind of destination")
    ignore_schemas: Names = Field(IGNORE_SCHEMAS_DEFAULT, description="schemas that are not replicated")
    ignore_table: tuple[TableName, ...] = ()
    replicate_do_db: Names = ()
    replicate_do_table: tuple[TableName, ...] = ()
    ignore_txn_commit_ts: tuple[int, ...] = Field((), description="transactions left out whole, by commit_ts")
    sync_ddl: bool = Field(True, description="whether DDLs run downstream")
    worker_count: int = Field(
        0,
        ge=0,
        le=1024,
        description="slots of a spread batch, a connection each; 0: twice the tasks at once",
    )
    txn_rows_max: int = Field(10_000, ge=1, description="rows of one downstream transaction of a spread batch")
    spread: bool = Field(True, description="whether executors write large batches in parallel")
    consistency: Literal["row"] = Field(
        "row", description="row: a transaction's rows may become visible in several downstream transactions"
    )
    ddl_rewrite: tuple[DdlRewrite, ...] = Field((), description="text to run instead of single DDLs")
    to: DestinationSection = Field(default_factory=lambda: DestinationSection.model_validate({}))

    def filter(self) -> Filter:
        return Filter.create(
            do_dbs=self.replicate_do_db,
            do_tables=[(t.db_name, t.tbl_name) for t in self.replicate_do_table],
            ignore_tables=[(t.db_name, t.tbl_name) for t in self.ignore_table],
            ignore_schemas=self.ignore_schemas,
        )

    def policy(self) -> Policy:
        rules = [
            RewriteRule(
                (rule.sql,) if isinstance(rule.sql, str) and rule.sql else tuple(rule.sql), rule.job_id, rule.commit_ts
            )
            for rule in self.ddl_rewrite
        ]
        return Policy(self.filter(), RewriteRules(rules), self.sync_ddl, frozenset(self.ignore_txn_commit_ts))

    def digest(self) -> str:
        """Of everything that decides which rows a batch writes: an unfinished one goes on only with the same."""
        chosen = self.model_dump_json(
            include={"ignore_schemas", "ignore_table", "replicate_do_db", "replicate_do_table", "ignore_txn_commit_ts"}
        )
        return hashlib.blake2b(chosen.encode(), digest_size=8).hexdigest()


class SparkSection(Section):
    """`[spark]`."""

    master: str = Field("local[*]", description="any Spark master")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark settings, over the drainer's own")


class Config(UpstreamSection):
    """drainer.toml."""

    node_id: str = Field("", description="name in the registry; empty: <hostname>:<port of addr>")
    changefeed: str = Field(
        "default", description="several drainers of one cluster may share a destination under different names"
    )
    addr: HostPort = Field(default_factory=lambda: f"{default_host()}:{PORT}", description="gRPC that Go pumps notify")
    advertise_addr: str = Field("", description="what goes into the registry; empty: addr")
    status_addr: str | None = Field(
        None, description='HTTP: /status, /metrics; default: the port of addr + 1000; "": off'
    )
    data_dir: Path = Field(Path("data.drainer"), description="logs of Spark; nothing in it is needed for a restart")
    log_file: str = Field("", description="empty: stderr")
    log_level: str = Field("info")
    initial_commit_ts: int = Field(
        -1, ge=-1, description="where to begin when the destination has no position; -1: now, 0: from the beginning"
    )
    synced_check_time: int = Field(5, ge=1, description="minutes without a row until `Synced` says true")
    until_now: bool = Field(False, description="drain what is there and exit")
    inline_bytes_max: ByteSize = Field(2 << 20, description="binlogs of one batch that goes through the driver")
    batch_bytes_max: ByteSize = Field(32 << 20, description="binlogs of one batch that is spread over executors")
    security: SecuritySection = Field(default_factory=lambda: SecuritySection.model_validate({}))
    schema_: SchemaSection = Field(default_factory=lambda: SchemaSection.model_validate({}), alias="schema")
    syncer: SyncerSection = Field(default_factory=lambda: SyncerSection.model_validate({}))
    spark: SparkSection = Field(default_factory=lambda: SparkSection.model_validate({}))

    def identity(self) -> str:
        """The node id, made from host name and port where none is given."""
        return self.node_id or f"{socket.gethostname()}:{self.addr.rpartition(':')[2]}"

    def status_address(self) -> str:
        """host:port, or '' when the status page is off."""
        if self.status_addr is not None:
            return self.status_addr
        host, _, port = self.addr.rpartition(":")
        return f"{host}:{int(port) + 1000}"

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""
        if self.syncer.db_type == "sqlite" and not self.syncer.to.path:
            raise ConfigError("syncer.to.path: a sqlite destination needs the path of its file")
        if self.syncer.db_type != "sqlite" and self.syncer.to.path:
            raise ConfigError(f"syncer.to.path: a {self.syncer.db_type} destination has no file")
        self.syncer.policy()


FLAGS = (
    Flag("node-id", help="name in the registry"),
    Flag("addr", help="gRPC address"),
    Flag("advertise-addr", help="address in the registry"),
    Flag("status-addr", help="HTTP address of the status page"),
    Flag("data-dir", help="folder for Spark's logs"),
    Flag("pd-urls", help="PD or etcd"),
    Flag("tso-source", help="auto, pd or own"),
    Flag("pd-addr", help="PD's gRPC address where it is not at pd-urls"),
    Flag("log-file"),
    Flag("L", "log-level", help="debug, info, warn, error, fatal"),
    Flag("log-level"),
    Flag("initial-commit-ts", help="where to begin without a position"),
    Flag("synced-check-time"),
    Flag("until-now", help="drain what is there and exit"),
    Flag("master", "spark.master", help="Spark master"),
    Flag("dest-db-type", "syncer.db-type", help="mysql, tidb, mariadb, sqlite"),
    Flag("ignore-schemas", "syncer.ignore-schemas"),
    Flag("c", "syncer.worker-count", help="slots of a spread batch"),
    Flag("sync-ddl", "syncer.sync-ddl"),
    Flag("history-file", "schema.history-file"),
    Flag("history-url", "schema.history-url"),
    Flag("detect-interval", ignored=True),
    Flag("txn-batch", ignored=True),
    Flag("safe-mode", ignored=True),
    Flag("log-rotate", ignored=True),
)
