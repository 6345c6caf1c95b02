"""Messages: what each kind of change gives, what is refused, and what must be registered first."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol import registry
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.encoder import Ddl, DdlScope, Message, merged
from drainer.protocol.errors import EncodeError, ProtocolConfigError, SchemaIdMissing
from drainer.protocol.event import Change, DdlEvent, Image, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, check
from drainer.row.column_type import DecodedValue
from tests.support.avro_tables import TOPIC, ready
from tests.support.encoded import EncodedRow, encoded_rows, framed_rows
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.protocol.avro.cases import NAMES, TEXT

INT = FieldType(Tp.LONG)
OPTIONS = ProtocolOptions("avro")
EXTENDED = replace(OPTIONS, enable_tidb_extension=True)
TABLE = make_table("s", "t", [("id", INT), ("v", TEXT)], primary=["id"])
NO_KEY = make_table("s", "t", [("id", INT), ("v", TEXT)])


def values(image: Image | None) -> dict[str, Any] | None:
    return None if image is None else {name: column.value for name, column in image.items()}


def test_update_has_new_row_and_delete_has_null_value() -> None:
    encoder, schemas = ready(TABLE, EXTENDED)
    ours, decoder = encoder.table(TABLE, TOPIC), AvroDecoder(EXTENDED, schemas)
    (updated,) = encoded_rows(ours, make_changes(TABLE, Kind.UPDATE, old=[[1, b"a"]], new=[[1, None]]))
    (event,) = decoder.decode(updated.key, updated.value)
    assert isinstance(event, RowEvent)
    assert (event.change, values(event.key), values(event.new), event.old) == (
        Change.UPDATE,
        {"id": 1},
        {"id": 1, "v": None},
        None,
    )
    (deleted,) = encoded_rows(ours, make_changes(TABLE, Kind.DELETE, old=[[1, b"a"]]))
    assert deleted == EncodedRow(b"\0\0\0\0\1\2", None, 415508856908021766)
    for nothing in (None, b""):
        (event,) = decoder.decode(deleted.key, nothing)
        assert isinstance(event, RowEvent)
        assert (event.change, event.commit_ts, values(event.old), event.new) == (Change.DELETE, 0, {"id": 1}, None)


def test_null_and_value_of_column_with_default_read_back() -> None:
    """Such a column's union has its type first."""
    (id_, v) = TABLE.columns
    table = replace(TABLE, columns=(id_, replace(v, info=replace(v.info, default="x"))))
    encoder, schemas = ready(table, OPTIONS)
    rows = encoded_rows(encoder.table(table, TOPIC), make_changes(table, Kind.INSERT, new=[[1, b"a"], [2, None]]))
    assert [row.value and row.value[5:] for row in rows] == [b"\2\0\2a", b"\4\2"]
    events = [event for row in rows for event in AvroDecoder(OPTIONS, schemas).decode(row.key, row.value)]
    assert [values(event.new) for event in events if isinstance(event, RowEvent)] == [
        {"id": 1, "v": "a"},
        {"id": 2, "v": None},
    ]


def test_inserts_and_updates_without_tidb_extension_are_equal() -> None:
    encoder, schemas = ready(TABLE, OPTIONS)
    ours = encoder.table(TABLE, TOPIC)
    inserted = encoded_rows(ours, make_changes(TABLE, Kind.INSERT, new=[[1, b"a"]]))
    assert inserted == encoded_rows(ours, make_changes(TABLE, Kind.UPDATE, old=[[1, b"b"]], new=[[1, b"a"]]))
    (event,) = AvroDecoder(OPTIONS, schemas).decode(*inserted[0][:2])
    assert isinstance(event, RowEvent)
    assert (event.change, event.commit_ts) == (Change.UPSERT, 0)


def test_rows_of_one_batch_keep_their_own_commit_ts() -> None:
    encoder, schemas = ready(TABLE, EXTENDED)
    stamps = [1, 1 << 18, 5 << 60, (1 << 64) - 1]
    rows: list[list[DecodedValue]] = [[n, b"x" * n] for n in range(4)]
    changes = make_changes(TABLE, Kind.INSERT, new=rows, commit_ts=stamps)
    encoded = encoded_rows(encoder.table(TABLE, TOPIC), changes)
    decoder = AvroDecoder(EXTENDED, schemas)
    events = [event for row in encoded for event in decoder.decode(row.key, row.value)]
    assert [event.commit_ts for event in events if isinstance(event, RowEvent)] == stamps
    assert [values(event.new) for event in events if isinstance(event, RowEvent)] == [
        {"id": n, "v": "x" * n} for n in range(4)
    ]


