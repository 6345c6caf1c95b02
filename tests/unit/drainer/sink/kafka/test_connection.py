"""How Kafka is reached: TiCDC's sink URI, TLS and SASL, and what the client library is told."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import ConfigError
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from drainer.sink.kafka.settings.connection import KafkaConnectionSection, parse_sink_uri

SECRET = base64.b64encode(b"s3cret").decode()


def section(**settings: Any) -> KafkaConnectionSection:
    given_ = {name.replace("_", "-"): value for name, value in settings.items()}
    return KafkaConnectionSection.model_validate(given_, by_alias=True, by_name=False)


def checked(**settings: Any) -> dict[str, str]:
    made = section(**{"addresses": ("k:9092",), "topic": "t", **settings})
    made.check()
    return made.client_settings("drainer a:8249")


def test_sink_uri_sets_brokers_topic_compression_and_sasl() -> None:
    made = section(sink_uri="kafka://a:1,b/shop-all?compression=lz4&required-acks=-1&sasl-user=u&sasl-password=p%26q")
    made.check()
    assert (made.addresses, made.topic, made.compression) == (("a:1", "b:9092"), "shop-all", "lz4")
    told = made.client_settings("x")
    assert told["bootstrap.servers"] == "a:1,b:9092"
    assert (told["sasl.mechanism"], told["sasl.username"], told["sasl.password"]) == ("PLAIN", "u", "p&q")
    assert told["security.protocol"] == "SASL_PLAINTEXT"


def test_sink_uri_overrides_file_and_keeps_its_other_settings() -> None:
    made = section(
        sink_uri="kafka+ssl://a/t?compression=zstd&kafka-version=2.4.0",
        compression="gzip",
        security={"sasl-user": "u", "sasl-password": "p"},
    )
    assert made.compression == "zstd"
    assert made.security.tls and made.security.sasl_user == "u"


def test_repr_of_kafka_section_contains_no_password() -> None:
    made = section(sink_uri=f"kafka://a/t?sasl-user=u&sasl-password=hidden&sasl-oauth-client-secret={SECRET}")
    assert "hidden" not in repr(made) and SECRET not in repr(made)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("mysql://a/t", "scheme must be one of kafka, kafka+ssl, not 'mysql'"),
        ("kafka://a:1", "no topic"),
        ("kafka://a:1/", "no topic"),
        ("kafka://u:hidden@a:1/t", "write sasl-user and sasl-password as parameters"),
        ("kafka://a:x/t", "does not have the form host:port"),
        ("kafka://a:99999/t", "does not have the form host:port"),
        ("kafka://a,,b/t", "address is empty"),
        ("kafka://:9092/t", "does not have the form host:port"),
        ("kafka://a/no topic", "is not a valid topic name"),
        ("kafka://a/..", "is not a valid topic name"),
        ("kafka://a/t?protocol=avro&protocol=open-protocol", "parameter protocol is given twice"),
        ("kafka://a/t?compression", "name=value"),
        ("kafka://u:hid/den@a:1/t", "write sasl-user and sasl-password as parameters"),
        ("kafka://u:hid?den@a:1/t", "write sasl-user and sasl-password as parameters"),
        ("kafka://u:hid#den@a:1/t", "write sasl-user and sasl-password as parameters"),
        ("kafka://a/t?sasl-password=hid#den", "write %23 for a # in a value"),
        ("kafka://a/t#", "write %23 for a # in a value"),
        ("kafka://[::1/t?sasl-password=hidden", "between // and the next /"),
        ("kafka://u:hidden\u2100@a/t", "write sasl-user and sasl-password as parameters"),
        ("kafka://hidden\u2100/t", "between // and the next /"),
        ("kafka://a/t?ca=%00", "parameter ca has a NUL"),
    ],
)
def test_invalid_sink_uri_is_refused_naming_wrong_part_without_password(uri: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_sink_uri(uri)
    text = str(refused.value)
    assert words in text and not any(part in text for part in ("hid", "den@", "den "))


@pytest.mark.parametrize("name", ["topic", "addresses", "sink-uri", "security"])
def test_sink_uri_parameter_named_like_topic_or_addresses_is_refused(name: str) -> None:
    """?topic=other was the topic, whatever the path said."""
    with pytest.raises(ConfigError, match=f"sink-uri: {name} is no parameter"):
        section(sink_uri=f"kafka://a/t?{name}=other")


@pytest.mark.parametrize("uri", [{}, {"sink_uri": "kafka://a/t?sasl-user=u"}])
@pytest.mark.parametrize("tables", [{}, {"kafka_config": {"sasl-user": "u"}}])
@pytest.mark.parametrize("security", ["hidden", 5, ["hidden"], [["sasl-password", "hidden"]], [{"ca": "hidden"}]])
def test_security_of_wrong_type_is_refused(uri: dict[str, Any], tables: dict[str, Any], security: object) -> None:
    with pytest.raises(ConfigError) as refused:
        section(security=security, **uri, **tables)
    assert str(refused.value) == "syncer.to.security: a section was expected"


def test_tls_file_name_with_nul_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"syncer\.to\.security"):
        checked(security={"ca": "a\0b"})


def test_unknown_sink_uri_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="no-such-thing"):
        section(sink_uri="kafka://a/t?no-such-thing=1")


@given(st.text(max_size=60))
def test_any_sink_uri_text_is_parsed_or_refused_with_config_error(text: str) -> None:
    try:
        parsed = parse_sink_uri("kafka://" + text)
    except (ConfigError, ValueError):
        return
    assert parsed.addresses and parsed.topic


def test_missing_address_or_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Kafka address"):
        section(topic="t").check()
    with pytest.raises(ConfigError, match=r"syncer\.to\.topic"):
        section(addresses=("a:1",)).check()
    with pytest.raises(ConfigError, match=r"syncer\.to\.addresses: 'a:b' does not have"):
        section(addresses=("a:b",), topic="t").check()


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
def test_sasl_password_mechanism_without_password_is_refused(mechanism: str) -> None:
    with pytest.raises(ConfigError, match=f"{mechanism.upper()} needs sasl-user and sasl-password"):
        checked(security={"sasl-mechanism": mechanism, "sasl-user": "u"})
    told = checked(security={"sasl-mechanism": mechanism, "sasl-user": "u", "sasl-password": "p"})
    assert told["sasl.mechanism"] == mechanism.upper()


def test_oauth_settings_reach_library_with_decoded_secret() -> None:
    oauth = {"sasl-oauth-client-id": "c", "sasl-oauth-client-secret": SECRET, "sasl-oauth-token-url": "https://i/t"}
    told = checked(security={**oauth, "sasl-oauth-scopes": "a,b"})
    assert told["sasl.mechanism"] == "OAUTHBEARER" and told["sasl.oauthbearer.method"] == "oidc"
    assert told["sasl.oauthbearer.client.secret"] == "s3cret" and told["sasl.oauthbearer.scope"] == "a b"
    with pytest.raises(ConfigError, match="must be base64"):
        checked(security={**oauth, "sasl-oauth-client-secret": "no base64!"})
    with pytest.raises(ConfigError, match="OAUTHBEARER needs sasl-oauth-token-url"):
        checked(security={**oauth, "sasl-oauth-token-url": ""})
    with pytest.raises(ConfigError, match='need sasl-mechanism = "OAUTHBEARER"'):
        checked(security={**oauth, "sasl-mechanism": "PLAIN", "sasl-user": "u", "sasl-password": "p"})


@pytest.mark.parametrize("security", [{"sasl-mechanism": "GSSAPI"}, {"sasl-gssapi-realm": "R"}])
def test_gssapi_is_refused_with_remedy(security: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="needs a Kafka client library built with it"):
        checked(security=security)


def test_unreadable_tls_file_is_refused_by_config_check(tmp_path: Path) -> None:
    there = tmp_path / "ca.pem"
    there.write_text("x")
    told = checked(security={"ca": str(there)})
    assert (told["security.protocol"], told["ssl.ca.location"]) == ("SSL", str(there))
    with pytest.raises(ConfigError, match=r"ca /no/such\.pem cannot be read"):
        checked(security={"ca": "/no/such.pem"})
    with pytest.raises(ConfigError, match="cert and key must be set together"):
        checked(security={"cert": str(there)})


def test_client_setting_needed_by_transactions_cannot_be_overridden() -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id cannot be set"):
        checked(client={"transactional.id": "x", "linger.ms": "5"})
    assert checked(client={"linger.ms": "5"})["linger.ms"] == "5"


def test_default_client_id_is_valid_for_kafka_and_invalid_one_refused() -> None:
    assert checked()["client.id"] == "drainer_a_8249"
    with pytest.raises(ConfigError, match="kafka-client-id"):
        checked(kafka_client_id="a b")


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"enable-tls": True},
        {"insecure-skip-verify": True, "sasl-mechanism": "SCRAM-SHA-512", "sasl-user": "u", "sasl-password": "p"},
        {"sasl-oauth-client-id": "c", "sasl-oauth-client-secret": SECRET, "sasl-oauth-token-url": "https://i/t"},
    ],
)
def test_client_library_accepts_settings_of_each_security_section(security: dict[str, Any]) -> None:
    """It refuses names and values that it does not know when a client is made; nothing is connected."""
    assert Producer({**checked(security=security), "log_level": 0}) is not None
