"""Settings: what fits together, what is refused by name, and what a batch's digest depends on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import structlog
from binlog.errors import ConfigError
from binlog.runtime.config import load

from drainer.config import PROGRAM, Config
from drainer.original_settings import given_without_effect
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.mysql.config import MySQLSection
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.settings import SyncerSettings

SQLITE = '[syncer]\ndb-type = "sqlite"\n[syncer.to]\n'


def loaded(tmp_path: Path, text: str, *argv: str) -> Config:
    file = tmp_path / "drainer.toml"
    file.write_text(text)
    return load(PROGRAM, ["-config", str(file), *argv], environ={})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('dial-timeout = "-1s"', "line 5: syncer.to.dial-timeout: a duration was expected, from 1ms to 596h, such as "),
        ("max-message-bytes = 1.5", "line 5: syncer.to.max-message-bytes: a size was expected, from 1 byte to "),
        ("kafka-config.partition-num = nan", "syncer.to.partition-num: a whole number was expected, from 0 to "),
        ('sink-uri = "kafka://k/t?slots="', "syncer.to.slots: a whole number was expected, from 1 to 200, not ''"),
    ],
)
def test_invalid_kafka_setting_in_file_is_refused_with_its_line(setting: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, f'[syncer]\ndb-type = "kafka"\n\n[syncer.to]\n{setting}\n')
    assert words in str(error.value)


def test_filter_rules_of_ticdc_select_the_same_tables(tmp_path: Path) -> None:
    """TiDB's table-filter: the last rule that matches counts, and system databases are never replicated."""
    text = f'{SQLITE}\n[syncer.filter]\nrules = ["*.*", "!test.*", "test.keep", "!shop.log_*", "!gone.*"]\n'
    filter_ = loaded(tmp_path, text.replace("[syncer.to]", "")).syncer.filter()
    replicated = [("shop", "orders"), ("SHOP", "ORDERS"), ("test", "keep"), ("shop", ""), ("test", "")]
    left_out = [("test", "t"), ("TEST", "t"), ("shop", "Log_1"), ("mysql", "user"), ("tidb_cdc", "t"), ("sys", "")]
    assert [filter_.allows(*name) for name in replicated] == [True] * len(replicated)
    assert [filter_.allows(*name) for name in [*left_out, ("gone", "")]] == [False] * (len(left_out) + 1)


def test_source_kafka_needs_addresses_of_brokers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kafka-source\] addresses"):
        loaded(tmp_path, 'source = "kafka"').check()
    loaded(tmp_path, f'source = "kafka"\n[kafka-source]\naddresses = ["b:9092"]\n{SQLITE}path = "d"').check()


def test_lock_of_former_drainer_is_waited_for_unless_its_lease_has_ended(tmp_path: Path) -> None:
    to = loaded(tmp_path, "").syncer.to
    assert isinstance(to, MySQLSection)
    assert to.server(SyncerSettings()).lock_wait_s == 30
    assert to.server(SyncerSettings(former_has_ended=True)).lock_wait_s == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("standby = true", "standby: give node-id, the same for all"),
        ('standby = true\nnode-id = "d"\nuntil-now = true', "standby and until-now"),
    ],
)
def test_standby_settings_that_do_not_fit_are_refused(lines: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, lines).check()


@pytest.mark.parametrize("kind", ["kafka", "jsonl", "file"])
def test_complete_transactions_are_refused_for_destinations_without_tables(kind: str, tmp_path: Path) -> None:
    to = {"kafka": 'kafka-addrs = "k:9092"', "jsonl": 'path = "x"'}.get(kind, 'dir = "x"')
    text = f'[syncer]\ndb-type = "{kind}"\nconsistency = "transaction"\n[syncer.to]\n{to}\n'
    with pytest.raises(ConfigError, match=f"syncer.consistency: a destination of db-type {kind} gets every change"):
        loaded(tmp_path, text).check()


