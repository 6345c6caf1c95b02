"""Send messages in order, with or without transactions, and translate the client library's errors.

A Producer that raised any error must be dropped (`drop`). A new one with its transactional id ends the transaction that
it left open, whether it was in this process or in another one. After ProducerLost and ProducerFenced a new producer may
continue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from drainer.protocol.encoder import RECORD_OVERHEAD, Message, RowMessages
from drainer.sink.errors import DestinationDown, DestinationError, DestinationRefused
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.retry import RetryDeadline

# Why partitions cannot be written, from the client library's metadata. Pure.


def missing_replicas(topics: Mapping[str, Any], sent: Iterable[tuple[str, int]]) -> list[str]:
    """Return texts that say why partitions cannot be written: they have no leader, or replicas that are not in sync.
    `topics`: the client library's metadata; `sent`: topics and partitions to look at."""
    found = []
    for name, number in sorted(sent):
        partitions = topics[name].partitions if name in topics else {}
        if number not in partitions:
            continue
        one = partitions[number]
        if one.leader < 0:
            why = f" ({one.error.str()})" if one.error is not None else ""
            found.append(f"partition {number} of topic {name} has no leader{why}")
        elif len(one.isrs) < len(one.replicas):
            away = ", ".join(str(broker) for broker in sorted(set(one.replicas) - set(one.isrs)))
            found.append(
                f"partition {number} of topic {name} has {len(one.isrs)} of {len(one.replicas)} replicas in sync, not "
                f"that of broker {away}, and needs min.insync.replicas of them"
            )
    return found


# The longest wait in one call of the library: between two calls a stop is noticed and the wait is reported.
_STEP_S: Final = 2.0
_REASONS_MAX: Final = 3  # the most partitions that an error describes
_ANSWER_MS: Final = 60_000  # the library's default for a request to a broker
_CHUNK_MESSAGES: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
# The most bytes that one producer has given to the library without acknowledgement; the library copies them.
UNACKNOWLEDGED_BYTES_MAX: Final = 32 << 20
_BATCH_BYTES_MAX: Final = 1_000_000
# The library writes fatal errors to stderr by itself; here they are raised.
_SILENT: Final = logging.Logger("librdkafka")
_SILENT.addHandler(logging.NullHandler())

T = TypeVar("T")

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_CLOCK: Final = (
    "the clock of this machine differs from the brokers' by more than the topic's message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms: set the clock right"
)
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user needs {right} on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user needs IdempotentWrite on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs Write and Describe on the transactional ids, "
    "which begin with the control topic's name",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction-timeout is above the brokers' transaction.max.timeout.ms",
    KafkaError._AUTHENTICATION: "user, password or sasl-mechanism is wrong, or that port takes no user",
    KafkaError.SASL_AUTHENTICATION_FAILED: "user or password is wrong",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the brokers do not take this sasl-mechanism",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old",
    KafkaError.MSG_SIZE_TOO_LARGE: "the topic's max.message.bytes was lowered while messages were on their way",
    KafkaError.RECORD_LIST_TOO_LARGE: "segment.bytes of the topic is less than its max.message.bytes",
    # The library says this for each of several messages of a batch that a broker refuses, whatever the broker's reason.
    KafkaError.INVALID_RECORD: "the topic is compacted and takes no message without a key (another protocol, or "
    f"cleanup.policy=delete), or {_CLOCK}",
    KafkaError.INVALID_TIMESTAMP: _CLOCK,
    KafkaError.POLICY_VIOLATION: "a policy of the brokers refuses it",
    KafkaError.INVALID_REQUIRED_ACKS: "required-acks must be -1, 0 or 1",
}


class ProducerLost(DestinationError):
    """This producer has failed and must be replaced. The control topic shows whether its transaction was committed."""


class ProducerFenced(ProducerLost):
    """Another producer has taken this one's transactional id."""


