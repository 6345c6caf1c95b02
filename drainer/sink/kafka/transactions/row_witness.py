"""Find out from partitions of rows whether a transaction that hangs elsewhere is committed: readers find its rows."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import TracebackType

from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.transactions.control_records import Place
from drainer.sink.retry import Patience


class RowWitness:
    """Look into partitions of rows as a read-committed consumer. A context manager, for use by one thread. `there`: the
    partitions that exist; `open_rows`: those with a hanging transaction, and the offset at which it begins."""

    def __init__(
        self,
        config: KafkaConfig,
        label: str,
        there: Container[Place],
        open_rows: Mapping[Place, int],
        patience: Patience,
    ) -> None:
        self._config = config
        self._label = label
        self._there = there
        self._open_rows = open_rows
        self._patience = patience
        self._readers: dict[str, Reader] = {}

    def is_committed(self, begins: Mapping[Place, int]) -> bool:
        """Return whether a transaction was committed in any of these partitions. `begins`: their end offsets before the
        transaction. Raises DestinationRefused if all of them have lost their messages since."""
        gone = []
        for place, begin in sorted(begins.items()):
            shown = self.is_settled_behind(place, begin)
            if shown:
                return True
            if shown is None:
                gone.append(place)
        if gone and len(gone) == len(begins):
            topic, partition = gone[0]
            offset = begins[gone[0]]
            raise DestinationRefused(
                f"{self._label}: it cannot be found out any more whether a transaction was committed: the messages of "
                f"{topic}-{partition} from offset {offset} on have been deleted. "
                f"{told({gone[0]: offset}, self._config.address)}"
            )
        return False

    def is_settled_behind(self, place: Place, begin: int) -> bool | None:
        """Return whether read-committed consumers find any message from offset `begin` on, in front of an open
        transaction; None if the messages were deleted, alone or with their topic."""
        if place not in self._there:
            return None
        topic, partition = place
        if topic not in self._readers:
            self._readers[topic] = Reader(self._config.client, topic)
        try:
            return self._readers[topic].shows(partition, begin, self._open_rows.get(place), self._patience)
        except DestinationRefused as error:
            raise DestinationRefused(
                f"{self._label}: brokers have left a transaction open, and only reading topic {topic} shows whether it "
                f"was committed, but reading is refused: {error}"
            ) from error

    def __enter__(self) -> RowWitness:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for reader in self._readers.values():
            reader.close()


def told(open_at: Mapping[Place, int], address: str) -> str:
    """Describe open transactions to an operator: where the first one begins, and the commands that name its producer
    and end it."""
    (topic, partition), offset = min(open_at.items())
    more = f", and in {len(open_at) - 1} partitions more" if len(open_at) > 1 else ""
    tool = f"kafka-transactions.sh --bootstrap-server {address}"
    place = f"--topic {topic} --partition {partition}"
    return (
        f"a transaction has no end at offset {offset} of {topic}-{partition}{more}. "
        f"`{tool} describe-producers {place}` names its producer. If that producer is not running, "
        f"`{tool} abort {place} --start-offset {offset}` aborts the transaction, and its messages are lost"
    )
