"""`[syncer.to]` of Kafka: TiCDC's parameters, what does not fit together, and what driver and executors are told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
from binlog.errors import ConfigError

from drainer.protocol.large import ClaimStoreError
from drainer.protocol.registry import option_table, protocols_text
from drainer.sink.base import Identity
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.sink import make
from drainer.sink.settings import SyncerSettings

AVRO = {"protocol": "avro", "schema_registry": "https://r"}


def section(**settings: Any) -> KafkaSection:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    made = KafkaSection.model_validate({"addresses": ["k:9092"], "topic": "t", **given}, by_alias=True, by_name=False)
    made.check()
    return made


def test_ticdc_sink_uri_sets_config_options_and_router() -> None:
    uri = (
        "kafka://a:1,b:2/shop?protocol=canal-json&partition-num=6&max-message-bytes=1048576&replication-factor=3"
        "&enable-tidb-extension=true&auto-create-topic=false&max-batch-size=4&compression=zstd&kafka-version=2.4.0"
    )
    made = section(sink_uri=uri)
    options, producer = made.options(), made.producer_settings()
    assert (made.brokers, made.partition_num, made.replication_factor) == ("a:1,b:2", 6, 3)
    assert (made.auto_create_topic, producer["compression.type"], "acks" in producer) == (False, "zstd", False)
    assert (options.protocol, options.max_message_bytes, options.max_batch_size) == ("canal-json", 1 << 20, 4)
    assert options.enable_tidb_extension
    assert made.router().default_topic == "shop"


def test_each_protocol_option_set_by_its_name_reaches_the_encoder() -> None:
    """In a file and in a URI; its documentation names the protocols that use it."""
    for name, (field, option) in option_table().items():
        if not option.about:
            assert name not in KafkaSection.model_fields
            continue
        info = KafkaSection.model_fields[name]
        choices = get_args(info.annotation)
        value = not field.default if info.annotation is bool else choices[-1] if choices else "7"
        read = str(value).lower() if info.annotation is bool else value
        wanted = 7 if info.annotation is int else value
        for given in ({name: value}, {"sink-uri": f"kafka://k:9092/t?{name.replace('_', '-')}={read}"}):
            settings = {key.replace("_", "-"): one for key, one in given.items()}
            made = KafkaSection.model_validate(settings, by_alias=True, by_name=False)
            assert getattr(made.options(), name) == wanted, name
        text = info.description or ""
        assert text.startswith(f"for {protocols_text(option.packages)}: ") == bool(option.packages), name


def test_pickled_kafka_config_keeps_password_and_repr_hides_it() -> None:
    config = section(security={"sasl-user": "u", "sasl-password": "s3cret"})
    assert "s3cret" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.client_settings()["sasl.password"] == "s3cret"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control_topic": "t"}, "another topic"),
        ({"control_topic": "a b"}, "not a valid topic name"),
        ({"required_acks": 1}, "exactly-once needs -1"),
        ({"protocol": "no-such"}, "is not known"),
        ({"protocol": "avro"}, 'avro requires parameter "schema-registry"'),
        ({"protocol": "avro", "schema_registry": "ftp://x"}, "no http"),
        ({**AVRO, "registry": {"ssl-ca-location": "/nowhere"}}, "TLS files .*/nowhere"),
        ({**AVRO, "registry": {"ssl-key-location": "/k"}}, "ssl-key-location needs ssl-certificate-location"),
        ({**AVRO, "schema_registry": "http://r", "registry": {"ssl-ca-location": "/c"}}, "does not begin with https"),
        ({**AVRO, "schema_registry": "https://u:p@r", "registry": {"bearer-auth-token": "t"}}, "one of them"),
        ({"large_message_handle_option": "claim-check"}, "claim-check-storage-uri"),
        ({"time_zone": "Moon/Sea"}, "time-zone"),
        ({"dispatchers": [{"matcher": ["a.b"], "partition": "columns"}]}, "none are given"),
        ({"exactly_once": False, "dispatchers": [{"matcher": ["*.*"], "partition": "conflict"}]}, "needs exactly-once"),
        ({"dispatchers": [{"matcher": ["a.b"], "topic": "{table}-{schema}"}]}, "topic expression"),
    ],
)
def test_kafka_section_with_conflicting_settings_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section(**settings)


def test_required_acks_below_all_accepted_without_exactly_once() -> None:
    producer = section(exactly_once=False, required_acks="0").producer_settings()
    assert (producer["acks"], producer["enable.idempotence"]) == ("0", "false")


def test_transactional_ids_begin_with_the_control_topic() -> None:
    assert section(control_topic="c").slot_id(3) == "c-3"


def test_sink_connects_to_nothing_before_open() -> None:
    made = make(section(), SyncerSettings())
    assert made.name == "kafka://k:9092/t"
    made.interrupt()
    made.close(clean=True)


@pytest.mark.parametrize(("name", "taken"), [("by-key", "by table"), ("rowid", "index-value")])
def test_unknown_dispatcher_name_is_warned_of_with_its_substitute(name: str, taken: str) -> None:
    """The start logs each warning."""
    (warning,) = section(dispatchers=[{"matcher": ["shop.*"], "partition": name}]).warnings()
    assert f"'{name}'" in warning
    assert taken in warning


def test_claim_check_storage_without_write_access_is_refused_at_open(tmp_path: Path) -> None:
    """Before brokers are asked for anything: here there are none."""
    (tmp_path / "file").write_text("")
    given = {"large_message_handle_option": "claim-check", "claim_check_storage_uri": f"file://{tmp_path}/file"}
    sink = make(section(retry_for="0s", **given), SyncerSettings())
    with pytest.raises(ClaimStoreError, match="claims cannot be written there"):
        sink.open(Identity(1, "f", "n"), 0)
