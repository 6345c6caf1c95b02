"""The drainer's settings. Names, defaults and units are upstream's where it has the setting.

TOML keys are the fields with dashes; `FLAGS` lists what the command line takes. Keys of the original without effect are
in drainer.original_settings; those of Oracle are refused as unknown.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from binlog.cluster.registry import check_node_id
from binlog.errors import ConfigError
from binlog.runtime.command_line import Flag, Program, Variants
from binlog.runtime.fields import (
    ByteSize,
    Duration,
    HostPort,
    Names,
    Section,
    SecuritySection,
    TopicSection,
    Tso,
    UpstreamSection,
    default_host,
)
from pydantic import Field, ValidationInfo, field_validator, model_validator

from drainer.extras import KAFKA, missing
from drainer.original_settings import WITHOUT_EFFECT, OriginalSyncerSection, TableName, only
from drainer.pumps.client import SILENCE_MAX_S
from drainer.schema.filter import IGNORE_SCHEMAS_DEFAULT, EventFilter, EventRule, Filter, TablePatterns, Wildcards
from drainer.schema.job_policy import Policy, RewriteRule, RewriteRules
from drainer.schema.rules import ColumnRule, Mask, NewColumn, Route, RowRule, Rules
from drainer.sink.base import AnySink
from drainer.sink.recycle_names import KEEP_MS_DEFAULT
from drainer.sink.registry import KINDS, sections, sink, taken
from drainer.sink.settings import SyncerSettings, ToSection, UpstreamServer
from drainer.ticdc import TicdcSection

PORT = 8249


class DdlRewrite(Section):
    """The statement that runs downstream instead of one DDL."""

    job_id: int | None = Field(None, description="the DDL's job id, as in the error or log line; or")
    commit_ts: int | None = Field(None, description="the commit_ts of its binlog")
    sql: str | tuple[str, ...] = Field(
        "", description="SQL text or list of texts to run instead; empty: the DDL is skipped"
    )

    def statements(self) -> tuple[str, ...]:
        if isinstance(self.sql, str):
            return (self.sql,) if self.sql else ()
        return self.sql


class SchemaSection(Section):
    """`[schema]`: the sources of DDL jobs, in addition to the jobs that embedding services publish in etcd."""

    history_file: str = Field("", description="TiDB's /ddl/history as a file: a JSON array, or a job on each line")
    history_url: str = Field(
        "",
        description="a TiDB status port, as http://host:10080; its /ddl/history is read, again when a job is missing; "
        "at start only the jobs after PD's GC safepoint, if TiKV can be read",
    )


class BinlogFilterRule(Section):
    """`[syncer.binlog-filter-rule.NAME]` of the original's drainer: what is left out."""

    ignore_event: Names = Field((), description="events that are left out, such as delete, or truncate table")
    ignore_sql: tuple[str, ...] = Field(
        (), description="regular expressions, which ignore case; a DDL whose text has one of them is left out"
    )

    def of(self, tables: TablePatterns | Wildcards, owner: str) -> EventRule:
        """Return the rule for these tables. Raises ConfigError, naming `owner`."""
        if not self.ignore_event and not self.ignore_sql:
            raise ConfigError(f"{owner}: give ignore-event or ignore-sql")
        return EventRule.create(tables, self.ignore_event, self.ignore_sql, owner=owner)


_Expression = Annotated[str, only("", why="rows are not filtered by values: remove it")]
_NO_EXPRESSION = "must be empty: rows are not filtered by values"
_BY_COMMIT_TS = "transactions are not skipped by start_ts: remove it, and list them in [syncer] ignore-txn-commit-ts"


