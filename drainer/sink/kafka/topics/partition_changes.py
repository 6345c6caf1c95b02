"""Handle topics whose number of partitions changes, or that are deleted and created again, while rows are sent to them
(rule 31). Record what is needed so that a repeated row goes to the same partition as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from binlog.runtime.log import get_logger

from drainer.sink.errors import DestinationError, Fenced
from drainer.sink.kafka.topics.counts import TopicCounts
from drainer.sink.kafka.transactions.driver import Driver, Transaction

_log = get_logger(__name__)


def announce(driver: Driver, topics: TopicCounts, until_ts: int, names: Iterable[str]) -> None:
    """Without transactions: record up to which commit_ts rows are about to be sent to these topics, so that a drainer
    that starts after a crash repeats them in the same partitions. With transactions: do nothing, and leave `names`
    unread."""
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
    """Send a resolved event and an Admin event to all partitions of topics that have changed, and use these partitions
    from then on. `commit_ts`: the position; `catch_up` moves the written position up to it. `now`: query the brokers
    although the next check is not due. Call only while no range is open. While rows that were sent before may be
    repeated, do nothing. Raises DestinationRefused if the configuration does not allow the change."""
    if topics.may_repeat(commit_ts):
        return
    changes = topics.poll(now=now)
    if not changes:
        return
    notes, encoder = topics.take_up(changes), topics.publication.encoder

    def body(transaction: Transaction) -> None:
        catch_up(transaction)
        transaction.store.document.notes = notes
        for change in changes:
            told = encoder.partitions_changed(change.found, commit_ts)
            for partition in range(change.found):
                # Before the position, also without transactions: after a crash in between it is sent twice, not never.
                transaction.send(change.topic, partition, [*encoder.resolved(commit_ts), *told])

    driver.transact("other partitions", body, lambda _: notes.items() <= driver.document.notes.items())
    topics.taken_up(notes)
    for change in changes:
        what = "was deleted and created again" if change.id_ else "has another number of partitions"
        _log.warning(
            f"a topic {what}; rows after commit_ts go to all its present partitions, which may not be the same as "
            f"before",
            topic=change.topic,
            before=change.recorded,
            partitions=change.found,
            commit_ts=commit_ts,
        )


def take_up_after_range(
    driver: Driver, topics: TopicCounts, commit_ts: int, catch_up: Callable[[Transaction], None]
) -> None:
    """Do `take_up` after a range, unless changed partitions stop the drainer: then the next range finds them. The range
    is committed already, so an error here must not make it look failed; the change is tried again later. Raises
    Fenced."""
    if topics.stops_at_changes:
        return
    try:
        take_up(driver, topics, commit_ts, catch_up)
    except Fenced:
        raise
    except DestinationError as error:
        what = "changed partitions cannot be queried; rows go to the known ones, and the query is repeated later"
        _log.warning(what, why=str(error))
