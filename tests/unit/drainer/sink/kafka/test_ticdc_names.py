"""Every parameter of TiCDC's sink URI, and every setting of its `[sink]`, is taken, told to have no effect, or refused
with what to do; none is ignored in silence, or unknown. Names and defaults are those of v7.5 to v8.5 (and their main
branch): pkg/config/sink.go, pkg/sink/kafka/options.go, pkg/sink/codec/common/config.go."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from binlog.errors import ConfigError
from pydantic import ValidationError

from drainer.kafka_reading.address import kafka_address
from drainer.original_settings import given_without_effect
from drainer.protocol.errors import ProtocolConfigError
from drainer.sink.kafka.settings.section import KafkaSection
from tests.support.names import at_path

TEN_S = timedelta(seconds=10)


class Taken(NamedTuple):
    """`path`: the field of the section that it comes to; `default`: what that is where nothing is said."""

    path: str
    value: object
    default: object


class Warned(NamedTuple):
    """Taken, without effect; the warning says why."""

    why: str


class Refused(NamedTuple):
    """The error says what to do, in these words."""

    words: str


GSSAPI = Refused("use SCRAM-SHA-512 or OAUTHBEARER")
Outcome = Taken | Warned | Refused

# Parameter → a value, and what comes of it.
URI: dict[str, tuple[str, Outcome]] = {
    "protocol": ("Canal-JSON", Taken("protocol", "canal-json", "open-protocol")),
    "transaction-atomicity": ("table", Refused("set none")),
    "partition-num": ("6", Taken("partition_num", 6, 0)),
    "replication-factor": ("3", Taken("replication_factor", 3, 1)),
    "kafka-version": ("2.4.0", Warned("asks brokers")),
    "max-message-bytes": ("1048576", Taken("max_message_bytes", 1 << 20, 10 << 20)),
    "max-retry": ("3", Warned("retry-for")),
    "compression": ("ZSTD", Taken("compression", "zstd", "none")),
    "kafka-client-id": ("c1", Taken("kafka_client_id", "c1", "")),
    "auto-create-topic": ("false", Taken("auto_create_topic", False, True)),
    "dial-timeout": ("3s", Taken("dial_timeout", timedelta(seconds=3), TEN_S)),
    "write-timeout": ("3s", Taken("write_timeout", timedelta(seconds=3), TEN_S)),
    "read-timeout": ("3s", Taken("read_timeout", timedelta(seconds=3), TEN_S)),
    "required-acks": ("1", Refused("exactly-once needs -1; or set exactly-once = false")),
    "sasl-user": ("u", Taken("security.sasl_user", "u", "")),
    "sasl-password": ("p", Taken("security.sasl_password", "p", "")),
    "sasl-mechanism": ("SCRAM-SHA-256", Taken("security.mechanism", "SCRAM-SHA-256", "")),
    "sasl-gssapi-auth-type": ("USER", GSSAPI),
    "sasl-gssapi-keytab-path": ("/k", GSSAPI),
    "sasl-gssapi-kerberos-config-path": ("/k", GSSAPI),
    "sasl-gssapi-service-name": ("kafka", GSSAPI),
    "sasl-gssapi-user": ("u", GSSAPI),
    "sasl-gssapi-password": ("p", GSSAPI),
    "sasl-gssapi-realm": ("R", GSSAPI),
    "sasl-gssapi-disable-pafxfast": ("true", GSSAPI),
    "enable-tls": ("true", Taken("security.tls", True, False)),
    "ca": ("PEM", Taken("security.ca", "PEM", "")),
    "cert": ("PEM", Taken("security.cert", "PEM", "")),
    "key": ("PEM", Taken("security.key", "PEM", "")),
    "insecure-skip-verify": ("true", Taken("security.insecure_skip_verify", True, False)),
    "enable-tidb-extension": ("true", Taken("enable_tidb_extension", True, False)),
    "max-batch-size": ("4", Taken("max_batch_size", 4, 16)),
    "avro-decimal-handling-mode": ("string", Taken("avro_decimal_handling_mode", "string", "precise")),
    "avro-bigint-unsigned-handling-mode": ("string", Taken("avro_bigint_unsigned_handling_mode", "string", "long")),
    "avro-enable-watermark": ("true", Taken("avro_enable_watermark", True, False)),
    "schema-registry": ("http://r:8081", Taken("schema_registry", "http://r:8081", "")),
    "only-output-updated-columns": ("true", Taken("only_output_updated_columns", True, False)),
    "content-compatible": ("true", Taken("content_compatible", True, False)),
    "debezium-disable-schema": ("true", Taken("debezium_disable_schema", True, False)),
    "encoding-format": ("avro", Taken("encoding_format", "avro", "json")),
}
RULES = '[{matcher = ["a.b"], partition = "ts"}]'
SELECTORS = '[{matcher = ["a.b"], columns = ["*", "!c"]}]'
# Setting of [sink] → a value in TOML, and what comes of it.
FILE: dict[str, tuple[str, Outcome]] = {
    "transaction-atomicity": ('"table"', Refused("set none")),
    "protocol": ('"avro"', Refused('avro requires parameter "schema-registry"')),
    "dispatchers": (RULES, Taken("dispatchers.0.partition", "ts", None)),
    "column-selectors": (SELECTORS, Taken("column_selectors.0.columns", ("*", "!c"), None)),
    "schema-registry": ('"http://r:8081"', Taken("schema_registry", "http://r:8081", "")),
    "encoder-concurrency": ("8", Warned("Spark's tasks encode")),
    "terminator": ('"\\n"', Warned("db-type = file")),
    "date-separator": ('"month"', Warned("db-type = file")),
    "enable-partition-separator": ("false", Warned("db-type = file")),
    "file-index-digit": ("9", Warned("db-type = file")),
    "enable-kafka-sink-v2": ("true", Warned("one client library")),
    "only-output-updated-columns": ("true", Taken("only_output_updated_columns", True, False)),
    "delete-only-output-handle-key-columns": ("true", Taken("delete_only_output_handle_key_columns", True, False)),
    "content-compatible": ("true", Taken("content_compatible", True, False)),
    "safe-mode": ("true", Warned("db-type = mysql")),
    "kafka-config": ('"x"', Refused("it is a table, as in TiCDC's file")),
    "pulsar-config": ("{pulsar-version = '1'}", Warned("no destination Pulsar")),
    "mysql-config": ("{worker-count = 3}", Warned("db-type = mysql")),
    "cloud-storage-config": ("{worker-count = 3}", Warned("db-type = file")),
    "advance-timeout-in-sec": ("9", Warned("/status says why")),
    "send-bootstrap-interval-in-sec": ("9", Taken("send_bootstrap_interval_in_sec", 9, 120)),
    "send-bootstrap-in-msg-count": ("9", Taken("send_bootstrap_in_msg_count", 9, 10_000)),
    "send-bootstrap-to-all-partition": ("false", Taken("send_bootstrap_to_all_partition", False, True)),
    "send-all-bootstrap-at-start": ("true", Refused("a table's schema is sent before its first row")),
    "debezium-disable-schema": ("true", Taken("debezium_disable_schema", True, False)),
    "csv": ("{quote = '`'}", Warned("db-type = file")),
    "open": ("{output-old-value = false}", Taken("open.output_old_value", False, True)),
    "debezium": ("{output-old-value = false}", Taken("debezium.output_old_value", False, True)),
    "integrity": ("{integrity-check-level = 'correctness'}", Refused("binlogs have no checksums of rows: set none")),
    **{
        f"kafka-config.{name}": (value if value in ("true", "false") or value.isdigit() else f'"{value}"', outcome)
        for name, (value, outcome) in URI.items()
        if name not in ("max-retry", "protocol", "transaction-atomicity", "schema-registry", "content-compatible")
        and name not in ("only-output-updated-columns", "debezium-disable-schema")
        and not name.startswith(("avro-", "e")) | (name == "max-batch-size")
    },
    "kafka-config.enable-tls": ("true", Taken("security.tls", True, False)),
    "kafka-config.sasl-oauth-client-id": ('"c"', Refused("OAUTHBEARER needs sasl-oauth-client-secret")),
    "kafka-config.sasl-oauth-client-secret": ('"c2VjcmV0"', Refused("OAUTHBEARER needs sasl-oauth-client-id")),
    "kafka-config.sasl-oauth-token-url": ('"http://i"', Refused("OAUTHBEARER needs sasl-oauth-client-id")),
    "kafka-config.sasl-oauth-scopes": ('["a", "b"]', Taken("security.sasl_oauth_scopes", "a,b", "")),
    "kafka-config.sasl-oauth-grant-type": (
        '"client_credentials"',
        Taken("security.sasl_oauth_grant_type", "client_credentials", "client_credentials"),
    ),
    "kafka-config.sasl-oauth-audience": ('"a"', Taken("security.sasl_oauth_audience", "a", "")),
    "kafka-config.output-raw-change-event": ("true", Taken("output_raw_change_event", True, False)),
    "kafka-config.glue-schema-registry-config": (
        "{registry-name = 'r', region = 'us', secret-access-key = 'hidden'}",
        Refused("AWS Glue is not supported: run a registry with Confluent's API"),
    ),
    **{
        f"kafka-config.codec-config.{name}": (value if value in ("true", "4") else f'"{value}"', outcome)
        for name, (value, outcome) in URI.items()
        if name.startswith(("avro-", "enable-tidb", "max-batch", "encoding"))
    },
    "kafka-config.large-message-handle.large-message-handle-option": (
        '"handle-key-only"',
        Taken("large_message_handle_option", "handle-key-only", "none"),
    ),
    "kafka-config.large-message-handle.large-message-handle-compression": (
        '"lz4"',
        Taken("large_message_handle_compression", "lz4", "none"),
    ),
    "kafka-config.large-message-handle.claim-check-storage-uri": (
        '"/claims"',
        Taken("claim_check_storage_uri", "/claims", ""),
    ),
    "kafka-config.large-message-handle.claim-check-raw-value": ("true", Taken("claim_check_raw_value", True, False)),
}
# As the structures of TiCDC's source have them.
OF_SINK = """transaction-atomicity protocol dispatchers column-selectors schema-registry encoder-concurrency terminator
    date-separator enable-partition-separator file-index-digit enable-kafka-sink-v2 only-output-updated-columns
    delete-only-output-handle-key-columns content-compatible safe-mode kafka-config pulsar-config mysql-config
    cloud-storage-config advance-timeout-in-sec send-bootstrap-interval-in-sec send-bootstrap-in-msg-count
    send-bootstrap-to-all-partition send-all-bootstrap-at-start debezium-disable-schema csv open debezium"""
OF_KAFKA = """partition-num replication-factor kafka-version max-message-bytes compression kafka-client-id
    auto-create-topic dial-timeout write-timeout read-timeout required-acks sasl-user sasl-password sasl-mechanism
    sasl-gssapi-auth-type sasl-gssapi-keytab-path sasl-gssapi-kerberos-config-path sasl-gssapi-service-name
    sasl-gssapi-user sasl-gssapi-password sasl-gssapi-realm sasl-gssapi-disable-pafxfast sasl-oauth-client-id
    sasl-oauth-client-secret sasl-oauth-token-url sasl-oauth-scopes sasl-oauth-grant-type sasl-oauth-audience enable-tls
    ca cert key insecure-skip-verify glue-schema-registry-config output-raw-change-event"""
OF_CODEC = """enable-tidb-extension max-batch-size avro-enable-watermark avro-decimal-handling-mode
    avro-bigint-unsigned-handling-mode encoding-format"""
OF_LARGE = "large-message-handle-option large-message-handle-compression claim-check-storage-uri claim-check-raw-value"


def test_test_tables_hold_every_name_of_ticdcs_settings() -> None:
    paths = [*OF_SINK.split(), *(f"kafka-config.{name}" for name in OF_KAFKA.split())]
    paths += [f"kafka-config.codec-config.{name}" for name in OF_CODEC.split()]
    paths += [f"kafka-config.large-message-handle.{name}" for name in OF_LARGE.split()]
    assert sorted(FILE.keys() - {"integrity"}) == sorted(paths)
    assert len(URI) == 38 + 2, "all parameters of both structures, protocol and transaction-atomicity"


def read(settings: dict[str, Any], *, check: bool) -> KafkaSection:
    made = KafkaSection.model_validate(settings, by_alias=True, by_name=False)
    if check:
        made.check()
    return made


def seen(settings: dict[str, Any], outcome: Outcome) -> None:
    if isinstance(outcome, Refused):
        with pytest.raises((ConfigError, ValidationError)) as refused:
            read(settings, check=True)
        assert outcome.words in str(refused.value) and "hidden" not in str(refused.value)
        assert "not permitted" not in str(refused.value)
        return
    # What some name alone needs beside it (a registry, a second file) is another test's.
    made = read(settings, check=isinstance(outcome, Warned))
    without = given_without_effect(made)
    if isinstance(outcome, Warned):
        ((_, why),) = without.items()
        assert outcome.why in why
        return
    assert at_path(made, outcome.path) == outcome.value and not without
    default = read({"addresses": ["k:9092"], "topic": "t"}, check=True)
    if outcome.default is not None:
        assert at_path(default, outcome.path) == outcome.default


@pytest.mark.parametrize("name", URI)
def test_sink_uri_parameter_of_ticdc_is_taken_warned_of_or_refused(name: str, tmp_path: Path) -> None:
    value, outcome = URI[name]
    seen({"sink-uri": f"kafka://k:9092/t?{name}={value}"}, outcome)
    if isinstance(outcome, Warned):
        assert kafka_address(f"kafka://k:9092/t?{name}={value}", "c", {}).topic == "t"


@pytest.mark.parametrize("path", FILE)
def test_file_setting_of_ticdc_is_taken_warned_of_or_refused(path: str) -> None:
    """Where TiCDC's file has it, and, of what is below kafka-config, under its last name too."""
    value, outcome = FILE[path]
    place = {"addresses": ["k:9092"], "topic": "t"}
    seen({**place, **tomllib.loads(f"{path} = {value}")}, outcome)
    name = path.rpartition(".")[2]
    if name != path and not (isinstance(outcome, Taken) and outcome.path.startswith("security.")):
        in_security = name.startswith(("sasl-", "enable-tls"))
        seen({**place, **tomllib.loads(f"{'security.' * in_security}{name} = {value}")}, outcome)


