"""Simple in Avro: fastavro reads what we write, and we read what fastavro writes."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.types import FieldType, Flag, Tp
from binlog.tidb.varint import encode_varint
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import EncodeError, MessageError
from drainer.protocol.event import BootstrapEvent, DdlEvent, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.simple.avro_schema import DOCUMENT, named, parsed
from drainer.protocol.simple.decoder import SchemaUnknown
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows, handle_only_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

COMMIT = 447984084414103554
COMMIT_MS = 1708923661858
OPTIONS = ProtocolOptions("simple", encoding_format="avro")
KINDS = [
    ("id", FieldType(Tp.LONG, Flag.NOT_NULL, 11, 0)),
    ("name", text_type(Tp.VARCHAR, 32)),
    ("at", FieldType(Tp.TIMESTAMP, 0, 19, 0)),
    ("big", FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0)),
    ("raw", FieldType(Tp.BLOB, Flag.BINARY)),
    ("single", FieldType(Tp.FLOAT)),
    ("price", FieldType(Tp.NEWDECIMAL, Flag.UNSIGNED, 10, 2)),
    ("size", FieldType(Tp.ENUM, elems=("s", "l"))),
]
TABLE = make_table("shop", "staff", KINDS, primary=["id"], version=81)
ENCODER = make_encoder(OPTIONS)
FULL: tuple[DecodedValue, ...] = (-7, "Änn".encode(), 0, (1 << 64) - 1, b"\xff", 0.5, "1.50", 2)
NULLS: tuple[DecodedValue, ...] = (8, None, None, None, None, None, None, None)


def native(data: bytes | None) -> dict[str, Any]:
    """Read by fastavro, to the last byte, with the names of records in unions."""
    source = BytesIO(data or b"")
    found: Any = fastavro.schemaless_reader(source, parsed(), None, return_record_name=True)
    assert source.read() == b""
    name, message = found
    assert name == named("Message")
    return dict(message)


def rows(kind: Kind, **images: list[tuple[DecodedValue, ...]]) -> list[bytes]:
    changes = make_changes(TABLE, kind, **images, commit_ts=COMMIT)
    return [row.value or b"" for row in encoded_rows(ENCODER.table(TABLE), changes)]


def test_avro_schema_document_is_json_with_message_last() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    assert [record["name"] for record in DOCUMENT][-1] == "Message"


def test_update_row_is_read_by_fastavro() -> None:
    first, second = rows(Kind.UPDATE, old=[NULLS, NULLS], new=[FULL, NULLS])
    message = native(first)
    assert message["type"] == "DML"
    name, payload = message["payload"]
    assert name == named("DML")
    data, old = payload.pop("data"), payload.pop("old")
    assert payload == {
        "version": 1,
        "database": "shop",
        "table": "staff",
        "tableID": 100,
        "type": "UPDATE",
        "commitTs": COMMIT,
        "buildTs": COMMIT_MS,
        "schemaVersion": 81,
        "claimCheckLocation": None,
        "handleKeyOnly": None,
        "checksum": None,
    }
    assert data == {
        "id": -7,
        "name": "Änn",
        "at": (named("Timestamp"), {"location": "UTC", "value": "0000-00-00 00:00:00"}),
        "big": (named("UnsignedBigint"), {"value": -1}),
        "raw": b"\xff",
        "single": 0.5,
        "price": "1.50",
        "size": 2,
    }
    assert list(data) == sorted(data)
    assert old == dict(zip([name for name, _ in KINDS], NULLS, strict=True))
    assert native(second)["payload"][1]["data"] == old


def test_insert_has_only_data_and_delete_only_old() -> None:
    (insert,), (delete,) = rows(Kind.INSERT, new=[FULL]), rows(Kind.DELETE, old=[FULL])
    assert native(insert)["payload"][1]["old"] is None
    assert native(delete)["payload"][1]["data"] is None
    assert native(insert)["payload"][1]["data"] == native(delete)["payload"][1]["old"]


def test_watermark_message_is_read_by_fastavro_and_decoder() -> None:
    (message,) = ENCODER.resolved(COMMIT)
    assert native(message.value) == {
        "type": "WATERMARK",
        "payload": (named("Watermark"), {"version": 1, "commitTs": COMMIT, "buildTs": COMMIT_MS}),
    }
    assert make_decoder(OPTIONS).decode(None, message.value) == [ResolvedEvent(COMMIT)]


def test_bootstrap_message_describes_table_schema() -> None:
    """Attributes are there for the types that have them."""
    (message,) = ENCODER.bootstrap(TABLE, COMMIT)
    name, payload = native(message.value)["payload"]
    assert (name, payload["buildTs"]) == (named("Bootstrap"), COMMIT_MS)
    schema = payload["tableSchema"]
    assert (schema["database"], schema["table"], schema["tableID"], schema["version"]) == ("shop", "staff", 100, 81)
    kinds = {column["name"]: column["dataType"] for column in schema["columns"]}
    nothing = {"decimal": None, "elements": None, "unsigned": None, "zerofill": None}
    assert kinds["name"] == nothing | {
        "mysqlType": "varchar",
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "length": 32,
    }
    assert (kinds["id"]["unsigned"], kinds["id"]["zerofill"]) == (False, False)
    assert (kinds["price"]["decimal"], kinds["price"]["unsigned"]) == (2, True)
    assert kinds["size"]["elements"] == ["s", "l"]
    assert [index["columns"] for index in schema["indexes"]] == [["id"]]
    (event,) = make_decoder(OPTIONS).decode(None, message.value)
    assert isinstance(event, BootstrapEvent) and (event.schema, event.table, event.commit_ts) == ("shop", "staff", 0)


def test_ddl_message_is_read_by_fastavro_and_decoder() -> None:
    ddl = Ddl(COMMIT, COMMIT - 1, "shop", "staff", "SOME ddl", int(ActionType.ADD_INDEX), TABLE, TABLE)
    (message,) = ENCODER.ddl(ddl)
    name, payload = native(message.value)["payload"]
    assert (name, payload["type"], payload["sql"], payload["commitTs"]) == (named("DDL"), "CINDEX", "SOME ddl", COMMIT)
    assert make_decoder(OPTIONS).decode(None, message.value) == [DdlEvent(COMMIT, "shop", "staff", "SOME ddl")]
    (message,) = ENCODER.ddl(Ddl(COMMIT, COMMIT - 1, "shop", "", "DROP DATABASE", int(ActionType.DROP_SCHEMA)))
    assert native(message.value)["payload"][1]["tableSchema"] is None
    assert make_decoder(OPTIONS).decode(None, message.value) == [DdlEvent(COMMIT, "", "", "DROP DATABASE")]


def test_oversized_row_becomes_handle_key_only_or_claim_check_message() -> None:
    changes = make_changes(TABLE, Kind.UPDATE, old=[NULLS], new=[NULLS], commit_ts=COMMIT)
    (short,) = handle_only_rows(ENCODER.table(TABLE), changes)
    payload = native(short.value)["payload"][1]
    assert (payload["handleKeyOnly"], payload["claimCheckLocation"]) == (True, None)
    assert (payload["data"], payload["old"]) == ({"id": 8}, {"id": 8})
    (claimed,) = handle_only_rows(ENCODER.table(TABLE), changes, ["s3://b/x"])
    decoder = make_decoder(OPTIONS)
    decoder.decode(None, ENCODER.bootstrap(TABLE, COMMIT)[0].value)
    (event,) = decoder.decode(None, claimed.value)
    assert isinstance(event, RowEvent) and event.handle_only and event.claim == "s3://b/x"
    bare = make_table("shop", "log", [("a", FieldType(Tp.LONG))])
    with pytest.raises(EncodeError, match=r"`shop`.`log` has no handle key"):
        handle_only_rows(ENCODER.table(bare), make_changes(bare, Kind.DELETE, old=[(1,)]))


def test_row_with_unknown_schema_version_is_refused() -> None:
    with pytest.raises(SchemaUnknown, match=r"`shop`.`staff` has schema version 81"):
        make_decoder(OPTIONS).decode(None, rows(Kind.INSERT, new=[FULL])[0])


def test_message_written_by_fastavro_is_read() -> None:
    out = BytesIO()
    payload = {"version": 1, "commitTs": COMMIT, "buildTs": 0}
    message = {"type": "WATERMARK", "payload": (named("Watermark"), payload)}
    fastavro.schemaless_writer(out, parsed(), (named("Message"), message))
    assert make_decoder(OPTIONS).decode(None, out.getvalue()) == [ResolvedEvent(COMMIT)]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_number_is_encoded_as_avro_long(value: int) -> None:
    out = BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    assert encode_varint(value) == out.getvalue()


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\x16", b"\x00" * 50, b"\xff" * 50])
def test_value_that_is_not_message_is_refused(value: bytes | None) -> None:
    with pytest.raises(MessageError):
        make_decoder(OPTIONS).decode(None, value)
