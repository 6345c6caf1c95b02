"""How Kafka is reached: TiCDC's sink URI, TLS and SASL, and what the client library is told."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from binlog.errors import ConfigError
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from drainer.sink.kafka.settings.connection import KafkaConnectionSection, parse_sink_uri

SECRET = base64.b64encode(b"s3cret").decode()
MECHANISMS = ("PLAIN", "scram-sha-256", "SCRAM-SHA-512")
OAUTH = {"sasl-oauth-client-id": "c", "sasl-oauth-client-secret": SECRET, "sasl-oauth-token-url": "https://i/t"}


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


@pytest.mark.parametrize("uri", [{}, {"sink_uri": "kafka://a/t?sasl-user=u"}])
@pytest.mark.parametrize("tables", [{}, {"kafka_config": {"sasl-user": "u"}}])
@pytest.mark.parametrize("security", ["hidden", 5, ["hidden"], [["sasl-password", "hidden"]], [{"ca": "hidden"}]])
def test_security_of_wrong_type_is_refused(uri: dict[str, Any], tables: dict[str, Any], security: object) -> None:
    with pytest.raises(ConfigError) as refused:
        section(security=security, **uri, **tables)
    assert str(refused.value) == "syncer.to.security: a section was expected"


@given(st.text(max_size=60))
def test_any_sink_uri_text_is_parsed_or_refused_with_config_error(text: str) -> None:
    try:
        parsed = parse_sink_uri("kafka://" + text)
    except (ConfigError, ValueError):
        return
    assert parsed["addresses"] and parsed["topic"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        # ?topic=other was the topic, whatever the path said.
        *[
            ({"sink_uri": f"kafka://a/t?{name}=other"}, f"sink-uri: {name} is no parameter")
            for name in ("topic", "addresses", "sink-uri", "security")
        ],
        ({"sink_uri": "kafka://a/t?no-such-thing=1"}, "no-such-thing"),
        ({"addresses": ()}, "no Kafka address"),
        ({"topic": ""}, "syncer.to.topic"),
        ({"addresses": ("a:b",)}, "syncer.to.addresses: 'a:b' does not have"),
        ({"client": {"transactional.id": "x", "linger.ms": "5"}}, "transactional.id cannot be set"),
        ({"kafka_client_id": "a b"}, "kafka-client-id"),
    ],
)
def test_connection_setting_that_cannot_work_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as refused:
        checked(**settings)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ({"ca": "a\0b"}, "syncer.to.security"),
        ({"ca": "/no/such.pem"}, "ca /no/such.pem cannot be read"),
        ({"cert": __file__}, "cert and key must be set together"),
        *[
            ({"sasl-mechanism": name, "sasl-user": "u"}, f"{name.upper()} needs sasl-user and sasl-password")
            for name in MECHANISMS
        ],
        ({**OAUTH, "sasl-oauth-client-secret": "no base64!"}, "must be base64"),
        ({**OAUTH, "sasl-oauth-token-url": ""}, "OAUTHBEARER needs sasl-oauth-token-url"),
        (
            {**OAUTH, "sasl-mechanism": "PLAIN", "sasl-user": "u", "sasl-password": "p"},
            'need sasl-mechanism = "OAUTHBEARER"',
        ),
        ({"sasl-mechanism": "GSSAPI"}, "needs a Kafka client library built with it"),
        ({"sasl-gssapi-realm": "R"}, "needs a Kafka client library built with it"),
    ],
)
def test_security_setting_that_cannot_work_is_refused(security: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(security=security)
    assert words in str(refused.value)


def test_security_settings_reach_the_client_library() -> None:
    for mechanism in MECHANISMS:
        told = checked(security={"sasl-mechanism": mechanism, "sasl-user": "u", "sasl-password": "p"})
        assert told["sasl.mechanism"] == mechanism.upper()
    told = checked(security={**OAUTH, "sasl-oauth-scopes": "a,b"})
    assert told["sasl.mechanism"] == "OAUTHBEARER" and told["sasl.oauthbearer.method"] == "oidc"
    assert told["sasl.oauthbearer.client.secret"] == "s3cret" and told["sasl.oauthbearer.scope"] == "a b"
    told = checked(security={"ca": __file__})
    assert (told["security.protocol"], told["ssl.ca.location"]) == ("SSL", __file__)


def test_client_settings_of_file_and_default_client_id_reach_the_client_library() -> None:
    assert checked(client={"linger.ms": "5"})["linger.ms"] == "5"
    assert checked()["client.id"] == "drainer_a_8249"


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"enable-tls": True},
        {"insecure-skip-verify": True, "sasl-mechanism": "SCRAM-SHA-512", "sasl-user": "u", "sasl-password": "p"},
        OAUTH,
    ],
)
def test_client_library_accepts_settings_of_each_security_section(security: dict[str, Any]) -> None:
    """It refuses names and values that it does not know when a client is made; nothing is connected."""
    assert Producer({**checked(security=security), "log_level": 0}) is not None