def test_table_without_handle_key_has_no_key_and_refuses_deletes() -> None:
    """Values without keys; of a delete nothing would be left, so it is refused by name."""
    encoder, schemas = ready(NO_KEY, EXTENDED)
    ours = encoder.table(NO_KEY, TOPIC)
    (row,) = encoded_rows(ours, make_changes(NO_KEY, Kind.INSERT, new=[[1, b"a"]]))
    assert row.key is None
    (event,) = AvroDecoder(EXTENDED, schemas).decode(None, row.value)
    assert isinstance(event, RowEvent)
    assert (values(event.new), event.key) == ({"id": 1, "v": "a"}, None)
    with pytest.raises(EncodeError, match=r"`s`\.`t` at commit_ts 7: a delete in a table without a handle key"):
        encoded_rows(ours, make_changes(NO_KEY, Kind.DELETE, old=[[1, b"a"]], commit_ts=7))


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("table", [TABLE, NO_KEY])
def test_avro_output_old_row_adds_old_row_to_updates_and_deletes(table: Any, extension: bool) -> None:
    """As newer versions of TiCDC have it: inserts without one, updates with both, deletes with the old row twice."""
    options = replace(OPTIONS, avro_output_old_row=True, enable_tidb_extension=extension)
    encoder, schemas = ready(table, options)
    ours, decoder = encoder.table(table, TOPIC), AvroDecoder(options, schemas)
    old, new = [[1, b"a"], [2, None]], [[1, None], [2, b"b"]]
    as_values = [[{"id": id_, "v": v and v.decode()} for id_, v in rows] for rows in (old, new)]
    cases: list[tuple[Kind, Change, dict[str, Any], list[Any], list[Any]]] = [
        (Kind.INSERT, Change.INSERT, {"new": new}, [None, None], as_values[1]),
        (Kind.UPDATE, Change.UPDATE, {"old": old, "new": new}, *as_values),
        (Kind.DELETE, Change.DELETE, {"old": old}, as_values[0], [None, None]),
    ]
    for kind, change, given, expected_old, expected_new in cases:
        for n, row in enumerate(encoded_rows(ours, make_changes(table, kind, **given))):
            (event,) = decoder.decode(row.key, row.value)
            assert isinstance(event, RowEvent)
            assert event.change is change
            assert values(event.old) == expected_old[n]
            assert values(event.new) == expected_new[n]
            assert event.commit_ts == (row.commit_ts if extension else 0)


def test_missing_schema_id_is_reported_with_its_subjects() -> None:
    encoder = AvroEncoder(OPTIONS)
    changes = make_changes(TABLE, Kind.INSERT, new=[[1, b"a"]])
    with pytest.raises(SchemaIdMissing, match=r"`s`.`t`: no schema id is known for a_topic-key and a_topic-value"):
        encoded_rows(encoder.table(TABLE, TOPIC), changes)
    key, value = encoder.required_schemas(TOPIC, TABLE)
    encoder = encoder.with_ids(merged({}, [(key, 1)]))
    with pytest.raises(SchemaIdMissing, match=r"`s`\.`t`: no schema id is known for a_topic-value"):
        encoded_rows(encoder.table(TABLE, TOPIC), changes)
    encoder = encoder.with_ids(merged(encoder.ids, [(value, 2)]))
    assert len(encoded_rows(encoder.table(TABLE, TOPIC), changes)) == 1
    with pytest.raises(SchemaIdMissing, match="other-key and other-value"):
        encoded_rows(encoder.table(TABLE, "other"), changes)


def test_pickled_avro_encoder_encodes_the_same() -> None:
    encoder, _ = ready(TABLE, EXTENDED)
    changes = make_changes(TABLE, Kind.INSERT, new=[[1, b"a"]])
    assert encoded_rows(pickle.loads(pickle.dumps(encoder)).table(TABLE, TOPIC), changes) == encoded_rows(
        encoder.table(TABLE, TOPIC), changes
    )


