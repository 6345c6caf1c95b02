"""All requests to the brokers' administration: topics, their numbers of partitions, their settings and end offsets; and
the checks of how many replicas messages have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from binlog.runtime.log import get_logger
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from drainer.sink.errors import DestinationDown, DestinationError, DestinationRefused
from drainer.sink.kafka.producer import meaning, missing_replicas
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.transactions.control_records import KafkaPartition
from drainer.sink.retry import RetryDeadline

_ANSWER_S: Final = 10.0
# A marker follows its commit within milliseconds, except on brokers that have just started.
_POLL_S_FIRST: Final = 0.002
_POLL_S_MAX: Final = 0.2
# The library searches all partitions of a request for each of them: with 3,000 in one that takes most of the time.
_PARTITIONS_AT_ONCE: Final = 256
_LATEST: Final = -1  # instead of a timestamp: the end offset
_NO_ID: Final = str(Uuid(0, 0))
PARTITIONS_DEFAULT: Final = 3
# Compacted early: a position is written every second, and every start reads all of its partition.
CONTROL_TOPIC: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}

T = TypeVar("T")
_log = get_logger(__name__)


class Topics:
    """Query and create topics. Requests are retried while brokers are unreachable, for `retry_for_s` seconds or until
    `stop` is set. Safe for use by several threads."""

    def __init__(self, client: Mapping[str, str], address: str, retry_for_s: float, stop: threading.Event) -> None:
        self._address = address
        self._retry_for_s = retry_for_s
        self._stop = stop
        self._noted: KafkaError | None = None
        self._client = {**client, "log_level": 0, "error_cb": self._note_error}
        self._admin = AdminClient(self._client)
        # Consumers, because the admin client's own request for end offsets busy-loops while a leader is unreachable.
        self._of_ends: dict[bool, Consumer] = {}
        self._lock = threading.Lock()

    def _note_error(self, error: KafkaError) -> None:
        # "All brokers down" says less than an earlier error of one broker.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._noted is None:
            self._noted = error

    def _reason(self) -> KafkaError | None:
        """Return and forget the library's last error about brokers, which explains a missing answer. The library
        reports it only when a client is polled."""
        with self._lock:
            consumers = list(self._of_ends.values())
        self._admin.poll(0)
        for consumer in consumers:
            consumer.poll(0)
        reason, self._noted = self._noted, None
        return reason

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of every topic that this user may see."""
        return {name: len(one.partitions) for name, one in self._listed().items()}

    def replicas(self) -> dict[str, int]:
        """Return, for every topic that this user may see, the replicas of the partition that has the fewest."""
        found = {name: one.partitions.values() for name, one in self._listed().items()}
        return {name: min(len(one.replicas) for one in partitions) for name, partitions in found.items() if partitions}

    def _listed(self) -> dict[str, Any]:
        """Return the client library's metadata of every topic that this user may see."""
        listed = self._patiently("asking for topics", lambda: self._admin.list_topics(timeout=_ANSWER_S).topics)
        return {name: one for name, one in listed.items() if one.error is None}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the id of each topic. It differs from that of a deleted topic of the same name. Topics that do not
        exist are left out. Empty for brokers that have no topic ids (before 2.8)."""
        names = sorted(topics)

        def ask() -> dict[str, str]:
            found = {}
            described = self._admin.describe_topics(TopicCollection(names), request_timeout=_ANSWER_S)
            for name, answer in described.items():
                try:
                    found[name] = str(answer.result(_ANSWER_S + 5).topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in _NOT_THERE:
                        raise
            return {name: id_ for name, id_ in found.items() if id_ != _NO_ID}

        return self._patiently("asking for the ids of topics", ask) if names else {}

    def settings(self, topics: Sequence[str], name: str) -> dict[str, str]:
        """Return the value of one setting of each topic."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        return dict(zip(topics, self._settings_of(resources, name), strict=True)) if topics else {}

    def default_min_insync(self) -> int:
        """Return `min.insync.replicas` of the brokers, for topics without a value of their own. Raises
        DestinationRefused if this user may not query it."""
        known = self._patiently("asking for brokers", lambda: self._admin.list_topics(timeout=_ANSWER_S).brokers)
        broker = ConfigResource(ResourceType.BROKER, str(min(known)))
        return int(self._settings_of([broker], "min.insync.replicas")[0])

    def ends(self, topic_partitions: Sequence[KafkaPartition], *, committed: bool) -> dict[KafkaPartition, int]:
        """Return the end offset of each partition. With `committed`: the last stable offset, where the first open
        transaction begins. Otherwise: the offset after the last record. Partitions that do not exist are left out. A
        partition that is listed, but unknown to a broker that has just started, is queried again: an open transaction
        there must not be overlooked."""

        found: dict[KafkaPartition, int] = {}
        for begin in range(0, len(topic_partitions), _PARTITIONS_AT_ONCE):
            found |= self._ends_of(topic_partitions[begin : begin + _PARTITIONS_AT_ONCE], committed=committed)
        return found

    def _ends_of(self, topic_partitions: Sequence[KafkaPartition], *, committed: bool) -> dict[KafkaPartition, int]:
        def ask() -> dict[KafkaPartition, int]:
            with self._lock:
                consumer = self._of_ends.get(committed) or self._made(committed=committed)
                self._of_ends[committed] = consumer
            asked = [TopicPartition(*topic_partition, _LATEST) for topic_partition in topic_partitions]
            try:
                answers = consumer.offsets_for_times(asked, timeout=_ANSWER_S)
            except KafkaException as error:  # none of them has an answer
                raise self._without_end(error.args[0], topic_partitions) from error
            refused = [answer for answer in answers if answer.error is not None]
            listed = self._admin.list_topics(timeout=_ANSWER_S).topics if refused else {}
            for answer in refused:
                is_listed = answer.topic in listed and answer.partition in listed[answer.topic].partitions
                if is_listed or answer.error.code() not in _NOT_THERE:
                    raise self._without_end(answer.error, [(answer.topic, answer.partition)])
            return {(answer.topic, answer.partition): int(answer.offset) for answer in answers if not answer.error}

        return self._patiently("asking where partitions end", ask)

    def _without_end(self, error: KafkaError, topic_partitions: Sequence[KafkaPartition]) -> Exception:
        """Return the error to raise when brokers refuse to report end offsets. They do so without a reason while too
        few replicas are in sync; the error is then DestinationDown and names the missing replicas."""
        found: Exception = KafkaException(error)
        if isinstance(meaning(error, ""), DestinationRefused):
            return found
        why = missing_replicas(self._admin.list_topics(timeout=_ANSWER_S).topics, topic_partitions)
        return DestinationDown(f"{error.str()}: {why[0]}") if why else found

    def settled(
        self, topic_partitions: Sequence[KafkaPartition], grace_s: float
    ) -> tuple[dict[KafkaPartition, int], dict[KafkaPartition, int]]:
        """Return the end offset of each partition, and the partitions where a transaction stays open for `grace_s`
        seconds, with the offset at which it begins. If none stays open, the end offsets are of a moment at which every
        transaction that was open at first had ended.

        Brokers report one kind of end offset per request, and neither can be derived from the other. A partition that
        ends where its last transaction and marker must end may contain something else: an attempt of a writer that was
        fenced off, with the marker missing. And if readers can read up to that offset, such an attempt may still be
        open after it."""
        end_s = time.monotonic() + grace_s
        still: dict[KafkaPartition, int] | None = None
        pause_s = _POLL_S_FIRST
        while True:
            # First: a write between the two requests counts as open.
            committed = self.ends(topic_partitions, committed=True)
            written = self.ends(topic_partitions, committed=False)
            found = {of: at for of, at in committed.items() if at < written.get(of, at)}
            still = found if still is None else dict(still.items() & found.items())
            if not found or not still or time.monotonic() > end_s or self._stop.wait(pause_s):
                return written, still
            pause_s = min(2 * pause_s, _POLL_S_MAX)

    def _settings_of(self, resources: Sequence[ConfigResource], name: str) -> list[str]:
        """Return the value of one setting of each of these topics or brokers."""

        def ask() -> list[str]:
            found = self._admin.describe_configs(list(resources), request_timeout=_ANSWER_S)
            return [str(found[resource].result(_ANSWER_S + 5)[name].value) for resource in resources]

        first = resources[0]
        more = f" and {len(resources) - 1} more" if len(resources) > 1 else ""
        what = f"asking for the settings of {first.restype.name.lower()} {first.name}{more}"
        return self._patiently(what, ask, "DescribeConfigs")

    def create(
        self, topic: str, partitions: int, replication_factor: int, config: Mapping[str, str] | None = None
    ) -> int:
        """Create a topic, unless it is there, and return its number of partitions. Raises DestinationRefused."""
        new = NewTopic(
            topic, num_partitions=partitions, replication_factor=replication_factor, config=dict(config or {})
        )

        def ask() -> None:
            try:
                made = self._admin.create_topics([new], operation_timeout=_ANSWER_S, request_timeout=_ANSWER_S)
                made[topic].result(_ANSWER_S + 5)
                _log.info("topic created", topic=topic, partitions=partitions)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _REFUSALS:
                    text = f"topic {topic} cannot be created: {error.args[0].str()}"
                    raise DestinationRefused(f"{text}; create it, or see replication-factor") from error
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._patiently(f"creating topic {topic}", ask, "Create")
        # A broker answers before all brokers know the topic; the next request may go to one that does not.
        deadline = self._deadline(f"creating topic {topic}")
        while not (found := self.counts().get(topic, 0)):
            deadline.failed(DestinationDown(f"topic {topic} was created, and brokers do not list it yet"))
        deadline.over()
        return found

    def _deadline(self, what: str) -> RetryDeadline:
        return RetryDeadline(f"kafka {self._address}: {what}", self._retry_for_s, self._stop)

    def _made(self, *, committed: bool) -> Consumer:
        level = "read_committed" if committed else "read_uncommitted"
        return Consumer({**self._client, "group.id": "ends", "isolation.level": level})  # nothing is committed

    def _renew(self) -> None:
        """Replace the clients: after a broker's death a client may query the former leader for ever. A thread ends the
        old ones, because a client may wait for an unreachable broker; `last` must hold the only references to them."""
        with self._lock:
            last: list[Any] = [self._admin, *self._of_ends.values()]
            self._of_ends = {}
        self._admin = AdminClient(self._client)
        threading.Thread(target=last.clear, name="kafka-close", daemon=True).start()

    def _patiently(self, what: str, ask: Callable[[], T], right: str = "Describe") -> T:
        deadline = self._deadline(what)

        def asked() -> T:
            try:
                return ask()
            except KafkaException as raised:
                error = raised.args[0]
                found = meaning(error, deadline.what, right)
                if not isinstance(found, DestinationRefused):
                    # What a broker answers; the library's own codes are negative.
                    found = DestinationDown(error.str()) if error.code() >= 0 else self._silent(deadline, error.str())
                raise found from raised
            except TimeoutError:
                raise self._silent(deadline, "no answer") from None

        return deadline.repeat(asked, (DestinationDown,), lambda _: self._renew())

    def _silent(self, deadline: RetryDeadline, text: str) -> DestinationError:
        """Return the error for a missing answer: DestinationRefused if brokers refuse these settings, such as the
        password, otherwise DestinationDown."""
        reason = self._reason()
        if reason is None or reason.code() == KafkaError._ALL_BROKERS_DOWN:
            # For example a connection that is established and closed again: the library reports no reason.
            why = (
                f"no Kafka broker answers at {self._address}: is it a broker's port, and does that port require TLS or "
                "a user (syncer.to.security)?"
            )
        else:
            refused = meaning(reason, deadline.what)
            if isinstance(refused, DestinationRefused):
                return refused
            why = reason.str()
        return DestinationDown(f"{text}: {why}")


