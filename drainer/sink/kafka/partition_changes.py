"""Topics that have another number of partitions, or were deleted and made again, while rows are sent to them (rule 31);
and what is recorded so that a row that is sent again goes to the partition that it went to before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from binlog.runtime.log import get_logger

from drainer.sink.kafka.driver import Driver
from drainer.sink.kafka.topic_counts import TopicCounts
from drainer.sink.kafka.transaction import Transaction

_log = get_logger(__name__)


def announce(driver: Driver, topics: TopicCounts, until_ts: int, names: Iterable[str]) -> None:
    """What is about to be sent to these topics is recorded before, where there are no transactions: whoever comes
    behind a crash sends it again to the same partitions. With transactions `names` is not asked for."""
    notes = topics.announcement(until_ts, names)
    if notes is None:
        return

    def body(transaction: Transaction) -> None:
        transaction.store.document.notes = notes

    driver.transact(f"what is sent up to {until_ts}", body, lambda _: False)
    topics.announced(until_ts)


def take_up(
    driver: Driver, topics: TopicCounts, commit_ts: int, catch_up: Callable[[Transaction], None], *, now: bool = False
) -> None:
    """Resolved and Admin events to all partitions of topics that have changed, and from then on they are used as they
    are. `commit_ts`: the position, to which `catch_up` moves the one that is written. `now`: whether or not it is time
    to look; while rows may come again that were sent before, topics are used as they were. Only while no range is
    open. Raises DestinationRefused where that is not wanted."""
    if topics.may_repeat(commit_ts):
        return
    changes = topics.look(now=now)
    if not changes:
        return
    notes, encoder = topics.take_up(changes), topics.publication.encoder

    def body(transaction: Transaction) -> None:
        catch_up(transaction)
        transaction.store.document.notes = notes
        for change in changes:
            told = encoder.partitions_changed(change.found, commit_ts)
            for partition in range(change.found):
                # Before the position, also without transactions: who dies in between tells it again, not never.
                transaction.send(change.topic, partition, [*encoder.resolved(commit_ts), *told])

    driver.transact("other partitions", body, lambda _: notes.items() <= driver.document.notes.items())
    topics.taken_up(notes)
    for change in changes:
        what = "was deleted and made again" if change.id_ else "has another number of partitions"
        _log.warning(
            f"a topic {what}; rows behind commit_ts go to all its partitions as they are now, which may be others than "
            f"before",
            topic=change.topic,
            before=change.recorded,
            partitions=change.found,
            commit_ts=commit_ts,
        )
