"""Transactions that come in pieces keep the guarantees of their dispatcher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.changes.stream import StreamDecoder
from drainer.dispatch.rules import DispatchRule, Router
from drainer.protocol.event import RowEvent
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_decoder
from drainer.sink.kafka.publication import Publication
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, table, transaction, view_of

INFO = table([("id", INT), ("text", TEXT)], handle="id")
PARTITIONS = 5


def events_of(partition: str, pieces: Sequence[Sequence[int]]) -> dict[int, list[RowEvent]]:
    """Partition → its rows, of one transaction that inserts these keys piece by piece."""
    options = ProtocolOptions("open-protocol")
    router = Router([DispatchRule(("*.*",), partition=partition)], "shop", protocol="open-protocol")
    publication = Publication(options, router, {"shop": PARTITIONS}, {"shop": 1 << 20})
    piece = StreamDecoder(view_of(INFO), stored_generated=True).transaction()
    found: dict[int, list[RowEvent]] = defaultdict(list)
    for keys in pieces:
        steps: list[tuple[TableInfo, Step]] = [(INFO, ("insert", {}, {1: key, 2: b"x"})) for key in keys]
        payload = transaction(steps, commit_ts=BEGIN_TS + 5, start_ts=BEGIN_TS)
        for outgoing in publication.rows(piece(payload, BEGIN_TS, BEGIN_TS + 5), is_piece=True):
            decoder = make_decoder(options)
            for message in outgoing.messages:
                events = decoder.decode(message.key, message.value)
                found[outgoing.partition] += [event for event in events if isinstance(event, RowEvent)]
    return found


@settings(deadline=None, max_examples=60)
@given(keys=st.lists(st.integers(0, 1000), min_size=2, max_size=30, unique=True), data=st.data())
def test_a_transaction_in_pieces_is_in_one_partition_by_conflict(keys: list[int], data: st.DataObject) -> None:
    """However it is cut: between two resolved events a transaction's events on a table are in one partition."""
    at = data.draw(st.integers(1, len(keys) - 1))
    cut, otherwise = events_of("conflict", [keys[:at], keys[at:]]), events_of("conflict", [[key] for key in keys])
    assert len(cut) == 1
    assert {number: len(rows) for number, rows in cut.items()} == {number: len(r) for number, r in otherwise.items()}
    assert sum(map(len, cut.values())) == len(keys)


@pytest.mark.parametrize("partition", ["index-value", "table", "ts"])
def test_pieces_go_where_the_whole_would(partition: str) -> None:
    keys = list(range(40))
    whole, cut = events_of(partition, [keys]), events_of(partition, [keys[:13], keys[13:]])
    assert whole == cut
    assert len(whole) == (PARTITIONS if partition == "index-value" else 1)