def test_sink_uri_overrides_nested_tables_of_file() -> None:
    uri = "kafka://k:9092/t?compression=lz4&ca=/uri"
    made = read({"sink-uri": uri, "kafka-config": {"compression": "gzip", "ca": "/file", "key": "/k"}}, check=False)
    assert (made.compression, made.security.ca, made.security.key) == ("lz4", "/uri", "/k")


CLAIMS = {"large-message-handle-option": "claim-check", "claim-check-storage-uri": "/claims"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"kafka-config": {"nosuch": 1}},
            "syncer.to.kafka-config.nosuch: TiCDC has no such setting; there are kafka-v",
        ),
        ({"kafka-config": {"codec-config": {"nosuch": 1}}}, "kafka-config.codec-config.nosuch: TiCDC has no such"),
        ({"kafka-config": {"codec-config": 1}}, "syncer.to.kafka-config.codec-config: it is a table"),
        ({"kafka-config": {"compression": "lz4"}, "compression": "zstd"}, "are one setting, and differ"),
        ({"kafka-config": {"ca": "a"}, "security": {"ca": "b"}}, "kafka-config.ca and ca are one setting, and differ"),
        ({"security": {"enable-tls": False, "ca": __file__}}, "enable-tls is false, and there is a ca"),
        (
            {"protocol": "debezium", "large-message-handle-option": "handle-key-only"},
            "the protocol debezium has no such messages",
        ),
        (
            {"kafka-config": {"large-message-handle": {"claim-check-raw-value": True, **CLAIMS}}},
            "claim-check-raw-value is not supported for the protocol open-protocol",
        ),
        ({"protocol": "secondary-binlog", "column-selectors": [{"matcher": ["*.*"], "columns": ["a"]}]}, "whole rows"),
        ({"column-selectors": [{"matcher": ["a"], "columns": ["a"]}]}, "expected database.table"),
        ({"column-selectors": [{"matcher": ["#"], "columns": ["a"]}]}, "a column selector has no matcher: give patte"),
        ({"dispatchers": [{"matcher": [""], "partition": "ts"}]}, "a dispatch rule has no matcher: give patterns"),
        ({"column-selectors": [{"matcher": ["a.b"], "columns": ["a.b"]}]}, "column pattern 'a.b'"),
        ({"column-selectors": [{"matcher": ["a.b"], "columns": []}]}, "no columns are given"),
    ],
)
def test_unknown_or_misplaced_ticdc_setting_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValidationError)) as refused:
        read({"addresses": ["k:9092"], "topic": "t", **settings}, check=True)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["canal", "maxwell", "craft", "csv"])
