"""The arbiter's flags and file are the original's."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.runtime.config import load

from drainer.arbiter.config import PROGRAM, ArbiterConfig

# Of the original: every key of its file, and every flag.
FILE = """
addr = "10.0.0.1:8251"
log-level = "warn"
log-file = "/tmp/arbiter.log"
open-sarama-log = false
[up]
kafka-addrs = "10.0.0.7:9092,10.0.0.8:9092"
kafka-version = "2.0.0"
initial-commit-ts = 5
topic = "7_obinlog"
message-buffer-size = 8
sarama-buffer-size = 8
[down]
host = "db"
port = 4000
user = "u"
password = "secret"
worker-count = 4
batch-size = 8
safe-mode = true
[metrics]
addr = "10.0.0.9:9091"
interval = 5
"""
FLAGS = (
    *("addr=127.0.0.1:1", "L=debug", "metrics.addr=gateway:9091", "metrics.interval=3", "log-file=a.log"),
    *("open-sarama-log=false", "up.initial-commit-ts=9", "up.topic=other", "down.worker-count=2"),
    *("down.batch-size=3", "safe-mode"),
)


def loaded(*argv: str, **environ: str) -> ArbiterConfig:
    return load(PROGRAM, argv, environ=environ)


def test_originals_file_and_flags_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.toml"
    path.write_text(FILE)
    config = loaded("-config", str(path), "-up.topic", "flag", BINLOG_SERVER_ADDR="127.0.0.1:2")
    assert (config.addr, config.up.topic, config.up.initial_commit_ts) == ("127.0.0.1:2", "flag", 5)
    assert (config.down.port, config.down.batch_size, config.down.safe_mode) == (4000, 8, True)
    address = config.address()
    assert (address.topic, address.client["bootstrap.servers"]) == ("flag", "10.0.0.7:9092,10.0.0.8:9092")
    assert config.replayer().name == "db:4000"
    assert "secret" not in repr(config)
    given = loaded(*(f"-{flag}" for flag in FLAGS))
    assert (given.log_level, given.metrics.interval, given.down.worker_count, given.up.topic) == (
        "debug",
        3,
        2,
        "other",
    )
    path.write_text(FILE.replace("worker-count", "workers"))
    with pytest.raises(
        ConfigError, match=r"component arbiter's config file .* unknown configuration options: down.wor"
    ):
        loaded("-config", str(path))


def test_defaults_are_the_originals() -> None:
    config = loaded()
    assert (config.addr, config.down.worker_count, config.down.batch_size) == ("127.0.0.1:8251", 16, 64)
    assert config.replayer().name == "localhost:3306"
    with pytest.raises(ConfigError, match=r"up.topic not config, please config the topic name"):
        config.address()
    empty = loaded("-up.topic", "t").model_copy(
        update={"up": config.up.model_copy(update={"topic": "t", "kafka_addrs": ""})}
    )
    assert empty.address().client["bootstrap.servers"] == "127.0.0.1:9092"