def meaning(error: KafkaError, what: str, right: str = "Write") -> DestinationError:
    """Return the sink's error for an error of the library or a broker. `right`: the permission on a topic that `what`
    needs."""
    text = f"{what}: {error.name()}: {error.str()}"
    if error.code() in _FENCED:
        return ProducerFenced(text)
    if error.code() in _REFUSED:
        return DestinationRefused(f"{text}: {_REFUSED[error.code()].format(right=right)}")
    if error.code() == KafkaError._UNKNOWN_PARTITION:  # not refused: a broker that has just started reports this, too
        text += (
            ". If the topic was deleted and created again with fewer partitions, give it as many as before: rows of a "
            "range that was begun are written by the former number of partitions"
        )
    return ProducerLost(text)


def library_batch_bytes(topic_bytes: int) -> int:
    """Return the library's batch size, in bytes, for topics that accept batches of `topic_bytes`; 0: not known."""
    return min(topic_bytes or _BATCH_BYTES_MAX, _BATCH_BYTES_MAX)


def _chunks(messages: Iterable[Message]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield chunks of messages in the library's form, each with its number of bytes."""
    if isinstance(messages, RowMessages):
        for keys, values, size in messages.chunks(_CHUNK_MESSAGES, _CHUNK_BYTES):
            if keys is None:
                yield [{"value": value} for value in values], size
            else:
                yield [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)], size
        return
    chunk: list[dict[str, Any]] = []
    size = 0
    for key, value, _, _ in messages:
        chunk.append({"key": key, "value": value})
        # The same as Message.length, without a call for each message.
        size += RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_MESSAGES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


