"""Transactions that come in pieces keep the guarantees of their dispatcher."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.dispatch.piece_order import OrderedPart
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router, SelectorRule
from drainer.protocol.encoder import Message, merged
from drainer.protocol.errors import EncodeError
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.sink.kafka.publication import Publication
from tests.support.encoded import EncodedRow, encoded_rows, fitted_rows, framed_rows
from tests.support.examples import FEW
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, Values, table, transaction, view_of

INFO = table([("id", INT), ("text", TEXT)], handle="id")
PARTITIONS = 5


def events_of(partition: str, pieces: Sequence[Sequence[int]]) -> dict[int, list[RowEvent]]:
    """Partition → its rows, of one transaction that inserts these keys piece by piece."""
    options = ProtocolOptions("open-protocol")
    router = Router([DispatchRule(matcher=("*.*",), partition=partition)], "shop", protocol="open-protocol")
    publication = Publication(options, router, {"shop": PARTITIONS}, {"shop": 1 << 20})
    piece = StreamDecoder(view_of(INFO), stored_generated=True).transaction()
    found: dict[int, list[RowEvent]] = defaultdict(list)
    for keys in pieces:
        steps: list[tuple[TableInfo, Step]] = [(INFO, ("insert", {}, {1: key, 2: b"x"})) for key in keys]
        payload = transaction(steps, commit_ts=BEGIN_TS + 5, start_ts=BEGIN_TS)
        for outgoing in publication.part_rows(OrderedPart(piece(payload, BEGIN_TS, BEGIN_TS + 5), is_piece=True)):
            decoder = make_decoder(options)
            for message in outgoing.messages:
                events = decoder.decode(message.key, message.value)
                found[outgoing.partition] += [event for event in events if isinstance(event, RowEvent)]
    return found


@given(keys=st.lists(st.integers(0, 1000), min_size=2, max_size=30, unique=True), data=st.data())
def test_conflict_dispatch_keeps_transaction_in_pieces_in_one_partition(keys: list[int], data: st.DataObject) -> None:
    """However it is cut: between two resolved events a transaction's events on a table are in one partition."""
    at = data.draw(st.integers(1, len(keys) - 1))
    cut, otherwise = events_of("conflict", [keys[:at], keys[at:]]), events_of("conflict", [[key] for key in keys])
    assert len(cut) == 1
    assert {number: len(rows) for number, rows in cut.items()} == {number: len(r) for number, r in otherwise.items()}
    assert sum(map(len, cut.values())) == len(keys)


@pytest.mark.parametrize("partition", ["index-value", "table", "ts"])
def test_pieces_of_transaction_get_partitions_of_the_whole(partition: str) -> None:
    keys = list(range(40))
    whole, cut = events_of(partition, [keys]), events_of(partition, [keys[:13], keys[13:]])
    assert whole == cut
    assert len(whole) == (PARTITIONS if partition == "index-value" else 1)


def sent(
    options: ProtocolOptions, topic_bytes: int, texts: Sequence[bytes], *, rows_alone: bool, info: TableInfo = INFO
) -> list[Message]:
    """What becomes of transactions that insert, update and delete rows with these texts; `rows_alone`: where each row
    is encoded alone, and put into its partition by hand."""
    router = Router([DispatchRule(matcher=("*.*",), partition="index-value")], "shop", protocol=options.protocol)
    publication = Publication(options, router, {"shop": PARTITIONS}, {"shop": topic_bytes})
    decoder, payloads = StreamDecoder(view_of(info), stored_generated=True), []
    for number, text in enumerate(texts):
        key = number // 3
        old: Values = {1: key, 2: text}
        new: Values = {1: key, 2: text + b"!"}
        steps: list[Step] = [("insert", {}, old), ("update", old, new), ("delete", new, {})]
        at = BEGIN_TS + 2 * number
        payloads.append(transaction([(info, steps[number % 3])], commit_ts=at + 2, start_ts=at + 1))
    segment = decoder.segment(payloads, BEGIN_TS, BEGIN_TS + 2 * len(texts) + 2)
    needed = publication.required_schemas(publication.tables_in(segment))
    publication = replace(publication, ids=merged({}, [(schema, number) for number, schema in enumerate(needed, 1)]))
    if rows_alone:
        found = messages_by_hand(publication, segment)
    else:
        outgoing = publication.part_rows(OrderedPart(segment))
        found = {one.partition: list(one.messages) for one in outgoing}
    for messages in found.values():
        stamps = [message.commit_ts for message in messages]
        assert stamps == sorted(stamps)
    return [message for messages in found.values() for message in messages]


def messages_by_hand(publication: Publication, segment: ChangeSegment) -> dict[int, list[Message]]:
    """Partition → its messages, in the order of partitions."""
    rows: dict[int, list[tuple[int, EncodedRow]]] = defaultdict(list)
    for routes in publication.dispatcher.routes(RowEvents().of(segment)):
        changes, encoder = routes.changes, publication.encoder.table(routes.changes.table, routes.topic)
        for at in range(len(changes)):
            one = changes.take(np.array([at]))
            large = publication._large_of(routes.topic)
            (row,) = fitted_rows(large, encoder, one, encoded_rows(encoder, one))
            rows[int(routes.partitions[at])].append((int(changes.order[at]), row))
    return {
        partition: framed_rows(publication.encoder, [row for _, row in sorted(its, key=lambda pair: pair[0])])
        for partition, its in sorted(rows.items())
    }