def test_unsupported_ticdc_protocol_is_refused_by_name(name: str) -> None:
    with pytest.raises(ProtocolConfigError, match=f"{name}' of TiCDC is not supported: take "):
        read({"addresses": ["k:9092"], "topic": "t", "protocol": name.upper()}, check=True)


def test_setting_of_another_protocol_is_warned_of() -> None:
    place = {"addresses": ["k:9092"], "topic": "t"}
    made = read({**place, "enable-tidb-extension": True, "max-batch-size": 4, "encoding-format": "json"}, check=True)
    (warning,) = made.warnings()
    assert warning == "enable-tidb-extension has no effect: only avro, canal-json, debezium use it"
    rules = [{"matcher": ["a.b"], "partition": "rowid"}]
    assert "old name" in read({**place, "dispatchers": rules}, check=True).warnings()[0]
    assert read(place, check=True).warnings() == []


def test_output_old_value_applies_to_protocol_of_its_section() -> None:
    def old(**settings: Any) -> bool:
        return read({"addresses": ["k:9092"], "topic": "t", **settings}, check=True).options().output_old_value

    off = {"output-old-value": False}
    assert not old(open=off) and not old(debezium=off, protocol="debezium") and not old(**off)
    assert old(debezium=off) and old(open=off, protocol="debezium") and old()
