"""What the library's errors mean, and how much of what was sent is held; without a broker."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.encoder import EncodedColumns, Message, RowMessages
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka import producer as producer_module
from drainer.sink.kafka.producer import (
    _CHUNK_BYTES,
    _CHUNK_MESSAGES,
    Producer,
    ProducerFenced,
    ProducerLost,
    _chunks,
    _Unacknowledged,
    meaning,
)
from drainer.sink.retry import RetryDeadline


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._FENCED, ProducerFenced),
        (KafkaError.PRODUCER_FENCED, ProducerFenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (KafkaError._TRANSPORT, ProducerLost),
        (KafkaError._PURGE_QUEUE, ProducerLost),
        (KafkaError.NOT_ENOUGH_REPLICAS, ProducerLost),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, DestinationRefused),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, DestinationRefused),
        (KafkaError.MSG_SIZE_TOO_LARGE, DestinationRefused),
        (KafkaError.INVALID_TIMESTAMP, DestinationRefused),
    ],
)
def test_kafka_error_code_maps_to_exception_class(code: int, kind: type[Exception]) -> None:
    found = meaning(KafkaError(code), "producer x")
    assert type(found) is kind
    assert str(found).startswith("producer x: ")


def test_unknown_partition_error_is_retried_and_names_remedy() -> None:
    found = meaning(KafkaError(KafkaError._UNKNOWN_PARTITION), "topic t")
    assert type(found) is ProducerLost
    assert "created again with fewer partitions, give it as many as before" in str(found)


@pytest.mark.parametrize(("given", "needed"), [((), "Write"), (("Describe",), "Describe")])
def test_authorization_error_names_missing_right(given: tuple[str, ...], needed: str) -> None:
    found = meaning(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "topic t", *given)
    assert str(found).endswith(f": this user needs {needed} on the topic")


@given(st.lists(st.integers(1, 5), max_size=20), st.data())
def test_unacknowledged_bytes_cover_all_messages_left(counts: list[int], data: st.DataObject) -> None:
    """Never less than the bytes of those that are not acknowledged."""
    held = _Unacknowledged()
    sizes: list[int] = []  # of each message, all those of a chunk alike
    for number, count in enumerate(counts):
        sizes += [number + 1] * count
        held.add(count, count * (number + 1))
    left = len(sizes)
    while left:
        left -= data.draw(st.integers(1, left))
        assert held.bytes(left) >= sum(sizes[len(sizes) - left :])
    assert held.bytes(0) == 0


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(1, 2000))
def test_chunks_are_bounded_and_hold_every_message_in_order(sizes: list[int], factor: int) -> None:
    keys = (None, b"", b"key")
    messages = [Message(keys[n % 3], bytes(size * factor % (1 << 20)), 1, n) for n, size in enumerate(sizes)]
    chunks = list(_chunks(messages))
    given_ = [one for chunk, _ in chunks for one in chunk]
    assert given_ == [{"key": message.key, "value": message.value} for message in messages]
    begin = 0
    for chunk, size in chunks:
        mine, begin = messages[begin : begin + len(chunk)], begin + len(chunk)
        assert size == sum(message.length for message in mine)
        assert len(chunk) <= _CHUNK_MESSAGES
        assert size - mine[-1].length < _CHUNK_BYTES


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 2000), st.booleans())
def test_chunks_of_columns_equal_chunks_of_their_messages(sizes: list[int], factor: int, with_keys: bool) -> None:
    keys = pa.array([(None, b"", b"key")[n % 3] if with_keys else None for n in range(len(sizes))], pa.large_binary())
    values = pa.array([bytes(size * factor % (1 << 20)) for size in sizes], pa.large_binary())
    columns = EncodedColumns(keys, values, np.zeros(len(sizes), np.uint64))
    messages = RowMessages([columns], np.arange(len(sizes)))
    found, expected = list(_chunks(messages)), list(_chunks(iter(messages)))
    assert [size for _, size in found] == [size for _, size in expected]
    assert [[one["value"] for one in chunk] for chunk, _ in found] == [
        [one["value"] for one in chunk] for chunk, _ in expected
    ]
    assert [one.get("key") for chunk, _ in found for one in chunk] == keys.to_pylist()


def test_producer_setting_unknown_to_library_is_refused() -> None:
    with pytest.raises(DestinationRefused, match="no-such"):
        Producer({"no-such.setting": "1"})


@pytest.mark.slow
def test_unreachable_broker_is_retried_until_deadline_or_stop() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"}, transactional_id="x")
    with pytest.raises(DestinationDown, match="init_transactions"):
        producer.init("t", RetryDeadline("x", 0.5))
    stop = threading.Event()
    stop.set()
    with pytest.raises(DestinationDown, match="told to stop"):
        producer.init("t", RetryDeadline("x", 600, stop))
    producer.drop()


@pytest.mark.parametrize("seconds", [1.0, 59.0, 300.0])
def test_producer_accepts_every_allowed_transaction_timeout(seconds: float) -> None:
    """The library refuses one that is shorter than it waits for an answer, which is a minute by default."""
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    for more in ({}, {"socket.timeout.ms": "60000"}):  # as it is configured for all clients
        Producer({**settings, **more}, transactional_id="t", transaction_timeout_s=seconds).drop()


def test_flush_failing_without_exception_asks_for_new_producer() -> None:
    """As it does when the brokers have aborted a transaction; other errors of callbacks are none of the brokers'."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"})

    def fails(cause: BaseException | None) -> int:
        raise SystemError("flush returned NULL without setting an exception") from cause

    for cause, kind in ((None, ProducerLost), (KafkaException(KafkaError(KafkaError._FENCED)), ProducerFenced)):
        with pytest.raises(kind):
            producer._served(lambda cause=cause: fails(cause))  # type: ignore[misc]
    with pytest.raises(SystemError):
        producer._served(lambda: fails(KeyError("x")))
    producer.drop()


