"""The address that readers are given."""

from __future__ import annotations

import pytest
from binlog.errors import ConfigError

from drainer.kafka_reading.address import kafka_address

URI = "kafka://h:9092/topic?protocol=canal-json"


def test_parameters_that_nobody_knows_are_named() -> None:
    with pytest.raises(ConfigError, match=r"parameters that are not known: enable-tidb-extention, protokoll$"):
        kafka_address(f"{URI}&enable-tidb-extention=true&protokoll=x", "test", {})
    for name in ("addresses", "topic", "dispatchers", "security"):
        with pytest.raises(ConfigError, match=f"not known: {name}$"):
            kafka_address(f"{URI}&{name}=x", "test", {})


def test_a_drainers_own_address_is_taken_as_it_is() -> None:
    """What concerns its producer has no effect."""
    more = "partition-num=6&replication-factor=3&max-message-bytes=1048576&kafka-version=2.4.0&required-acks=-1&slots=3"
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
def test_a_value_that_its_setting_does_not_take_is_an_error_of_the_address(parameter: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        kafka_address(f"kafka://a/t?{parameter}&sasl-password=hidden&sasl-user=u", "x", {})
    text = str(refused.value)
    assert text.startswith(f"the address: {words}") and "pydantic" not in text and "hidden" not in text