_REFUSALS: Final = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
)
_NOT_THERE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


# How many replicas a topic's messages have, checked when a drainer starts and when a topic becomes known.
#
# A broker refuses acks=all for a partition with fewer in-sync replicas than `min.insync.replicas`. A topic that has
# fewer replicas than that could never be written, so it is refused. If it has enough, but some are not in sync, the
# drainer waits for them.
#
# If one broker alone may acknowledge a message, the guarantees depend on that broker: what it has acknowledged is lost
# with its disk, and if it is killed, a transaction may stay open for ever (reader.py). Such topics are named
# in the log, or refused if `replication-check` says so.

_NAMED_MAX: Final = 20  # the most topics that a line of the log names
_CHANGE_IT: Final = (
    'give topics two replicas or more and set min.insync.replicas to 2 or more, or set replication-check = "warn"'
)


def check_new(topics: Topics, name: str, config: KafkaSection) -> None:
    """Before a topic is created with `replication-factor`. Raises DestinationRefused."""
    factor = config.replication_factor
    if config.required_acks != -1:
        return
    if config.replication_check == "stop" and factor < 2:
        raise _stops(f"topic {name} is not created: replication-factor is 1", config)
    try:
        wanted = topics.default_min_insync()
    except DestinationRefused as error:
        # The request needs a permission of its own, DescribeConfigs on the cluster. The topic is checked once it
        # exists.
        _log.info(
            "the brokers' min.insync.replicas could not be queried; the topic is created, and then its replicas are "
            "compared with its own min.insync.replicas",
            topic=name,
            why=str(error),
        )
        return
    if config.replication_check == "stop" and wanted < 2:
        raise _stops(f"topic {name} is not created: the brokers' min.insync.replicas is {wanted}", config)
    if factor < wanted:
        raise DestinationRefused(
            f"topic {name} is not created: replication-factor is {factor}, and the brokers' min.insync.replicas is "
            f"{wanted}, so brokers would refuse every message that all in-sync replicas must acknowledge: set "
            f"replication-factor to {wanted} or more"
        )


