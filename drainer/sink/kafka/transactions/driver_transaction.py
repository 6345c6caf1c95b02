"""One transaction of the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drainer.protocol.encoder import Message
from drainer.sink.document_position import DocumentPositionStore
from drainer.sink.kafka.producer import Producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.retry import Patience


class Transaction:
    """Send the messages of one transaction and hold its changed state in `store`. `sent`: how many messages were
    sent."""

    def __init__(self, store: DocumentPositionStore, producer: Producer, patience: Patience) -> None:
        self.store = store
        self.sent = 0
        self._last: list[tuple[str, int, Sequence[Message]]] = []
        self._producer = producer
        self._patience = patience

    def send(self, topic: str, partition: int, messages: Iterable[Message]) -> None:
        """Send messages in this order."""
        self.sent += self._producer.send(topic, partition, messages, self._patience)

    def send_last(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """Send messages after everything else. Without transactions: after the position, because rows must not be
        repeated after these messages."""
        self._last.append((topic, partition, messages))

    def resolve(self, publication: Publication, commit_ts: int) -> None:
        """Send a resolved event to every partition, after everything else."""
        messages = publication.encoder.resolved(commit_ts)
        for topic, partition in publication.partitions() if messages else ():
            self.send_last(topic, partition, messages)

    def send_the_last(self) -> None:
        for topic, partition, messages in self._last:
            self.send(topic, partition, messages)
