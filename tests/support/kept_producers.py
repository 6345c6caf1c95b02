"""The producers and readers that a process keeps for slots: what a test drops, as the end of the process would."""

from __future__ import annotations

from drainer.sink.kafka import slot_writer


def forget_producers() -> None:
    with slot_writer._lock:
        dropped = list(slot_writer._kept.values())
        readers = list(slot_writer._readers.values())
        slot_writer._kept.clear()
        slot_writer._readers.clear()
    for one in dropped:
        one.producer.drop()
    for reader in readers:
        reader.close()
