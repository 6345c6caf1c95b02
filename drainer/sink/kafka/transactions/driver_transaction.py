"""One transaction of the driver, and what is recorded about it in case that brokers never end it (outcomes.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from drainer.protocol.encoder import Message
from drainer.sink.document_position import DocumentPositionStore
from drainer.sink.kafka.producer import Producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.transactions.control_records import SLOTS_NOTE, WROTE_NOTE, Place, slots_note, wrote_note
from drainer.sink.retry import Patience


class Transaction:
    """Send the messages of one transaction and hold its changed state in `store`. `slots`: if the transaction begins a
    range, the slot that writes to each partition of rows; `wrote`: the end offset that each partition had before
    messages were sent there."""

    def __init__(
        self, store: DocumentPositionStore, producer: Producer, patience: Patience, ends: Callable[[str, int], int]
    ) -> None:
        """`ends`: returns the end offset that a partition has before this transaction writes there."""
        self.store = store
        self._last: list[tuple[str, int, Sequence[Message]]] = []
        self.slots: Mapping[Place, int] = {}
        self.wrote: dict[Place, int] = {}
        self._producer = producer
        self._patience = patience
        self._ends = ends

    def send(self, topic: str, partition: int, messages: Iterable[Message]) -> int:
        """Send messages in this order; return how many there were."""
        place = topic, partition
        begin = self.wrote[place] if place in self.wrote else self._ends(topic, partition)
        count = self._producer.send(topic, partition, messages, self._patience)
        if count:  # without messages, a transaction that hangs there is not this one
            self.wrote[place] = begin
        return count

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

    def note_places(self, before: Mapping[Place, int], ends: Callable[[Sequence[Place]], Mapping[Place, int]]) -> None:
        """Add the end offsets of partitions to the notes of the position. `before`: the end offsets before the
        transaction, as far as they are known; `ends`: queries the present ones. Only partitions that this transaction
        has written to, or that are not in `before`, are queried: slots write nothing before it is committed, so the
        others still have their former end offsets."""
        notes = {**self.store.document.notes, WROTE_NOTE: wrote_note(self.wrote)}
        if self.slots:
            begins = {place: before[place] for place in self.slots if place in before and place not in self.wrote}
            asked = [place for place in self.slots if place not in begins]
            if asked:
                if self.wrote:
                    self._producer.flush(self._patience)
                begins.update(ends(asked))
            notes[SLOTS_NOTE] = slots_note(begins, self.slots)
        self.store.document.notes = notes

    def note_no_places(self) -> None:
        """Remove what an earlier drainer noted: without transactions it is not true any more."""
        notes = self.store.document.notes
        self.store.document.notes = {key: notes[key] for key in notes if key not in (WROTE_NOTE, SLOTS_NOTE)}