@FEW
@given(st.lists(st.text(max_size=9), max_size=40), st.integers(1, 5))
def test_messages_of_columns_equal_messages_of_rows_encoded_alone(texts: list[str], max_rows: int) -> None:
    options = ProtocolOptions("open-protocol", max_batch_size=max_rows)
    given_ = [text.encode() for text in texts]
    rows = sent(options, 1 << 20, given_, rows_alone=True)
    columns = sent(options, 1 << 20, given_, rows_alone=False)
    assert columns == rows
    assert sum(message.rows for message in columns) == len(texts)


ONE_ROW = [
    ProtocolOptions("canal-json", enable_tidb_extension=True),
    ProtocolOptions("canal-json", large_message_handle_compression="lz4"),
    ProtocolOptions("debezium"),
    ProtocolOptions("simple"),
    ProtocolOptions("simple", encoding_format="avro"),
    ProtocolOptions("secondary-binlog"),
    ProtocolOptions("avro", schema_registry="http://registry", enable_tidb_extension=True),
]


@pytest.mark.parametrize("options", ONE_ROW, ids=lambda options: f"{options.protocol} {options.encoding_format}")
@pytest.mark.parametrize("count", [1, 40, 400])
def test_one_row_messages_of_columns_equal_those_of_rows_encoded_alone(options: ProtocolOptions, count: int) -> None:
    """Inserts, updates and deletes beside one another, of few rows and of many."""
    texts = [b"%d" % (number % 7) * (number % 5) for number in range(count)]
    rows = sent(options, 1 << 20, texts, rows_alone=True)
    columns = sent(options, 1 << 20, texts, rows_alone=False)
    assert columns == rows
    assert [message.rows for message in columns] == [1] * count
    assert list(dict.fromkeys(columns)) == columns


def test_delete_without_a_handle_key_stops_avro_unless_it_has_the_old_row() -> None:
    options = ProtocolOptions("avro", schema_registry="http://r")
    keyless = table([("id", INT), ("text", TEXT)])
    texts = [b"%d" % number for number in range(9)]
    with_old = replace(options, avro_output_old_row=True)
    assert len(sent(with_old, 1 << 20, texts, rows_alone=False, info=keyless)) == 9
    with pytest.raises(EncodeError, match=r"leave it out with \[\[syncer.ignore-table"):
        sent(options, 1 << 20, texts, rows_alone=False, info=keyless)


def test_secondary_binlog_holds_all_rows_of_transaction() -> None:
    """Beside transactions of one row, whose messages are made of columns where there is no other."""
    options = ProtocolOptions("secondary-binlog")
    router = Router([DispatchRule(matcher=("*.*",), partition="table")], "shop", protocol=options.protocol)
    publication = Publication(options, router, {"shop": 1}, {"shop": 1 << 20})
    decoder, payloads = StreamDecoder(view_of(INFO), stored_generated=True), []
    counts = [1, 3, 1, 2]
    for number, count in enumerate(counts):
        at = BEGIN_TS + 2 * number
        steps: list[tuple[TableInfo, Step]] = [
            (INFO, ("insert", {}, {1: 10 * number + row, 2: b"x"})) for row in range(count)
        ]
        payloads.append(transaction(steps, commit_ts=at + 2, start_ts=at + 1))
    segment = decoder.segment(payloads, BEGIN_TS, BEGIN_TS + 10)
    (outgoing,) = publication.part_rows(OrderedPart(segment))
    assert [message.rows for message in outgoing.messages] == counts


@pytest.mark.parametrize("place", [0, 7, 20])
def test_oversized_row_alone_becomes_handle_key_only(place: int) -> None:
    """All of the others are whole, in their order."""
    options = ProtocolOptions("open-protocol", max_message_bytes=4096, large_message_handle_option="handle-key-only")
    texts = [b"x" * (4096 if number == place else 9) for number in range(21)]
    found = sent(options, 4096, texts, rows_alone=False)
    decoder = make_decoder(options)
    events = [event for message in found for event in decoder.decode(message.key, message.value)]
    assert [one.handle_only for one in events if isinstance(one, RowEvent)].count(True) == 1
    assert found == sent(options, 4096, texts, rows_alone=True)
    assert max(message.length for message in found) <= 4096


def test_registered_schemas_hold_only_selected_columns() -> None:
    """Of rows that are there, and of all that a view may have."""
    router = Router([], "shop", protocol="avro", selectors=[SelectorRule(matcher=("db.*",), columns=("*", "!text"))])
    options = ProtocolOptions("avro", schema_registry="http://r")
    publication = pickle.loads(pickle.dumps(Publication(options, router, {"shop": 1}, {"shop": 1 << 20})))
    view = view_of(INFO)
    payload = transaction([(INFO, ("insert", {}, {1: 1, 2: b"x"}))], commit_ts=BEGIN_TS + 2, start_ts=BEGIN_TS)
    segment = StreamDecoder(view, stored_generated=True).segment([payload], BEGIN_TS, BEGIN_TS + 2)
    for tables in (publication.tables_in(segment), publication.tables_of(view)):
        key, value = publication.required_schemas(tables)
        assert [[field["name"] for field in json.loads(one.schema)["fields"]] for one in (key, value)] == [["id"]] * 2
    ids = merged({}, [(one, number) for number, one in enumerate((key, value), 1)])
    made = replace(publication, ids=ids, counts={"shop": 2})
    (outgoing,) = made.part_rows(OrderedPart(segment))
    assert [(message.key, message.value) for message in outgoing.messages] == [
        (b"\0\0\0\0\x01\x02", b"\0\0\0\0\x02\x02")
    ]
