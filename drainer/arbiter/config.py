"""arbiter's settings, under upstream's names."""

from __future__ import annotations

from typing import Final, Literal

from binlog.errors import ConfigError
from binlog.runtime.command_line import Flag, Program
from binlog.runtime.fields import HostPort, Section, Tso, ZoneName
from pydantic import Field

from drainer.kafka_reading.address import KafkaAddress, kafka_address
from drainer.sink.registry import replayer
from drainer.sink.replay import Replayer, ReplaySettings

TABLE: Final = "arbiter_checkpoint"
_WITHOUT_EFFECT: Final = "accepted, without effect: "


class UpSection(Section):
    """`[up]`."""

    kafka_addrs: str = Field("127.0.0.1:9092", description="brokers, host:port, separated by commas")
    kafka_version: str = Field("0.8.2.0", description=_WITHOUT_EFFECT + "the client library asks the brokers")
    initial_commit_ts: Tso = Field(
        0,
        ge=0,
        description="start after this commit_ts if the server has no checkpoint; 0: with the topic's first message",
    )
    topic: str = Field("", description="the topic; the original's drainer names it <cluster id>_obinlog")
    message_buffer_size: int = Field(0, ge=0, description=_WITHOUT_EFFECT + "the client library has limits of its own")
    sarama_buffer_size: int = Field(0, ge=0, description=_WITHOUT_EFFECT + "the original's client library has it")


class DownSection(Section):
    """`[down]`."""

    host: str = Field("localhost", description="the server: MySQL, MariaDB or TiDB")
    port: int = Field(3306, ge=0, le=65535, description="the server's port; 0: 3306")
    user: str = Field("root", description="user at the server")
    password: str = Field("", repr=False, description="password of the user; never logged or shown")
    worker_count: int = Field(
        16, ge=1, description=_WITHOUT_EFFECT + "one connection applies everything, in commit order"
    )
    batch_size: int = Field(64, ge=1, description="maximum number of transactions that are applied in one")
    safe_mode: bool = Field(
        False,
        description="DDLs may already have been run: errors such as `table exists` count as success; rows that are "
        "there already, or are missing, are always accepted",
    )


class MetricsSection(Section):
    """`[metrics]`."""

    addr: str = Field(
        "", description="Pushgateway to which metrics are pushed in addition, host:port or a URL; empty: none"
    )
    interval: int = Field(15, ge=0, description="seconds between two pushes; 0: none")


class ArbiterConfig(Section):
    """All of it."""

    addr: HostPort = Field("127.0.0.1:8251", description="listen address of /status and /metrics, host:port")
    log_level: Literal["debug", "info", "warn", "warning", "error", "fatal"] = Field(
        "info", description="minimum log level"
    )
    log_file: str = Field("", description="log file, rotated at 300 MB; empty: stderr")
    open_sarama_log: bool = Field(True, description=_WITHOUT_EFFECT + "messages of the Kafka client are logged once")
    time_zone: ZoneName = Field(
        "UTC",
        description="time zone of TIMESTAMPs in the messages: the drainer's `time-zone`, or that of the machine of the "
        "original's drainer",
    )
    up: UpSection = Field(default_factory=lambda: UpSection.model_validate({}))
    down: DownSection = Field(default_factory=lambda: DownSection.model_validate({}))
    metrics: MetricsSection = Field(default_factory=lambda: MetricsSection.model_validate({}))

    def address(self) -> KafkaAddress:
        """Return how to read the topic. Raises ConfigError."""
        if not self.up.topic:
            raise ConfigError("up.topic not config, please config the topic name")
        brokers = self.up.kafka_addrs or UpSection.model_fields["kafka_addrs"].default
        return kafka_address(f"kafka://{brokers}/{self.up.topic}?protocol=secondary-binlog", "arbiter", {})

    def replayer(self) -> Replayer:
        """Return the server, not opened yet. Rows are applied in safe mode: the original's drainer may repeat
        messages, and the original's arbiter may have applied more than its checkpoint says."""
        down = self.down
        server = {
            "host": down.host or "localhost",
            "port": down.port or 3306,
            "user": down.user or "root",
            "password": down.password,
        }
        settings = ReplaySettings("arbiter", TABLE, self.up.topic, safe=True, zone=self.time_zone, is_arbiter=True)
        return replayer("mysql", server, settings)


FLAGS: Final = (
    *map(Flag, ("addr", "log-file", "open-sarama-log", "metrics.addr", "metrics.interval", "up.initial-commit-ts")),
    *map(Flag, ("up.topic", "down.worker-count", "down.batch-size", "time-zone")),
    Flag("L", "log-level"),
    Flag("safe-mode", "down.safe-mode"),
)
PROGRAM: Final = Program(
    "arbiter",
    ArbiterConfig,
    FLAGS,
    env_prefix="BINLOG_SERVER",
    about="Applies the topic that a TiDB-Binlog drainer writes to MySQL, MariaDB or TiDB, exactly once. It may be "
    "killed at any time, and takes over from the original's arbiter, which takes over from it.",
    exit_codes={0: "after a signal", 1: "bad settings", 2: "a failure or a bad command line"},
    examples=(
        "arbiter -config arbiter.toml",
        "arbiter -up.topic 7047203_obinlog -up.initial-commit-ts 447940000000000000",
    ),
)
