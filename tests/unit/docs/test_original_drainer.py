"""Every setting and flag of the original's drainer is taken, with its default."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.runtime.config import load

from drainer.config import FLAGS, PROGRAM, Config
from drainer.original_settings import given_without_effect

FILE = """
node-id = "n"
addr = "127.0.0.1:8249"
advertise-addr = "127.0.0.1:8249"
data-dir = "d"
detect-interval = 10
pd-urls = "http://127.0.0.1:2379"
log-file = ""
log-level = "info"
initial-commit-ts = -1
synced-check-time = 5
compressor = "gzip"
[security]
ssl-ca = ""
ssl-cert = ""
ssl-key = ""
cert-allowed-cn = []
[syncer]
sql-mode = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
ignore-txn-commit-ts = []
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
txn-batch = 20
worker-count = 16
sync-ddl = true
loopback-control = false
channel-id = 1
safe-mode = false
db-type = "mysql"
enable-dispatch = true
disable-dispatch = false
enable-detect = true
disable-detect = false
load-schema-snapshot = false
case-sensitive = false
replicate-do-db = []
[[syncer.replicate-do-table]]
db-name = "a"
tbl-name = "b"
[[syncer.ignore-table]]
db-name = "a"
tbl-name = "c"
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["r"]
[syncer.table-migrate-rule.source]
schema = "a"
table = "*"
[syncer.table-migrate-rule.target]
schema = "a"
table = "d"
[syncer.binlog-filter-rule.r]
ignore-event = ["truncate table"]
ignore-sql = []
[syncer.relay]
log-dir = ""
max-file-size = 10485760
[syncer.to]
host = "127.0.0.1"
port = 3306
user = "root"
password = ""
encrypted_password = ""
sync-mode = 1
read-timeout = "1m"
merge = false
[syncer.to.params]
time_zone = "UTC"
[syncer.to.security]
ssl-ca = ""
ssl-cert = ""
ssl-key = ""
cert-allowed-cn = []
[syncer.to.checkpoint]
type = "mysql"
schema = "tidb_binlog"
table = "checkpoint"
host = ""
port = 3306
user = "root"
password = ""
encrypted_password = ""
"""
FLAG_NAMES = """
node-id addr advertise-addr data-dir detect-interval pd-urls log-file log-level L initial-commit-ts synced-check-time
compressor metrics-addr metrics-interval cache-binlog-count config V log-rotate ignore-schemas txn-batch c sync-ddl
loopback-control channel-id safe-mode dest-db-type enable-dispatch disable-dispatch enable-detect disable-detect
load-schema-snapshot relay-log-dir relay-max-file-size ssl-ca ssl-cert ssl-key
""".split()  # noqa: SIM905
OF_EVERY_PROGRAM = {"config", "V"}


def loaded(tmp_path: Path, text: str, *argv: str) -> Config:
    path = tmp_path / "drainer.toml"
    path.write_text(text)
    return load(PROGRAM, ["-config", str(path), *argv], environ={})


def test_drainer_config_reads_every_key_of_original(tmp_path: Path) -> None:
    config = loaded(tmp_path, FILE)
    config.check()
    named = {"compressor", "syncer.sql-mode", "syncer.table-migrate-rule.target"}
    named |= {f"syncer.to.checkpoint.{key}" for key in ("type", "port", "user")}
    assert set(given_without_effect(config)) == named  # those that are not the default
    assert all(given_without_effect(config).values()), "each says what replaces it"


def test_drainer_flags_accept_every_flag_of_original() -> None:
    assert set(FLAG_NAMES) - OF_EVERY_PROGRAM <= {flag.name for flag in FLAGS}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sync-mode = 1", "sync-mode = 2", "rows are written with all their columns"),
        ('table = "checkpoint"', 'table = "other"', "begin with initial-commit-ts of other"),
        (
            '[syncer.to.checkpoint]\ntype = "mysql"',
            '[syncer.to.checkpoint]\ntype = "file"',
            "initial-commit-ts of the file",
        ),
        (
            'ssl-key = ""\ncert-allowed-cn = []\n[syncer.to.checkpoint]',
            'ssl-key = ""\ncert-allowed-cn = ["x"]\n[syncer.to.checkpoint]',
            "must carry the name in host",
        ),
    ],
)
def test_value_of_original_that_would_change_what_is_replicated_is_refused(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    assert old in FILE
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, FILE.replace(old, new))
