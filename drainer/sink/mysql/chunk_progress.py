"""Marks of a spread range: which chunk of which slot is committed (rules 15 and 16).

A chunk's transaction begins with `step`, which must change exactly one row: an attempt of an older epoch, a second
attempt of the same chunk, and one whose range is finished all change none.
"""

from __future__ import annotations

from dataclasses import dataclass

from drainer.sink.base import Intent, Phase
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.mysql.connection import Session
from drainer.sink.mysql.position import Feed


@dataclass(frozen=True, slots=True)
class Mark:
    """A slot's row: `chunks_total` is 0 until its first chunk is committed."""

    epoch: int
    chunks_done: int
    chunks_total: int


def _range(feed: Feed, intent: Intent, phase: Phase) -> bytes:
    return b"%s AND until_ts=%d AND phase='%s'" % (feed.where, intent.until_ts, phase.value.encode())


def open_phase(session: Session, feed: Feed, *, epoch: int, intent: Intent, phase: Phase) -> None:
    """Put every slot's mark into our epoch, making those that are not there. Waits for open transactions of older
    attempts: they commit before this and are seen, or find no row afterwards."""
    table = feed.table("drainer_mark")
    session.execute(b"UPDATE %s SET epoch=%d WHERE %s" % (table, epoch, _range(feed, intent, phase)))
    rows = b",".join(
        b"(%d,%s,%d,'%s',%d,%d,%d,0,0)"
        % (
            feed.cluster_id,
            feed.name,
            intent.until_ts,
            phase.value.encode(),
            slot,
            intent.after_ts,
            epoch,
        )
        for slot in range(intent.slots)
    )
    session.execute(b"INSERT IGNORE INTO %s VALUES %s" % (table, rows))


def read(session: Session, feed: Feed, *, intent: Intent, phase: Phase, slot: int) -> Mark | None:
    rows = session.query(
        b"SELECT epoch, chunks_done, chunks_total FROM %s WHERE %s AND slot=%d"
        % (feed.table("drainer_mark"), _range(feed, intent, phase), slot)
    )
    return Mark(*(int(cell or 0) for cell in rows[0])) if rows else None


def expect(mark: Mark | None, feed: Feed, *, epoch: int, slot: int, intent: Intent) -> Mark:
    """The mark if it is ours. Raises Fenced."""
    if mark is None or mark.epoch != epoch:
        held = "its marks are gone" if mark is None else f"its epoch is {mark.epoch}"
        raise Fenced(
            f"{feed.label}: slot {slot} of ({intent.after_ts}, {intent.until_ts}] is not epoch {epoch}'s: {held}"
        )
    return mark


def step(
    session: Session,
    feed: Feed,
    *,
    epoch: int,
    intent: Intent,
    phase: Phase,
    slot: int,
    chunk: int,
    total: int,
) -> bool:
    """Count chunk number `chunk` (from 0) of `total` as done. False when it is not the next one of our epoch."""
    changed = session.execute(
        b"UPDATE %s SET chunks_done=%d, chunks_total=%d WHERE %s AND slot=%d AND epoch=%d AND chunks_done=%d"
        b" AND chunks_total IN (0,%d)"
        % (
            feed.table("drainer_mark"),
            chunk + 1,
            total,
            _range(feed, intent, phase),
            slot,
            epoch,
            chunk,
            total,
        )
    )
    return changed == 1


def unfinished(session: Session, feed: Feed, *, intent: Intent, phase: Phase) -> list[int]:
    """Slots that have begun and not ended."""
    rows = session.query(
        b"SELECT slot FROM %s WHERE %s AND chunks_done<chunks_total"
        % (feed.table("drainer_mark"), _range(feed, intent, phase))
    )
    return [int(row[0] or 0) for row in rows]


def check_cut(mark: Mark, total: int, feed: Feed, *, slot: int) -> None:
    """Raises PositionMoved when this attempt cut the slot differently from the one that began it."""
    if mark.chunks_total not in (0, total):
        raise PositionMoved(
            f"{feed.label}: slot {slot} was cut into {mark.chunks_total} chunks before and into {total} now; the "
            f"range must be decoded, filtered and cut as its intent says"
        )


def purge(session: Session, feed: Feed, *, intent: Intent) -> None:
    """Throw away the marks of a finished range, in all phases, and any older ones."""
    session.execute(
        b"DELETE FROM %s WHERE %s AND until_ts<=%d" % (feed.table("drainer_mark"), feed.where, intent.until_ts)
    )
