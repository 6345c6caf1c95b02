"""Values of numbers, sizes, durations and booleans in the sink URI and in [sink]: which are refused, and with what."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest
from pydantic import BaseModel, ValidationError

from drainer.sink.kafka.settings.connection import KafkaSecuritySection
from drainer.sink.kafka.settings.section import KafkaSection

PLACE = {"addresses": ["k:9092"], "topic": "t"}
BASE = "kafka://k:9092/t?"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def named(kind: object, *models: type[BaseModel]) -> list[str]:
    fields = [(info.alias or name, info.annotation) for model in models for name, info in model.model_fields.items()]
    return sorted({name for name, annotation in fields if annotation is kind})


BOOLEANS = named(bool, KafkaSection, KafkaSecuritySection)
NUMBERS = [*named(int, KafkaSection), "required-acks"]
DURATIONS = named(timedelta, KafkaSection)
SECURITY = set(named(bool, KafkaSecuritySection))


def of_file(name: str, value: object) -> KafkaSection:
    settings = {"security": {name: value}} if name in SECURITY else {name: value}
    return KafkaSection.model_validate({**PLACE, **settings}, by_alias=True, by_name=False)


def of_uri(name: str, value: str) -> KafkaSection:
    return KafkaSection.model_validate({"sink-uri": f"{BASE}{name}={quote(value)}"}, by_alias=True, by_name=False)


def refused(name: str, value: object, words: str) -> None:
    """By the file and, if it is a text, by the URI: the error names the setting, the value, and what is allowed."""
    for read in (of_file, of_uri) if isinstance(value, str) else (of_file,):
        with pytest.raises(ValidationError) as error:
            read(name, value)  # type: ignore[arg-type]
        (problem,) = error.value.errors()
        assert problem["loc"][-1] == name
        assert words in problem["msg"] and f"not {value!r}" in problem["msg"]


def test_option_lists_hold_every_duration_number_and_boolean() -> None:
    assert {"dial-timeout", "read-timeout", "write-timeout", "retry-for", "transaction-timeout"} < set(DURATIONS)
    assert {"max-message-bytes", "partition-num", "max-retry", "kafka-max-messages"} < set(NUMBERS)
    assert {"exactly-once", "safe-mode", "enable-tls"} < set(BOOLEANS)
    assert (len(DURATIONS), len(NUMBERS), len(BOOLEANS)) == (7, 14, 20)


# Words → names, and what each refuses as a text (also in the URI), and as another value of the file.
REFUSED: dict[str, tuple[list[str], list[str], list[object]]] = {
    "a duration was expected, from ": (
        DURATIONS,
        ["-1s", "-1ms", "1", "1.5", "s", "", " ", "nan", "NaNs", "inf", "9999999h", "9" * 30 + "s"],
        [-1, 1, 1.5, float("nan"), float("inf"), True, 10**30, None, ["1s"]],
    ),
    "a size was expected, from 1 byte to 2147483647 bytes": (
        ["max-message-bytes"],
        ["1.5", "1.0", "1.5 B", ".5", "-1", "-1 MiB", "nan", "inf", "", " ", "0", "1e6", "x", "٣", "3 GiB", "9" * 30],
        [1.5, 1.0, float("nan"), -1, 0, 1 << 31, True, None],
    ),
    "a whole number was expected, from ": (
        sorted(set(NUMBERS) - {"max-message-bytes"}),
        ["1.5", "1.0", "1_0", " 1", "1 ", "+1", "0x1", "٣", "nan", "inf", "", "true", "abc", "9" * 20, "9" * 30],
        [1.5, 1.0, float("nan"), float("inf"), True, 10**30, -(10**30), None, [1]],
    ),
    "true or false was expected": (
        BOOLEANS,
        ["", " ", "yes", "no", "on", "off", "y", "2", "-1", "tRUE", "nan", " true"],
        [0, 1, 1.0, float("nan"), None, [True]],
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_invalid_value_in_sink_uri_and_config_file_is_refused(words: str) -> None:
    names, texts, others = REFUSED[words]
    for name in names:
        for value in (*texts, *others):
            refused(name, value, words)


def test_zero_duration_is_refused_except_for_retry_for() -> None:
    """sarama, which TiCDC uses, refuses it, too. retry-for = 0 means: do not retry."""
    for name in set(DURATIONS) - {"retry-for"}:
        refused(name, "0s", "a duration was expected, from ")
    assert of_file("retry-for", "0s").retry_for == timedelta(0)


def test_duration_in_go_syntax_within_bounds_is_accepted() -> None:
    assert of_uri("dial-timeout", "1.5s").dial_timeout == timedelta(seconds=1.5)
    assert of_uri("read-timeout", "5m").read_timeout == timedelta(minutes=5)
    refused("read-timeout", "5m1s", "from 1ms to 5m")
    refused("write-timeout", "6m", "from 1ms to 5m")
    assert of_uri("dial-timeout", "10m").dial_timeout == timedelta(minutes=10)
    assert of_file("retry-for", "8760h").retry_for == timedelta(days=365)


def test_client_library_accepts_timeouts_at_their_bounds() -> None:
    from confluent_kafka import Producer

    for value in ("1ms", "5m"):
        settings = {f"{name}-timeout": value for name in ("dial", "read", "write")}
        section = KafkaSection.model_validate({**PLACE, **settings, "transaction-timeout": "1s"}, by_name=False)
        Producer(section.client_settings("c"))
    longest = KafkaSection.model_validate({**PLACE, "dial-timeout": "596h"}, by_name=False)
    timeout_ms = longest.transaction_timeout // timedelta(milliseconds=1)
    Producer({**longest.client_settings("c"), "transactional.id": "x", "transaction.timeout.ms": timeout_ms})
    Producer({"transactional.id": "x", "transaction.timeout.ms": 596 * 3_600_000})


def test_size_with_and_without_unit_is_accepted() -> None:
    for value, size in (
        ("1048576", 1 << 20),
        ("10 MiB", 10 << 20),
        ("1.5 MiB", 3 << 19),
        ("2147483647", (1 << 31) - 1),
    ):
        assert of_uri("max-message-bytes", value).max_message_bytes == size
    assert of_file("max-message-bytes", 1).max_message_bytes == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", "0"),
        ("slots", "201"),
        ("partition-num", "-1"),
        ("partition-num", "2147483648"),
        ("replication-factor", "0"),
        ("replication-factor", "32768"),
        ("max-batch-size", "0"),
        ("send-bootstrap-interval-in-sec", "-1"),
        ("send-bootstrap-in-msg-count", "-1"),
        ("send-bootstrap-in-msg-count", "2147483648"),
        ("required-acks", "2"),
        ("required-acks", "-2"),
    ],
)
def test_number_out_of_bounds_is_refused(name: str, value: str) -> None:
    refused(name, value, "a whole number was expected, from ")
    refused(name, int(value), "a whole number was expected, from ")


def test_number_without_effect_takes_range_of_ticdcs_type() -> None:
    """TiCDC ignores a negative max-retry."""
    assert of_uri("partition-num", "06").partition_num == 6
    assert of_uri("max-retry", "-1").max_retry == -1
    assert of_uri("max-retry", str((1 << 63) - 1)).max_retry == (1 << 63) - 1


@pytest.mark.parametrize(("value", "wanted"), [(one, one in _TRUE) for one in (*_TRUE, *_FALSE)])
def test_boolean_in_go_syntax_is_accepted(value: str, wanted: bool) -> None:
    assert of_uri("auto-create-topic", value).auto_create_topic is wanted
    assert of_uri("insecure-skip-verify", value).security.insecure_skip_verify is wanted


@pytest.mark.parametrize("name", ["open", "debezium"])
def test_invalid_boolean_in_nested_section_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="true or false was expected, not 1"):
        of_file(name, {"output-old-value": 1})
    with pytest.raises(ValidationError, match="true or false was expected, not 'yes'"):
        of_file("registry", {"insecure-skip-verify": "yes"})
