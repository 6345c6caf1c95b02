"""Check the rows of a topic: every message is decoded, and every row's id must occur exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.sink.kafka.schema_registry import SchemaRegistry
from tests.support.kafka import Broker

_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class Counted:
    """One message that holds rows: its partition, its offset, the ids of its rows, and its bytes."""

    partition: int
    offset: int
    ids: tuple[int, ...]
    bytes: int

    @property
    def rows(self) -> int:
        return len(self.ids)


def count(broker: Broker, topic: str, protocol: str, registry: str) -> list[Counted]:
    """Yield the messages that a read-committed reader gets. `registry`: where schemas are requested, in protocols with
    schema ids.
    """
    found = []
    for records in broker.read(topic):
        decoder = decoder_of(protocol, registry)
        for record in records:
            ids = tuple(
                id_of(event) for event in decoder.decode(record.key, record.value) if isinstance(event, RowEvent)
            )
            if ids:
                size = len(record.key or b"") + len(record.value or b"")
                found.append(Counted(record.partition, record.offset, ids, size))
    return found


def decoder_of(protocol: str, registry: str) -> Decoder:
    options = ProtocolOptions(protocol)
    if protocol != "avro":
        return make_decoder(options)
    return AvroDecoder(options, SchemaRegistry(registry).schema)


def id_of(row: RowEvent) -> int:
    image: Any = row.new or row.old
    return int(image["id"].value)


def differences(counted: Iterable[Counted], rows: int) -> str:
    """Describe the differences if the ids are not 1 to `rows`, each once; return "" if they are."""
    ids = np.array([id_ for one in counted for id_ in one.ids], np.int64)
    foreign = ids[(ids < 1) | (ids > rows)]
    times = np.bincount(ids[(ids >= 1) & (ids <= rows)], minlength=rows + 1)[1:]
    found = {
        "missing": np.flatnonzero(times == 0) + 1,
        "there several times": np.flatnonzero(times > 1) + 1,
        "of no row": np.unique(foreign),
    }
    texts = (f"{len(some):,} ids {what}, such as {some[:_TOLD].tolist()}" for what, some in found.items() if len(some))
    return "; ".join(texts)