class TicdcEventFilter(BinlogFilterRule):
    """`[[syncer.filter.event-filters]]`, as in a TiCDC changefeed."""

    matcher: Names = Field(description="patterns of tables, such as shop.*")
    ignore_insert_value_expr: _Expression = Field("", description=_NO_EXPRESSION)
    ignore_update_old_value_expr: _Expression = Field("", description=_NO_EXPRESSION)
    ignore_update_new_value_expr: _Expression = Field("", description=_NO_EXPRESSION)
    ignore_delete_value_expr: _Expression = Field("", description=_NO_EXPRESSION)

    def rule(self, number: int) -> EventRule:
        tables = TablePatterns.parse(self.matcher, whose="filter.event-filters entry")
        return self.of(tables, f"event filter {number}")


class MigrateSource(Section):
    """Tables of a table-migrate-rule."""

    schema_: str = Field(alias="schema", description="database; `*`, `?`, `[a-z]` and `[!a-z]` are wildcards")
    table: str = Field("", description="table, with the same wildcards; empty: the database and all its tables")


class TableMigrateRule(Section):
    """`[[syncer.table-migrate-rule]]` of the original's drainer: which binlog-filter-rules apply to which tables."""

    binlog_filter_rule: Names = Field((), description="names of binlog-filter-rules")
    source: MigrateSource = Field(description="the tables")
    target: Mapping[str, str] = Field(
        default_factory=dict, description=f"{WITHOUT_EFFECT}: the original's drainer renames only for Oracle"
    )


class TablesOfRule(Section):
    """The tables of a rule. The first rule of its kind that matches a table counts."""

    schema_pattern: str = Field(description="database; `*`, `?`, `[a-z]` and `[!a-z]` are wildcards, case is ignored")
    table_pattern: str = Field("*", description="table, with the same wildcards")

    def tables(self) -> Wildcards:
        return Wildcards(self.schema_pattern, "" if self.table_pattern == "*" else self.table_pattern)


class RouteSection(TablesOfRule):
    """`[[syncer.routes]]`: other names at the destination."""

    target_schema: str = Field(min_length=1, description="database at the destination")
    target_table: str = Field("", description="table at the destination; empty: as upstream")
    source_column: str = Field(
        "",
        pattern=r"^([^\x00]{0,63}[^\x00 ])?$",
        description="several tables may go to one name: each row has its table, as schema.table, in a further column "
        "of this name, which is a part of every key; empty: they are refused",
    )


class ColumnsSection(TablesOfRule):
    """`[[syncer.columns]]`: columns that are left out or masked."""

    leave_out: Names = Field((), description="columns that the destination does not have, with the same wildcards")
    mask: dict[str, str] = Field(
        default_factory=dict,
        description="masks by column: 'constant:TEXT', 'hash' (HMAC-SHA256 with hash-key) or 'last-four'",
    )
    new_column: NewColumn = Field(
        "pass",
        description="what becomes of a column that none of leave-out, mask and known names: pass, leave-out, or stop",
    )
    known: Names = Field((), description="with new-column: the columns that are not new, with the same wildcards")

    def rule(self, label: str, hash_key: str) -> ColumnRule:
        """Raises ConfigError."""
        masks = tuple(
            (name, Mask.parse(text, hash_key, f"{label}: mask of {name}")) for name, text in self.mask.items()
        )
        return ColumnRule(label, self.tables(), self.leave_out, masks, self.new_column, self.known)


class RowsSection(TablesOfRule):
    """`[[syncer.rows]]`: the rows that are replicated."""

    where: str = Field(description="condition on columns, such as region = 'eu' and deleted = 0")

    def rule(self, label: str) -> RowRule:
        """Return the rule. Raises ConfigError that names `label`."""
        from drainer.row.rules import Condition  # imports pyarrow, for which no other start waits

        return RowRule(label, self.tables(), Condition.parse(self.where, label))


class FilterSection(Section):
    """`[syncer.filter]`: `[filter]` of a TiCDC changefeed."""

    rules: tuple[str, ...] = Field(
        (),
        description="TiCDC's filter rules, such as shop.* and !shop.log; the last that matches a table counts",
    )
    ignore_txn_start_ts: Annotated[tuple[int, ...], only((), why=_BY_COMMIT_TS)] = Field(
        (), description="must be empty: use ignore-txn-commit-ts"
    )
    event_filters: tuple[TicdcEventFilter, ...] = Field(
        (), description="TiCDC's event filters: changes and DDLs that are left out of some tables"
    )