@pytest.mark.parametrize(
    ("kind", "bad", "words"),
    [
        (TEXT, b"\xff", "not UTF-8"),
        (FieldType(Tp.LONG), 1 << 31, "beyond 32 bits"),
        (FieldType(Tp.LONG), -(1 << 31) - 1, "beyond 32 bits"),
        (FieldType(Tp.DATETIME), (1 << 64) - 1, "not a date and time"),
        (FieldType(Tp.SET, elems=NAMES), 16, "16"),
        (FieldType(Tp.BIT, flen=3), 8, r"BIT\(3\)"),
        (FieldType(Tp.DOUBLE), float("inf"), "beyond its range"),
        (FieldType(Tp.FLOAT), 1e39, "beyond its range"),
        (FieldType(Tp.NEWDECIMAL, flen=5, decimal=2), "1.234", "."),
        (FieldType(Tp.NEWDECIMAL, flen=5, decimal=2), "10000000.00", "."),
        (FieldType(Tp.LONG, Flag.NOT_NULL), None, "NULL in a column that is NOT NULL"),
        (FieldType(Tp.JSON), b"\xee", "."),
    ],
)
def test_invalid_value_is_refused_with_column_and_commit_ts(kind: FieldType, bad: DecodedValue, words: str) -> None:
    """The table, the column, and the commit_ts of the first such row."""
    table = make_table("s", "t", [("id", INT), ("c", kind)], primary=["id"])
    good: dict[Tp, DecodedValue] = {
        Tp.VARCHAR: b"",
        Tp.NEWDECIMAL: "1.00",
        Tp.DOUBLE: 0.5,
        Tp.FLOAT: 0.5,
        Tp.JSON: b"\4\0",
    }
    fine = good.get(kind.tp, 0)
    rows = [[n, value] for n, value in enumerate([fine, bad, fine, bad])]
    encoder, _ = ready(table, OPTIONS)
    changes = make_changes(table, Kind.INSERT, new=rows, commit_ts=[100, 101, 102, 103])
    with pytest.raises(EncodeError, match=f"`s`.`t`.`c` at commit_ts 101: .*{words}"):
        encoded_rows(encoder.table(table, TOPIC), changes)


def test_an_enum_without_a_name_is_empty_text() -> None:
    """0, which TiDB has for a value that is none of the names, and a number beyond them."""
    table = make_table("s", "t", [("e", FieldType(Tp.ENUM, elems=NAMES))])
    encoder, schemas = ready(table, OPTIONS)
    decoder = AvroDecoder(OPTIONS, schemas)
    changes = make_changes(table, Kind.INSERT, new=[[0], [5]])
    for row in encoded_rows(encoder.table(table, TOPIC), changes):
        (event,) = decoder.decode(row.key, row.value)
        assert isinstance(event, RowEvent)
        assert values(event.new) == {"e": ""}


def test_watermark_and_ddl_messages_read_back_equal() -> None:
    encoder = AvroEncoder(replace(EXTENDED, avro_enable_watermark=True))
    ddl = Ddl(5, 4, "s", "t", "create table `t` (a int) /* < */", 3)
    assert encoder.ddl_scope is DdlScope.ALL_PARTITIONS
    (message,) = encoder.ddl(ddl)
    assert (message.key, message.rows, message.commit_ts) == (None, 0, 5)
    assert message.value is not None
    assert message.value[:1] == b"\1"
    assert list(json.loads(message.value[1:])) == ["query", "type", "schema", "table", "commitTs"]
    decoder = AvroDecoder(encoder.options)
    assert decoder.decode(None, message.value) == [DdlEvent(5, "s", "t", ddl.query, 3)]
    (message,) = encoder.resolved((1 << 64) - 1)
    assert decoder.decode(None, message.value) == [ResolvedEvent((1 << 64) - 1)]
    for options in (OPTIONS, EXTENDED, replace(OPTIONS, avro_enable_watermark=True)):
        quiet = AvroEncoder(options)
        assert (quiet.ddl(ddl), quiet.resolved(5), quiet.ddl_scope) == ([], [], DdlScope.NONE)


def test_every_avro_row_is_one_message() -> None:
    encoder = AvroEncoder(OPTIONS)
    rows = [EncodedRow(b"k", b"v", 1), EncodedRow(b"k", None, 2)]
    assert list(framed_rows(encoder, rows)) == [Message(b"k", b"v", 1, 1), Message(b"k", None, 1, 2)]
    assert encoder.bootstrap(TABLE, 1) == []
    assert encoder.partitions_changed(2, 1) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"large_message_handle_option": "claim-check"}, "avro has no such messages"),
        ({"time_zone": "../etc"}, "time-zone"),
    ],
)
def test_unsupported_avro_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolConfigError, match=words):
        check(replace(OPTIONS, schema_registry="http://r", **options))


def test_avro_protocol_is_found_by_both_of_its_names() -> None:
    for name in ("avro", "flat-avro", "Avro"):
        assert registry.make_encoder(ProtocolOptions(name)).name == "avro"
        registry.make_decoder(ProtocolOptions(name))