def test_other_name_of_file_destination_is_accepted(tmp_path: Path) -> None:
    assert loaded(tmp_path, f'[syncer]\ndb-type = "pb"\n[syncer.to]\ndir = "{tmp_path}"\n').syncer.db_type == "file"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('[syncer.filter]\nrules = ["shop"]', "rule 'shop': expected database.table"),
        ('[syncer.filter]\nrules = ["# none"]', "a filter has no rule: give patterns of tables"),
        (
            "[syncer.filter]\nignore-txn-start-ts = [7]",
            "syncer.filter.ignore-txn-start-ts: transactions are not",
        ),
        (
            '[[syncer.filter.event-filters]]\nmatcher = ["a.b"]\nignore-insert-value-expr = "a > 1"',
            "rows are not filtered by values: remove it",
        ),
        (
            '[syncer]\nreplicate-do-db = ["a"]\n[syncer.filter]\nrules = ["a.*"]',
            "rules and replicate-do-db both",
        ),
        ('[filter]\nrules = ["a.*"]', "filter: did you mean syncer.filter?"),
        ("case-sensitive = true", "unknown configuration options: case-sensitive"),
        ('[syncer.filter]\ndo-dbs = ["a"]', "unknown configuration options: syncer.filter.do-dbs"),
    ],
)
def test_unsupported_filter_settings_of_ticdc_are_refused(lines: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, lines).syncer.filter()
    assert words in str(error.value)


def test_filter_rules_are_part_of_a_batch_s_digest(tmp_path: Path) -> None:
    digests = {
        loaded(tmp_path, f"[syncer.filter]\nrules = {rules}").syncer.digest() for rules in ("[]", '["a.*"]', '["b.*"]')
    }
    assert loaded(tmp_path, "").syncer.digest() in digests and len(digests) == 3


def test_default_settings_equal_upstreams(tmp_path: Path) -> None:
    config = loaded(tmp_path, "")
    assert config.addr.endswith(":8249")
    assert (config.initial_commit_ts, config.synced_check_time, config.spark.master) == (-1, 5, "local[*]")
    assert config.syncer.db_type == "mysql"
    assert not config.syncer.filter().allows("mysql", "user")


def test_command_line_flags_override_file(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        'node-id = "file"\n[spark]\nmaster = "local[1]"',
        "-node-id",
        "flag",
        "--master=local[2]",
        "--until-now",
    )
    assert (config.node_id, config.spark.master, config.until_now) == ("flag", "local[2]", True)


