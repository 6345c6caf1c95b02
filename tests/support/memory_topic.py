"""A pump's topic in memory, which can fail in the middle of what is sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from binlog.cluster.tso import physical_ms
from binlog.pb import pump_ext_pb2 as ext
from binlog.topic.message import Outgoing, TopicError, TopicMessage, body_of, encode

from drainer.pumps.topic import pull_topic


class Killed(BaseException):
    """The process ends here."""


@dataclass
class MemoryTopic:
    """`room`: how many messages are stored before `failure` is raised; None: any number. `begin`: what retention has
    left. `away`: no broker answers."""

    messages: list[Outgoing] = field(default_factory=list)
    room: int | None = None
    failure: BaseException = field(default_factory=Killed)
    begin: int = 0
    away: bool = False

    def put(self, after_ts: int, until_ts: int, *payloads: bytes, epoch: int = 1, **part: int) -> None:
        """Append a message; its last binlog is that of `until_ts`, or of the part's `last_ts`."""
        last_ts = part.pop("last_ts", until_ts)
        body = body_of(payloads, last_ts, **part) if payloads else b""
        self.messages.append(Outgoing(last_ts, encode(TopicMessage(epoch, after_ts, until_ts, body))))

    def pull(self, after_ts: int, until_ts: int) -> list[bytes]:
        """The binlogs of a range, as a drainer's task gets them."""
        found: list[bytes] = []
        parts: list[bytes] = []
        for message in pull_topic(MemoryReader(self), "t", after_ts, until_ts):
            one = ext.PullRangeResp.FromString(message)
            (parts if one.whole_bytes else found).extend(one.payloads)
            if parts and one.part_offset + len(one.payloads[0]) == one.whole_bytes:
                found.append(b"".join(parts))
                parts.clear()
        assert not parts
        return found


class MemoryWriter:
    """In place of a KafkaWriter."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic

    def open(self) -> bytes | None:
        if self.topic.away:
            raise TopicError("no broker answers")
        return self.topic.messages[-1].value if len(self.topic.messages) > self.topic.begin else None

    def send(self, messages: Sequence[Outgoing]) -> None:
        self.open()
        for message in messages:
            if self.topic.room is not None:
                if not self.topic.room:
                    raise self.topic.failure
                self.topic.room -= 1
            self.topic.messages.append(message)

    def close(self) -> None: ...


class MemoryReader:
    """In place of a KafkaReader; begins where Kafka does: at the first message of the wanted time."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.at_end = False
        self.last_error = ""
        self._next = 0

    def open(self, after_ts: int) -> None:
        if self.topic.away:
            raise TopicError("no broker answers")
        kept = range(self.topic.begin, len(self.topic.messages))
        if after_ts and not kept:
            raise TopicError("the topic is empty")
        late = (at for at in kept if physical_ms(self.topic.messages[at].ts) >= physical_ms(after_ts))
        self._next = next(late, len(self.topic.messages))

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        del timeout_s
        found = self.topic.messages[self._next : self._next + 2]
        begin, self._next = self._next, self._next + len(found)
        self.at_end = self._next == len(self.topic.messages)
        return [(begin + number, message.value) for number, message in enumerate(found)]

    def close(self) -> None: ...
