"""What bench.kafka says of rows that are missing, or there twice; and which ids it finds in messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.kafka_rows import Counted, differences, id_of
from bench.protocol import CASES, changes_of, encoder_of
from drainer.batch.work import Kind
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from tests.support.encoded import encoded_rows, framed_rows


def counted(*messages: Sequence[int]) -> list[Counted]:
    return [Counted(0, offset, tuple(ids), 1) for offset, ids in enumerate(messages)]


def test_differences_is_empty_if_every_row_occurs_once() -> None:
    assert differences(counted([3, 1], [2]), 3) == ""


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (([1], [3]), "1 ids missing, such as [2]"),
        (([1, 2], [2, 3]), "1 ids there several times, such as [2]"),
        (([1, 1], [3]), "1 ids missing, such as [2]; 1 ids there several times, such as [1]"),
        (([1, 2, 3], [4, 0]), "2 ids of no row, such as [0, 4]"),
        ((), "3 ids missing, such as [1, 2, 3]"),
    ],
)
def test_differences_names_missing_repeated_and_unknown_ids(messages: Sequence[Sequence[int]], said: str) -> None:
    assert differences(counted(*messages), 3) == said


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "debezium", "secondary-binlog"])
def test_id_of_finds_row_ids_in_messages_of_each_protocol(protocol: str) -> None:
    changes = changes_of(*CASES["sbtest"], 20, Kind.INSERT)
    encoder, decoder = encoder_of(protocol, changes.table), make_decoder(ProtocolOptions(protocol))
    messages = framed_rows(encoder, encoded_rows(encoder.table(changes.table), changes))
    events = [event for message in messages for event in decoder.decode(message.key, message.value)]
    assert changes.new is not None
    assert [id_of(event) for event in events if isinstance(event, RowEvent)] == changes.new[0].to_pylist()
