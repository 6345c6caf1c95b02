"""The address that readers are given."""

from __future__ import annotations

import pytest
from binlog.errors import ConfigError

from drainer.kafka_reading.address import kafka_address

URI = "kafka://h:9092/topic?protocol=canal-json"


def test_unknown_address_parameters_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        kafka_address(f"{URI}&enable-tidb-extention=true&protokoll=x", "test", {})
    assert str(refused.value) == "; ".join(
        f"the address: {name}: the parameter is not known" for name in ("enable-tidb-extention", "protokoll")
    )
    for name in ("addresses", "topic", "dispatchers", "security"):
        with pytest.raises(ConfigError, match=f" {name}"):
            kafka_address(f"{URI}&{name}=x", "test", {})


def test_sink_uri_of_drainer_is_accepted_as_address() -> None:
    """What concerns its producer has no effect."""
    more = "partition-num=6&replication-factor=3&max-message-bytes=1048576&kafka-version=2.4.0&required-acks=1&slots=3"
    address = kafka_address(
        f"{URI}&{more}&enable-tidb-extension=true&kafka-client-id=me&sasl-user=a&sasl-password=b", "test", {}
    )
    assert address.options.enable_tidb_extension
    assert address.client["client.id"] == "me"
    assert address.client["sasl.username"] == "a"


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("dial-timeout=10", "dial-timeout: a duration was expected, from 1ms to 596h, such as 90s or 1m30s, not '10'"),
        ("enable-tls=on1&ca=x", "security.enable-tls: "),
        ("required-acks=x", "required-acks: a whole number was expected, from -1 to 1, not 'x'"),
        ("max-retry=x", "max-retry: "),
    ],
)
def test_invalid_address_parameter_value_is_refused_without_password(parameter: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        kafka_address(f"kafka://a/t?{parameter}&sasl-password=hidden&sasl-user=u", "x", {})
    text = str(refused.value)
    assert text.startswith(f"the address: {words}") and "pydantic" not in text and "hidden" not in text