class SyncerSection(OriginalSyncerSection):
    """`[syncer]`."""

    db_type: str = Field("mysql", description=f"kind of destination: {', '.join(KINDS)}")
    ignore_schemas: Names = Field(IGNORE_SCHEMAS_DEFAULT, description="databases that are not replicated")
    ignore_table: tuple[TableName, ...] = Field((), description="tables that are not replicated")
    replicate_do_db: Names = Field(
        (), description="databases that are replicated; with either do-list, nothing else is"
    )
    replicate_do_table: tuple[TableName, ...] = Field(
        (), description="tables that are replicated; with either do-list, nothing else is"
    )
    filter_: FilterSection = Field(
        default_factory=lambda: FilterSection.model_validate({}),
        alias="filter",
        description="a TiCDC changefeed's filter",
    )
    case_sensitive: bool = Field(False, description="whether table-migrate-rules distinguish upper and lower case")
    table_migrate_rule: tuple[TableMigrateRule, ...] = Field(
        (), description="changes and DDLs that are left out of some tables"
    )
    binlog_filter_rule: dict[str, BinlogFilterRule] = Field(
        default_factory=dict, description="what a table-migrate-rule leaves out, by name"
    )
    routes: tuple[RouteSection, ...] = Field((), description="other names of tables at the destination")
    columns: tuple[ColumnsSection, ...] = Field((), description="columns that are left out or masked")
    rows: tuple[RowsSection, ...] = Field((), description="which rows of tables are replicated")
    hash_key: str = Field("", repr=False, description="key of the mask 'hash'; never logged or shown")
    ignore_txn_commit_ts: tuple[int, ...] = Field((), description="commit_ts of transactions and DDLs that are skipped")
    sync_ddl: bool = Field(
        True, description="whether DDLs run downstream; false: the tables are maintained by other means"
    )
    loopback_control: bool = Field(
        False,
        description="two clusters that replicate each other: mark what is written to a MySQL, MariaDB or TiDB, and "
        "leave out the transactions of upstream that a drainer with the same channel-id has marked",
    )
    channel_id: int = Field(
        0,
        ge=-(1 << 63),
        lt=1 << 63,
        description="with loopback-control: the channel, the same for the drainers of both directions",
    )
    worker_count: int = Field(
        0,
        ge=0,
        le=1024,
        description="writer slots of a distributed batch, one destination connection each; "
        "0: twice the number of concurrent tasks, at most 16",
    )
    txn_rows_max: int = Field(
        10_000, ge=1, description="maximum rows of one downstream transaction of a distributed batch"
    )
    consistency: Literal["row", "transaction"] = Field(
        "row",
        description="what readers of a MySQL, MariaDB, TiDB or SQLite see while a batch is applied. row: rows of a "
        "distributed batch appear one after another; transaction: never a part of a transaction, nor a transaction "
        "without those before it that touch a common key (txn-rows-max has no effect)",
    )
    distributed: bool = Field(True, description="distribute large batches to executors, which write them in parallel")
    finish_without: Names = Field(
        (),
        description="node ids of pumps; an unfinished batch is finished without their rows if the pumps are "
        "lost for good, or with the binlogs that they hold now if these differ from the batch's "
        "beginning; see the error",
    )
    when_refused: Literal["stop", "wait"] = Field(
        "stop",
        description="what the drainer does when the destination refuses a DDL, or a row of a batch in the driver: stop "
        "with the error, or wait for a decision (binlogctl decide-ddl, decide-transaction)",
    )
    ddl_rewrite: tuple[DdlRewrite, ...] = Field((), description="replacements of single DDLs")
    recycle_bin: Duration = Field(
        timedelta(milliseconds=KEEP_MS_DEFAULT),
        ge=timedelta(0),
        description="how long dropped and truncated tables are kept for FLASHBACK or RECOVER, such as 24h; at least "
        "upstream's tidb_gc_life_time; 0: they are dropped immediately",
        json_schema_extra={"default": "1h"},
    )
    to: Annotated[ToSection, Variants(sections)] = Field(default_factory=ToSection)

    @field_validator("db_type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "oracle":
            raise ValueError(
                "Oracle is not a destination here, because there is no server to test it with: write to Kafka, and "
                "from there by a JDBC sink (docs/kafka.md)"
            )
        if value == "pb":  # the original's other name
            return "file"
        if value not in KINDS:
            raise ValueError(f"must be one of {', '.join(KINDS)}, not {value!r}")
        return value

    @model_validator(mode="after")
    def _one_kind_of_filter(self) -> Self:
        lists = ("replicate_do_db", "replicate_do_table", "ignore_table")
        given = [name.replace("_", "-") for name in lists if getattr(self, name)]
        if self.filter_.rules and given:
            raise ValueError(f"filter.rules and {', '.join(given)} both choose tables: give one of them")
        return self

    @model_validator(mode="after")
    def _has_valid_events(self) -> Self:
        try:
            self.events()
            self.rules()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @field_validator("to", mode="before")
    @classmethod
    def _of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Read `[syncer.to]` with the settings class of the db-type."""
        db_type = info.data.get("db_type")
        if db_type is None:  # reported as the error of db-type itself
            return ToSection()
        return taken(db_type, {} if isinstance(value, ToSection) else value)

    def filter(self) -> Filter:
        return Filter.create(
            do_dbs=self.replicate_do_db,
            do_tables=[(t.db_name, t.tbl_name) for t in self.replicate_do_table],
            ignore_tables=[(t.db_name, t.tbl_name) for t in self.ignore_table],
            ignore_schemas=self.ignore_schemas,
            rules=self.filter_.rules,
            marked=self.loopback_control,
        )

    def events(self) -> EventFilter:
        """Return the event filter. Raises ConfigError, naming the rule."""
        rules = [one.rule(number) for number, one in enumerate(self.filter_.event_filters, start=1)]
        for migrate in self.table_migrate_rule:
            tables = Wildcards(migrate.source.schema_, migrate.source.table, self.case_sensitive)
            for name in migrate.binlog_filter_rule:
                rule = self.binlog_filter_rule.get(name)
                if rule is None:
                    raise ConfigError(f"table-migrate-rule: there is no binlog-filter-rule {name!r}")
                rules.append(rule.of(tables, f"binlog-filter-rule {name}"))
        return EventFilter(tuple(rules))

    def rules(self) -> Rules:
        """Return routes and the rules for columns and rows. Raises ConfigError, naming the rule."""
        return Rules(
            [
                Route(f"syncer.routes {n}", one.tables(), one.target_schema, one.target_table, one.source_column)
                for n, one in enumerate(self.routes, start=1)
            ],
            [one.rule(f"syncer.columns {n}", self.hash_key) for n, one in enumerate(self.columns, start=1)],
            [one.rule(f"syncer.rows {n}") for n, one in enumerate(self.rows, start=1)],
        )

    @property
    def _channel(self) -> int | None:
        return self.channel_id if self.loopback_control else None

    def policy(self) -> Policy:
        rules = RewriteRules([RewriteRule(one.statements(), one.job_id, one.commit_ts) for one in self.ddl_rewrite])
        ignored = frozenset(self.ignore_txn_commit_ts)
        return Policy(
            self.filter(), rules, self.sync_ddl, ignored, self.events(), self._channel, self.rules(), self.to.shows_lost
        )

    def address(self) -> str:
        """The text that identifies the destination: file or host:port."""
        return self.to.address()

    def sink(self, *, former_has_ended: bool = False) -> AnySink:
        """Return the destination, not opened yet. `former_has_ended`: as in SyncerSettings."""
        keep_ms = self.recycle_bin // timedelta(milliseconds=1)
        return sink(self.db_type, self.to, SyncerSettings(keep_ms, former_has_ended, self._channel))

    def digest(self) -> str:
        """Return a digest of the filter settings. It is recorded with a batch, because an unfinished batch must be
        finished with the same filters."""
        names = {"ignore_schemas", "ignore_table", "replicate_do_db", "replicate_do_table", "filter_"}
        if self.table_migrate_rule:  # a new name changes the digest of batches that were begun without it
            names |= {"case_sensitive", "table_migrate_rule", "binlog_filter_rule"}
        if self.loopback_control:
            names |= {"loopback_control", "channel_id"}
        if self.rules():
            names |= {"routes", "columns", "rows", "hash_key"}
        unset = {"routes": {n: {"source_column"} for n, one in enumerate(self.routes) if not one.source_column}}
        chosen = self.model_dump_json(include={*names, "ignore_txn_commit_ts"}, exclude=unset)
        return hashlib.blake2b(chosen.encode(), digest_size=8).hexdigest()


class SparkSection(Section):
    """`[spark]`."""

    master: str = Field("local[*]", description="Spark master: local[*], local[N], spark://host:7077, yarn, k8s://…")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark settings as name = value; they override the drainer's"
    )
    class_archive: bool = Field(
        True,
        description="some minutes after the start, create a JVM class archive (160 MB in XDG_CACHE_HOME or "
        "~/.cache) if there is none: later starts use half the CPU",
    )


class Config(UpstreamSection):
    """drainer.toml."""

    node_id: str = Field("", description="name in the registry; empty: <hostname>:<port of addr>")
    changefeed: str = Field(
        "default",
        description="name of this changefeed; several drainers of a cluster may share a destination under different "
        "names",
    )
    standby: bool = Field(
        False,
        description="several drainers may be started with this node-id: the first applies, the others wait, with Spark "
        "started, and take over when it ends",
    )
    addr: HostPort = Field(
        default_factory=lambda: f"{default_host()}:{PORT}",
        description="listen address, host:port: gRPC for Notify of Go pumps, and over HTTP/1 the pages of status-addr",
        json_schema_extra={"default": f"<first non-loopback IPv4>:{PORT}"},
    )
    advertise_addr: str = Field("", description="host:port in the registry; empty: addr")
    status_addr: str | None = Field(
        None,
        description='listen address of only the status page, /status and /metrics, host:port; "": none',
        json_schema_extra={"default": "port of addr + 1000"},
    )
    data_dir: Path = Field(
        Path("data.drainer"),
        description="directory of Spark's log, and of the record of skipped transactions; not needed for a restart",
    )
    log_file: str = Field("", description="log file, rotated at 300 MB; empty: stderr")
    log_level: Literal["debug", "info", "warn", "warning", "error", "fatal"] = Field(
        "info", description="minimum log level"
    )
    metrics_addr: str = Field(
        "", description="Pushgateway to which metrics are pushed in addition, host:port or a URL; empty: none"
    )
    metrics_interval: int = Field(15, ge=0, description="seconds between two pushes; 0: none")
    initial_commit_ts: Tso = Field(
        -1,
        ge=-1,
        description="start position if the destination has none: a TSO, a time such as 2026-11-20 10:00 (local unless "
        "it names a zone) or 2026-11-20T10:00:00+01:00, or -2h; -1: now; 0: the oldest binlog; "
        "not set: now, or the oldest binlog if the destination has none of the tables that "
        "services published",
    )
    source: Literal["pumps", "kafka", "ticdc"] = Field(
        "pumps",
        description="where changes are read: from the pumps, from the topics to which pumps publish (kafka-source), or "
        "from TiCDC's topics (ticdc-source)",
    )
    synced_check_time: int = Field(5, ge=1, description="minutes without a row after which `Synced` in /status is true")
    go_pump_silence_max: int = Field(
        int(SILENCE_MAX_S),
        ge=1,
        description="seconds without a binlog or fake binlog after which a Go pump, or a pump's topic, counts as "
        "unavailable; a Go pump is reconnected. Several times its gen-binlog-interval (3)",
    )
    detect_interval: int = Field(10, description=f"{WITHOUT_EFFECT}: etcd reports changes")
    compressor: str = Field("", description=f"{WITHOUT_EFFECT}: what pumps send is not compressed")
    until_now: bool = Field(False, description="apply the binlogs that exist at the start, then exit with code 0")
    stop_at: Tso = Field(
        0,
        ge=0,
        lt=1 << 63,
        description="apply everything up to this commit_ts, then exit with code 0: a TSO or a time, as for "
        "initial-commit-ts; 0: do not stop",
    )
    delay: Duration = Field(
        timedelta(0),
        ge=timedelta(0),
        description="stay behind: apply only what was committed so long ago, such as 1h; 0: apply at once",
    )
    driver_bytes_max: ByteSize = Field(
        2 << 20, description="maximum bytes of binlogs of a batch that the driver applies itself, such as 2 MiB"
    )
    batch_bytes_max: ByteSize = Field(
        64 << 20, description="maximum bytes of binlogs of a distributed batch, such as 64 MiB"
    )
    distributed_bytes_min: ByteSize = Field(
        2 << 20, description="bytes of binlogs below which the driver applies a batch itself, such as 2 MiB"
    )
    security: SecuritySection = Field(default_factory=lambda: SecuritySection.model_validate({}))
    kafka_source: TopicSection = Field(default_factory=lambda: TopicSection.model_validate({}))
    ticdc_source: TicdcSection = Field(default_factory=lambda: TicdcSection.model_validate({}))
    schema_: SchemaSection = Field(default_factory=lambda: SchemaSection.model_validate({}), alias="schema")
    syncer: SyncerSection = Field(default_factory=lambda: SyncerSection.model_validate({}))
    upstream: UpstreamServer = Field(default_factory=lambda: UpstreamServer.model_validate({}))
    spark: SparkSection = Field(default_factory=lambda: SparkSection.model_validate({}))

    def registered_address(self) -> str:
        """The address in the registry, host:port."""
        return self.advertise_addr or self.addr

    def identity(self) -> str:
        """The node id; made from host name and port if none is given."""
        return self.node_id or f"{socket.gethostname()}:{self.addr.rpartition(':')[2]}"

    def status_address(self) -> str:
        """host:port of the status page, or '' when the page is off."""
        if self.status_addr is not None:
            return self.status_addr
        host, _, port = self.addr.rpartition(":")
        return f"{host}:{int(port) + 1000}"

    def spark_settings(self) -> dict[str, str]:
        """Spark's settings: those of the destination, then the user's."""
        return {**self.syncer.to.spark_settings(self.spark.conf), **self.spark.conf}

    def check(self) -> None:
        """Check the settings together. Raises ConfigError if some do not fit."""
        try:
            check_node_id(self.identity())
        except ValueError as error:
            raise ConfigError(f"node-id: {error}") from error
        if self.standby and not self.node_id:
            raise ConfigError("standby: give node-id, the same for all drainers that take over from one another")
        if self.standby and self.until_now:
            raise ConfigError("standby and until-now: a drainer that ends by itself is not taken over from")
        if self.source == "kafka" and not self.kafka_source.addresses:
            raise ConfigError('source: "kafka" needs [kafka-source] addresses = ["host:9092"]')
        if self.source != "pumps" and (why := missing(KAFKA)):
            raise ConfigError(f'source = "{self.source}": {why}')
        if self.source == "ticdc":
            self._check_ticdc()
        if not KINDS[self.syncer.db_type].has_tables:
            there = f"a destination of db-type {self.syncer.db_type}"
            if self.syncer.consistency == "transaction":
                why = "gets every change, and its readers decide what they show together"
                raise ConfigError(f"syncer.consistency: {there} {why}: remove it")
            if self.upstream.check_interval:
                raise ConfigError(f"upstream.check-interval: {there} has no tables to compare: remove it")
        self.syncer.to.check()
        self.upstream.check()
        self.syncer.policy()

    def _check_ticdc(self) -> None:
        if not self.ticdc_source.uri:
            raise ConfigError('source: "ticdc" needs [ticdc-source] uri = "kafka://host:9092/topic?protocol=..."')
        from drainer.ticdc.partition import source_address  # loads the client library

        address = source_address(self.ticdc_source.uri, self.ticdc_source.client)
        needs = "needs [schema] history-url, the status port of a TiDB server, or history-file"
        if self.has_schemas_in_topics and address.options.protocol.lower() != "simple":
            raise ConfigError(f'source: "ticdc" {needs}: only messages of simple have the schemas of tables')
        if self.has_schemas_in_topics and (self.upstream.first_load or self.upstream.check_interval):
            raise ConfigError(f'upstream: with source = "ticdc", first-load or check-interval {needs}')

    @property
    def has_schemas_in_topics(self) -> bool:
        """Whether TiCDC's topics are the only source of tables' schemas."""
        return self.source == "ticdc" and not self.schema_.history_file and not self.schema_.history_url


FLAGS = (
    *map(Flag, ("node-id", "changefeed", "addr", "advertise-addr", "status-addr", "data-dir")),
    *map(Flag, ("pd-urls", "tso-source", "pd-addr", "log-file", "log-level", "metrics-addr", "metrics-interval")),
    *map(Flag, ("initial-commit-ts", "synced-check-time", "go-pump-silence-max", "until-now", "standby")),
    *map(Flag, ("stop-at", "delay")),
    *map(Flag, ("detect-interval", "compressor")),
    Flag("L", "log-level"),
    Flag("master", "spark.master"),
    Flag("dest-db-type", "syncer.db-type"),
    Flag("c", "syncer.worker-count"),
    Flag("relay-log-dir", "syncer.relay.log-dir"),
    Flag("relay-max-file-size", "syncer.relay.max-file-size"),
    *(Flag(name, f"syncer.{name}") for name in ("ignore-schemas", "sync-ddl", "txn-batch", "safe-mode")),
    *(Flag(name, f"syncer.{name}") for name in ("loopback-control", "channel-id", "load-schema-snapshot")),
    *(Flag(name, f"syncer.{name}") for name in ("disable-dispatch", "enable-dispatch")),
    *(Flag(name, f"syncer.{name}") for name in ("disable-detect", "enable-detect")),
    *(Flag(name, f"schema.{name}") for name in ("history-file", "history-url")),
    *(Flag(name, f"security.{name}") for name in ("ssl-ca", "ssl-cert", "ssl-key")),
    *(Flag(name, ignored=True) for name in ("cache-binlog-count", "log-rotate")),
)

PROGRAM = Program(
    "drainer",
    Config,
    FLAGS,
    env_prefix="BINLOG_SERVER",
    about="drainer applies what the pumps of a cluster keep to MySQL, TiDB, MariaDB or SQLite, or publishes it to "
    "Kafka or to files, exactly once.",
    exit_codes={
        0: "after a signal or -until-now; load: everything is loaded",
        1: "an invalid setting",
        2: "a failure or a bad command line; check: a table could not be compared or repaired",
        3: "check: the destination differs from upstream",
        130: "load: stopped by a signal before everything was loaded; start it again to continue",
    },
    examples=(
        "drainer plan -config drainer.toml                         print what each table becomes; -json: as JSON",
        "drainer load -config drainer.toml                         load upstream's tables into an empty destination",
        "drainer load -from delta:/lake -config drainer.toml       the same from a lake, also as of a TSO: -at",
        "drainer check -config drainer.toml                        compare the destination with upstream; -repair",
        "drainer -config drainer.toml                              a daemon; SIGTERM stops it cleanly",
        "drainer -config drainer.toml -until-now                   drain the existing binlogs and exit",
        "drainer -config drainer.toml -delay 1h                    stay an hour behind",
        "drainer -config drainer.toml -master spark://host:7077    the same on a Spark cluster",
        "drainer -config drainer.toml -initial-commit-ts 0         a first start from the oldest binlog",
    ),
)