def test_status_address_defaults_to_port_beside_addr(tmp_path: Path) -> None:
    assert loaded(tmp_path, 'addr = "127.0.0.1:8249"').status_address() == "127.0.0.1:9249"
    assert loaded(tmp_path, 'status-addr = "127.0.0.1:1"').status_address() == "127.0.0.1:1"
    assert loaded(tmp_path, 'status-addr = ""').status_address() == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[syncer]\ndb-type = "oracle"', "db-type"),
        ('[syncer]\nsql-mode = "ansi_quotes"', "sql-mode.*ANSI_QUOTES is not supported"),
        ("[syncer]\nchannel-id = 9223372036854775808", "channel-id"),
        ("[syncer.to]\nsync-mode = 2", "sync-mode.*only 1"),
        ('[syncer.to.checkpoint]\ntype = "file"', "checkpoint.type.*initial-commit-ts of the file's"),
        ('[syncer.to.checkpoint]\nhost = "h"', "checkpoint.host.*in the destination itself"),
        ('[syncer.to.checkpoint]\nschema = "mine"', "checkpoint.schema.*initial-commit-ts of mine"),
        ("[syncer.to]\nport = 0", "port"),
        ("initial-commit-ts = -2", "initial-commit-ts"),
        ('[syncer]\nrecycle-bin = "-1h"', "recycle-bin"),
        ('addr = "nowhere"', "addr"),
        ('batch-bytes-max = "much"', "batch-bytes-max"),
        ('[syncer.to.security]\ncert-allowed-cn = ["db"]', "cert-allowed-cn"),
    ],
)
def test_invalid_value_or_key_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[syncer]\ndb-type = "sqlite"', "syncer.to.path"),
        ('[syncer.to]\npath = "x"', r"line 2: syncer.to.path: .*db-type mysql has no path; it is .* of .*sqlite"),
        (
            '[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "x"\nhost = "h"',
            r"line 5: syncer.to.host: .*db-type sqlite has no host; it is a setting of mysql, tidb, mariadb",
        ),
        (
            '[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "x"\n[syncer.to.security]\nssl-ca = "x"',
            "has no security",
        ),
        (
            '[syncer]\ndb-type = "sqlite"\n[syncer.to]\npth = "x"',
            r"unknown .*syncer.to.pth .*did you mean syncer.to.path",
        ),
        ("[syncer.to]\nallow_triggers = true", r"unknown .*syncer.to.allow_triggers"),
        ('[syncer]\ndb-type = "oracle"\n[syncer.to]\npath = "x"', r"Oracle is not a destination here, because there"),
        ('[syncer]\ndb-type = "flash"\n[syncer.to]\npath = "x"', r"must be one of mysql, tidb, mariadb, sqlite"),
        ('[syncer]\nreplicate-do-db = ["~["]', "replicate-do-db"),
        ('[[syncer.ddl-rewrite]]\nsql = "x"', "ddl-rewrite"),
        ('[syncer.to.security]\nssl-ca = "ca"\nssl-cert = "c"', "ssl-key must be set together"),
        ('[syncer.to.security]\nssl-cert = "c"\nssl-key = "k"', "syncer.to.security: ssl-cert needs ssl-ca"),
        ('[upstream.security]\nssl-cert = "c"\nssl-key = "k"', "upstream.security: ssl-cert needs ssl-ca"),
        ("[upstream]\nport = 0", "upstream.port"),
        ("[upstream]\nfirst-load = true", "upstream.first-load needs upstream.host"),
        ('[upstream]\ndb = "x"', r"unknown .*upstream.db"),
    ],
)
def test_conflicting_settings_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        loaded(tmp_path, text).check()


def test_digest_changes_only_with_settings_that_select_rows(tmp_path: Path) -> None:
    plain = loaded(tmp_path, "").syncer.digest()
    assert loaded(tmp_path, "[syncer]\nworker-count = 3").syncer.digest() == plain
    assert loaded(tmp_path, '[syncer.to]\npassword = "x"').syncer.digest() == plain
    assert loaded(tmp_path, "[syncer]\nignore-txn-commit-ts = [7]").syncer.digest() != plain
    assert loaded(tmp_path, '[syncer]\nreplicate-do-db = ["a"]').syncer.digest() != plain


TWO_WAY = "loopback-control = true\nchannel-id = 7"


def test_channel_counts_only_with_loopback_control(tmp_path: Path) -> None:
    """For the rows that are chosen, for the marks at a server, and for upstream's table of marks."""
    digests = set()
    for text, channel in (("", None), ("channel-id = 7", None), ("loopback-control = true", 0), (TWO_WAY, 7)):
        syncer = loaded(tmp_path, f"[syncer]\n{text}").syncer
        digests.add(syncer.digest())
        assert syncer.policy().channel_id == channel
        server = syncer.sink()
        assert isinstance(server, MySQLSink) and server._config.channel_id == channel
        replicated = [
            syncer.filter().allows(*name) for name in (("Retl", "_Drainer_repl_mark"), ("retl", ""), ("retl", "t"))
        ]
        assert replicated == [channel is None, channel is None, True]
    assert len(digests) == 3


@pytest.mark.parametrize("kind", ["kafka", "sqlite", "jsonl", "file"])
def test_destinations_without_marks_leave_out_marked_transactions(tmp_path: Path, kind: str) -> None:
    to = {"kafka": 'kafka-addrs = "k:9092"', "sqlite": 'path = "x"', "jsonl": 'path = "x"'}.get(kind, 'dir = "x"')
    syncer = loaded(tmp_path, f'[syncer]\ndb-type = "{kind}"\n{TWO_WAY}\n[syncer.to]\n{to}').syncer
    assert syncer.policy().channel_id == 7


