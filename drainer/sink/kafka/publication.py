"""Changes to the messages of each partition, in its order. Picklable: executors do with it what the driver does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from drainer.changes.change_segment import ChangeSegment
from drainer.dispatch.ddl_messages import ddl_messages, ddl_partitions
from drainer.dispatch.dispatcher import Dispatcher, Routes
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import Router
from drainer.dispatch.slotting import part_of_slot
from drainer.protocol.encoder import EncodedRow, Encoder, Message
from drainer.protocol.errors import MessageTooLarge
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_encoder
from drainer.schema.steps import Ddl

# What Kafka puts around one message, as TiCDC counts it.
BATCH_OVERHEAD: Final = 128
LIMIT_DEFAULT: Final = 1 << 20

MakeEncoder = Callable[[ProtocolOptions], Encoder]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages of one partition, in its order."""

    topic: str
    partition: int
    messages: Sequence[Message] | Iterator[Message]


class Publication:
    """Keeps what it compiles for tables; not for several threads, and pickled without that."""

    def __init__(
        self,
        options: ProtocolOptions,
        router: Router,
        counts: Mapping[str, int],
        limits: Mapping[str, int],
        make: MakeEncoder = make_encoder,
    ) -> None:
        """`counts`: partitions of every topic that is used; `limits`: bytes that each of them takes as one message,
        the least of which no batch of rows exceeds. Raises ProtocolConfigError."""
        self.options = options
        self.router = router
        self.counts = counts
        self.limits = limits
        self._make = make
        raw = options.output_raw_change_event
        target = min([options.max_message_bytes, *limits.values()])
        self.encoder = make(replace(options, max_message_bytes=target))
        self.dispatcher = Dispatcher(router, counts, options.zone, raw=raw)
        self._events = RowEvents(raw=raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return Publication, (self.options, self.router, self.counts, self.limits, self._make)

    def with_topics(self, counts: Mapping[str, int], limits: Mapping[str, int]) -> Publication:
        return Publication(self.options, self.router, counts, limits, self._make)

    def topics_in(self, segment: ChangeSegment) -> list[str]:
        """Where its rows go."""
        shapes = dict.fromkeys((changes.shape.schema, changes.shape.table) for changes in segment.changes)
        return list(dict.fromkeys(self.router.topic(*name) for name in shapes))

    def rows(self, segment: ChangeSegment, *, slot: int | None = None, slots: int = 0) -> Iterator[Outgoing]:
        """`slot`: only what that of `slots` writes. Raises EncodeError, MessageTooLarge, DispatchError, DecodeError."""
        events = self._events.of(segment)
        routes = self.dispatcher.routes(events) if slot is None else part_of_slot(events, self.dispatcher, slot, slots)
        encoded = [row for of in routes for row in self._encoded(of)]
        topics = list(dict.fromkeys(of.topic for of in routes))
        if not encoded:
            return
        begins = dict(zip(topics, np.cumsum([0, *(self.counts[topic] for topic in topics)]).tolist(), strict=False))
        place = np.concatenate([of.partitions + begins[of.topic] for of in routes])
        in_order = np.lexsort((np.concatenate([of.changes.order for of in routes]), place))
        ends = [*(np.flatnonzero(np.diff(place[in_order])) + 1).tolist(), len(in_order)]
        names = [(topic, partition) for topic in topics for partition in range(self.counts[topic])]
        begin = 0
        for end in ends:
            chosen = in_order[begin:end].tolist()
            topic, partition = names[place[chosen[0]]]
            yield Outgoing(topic, partition, self.encoder.frame(encoded[at] for at in chosen))
            begin = end

    def topics_of(self, step: Ddl) -> list[str]:
        """Where a DDL goes, and where rows of the tables go that it leaves."""
        told = [message.topic for message in ddl_messages(step, self.router)]
        return list(dict.fromkeys([*told, *self.router.topics(step.touched_names)]))

    def ddl(self, step: Ddl) -> Iterator[Outgoing]:
        """Raises EncodeError."""
        for told in ddl_messages(step, self.router):
            messages = self.encoder.ddl(told.ddl)
            for partition in ddl_partitions(self.encoder.ddl_scope, self.counts[told.topic]) if messages else ():
                yield Outgoing(told.topic, partition, messages)

    def _encoded(self, routes: Routes) -> list[EncodedRow]:
        """What is too large for its topic is replaced, or raised."""
        encoder = self.encoder.table(routes.changes.table)
        found = encoder.encode(routes.changes)
        limit = self.limits.get(routes.topic, LIMIT_DEFAULT)
        sizes = [len(row.key or b"") + len(row.value or b"") for row in found]
        if max(sizes, default=0) > limit - BATCH_OVERHEAD:
            for at in [at for at, size in enumerate(sizes) if size > limit - BATCH_OVERHEAD]:
                found[at] = self._smaller(routes, at, found[at], limit)
        return found

    def _smaller(self, routes: Routes, at: int, row: EncodedRow, limit: int) -> EncodedRow:
        (message,) = self.encoder.frame((row,))
        if message.length <= limit:
            return row
        changes = routes.changes.take(np.array([at]))
        length = message.length
        if self.options.large_message_handle_option == "handle-key-only":
            (row,) = self.encoder.table(changes.table).encode_handle_only(changes)
            (message,) = self.encoder.frame((row,))
            if message.length <= limit:
                return row
        table = changes.table
        shown = ", ".join(f"{table.columns[n].name}={changes.image[n][0].as_py()!r}" for n in table.handle)
        raise MessageTooLarge(
            schema=table.schema,
            table=table.name,
            key=f"({shown})" if shown else "of a table without a key",
            commit_ts=int(changes.commit_ts[0]),
            length=length,
            limit=limit,
        )

    def partitions(self) -> Iterator[tuple[str, int]]:
        """All of all topics."""
        return ((topic, partition) for topic, count in self.counts.items() for partition in range(count))
