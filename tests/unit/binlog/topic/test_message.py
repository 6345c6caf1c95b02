"""The messages of a pump's topic, and its name."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.runtime.fields import TopicSection
from binlog.topic.message import TopicMessage, decode, encode, topic_name
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

NUMBERS = st.integers(0, (1 << 63) - 1)
MESSAGES = st.builds(TopicMessage, st.integers(0, (1 << 32) - 1), NUMBERS, NUMBERS, st.binary(max_size=50))


@given(MESSAGES)
def test_message_is_read_as_it_was_written(message: TopicMessage) -> None:
    assert decode(encode(message), "t") == message


@given(MESSAGES, st.data())
def test_truncated_and_corrupt_messages_are_refused_by_place(message: TopicMessage, data: st.DataObject) -> None:
    value = encode(message)
    at = data.draw(st.integers(0, len(value) - 1))
    for bad in (value[:at], value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]):
        with pytest.raises(DecodeError, match="topic t, message 7"):
            decode(bad, "topic t, message 7")


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_topics_of_two_pumps_never_have_one_name(one: str, other: str) -> None:
    names = [topic_name("p", 7, node_id) for node_id in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert all(name.isascii() for name in names)
    assert topic_name("tidb-binlog", 7, "host_1:8250") == "tidb-binlog-7-host_5f1_3a8250"


def test_client_settings_are_passed_on_unless_binlogs_could_be_lost_by_them() -> None:
    found = TopicSection.model_validate({"addresses": ["a:1", "b:2"], "client": {"sasl.password": "secret"}})
    assert found.client_settings()["bootstrap.servers"] == "a:1,b:2"
    assert found.client_settings()["sasl.password"] == "secret"
    assert "secret" not in repr(found)
    with pytest.raises(ValidationError, match="acks cannot be set"):
        TopicSection.model_validate({"client": {"acks": "1"}})
    with pytest.raises(ValidationError, match="topic-prefix"):
        TopicSection.model_validate({"topic-prefix": "a b"})