def test_repr_of_config_contains_no_password(tmp_path: Path) -> None:
    for section in ("syncer.to", "upstream"):
        assert "secret" not in repr(loaded(tmp_path, f'[{section}]\npassword = "secret"'))


def test_encrypted_password_is_decrypted_and_overrides_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the original's binlogctl printed it, with its public key, of which there is a warning."""
    monkeypatch.delenv("BINLOG_SECRET_KEY", raising=False)
    text = '[syncer.to]\npassword = "x"\nencrypted_password = "LnGqL+lXxdbxgEVd4nCEc0Bz41MARPyXz+4u"'
    config = loaded(tmp_path, text)
    to = config.syncer.to
    assert isinstance(to, MySQLSection)
    with structlog.testing.capture_logs() as lines:
        assert to.server(SyncerSettings()).password == "pässw0rd!"
    assert "default key, which is public" in lines[0]["event"]
    assert "pässw0rd" not in repr(config)
    with pytest.raises(ConfigError, match=r"drainer.toml, line 2: .*encrypted_password: ciphertext not valid"):
        loaded(tmp_path, '[syncer.to]\nencrypted_password = "c2VjcmV0"')


# The example of the original's repository, with what stands in comments there, but for passwords and certificates.
ORIGINAL = """
addr = "127.0.0.1:8249"
advertise-addr = ""
detect-interval = 10
data-dir = "data.drainer"
pd-urls = "http://127.0.0.1:2379"
compressor = "gzip"
[syncer]
sql-mode = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
txn-batch = 30
sync-ddl = true
loopback-control = false
channel-id = 1
worker-count = 16
enable-dispatch = true
safe-mode = false
db-type = "mysql"
ignore-txn-commit-ts = []
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
replicate-do-db = ["~^b.*","s1"]
[syncer.relay]
log-dir = ""
max-file-size = 10485760
[[syncer.replicate-do-table]]
db-name ="test"
tbl-name = "log"
[[syncer.ignore-table]]
db-name = "test"
tbl-name = "log"
[syncer.to]
host = "127.0.0.1"
user = "root"
password = ""
encrypted_password = ""
port = 3306
read-timeout = "1m"
sync-mode = 1
[syncer.to.security]
ssl-ca = ""
[syncer.to.checkpoint]
type = "mysql"
schema = "tidb_binlog"
"""


def test_original_drainers_file_is_accepted_and_ignored_settings_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, ORIGINAL)
    config.check()
    assert config.syncer.filter().allows("s1", "t") and config.syncer.worker_count == 16
    assert list(given_without_effect(config)) == [
        "compressor",
        "syncer.sql-mode",
        "syncer.to.checkpoint.type",
        "syncer.txn-batch",
    ]
    assert given_without_effect(loaded(tmp_path, "")) == {}


@pytest.mark.parametrize(
    "flags",
    [
        "-detect-interval 5 -compressor gzip -txn-batch 3 -loopback-control=false -channel-id 7 -c 3 -safe-mode",
        "-relay-max-file-size 7 -relay-log-dir= -disable-dispatch -enable-dispatch=false -disable-detect",
        "-enable-detect=false -load-schema-snapshot -cache-binlog-count 9 -log-rotate day -metrics-interval 15",
    ],
)
def test_every_flag_of_original_drainer_is_accepted(tmp_path: Path, flags: str) -> None:
    loaded(tmp_path, "", *flags.split()).check()


KAFKA = """
[syncer]
db-type = "kafka"
[syncer.to]
kafka-addrs = "k1:9092, k2:9092"
kafka-version = "0.8.2.0"
kafka-max-messages = 1024
kafka-max-message-size = 1073741824
kafka-client-id = "tidb_binlog"
topic-name = "7_obinlog"
zookeeper-addrs = ""
[syncer.to.checkpoint]
"""


