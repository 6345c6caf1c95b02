"""A recording's messages as TiCDC spreads them among partitions, and sends some of them again."""

from __future__ import annotations

import random
from collections.abc import Sequence

from drainer.changes.decode import Changes
from drainer.changes.segment import SegmentCutter
from drainer.protocol.event import ResolvedEvent, RowEvent, key_of
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.ticdc.partition import RowHead, SchemaHead, heads_of
from tests.support.message_case import Pairs


class BinlogsOnly(SegmentCutter):
    """Takes no rows as columns."""

    changes_decoder = None


class CountsColumns(SegmentCutter):
    """Counts the rows, and their bytes, that are added as columns without binlogs."""

    added = size = 0

    def add_changes(self, changes: Sequence[Changes], size: int) -> None:
        super().add_changes(changes, size)
        self.added += sum(map(len, changes))
        self.size += size


Part = list[tuple[bytes | None, bytes | None]]


def spread(options: ProtocolOptions, pairs: Pairs, partitions: int = 3) -> list[Part]:
    """(key, value) of each partition: rows are in one of them, everything else in all. TiCDC begins again now and then,
    and sends the rows after the last resolved event once more. (Of those without a key see kafka_reading.records.)"""
    heads, chance, decoder = heads_of(options), random.Random(7), make_decoder(options)
    parts: list[Part] = [[] for _ in range(partitions)]
    keyed: list[Part] = [[] for _ in range(partitions)]
    for pair in pairs:
        found, events = heads(*pair), decoder.decode(*pair)
        if found and isinstance(found[0], RowHead):
            at = chance.randrange(partitions)
            parts[at].append(pair)
            if all(key_of(event) for event in events if isinstance(event, RowEvent)):
                keyed[at].append(pair)
            continue
        for part, again in zip(parts, keyed, strict=True):
            if found and isinstance(found[0], ResolvedEvent):
                part += again if chance.random() < 0.3 else []
                again.clear()
            part.append(pair)
    last_ts = max(head.commit_ts for pair in pairs for head in heads(*pair) if not isinstance(head, SchemaHead))
    (last,) = make_encoder(options).resolved(last_ts + 1)  # rows of the ts of a resolved event may come after it
    return [[*part, (last.key, last.value)] for part in parts]
