"""What one transaction of the driver does, and what must be known of it where brokers never end it (outcomes.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from drainer.protocol.encoder import Message
from drainer.sink.document_position import DocumentPositionStore
from drainer.sink.kafka.control_records import SLOTS_NOTE, WROTE_NOTE, Place, slots_note, wrote_note
from drainer.sink.kafka.producer import Producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.retry import Patience


class Transaction:
    """What one transaction does: `store` is changed, and messages are sent. `slots`: of each partition of rows whose
    slot it is, where a range is begun; `wrote`: where partitions ended before messages were sent there."""

    def __init__(
        self, store: DocumentPositionStore, producer: Producer, patience: Patience, ends: Callable[[str, int], int]
    ) -> None:
        """`ends`: where a partition ended before the transaction, or has ended so far."""
        self.store = store
        self._last: list[tuple[str, int, Sequence[Message]]] = []
        self.slots: Mapping[Place, int] = {}
        self.wrote: dict[Place, int] = {}
        self._producer = producer
        self._patience = patience
        self._ends = ends

    def send(self, topic: str, partition: int, messages: Iterable[Message]) -> int:
        """In this order; how many there were."""
        place = topic, partition
        begin = self.wrote[place] if place in self.wrote else self._ends(topic, partition)
        count = self._producer.send(topic, partition, messages, self._patience)
        if count:  # else what hangs there was never this transaction's
            self.wrote[place] = begin
        return count

    def send_last(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """Behind everything else; where there are no transactions, behind the position, which must not be repeated
        once they are out."""
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
        """With the position. `before`: where partitions ended before the transaction, as far as that is known; `ends`:
        where they end now. That is asked of those alone which this transaction has changed: slots write nothing before
        it is committed, so the others end where they did."""
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
        """What an earlier drainer noted is true no more where transactions are not used."""
        notes = self.store.document.notes
        self.store.document.notes = {key: notes[key] for key in notes if key not in (WROTE_NOTE, SLOTS_NOTE)}