def test_original_drainers_kafka_file_is_accepted_with_its_protocol(tmp_path: Path) -> None:
    config = loaded(tmp_path, KAFKA)
    config.check()
    to = config.syncer.to
    assert isinstance(to, KafkaSection)
    assert (to.addresses, to.topic, to.kafka_client_id) == (("k1:9092", "k2:9092"), "7_obinlog", "tidb_binlog")
    assert (to.options().protocol, to.partition_num) == ("secondary-binlog", 1)
    assert list(given_without_effect(config)) == ["syncer.to.kafka-version"]
    ours = loaded(tmp_path, KAFKA.replace("kafka-client-id", 'protocol = "avro"\npartition-num = 3\nkafka-client-id'))
    assert isinstance(ours.syncer.to, KafkaSection)
    assert (ours.syncer.to.protocol, ours.syncer.to.partition_num) == ("avro", 3)


# Every key of [syncer.to] of the original, but those above.
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('zookeeper-addrs = "z:2181"', "set kafka-addrs to host:port"),
        ('host = "h"', "it is a setting of mysql, tidb, mariadb: remove it"),
        ('user = "u"', "remove it"),
        ('password = "p"', "remove it"),
        ('encrypted_password = "p"', "remove it"),
        ("port = 3306", "remove it"),
        ("sync-mode = 1", "remove it"),
        ('dir = "d"', "remove it"),
        ("retention-time = 7", "remove it"),
        ('params = {a = "b"}', "remove it"),
        ("merge = true", "remove it"),
        ('oracle-service-name = "o"', "oracle-service-name: settings of other"),
        ('oracle-connect-string = "o"', "oracle-connect-string: settings of other"),
        ('read-timeout = "1m"', ""),
        ("kafka-max-messages = 9", ""),
        ("kafka-max-message-size = 9", ""),
        ('security = {ssl-ca = "/ca"}', "that of Kafka is set by ca, cert and key"),
        ('security = {cert-allowed-cn = ["a"]}', "that of Kafka is set by ca, cert and key"),
        ('security = {ssl-ca = ""}', ""),
        ('checkpoint = {type = "mysql"}', "begin with initial-commit-ts of the checkpoint"),
        ('checkpoint = {host = "h"}', "begin with initial-commit-ts of the checkpoint"),
        ('checkpoint = {type = "file", schema = "s", user = "u", password = "p", port = 1}', ""),
        ('addresses = ["k:9092"]', "kafka-addrs and addresses are one setting"),
        ('topic = "t"', "topic-name and topic are one setting"),
        ('sink-uri = "kafka://k:9092/t"', "kafka-addrs, and sink-uri, which says it, too"),
    ],
)
def test_original_kafka_key_is_accepted_or_refused_with_remedy(tmp_path: Path, line: str, words: str) -> None:
    text = '[syncer]\ndb-type = "kafka"\n[syncer.to]\nkafka-addrs = "k:9092"\ntopic-name = "t"\n' + line
    if not words:
        loaded(tmp_path, text).check()
        return
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text).check()
    assert words in str(refused.value)


def test_missing_topic_name_is_refused_naming_original_default(tmp_path: Path) -> None:
    text = '[syncer]\ndb-type = "kafka"\n[syncer.to]\nkafka-addrs = "k:9092"\ntopic-name = ""'
    with pytest.raises(ConfigError, match="is <cluster id>_obinlog"):
        loaded(tmp_path, text).check()


@pytest.mark.parametrize("text", ['"2026-11-20 10:00Z"', "2026-11-20T10:00:00Z", str(1_795_168_800_000 << 18)])
def test_initial_commit_ts_may_be_date_and_time(text: str) -> None:
    config = Config.model_validate(tomllib.loads(f"initial-commit-ts = {text}"))
    assert config.initial_commit_ts == 1_795_168_800_000 << 18
