"""Settings of a pump. Keys in the TOML file; flags of upstream's names; PUMP_<FLAG> in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal

from binlog.cluster.registry import parse_labels
from binlog.runtime.command_line import Flag, Program
from binlog.runtime.fields import (
    ByteSize,
    HostPort,
    Names,
    Retention,
    Section,
    SecuritySection,
    TopicSection,
    UpstreamSection,
    default_host,
    split_host_port,
)
from pydantic import AfterValidator, AliasChoices, Field, field_validator, model_validator

from pump.cluster.election import BOUND_AHEAD_MAX_S
from pump.index.leveldb import IndexOptions
from pump.rpc.admission import BYTES_MAX as IN_FLIGHT_BYTES_MAX
from pump.store.limits import AHEAD_MAX_S

PORT = 8250
STATUS_PORT_OFFSET = 1000
TRANSACTION_BYTES_CAP = (2 << 30) - (1 << 20)  # gRPC's and protobuf's: no message reaches 2 GiB


_WITHOUT_EFFECT = "accepted, without effect"


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError(f"GC is {value}, must bigger than 0")
    return value


class KvSection(Section):
    """`[storage.kv]`: LevelDB. A value of 0 or less means the default. Options that plyvel does not offer are accepted
    and have no effect."""

    block_cache_capacity: int = Field(8 << 20, description="bytes of LevelDB's block cache")
    block_restart_interval: int = Field(16, description="keys between restart points of a block")
    block_size: int = Field(4096, description="bytes of a LevelDB block")
    write_buffer: int = Field(64 << 20, description="bytes of LevelDB's memory table")
    compaction_l0_trigger: int = Field(8, alias="compaction-L0-trigger", description=_WITHOUT_EFFECT)
    compaction_table_size: int = Field(64 << 20, description=_WITHOUT_EFFECT)
    compaction_total_size: int = Field(512 << 20, description=_WITHOUT_EFFECT)
    compaction_total_size_multiplier: float = Field(8.0, description=_WITHOUT_EFFECT)
    write_l0_pause_trigger: int = Field(24, alias="write-L0-pause-trigger", description=_WITHOUT_EFFECT)
    write_l0_slowdown_trigger: int = Field(17, alias="write-L0-slowdown-trigger", description=_WITHOUT_EFFECT)

    def options(self) -> IndexOptions:
        given = {
            "block_cache_bytes": self.block_cache_capacity,
            "block_bytes": self.block_size,
            "block_restart_interval": self.block_restart_interval,
            "write_buffer_bytes": self.write_buffer,
        }
        return IndexOptions(**{name: value for name, value in given.items() if value > 0})


class StorageSection(Section):
    """`[storage]`."""

    sync_log: bool = Field(True, description="fdatasync the value log before a write is acknowledged")
    kv_chan_cap: int = Field(1 << 20, alias="kv_chan_cap", description="accepted, without effect: nothing is queued")
    slow_write_threshold: float = Field(
        1.0, alias="slow_write_threshold", description="a write that takes more seconds is logged as slow; 0 or less: 1"
    )
    stop_write_at_available_space: ByteSize = Field(
        10 << 30, description="refuse writes if the disk has no more free space than this, such as 10 GiB; 0: never"
    )
    kv: KvSection = Field(default_factory=lambda: KvSection.model_validate({}))


class KafkaSection(TopicSection):
    """`[kafka]`: the topic to which the pump also publishes its binlogs."""

    message_bytes_max: ByteSize = Field(
        1_000_000,
        ge=100_000,
        le=4_000_000,
        description="largest message; a larger binlog is published in parts. At most the brokers' message.max.bytes",
    )


class PumpConfig(UpstreamSection):
    """The configuration of a pump."""

    node_id: str = Field("", description="name in the registry; the name in <data-dir>/.node takes precedence")
    addr: HostPort = Field(
        default_factory=lambda: f"{default_host()}:{PORT}",
        description="listen address of the gRPC services, host:port",
        json_schema_extra={"default": f"<first non-loopback IPv4>:{PORT}"},
    )
    advertise_addr: str = Field(
        "", description="host:port at which others reach this pump; empty: addr. Required if addr is 0.0.0.0"
    )
    socket: str = Field("", description="unix socket for gRPC, as unix:///path or a path; empty: none")
    status_addr: str = Field(
        "auto",
        description="listen address of the status page, /status and /metrics, host:port; auto: port of addr + 1000; "
        "empty: off",
    )
    data_dir: str = Field("", description="directory of the value log and its index; empty: data.pump")
    labels: Names = Field(
        (), description="labels of this pump, such as zone=a, by which writers with the strategy label choose pumps"
    )
    heartbeat_interval: int = Field(2, ge=0, description="seconds between two writes of the registry record; 0: 2")
    gc: Annotated[Retention, AfterValidator(_positive)] = Field(
        timedelta(days=7),
        description="how long binlogs are kept: days, or a duration such as 8h; binlogs that a drainer has "
        "yet to read are kept longer",
    )
    gen_binlog_interval: int = Field(
        3, ge=0, description="seconds without a write after which a fake binlog is written; 0: never"
    )
    pending_query_after: int = Field(
        10,
        ge=1,
        alias="pending-query-after",
        validation_alias=AliasChoices("pending-query-after", "pending-warn"),
        description="seconds after which the outcome of a pending prewrite is queried and the prewrite is "
        "reported; the former name pending-warn is accepted",
    )
    ts_ahead_max: int = Field(
        AHEAD_MAX_S,
        ge=0,
        description="seconds by which a binlog's ts may be ahead of the timestamp source; a binlog further "
        "ahead is refused; 0: no limit",
    )
    bound_ahead_max: int = Field(
        BOUND_AHEAD_MAX_S,
        ge=1,
        description="without PD: seconds by which the bound in etcd may be ahead of this machine's clock; "
        "above that the pump allocates no timestamps",
    )
    drain_wait: int = Field(10, ge=0, description="seconds for which a stop waits for the commits of pending prewrites")
    log_level: Literal["debug", "info", "warn", "warning", "error", "fatal"] = Field(
        "info", description="minimum log level"
    )
    log_file: str = Field("", description="log file, rotated at 300 MB; empty: stderr")
    metrics_addr: str = Field(
        "",
        description="Pushgateway to which metrics are pushed in addition, host:port or a URL; empty: none",
    )
    metrics_interval: int = Field(15, ge=0, description="seconds between two pushes; 0: none")
    enable_debug: bool = Field(False, description="accepted, without effect: py-spy shows what the pump does")
    transaction_bytes_max: ByteSize = Field(
        1 << 30,
        ge=1 << 20,
        le=TRANSACTION_BYTES_CAP,
        description="largest binlog accepted, such as 1 GiB; a larger transaction is refused before it is "
        "acknowledged. Receiving a binlog uses its size of memory until it is on disk",
    )
    in_flight_bytes_max: ByteSize = Field(
        IN_FLIGHT_BYTES_MAX,
        ge=64 << 20,
        description="bytes of requests and answers in memory, over all calls, such as 2 GiB; a call beyond "
        "that is refused and may be repeated. A single request is accepted whatever its size",
    )
    max_message_size: int = Field(
        0, ge=0, description="largest gRPC message with binlogs accepted, in bytes; 0: as transaction-bytes-max"
    )
    security: SecuritySection = Field(default_factory=lambda: SecuritySection.model_validate({}))
    storage: StorageSection = Field(default_factory=lambda: StorageSection.model_validate({}))
    kafka: KafkaSection = Field(default_factory=lambda: KafkaSection.model_validate({}))

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_labels(value)
        return value

    @model_validator(mode="after")
    def _check_addresses(self) -> PumpConfig:
        host, port = split_host_port(self.advertised)
        if host in ("", "0.0.0.0", "::") or (port == 0 and self.advertise_addr):
            raise ValueError(
                f"invalid advertiseAddr host: {self.advertised}; set advertise-addr to host:port others reach it at"
            )
        if self.status_addr not in ("", "auto"):
            split_host_port(self.status_addr)
        return self

    @property
    def without_effect(self) -> list[str]:
        """Settings that are accepted only for compatibility with upstream and differ from their default. 0 or less is
        the default."""
        found = []
        for path, section in (("storage", self.storage), ("storage.kv", self.storage.kv)):
            for name, field in type(section).model_fields.items():
                value = getattr(section, name)
                if (field.description or "").startswith(_WITHOUT_EFFECT) and value > 0 and value != field.default:
                    found.append(f"{path}.{field.alias}")
        return found

    @property
    def slow_write_s(self) -> float:
        """Seconds after which a write is logged as slow."""
        return self.storage.slow_write_threshold if self.storage.slow_write_threshold > 0 else 1.0

    @property
    def advertised(self) -> str:
        return self.advertise_addr or self.addr

    @property
    def directory(self) -> str:
        return self.data_dir or "data.pump"

    @property
    def status_listen(self) -> str:
        """host:port of the status server, or "" for none."""
        if self.status_addr != "auto":
            return self.status_addr
        host, port = split_host_port(self.addr)
        wanted = port + STATUS_PORT_OFFSET
        return f"{host}:{wanted if port and wanted <= 65535 else 0}"


FLAGS: Sequence[Flag] = (
    *map(Flag, ("node-id", "addr", "advertise-addr", "socket", "status-addr", "pd-urls", "pd-addr", "tso-source")),
    *map(Flag, ("data-dir", "labels", "heartbeat-interval", "gc", "log-file", "metrics-addr", "metrics-interval")),
    *map(Flag, ("pending-query-after", "ts-ahead-max", "bound-ahead-max", "drain-wait", "enable-debug")),
    *map(Flag, ("transaction-bytes-max", "in-flight-bytes-max", "max-message-size")),
    Flag("fake-binlog-interval", "gen-binlog-interval"),
    Flag("pending-warn", "pending-query-after"),
    Flag("L", "log-level"),
    *(Flag(name, f"security.{name}") for name in ("ssl-ca", "ssl-cert", "ssl-key")),
    *(Flag(name, ignored=True) for name in ("binlog-file-size", "enable-binlog-slice", "binlog-slice-size")),
    Flag("log-rotate", ignored=True),
)


PROGRAM = Program(
    "pump",
    PumpConfig,
    FLAGS,
    env_prefix="PUMP",
    about="pump keeps the binlogs of a cluster: it syncs them to disk and serves them in the order of their commits.",
    examples=(
        "pump -addr 10.0.0.1:8250 -pd-urls http://10.0.0.9:2379 -data-dir /var/lib/pump",
        "pump -config /etc/pump.toml -gc 3 -L debug",
        "PUMP_PD_URLS=http://10.0.0.9:2379 pump -data-dir /var/lib/pump",
    ),
)