def check_existing(topics: Topics, names: Iterable[str], config: KafkaSection) -> None:
    """Raises DestinationRefused."""
    checked = sorted(set(names))
    if config.required_acks != -1 or not checked:
        return
    replicas, min_insync = topics.replicas(), topics.settings(checked, "min.insync.replicas")
    alone = []
    for name in checked:
        wanted = int(min_insync[name])
        found = replicas.get(name, wanted)
        if found < wanted:
            raise DestinationRefused(
                f"topic {name} has partitions with {found} replicas, and its min.insync.replicas is {wanted}, so "
                f"brokers refuse every message that all in-sync replicas must acknowledge: add replicas, or lower the "
                f"topic's min.insync.replicas"
            )
        if found < 2:
            alone.append(f"{name} (one replica)")
        elif wanted < 2:
            alone.append(f"{name} ({found} replicas, min.insync.replicas 1)")
    if alone:
        _report(alone, config)


def _report(alone: Sequence[str], config: KafkaSection) -> None:
    """`alone`: topics whose messages one broker alone may acknowledge, and why."""
    if config.replication_check == "stop":
        more = f", and {len(alone) - 1} more topics" if len(alone) > 1 else ""
        raise _stops(f"one broker alone may acknowledge messages of topic {alone[0]}{more}", config)
    _log.warning(
        "one broker alone may acknowledge messages of these topics",
        topics=list(alone[:_NAMED_MAX]),
        count=len(alone),
        lost=_lost(config),
        change=_CHANGE_IT.partition(", or ")[0],
    )


def _stops(why: str, config: KafkaSection) -> DestinationRefused:
    return DestinationRefused(f'{why}, and replication-check is "stop": {_lost(config)}; {_CHANGE_IT}')


def _lost(config: KafkaSection) -> str:
    """Return what such a topic cannot promise."""
    lost = "what it alone has acknowledged is lost with its disk"
    if not config.exactly_once:
        return lost
    return (
        f"{lost}, and if it is killed while no other replica is in sync, exactly once is not guaranteed: a transaction "
        "may stay open for ever, and its messages may be lost or repeated"
    )