class _Unacknowledged:
    """Estimate how many bytes the library still holds from how many messages it holds. Chunks are kept oldest first."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, int]] = deque()  # messages, bytes
        self._messages = self._bytes = 0

    def add(self, messages: int, size: int) -> None:
        self._chunks.append((messages, size))
        self._messages += messages
        self._bytes += size

    def bytes(self, left: int) -> int:
        """Return the bytes of the chunks that are not completely acknowledged while `left` messages are not."""
        while self._chunks and self._messages - self._chunks[0][0] >= left:
            messages, size = self._chunks.popleft()
            self._messages -= messages
            self._bytes -= size
        return self._bytes


class Producer:
    """Send messages through one client of the library. With a `transactional_id`, `init` must be called before `begin`.
    Not safe for use by several threads."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        transactional_id: str = "",
        transaction_timeout_s: float = 60.0,
        batch_bytes: int = 0,
    ) -> None:
        """`settings`: those of every client, and those for producers alone. `batch_bytes`: the largest batch that the
        topics accept, 0: not known."""
        self.name = transactional_id or "producer"
        self._last_error = ""
        self._failed: KafkaError | None = None
        self._unacknowledged = _Unacknowledged()
        self._sent: set[tuple[str, int]] = set()
        self._begun: set[tuple[str, int]] = set()  # partitions whose first message may not be acknowledged yet
        self._partitions: dict[str, int] = {}  # as the client was told when it was last asked for a topic; 0: not asked
        self._transactional = bool(transactional_id)
        conf: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 0,
            "linger.ms": 5,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "batch.size": library_batch_bytes(batch_bytes),
            "message.max.bytes": 1_000_000_000,  # topics have limits of their own, and rows are fitted to them
            # `send` limits the bytes itself: the library's queue must not be full in the middle of a chunk.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": (1 << 31) - 1,
            "delivery.report.only.error": True,
            **settings,
            "error_cb": self._note_error,
            "on_delivery": self._note_failure,
        }
        if transactional_id:
            conf["transactional.id"] = transactional_id
            timeout_ms = int(transaction_timeout_s * 1000)
            conf["transaction.timeout.ms"] = str(timeout_ms)
            # The library refuses a request timeout that is longer than the transaction timeout.
            conf["socket.timeout.ms"] = str(min(timeout_ms, int(conf.get("socket.timeout.ms", _ANSWER_MS))))
        try:
            self._client = Client(conf, logger=_SILENT)
        except KafkaException as error:
            raise DestinationRefused(f"the client library refuses its settings: {error.args[0].str()}") from error

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = f"{error.name()}: {error.str()}"

    def _note_failure(self, error: KafkaError | None, _: object) -> None:
        # INVALID_RECORD is also said of each message that is in one batch with the refused one, and may come first.
        if error is not None and (self._failed is None or self._failed.code() == KafkaError.INVALID_RECORD):
            self._failed = error

    def init(self, topic: str, deadline: RetryDeadline) -> None:
        """Connect. With a transactional id: fence off its former producer, and have that one's transaction aborted or
        finished. `topic`: a topic that exists."""
        self._connect(topic)
        if self._transactional:
            self._until_done("init_transactions", self._client.init_transactions, deadline)

    def _connect(self, topic: str) -> None:
        """Wait until the client is connected, if brokers can be reached."""
        # A library that is not connected yet looks for the coordinator, or asks for the id of an idempotent producer,
        # again only half a second later. The first of these requests goes to the configured address, the second to the
        # broker that the answer names. Measured: with one request, every fifth producer waited for that half second;
        # with two, none of 120 did.
        for _ in range(2):
            with contextlib.suppress(KafkaException):
                self._client.list_topics(topic, timeout=_STEP_S)

    def _ask_for(self, topic: str, partition: int) -> None:
        """Have the client know a partition that was added after it had asked for the topic. A message for a partition
        that it does not know fails, and ending it within the transaction may abort the process (librdkafka 2.16:
        assertion txn_req_cnt > 0)."""
        known = self._partitions.get(topic)
        if known is None:
            self._partitions[topic] = 0  # with the first message to a topic the client asks by itself
        elif partition >= known:
            with contextlib.suppress(KafkaException):
                self._partitions[topic] = len(self._client.list_topics(topic, timeout=_STEP_S).topics[topic].partitions)

    def begin(self) -> None:
        if self._transactional:
            self._served(self._client.begin_transaction, f"{self.name}: begin_transaction")

    def send(self, topic: str, partition: int, messages: Iterable[Message], deadline: RetryDeadline) -> int:
        """Send messages in this order; return how many there were. They are acknowledged when `flush` has returned."""
        count = 0
        for given, size in self._first_alone((topic, partition), _chunks(messages), deadline):
            count += len(given)
            try:
                queued = self._client.produce_batch(topic, given, partition=partition)
            except KafkaException as error:
                raise meaning(error.args[0], f"{self.name}: topic {topic}") from error
            if queued != len(given):
                refused = next(one["_error"] for one in given if "_error" in one)
                raise meaning(refused, f"{self.name}: topic {topic}")
            self._unacknowledged.add(len(given), size)
            self._poll(0)
            self._wait_for_room(deadline)
        return count

    def _first_alone(
        self, at: tuple[str, int], chunks: Iterable[tuple[list[dict[str, Any]], int]], deadline: RetryDeadline
    ) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield the chunks of messages to send to partition `at`. The first message that this producer sends to the
        partition is a chunk of its own, and the next chunk is yielded only when brokers have acknowledged it.
        Otherwise the first message may be lost: a broker that is about to become the partition's leader refuses it and
        accepts a later batch, because it accepts any sequence number of a producer that it does not know (KAFKA-15591;
        Kafka 4.5 no longer does in an empty partition). The client library then counts the refused batch as
        acknowledged. Raises as `flush`."""
        for given, size in chunks:
            if at not in self._sent:
                self._ask_for(*at)
                self._sent.add(at)
                self._begun.add(at)
                first, given = given[:1], given[1:]
                yield first, 0 if given else size
            if given:
                if at in self._begun:
                    self.flush(deadline)
                yield given, size

    def _wait_for_room(self, deadline: RetryDeadline) -> None:
        while self._unacknowledged.bytes(len(self._client)) > UNACKNOWLEDGED_BYTES_MAX:
            before = len(self._client)
            self._poll(0.05)
            self._check_failed()
            if len(self._client) == before:
                self._flush(deadline)

    def flush(self, deadline: RetryDeadline) -> None:
        """Wait until all messages are acknowledged. Raises the error of the first message that failed."""
        while self._flush(deadline):
            pass
        self._begun.clear()

    def commit(self, deadline: RetryDeadline) -> None:
        """Commit the transaction. Raises ProducerLost if it is not known whether the transaction is committed."""
        if self._transactional:
            self._until_done("commit_transaction", self._client.commit_transaction, deadline)

    def abort(self, deadline: RetryDeadline) -> None:
        """Abort the transaction: read-committed consumers do not see the messages that were sent since `begin`."""
        if self._transactional:
            self.flush(deadline)  # before that, the broker often does not know the transaction and cannot abort it
            self._until_done("abort_transaction", self._client.abort_transaction, deadline)

    def drop(self) -> None:
        """Abandon the messages that are not acknowledged, and end the client."""
        with contextlib.suppress(KafkaException, ProducerLost):  # the client is not used again in any case
            self._client.purge()
            self._poll(0)
        last = [self._client]
        del self._client
        # This ends the library's threads, which may wait for an unreachable broker.
        threading.Thread(target=last.clear, name="kafka-close", daemon=True).start()

    def _until_done(self, what: str, call: Any, deadline: RetryDeadline) -> None:
        while True:
            try:
                call(_STEP_S)
            except KafkaException as raised:
                error = raised.args[0]
                if not error.retriable():
                    raise meaning(self._failed or error, f"{self.name}: {what}") from raised
                self._waited(f"{what}: {error.name()}: {error.str()}", deadline)
            else:
                return

    def _poll(self, timeout_s: float) -> None:
        self._served(lambda: self._client.poll(timeout_s))

    def _flush(self, deadline: RetryDeadline) -> int:
        """Wait for up to _STEP_S seconds; return how many messages are not acknowledged then. Raises the error of the
        first message that failed."""
        before = len(self._client)
        left: int = self._served(lambda: self._client.flush(_STEP_S))
        self._check_failed()
        if left and left >= before:
            self._waited("messages are not acknowledged", deadline)
        return left

    def _served(self, call: Callable[[], T], what: str = "") -> T:
        """Run a call of the library, which may serve callbacks. It raises a fatal error as KafkaException, or as
        SystemError if one of our callbacks was to be called after that error."""
        try:
            return call()
        except KafkaException as error:
            raise meaning(error.args[0], what or self.name) from error
        except SystemError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException):
                raise meaning(cause.args[0], self.name) from error
            if cause is not None:
                raise
            # The library has lost its fatal error, for example that brokers have aborted the transaction.
            why = self._last_error or str(error)
            raise ProducerLost(f"{self.name}: the client library failed: {why}") from error

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise meaning(self._failed, self.name)

    def _waited(self, what: str, deadline: RetryDeadline) -> None:
        reasons = [what, *self._missing()[:_REASONS_MAX], self._last_error]
        deadline.failed(DestinationDown(f"{self.name}: {'; '.join(filter(None, reasons))}"))

    def _missing(self) -> list[str]:
        """Return what is wrong with the partitions that messages were sent to. The library does not report refusals
        that it retries, such as too few in-sync replicas."""
        with contextlib.suppress(KafkaException):  # no broker answers; the library's last error says so
            return missing_replicas(self._client.list_topics(timeout=_STEP_S).topics, self._sent)
        return []


# The producers of a changefeed.


def new_producer(config: KafkaSection, transactional_id: str, batch_bytes: int = 0) -> Producer:
    """Return a new producer; without transactions it has no transactional id. `batch_bytes`: see Producer."""
    return Producer(
        config.producer_settings(),
        transactional_id=transactional_id if config.exactly_once else "",
        transaction_timeout_s=config.transaction_timeout.total_seconds(),
        batch_bytes=batch_bytes,
    )
