"""Tables' schemas before their rows, for readers that begin here; where the protocol has such messages (Simple)."""

from __future__ import annotations

from collections.abc import Sequence

from drainer.protocol.simple.bootstrap import BootstrapSchedule
from drainer.sink.kafka.publication import Publication, TopicTable
from drainer.sink.kafka.transactions.driver import Transaction


def describe(
    transaction: Transaction,
    publication: Publication,
    schedule: BootstrapSchedule,
    tables: Sequence[TopicTable],
    *,
    rows: int,
    now_s: float,
) -> None:
    """Send the schema of each table, as it was last written, if it is due. `schedule` is changed: discard it if the
    transaction fails. `rows`: how many rows of all these tables follow."""
    if not publication.sends_bootstraps:
        return
    stored = transaction.store.document.stored
    commit_ts = stored.commit_ts if stored is not None else 0
    newest = {(topic, table.id): table for topic, table in sorted(tables, key=lambda one: one[1].written_version)}
    for (topic, _), table in newest.items():
        partitions = schedule.due(topic, table, rows=rows, partitions=publication.counts[topic], now_s=now_s)
        for partition in partitions:
            transaction.send(topic, partition, publication.encoder.bootstrap(table, commit_ts))