def test_producer_connects_to_brokers_before_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one question the connection to the broker may not be there yet, and the library waits half a second."""
    asked: list[str] = []

    class Client:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def list_topics(self, topic: str, timeout: float) -> None:
            asked.append(topic)
            if len(asked) == 1:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # what it cannot answer is no failure

        def init_transactions(self, timeout: float) -> None:
            asked.append("init")

    monkeypatch.setattr(producer_module, "Client", Client)
    Producer({}, transactional_id="t").init("control", RetryDeadline("init", 0.0))
    assert asked == ["control", "control", "init"]
    asked.clear()
    Producer({}).init("control", RetryDeadline("init", 0.0))
    assert asked == ["control", "control"]


@pytest.mark.parametrize("first", [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP])
def test_error_of_refused_message_outlives_invalid_record_of_its_batch(first: int) -> None:
    """Brokers answer INVALID_RECORD for each message that is in one batch with the one that they refuse."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"})
    codes = [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP]
    for code in sorted(codes, key=lambda code: code != first):
        producer._note_failure(KafkaError(code), None)
    with pytest.raises(DestinationRefused, match="INVALID_TIMESTAMP"):
        producer._check_failed()


def test_invalid_record_alone_names_both_reasons_of_brokers() -> None:
    """The library says it, too, of each of several messages in one batch whose time was refused."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"})
    producer._note_failure(KafkaError(KafkaError.INVALID_RECORD), None)
    with pytest.raises(DestinationRefused, match=r"compacted.* or the clock of this machine differs"):
        producer._check_failed()


def test_partition_beyond_known_ones_has_its_topic_asked_for_before_message() -> None:
    """The client asks by itself with its first message to a topic, and refuses others for partitions added since."""
    producer, asked, counts = Producer({"bootstrap.servers": "127.0.0.1:1"}), [], iter((2, 4))

    def list_topics(topic: str, timeout: float) -> SimpleNamespace:
        asked.append(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=range(next(counts)))})

    client, producer._client = producer._client, SimpleNamespace(list_topics=list_topics)  # type: ignore[assignment]
    for partition, times in ((0, 0), (1, 1), (0, 1), (3, 2), (2, 2)):
        producer._ask_for("t", partition)
        assert asked == ["t"] * times
    producer._client = client
    producer.drop()


def test_first_message_to_partition_is_acknowledged_before_the_second_is_sent() -> None:
    """A broker that refuses the first may accept the second, and the library then takes both for acknowledged."""
    producer, done, held = Producer({"bootstrap.servers": "127.0.0.1:1"}), list[object](), list[object]()

    class Client:
        def __len__(self) -> int:
            return len(held)

        def produce_batch(self, _: str, given: list[dict[str, bytes]], partition: int) -> int:
            held.extend(given)
            done.append((partition, b"".join(one["value"] for one in given)))
            return len(given)

        def poll(self, _: float) -> None: ...

        def flush(self, _: float) -> int:
            done.append("acknowledged")
            held.clear()
            return 0

    client, producer._client = producer._client, Client()  # type: ignore[assignment]
    deadline, sent = RetryDeadline("x", 0.0), ((0, b"a"), (1, b""), (0, b"bcd"), (0, b"e"), (2, b"fgh"), (2, b"i"))
    producer._partitions["t"] = 3
    for partition, values in sent:
        messages = [Message(None, bytes([value]), 0, 0) for value in values]
        assert producer.send("t", partition, messages, deadline) == len(values)
    firsts = [(0, b"a"), "acknowledged", (0, b"bcd"), (0, b"e"), (2, b"f"), "acknowledged", (2, b"gh"), (2, b"i")]
    assert done == firsts
    for partition in (1, 3, 4):  # nothing waits for messages to others
        producer._partitions["t"] = 5
        producer.send("t", partition, [Message(None, b"j" * 100, 0, 0)], deadline)
    assert done == [*firsts, *((partition, b"j" * 100) for partition in (1, 3, 4))]
    assert producer._unacknowledged.bytes(len(held)) > 300  # what is sent alone counts, too
    producer._client = client
    producer.drop()
