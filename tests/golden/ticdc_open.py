"""Vectors of Open Protocol, kind by kind: what is written is read back, and what is read is what was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import EncodeError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, ResolvedEvent, RowEvent, Value
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import OpenEncoder
from tests.golden.open_encoded import encoded, options_of
from tests.golden.open_sizes import check_batching, check_compressed, check_size
from tests.golden.open_values import check_column, check_escape, check_flag, check_handle, check_number, check_string
from tests.golden.vector_files import Vector, only
from tests.support.encoded import EncodedRow, encoded_rows, framed_rows, handle_only_rows
from tests.support.open_rows import Cell, cell_of, row_of, table_of_cells
from tests.support.row_changes import make_changes

_ROW: Final = "columns pre_columns op row_id physical_partition_id config large_message"


def seen(cells: Sequence[Cell], names: Mapping[str, object]) -> dict[str, ColumnValue]:
    return {c.name: ColumnValue(c.seen, int(c.kind.tp), int(c.flags)) for c in cells if c.name in names}


def check_encode(vector: Vector) -> None:
    given = vector["input"]
    only(given, "commit_ts schema table", _ROW)
    key, value, key_hex, value_hex = only(vector["expected"], "key_json value_json", "kafka_key_hex kafka_value_hex")
    changes, old, new = row_of(given)
    options = options_of(given.get("config"))
    assert given.get("large_message") in (None, "handle-key-only")
    handle_only = "large_message" in given
    row, message = encoded(changes, options, handle_only=handle_only)
    assert ((row.key or b"").decode(), (row.value or b"").decode()) == (key, value)
    assert message.key is not None and message.value is not None
    assert message.key.hex() == (key_hex or message.key.hex())
    assert message.value.hex() == (value_hex or message.value.hex())
    (event,) = OpenDecoder(options).decode(message.key, message.value)
    images = json.loads(value)
    is_alone = "p" not in images and not (options.output_old_value and not options.only_output_updated_columns)
    assert event == RowEvent(
        change=Change.DELETE if "d" in images else Change.UPSERT if is_alone else Change[changes.kind.name],
        commit_ts=given["commit_ts"],
        schema=given["schema"],
        table=given["table"],
        old=seen(old or [], images.get("d", images.get("p"))) if "d" in images or "p" in images else None,
        new=seen(new or [], images["u"]) if "u" in images else None,
        row_id=given.get("row_id", 0),
        partition_id=given.get("physical_partition_id", 0),
        handle_only=handle_only,
    )


def check_error(vector: Vector) -> None:
    only(vector["input"], "commit_ts schema table", _ROW)
    code, words = only(vector["expected"], "error message_contains")
    assert code == "CDC:ErrOpenProtocolCodecInvalidData"  # TiCDC's name; ours is the class
    changes, _, _ = row_of(vector["input"])
    with pytest.raises(EncodeError) as caught:
        encoded(changes, options_of(vector["input"].get("config")), handle_only="large_message" in vector["input"])
    assert words in str(caught.value)


def check_batch(vector: Vector) -> None:
    """Rows of one table in one message."""
    (given,) = only(vector["input"], "rows")
    keys, values, key_hex, value_hex = only(
        vector["expected"], "keys_json values_json", "kafka_key_hex kafka_value_hex"
    )
    encoder, rows, wanted = OpenEncoder(options_of(None)), list[EncodedRow](), []
    for one in given:
        only(one, "commit_ts schema table", _ROW)
        changes, _, new = row_of(one)
        rows += encoded_rows(encoder.table(changes.table), changes)
        wanted.append((one["commit_ts"], one.get("row_id", 0), {c.name: c.seen for c in new or []}))
    assert [(row.key or b"").decode() for row in rows] == keys
    assert [(row.value or b"").decode() for row in rows] == values
    (message,) = framed_rows(encoder, rows)
    assert message.rows == len(given)
    if key_hex:
        assert (message.key or b"").hex() == key_hex
        assert (message.value or b"").hex() == value_hex
    events = OpenDecoder(options_of(None)).decode(message.key, message.value)
    found = [(e.commit_ts, e.row_id, plain(e.new)) for e in events if isinstance(e, RowEvent)]
    assert found == wanted


def plain(columns: Mapping[str, ColumnValue] | None) -> dict[str, Value]:
    return {name: column.value for name, column in (columns or {}).items()}


def check_decode(vector: Vector) -> None:
    """Messages of older producers: what is read, written again, reads the same."""
    key, value = (bytes.fromhex(text) for text in only(vector["input"], "kafka_key_hex kafka_value_hex"))
    (expected,) = only(vector["expected"], "events")
    found = OpenDecoder(options_of(None)).decode(key, value)
    assert [_shown(event) for event in found] == expected
    encoder = OpenEncoder(options_of(None))
    for event in found:
        if isinstance(event, RowEvent):
            continue  # the fixtures' rows have text in a TINYINT, which nothing of ours writes
        again = encoder.resolved(event.commit_ts)
        if isinstance(event, DdlEvent):
            again = encoder.ddl(Ddl(event.commit_ts, 0, event.schema, event.table, event.query, event.type_code))
        assert OpenDecoder(options_of(None)).decode(again[0].key, again[0].value) == [event]


def _shown(event: object) -> dict[str, Any]:
    if isinstance(event, ResolvedEvent):
        return {"type": "resolved", "ts": event.commit_ts}
    if isinstance(event, DdlEvent):
        names = {"schema": event.schema, "table": event.table}
        return {"type": "ddl", "ts": event.commit_ts, **names, "query": event.query, "ddl_type": event.type_code}
    assert isinstance(event, RowEvent)
    found = {"type": "row", "ts": event.commit_ts, "schema": event.schema, "table": event.table}
    found |= {"partition": event.partition_id} if event.partition_id else {}
    deleted = event.change is Change.DELETE
    for name, columns in (("u", event.new), ("d" if deleted else "p", event.old)):
        if columns is not None:
            found[name] = {n: {"t": c.type_code, **_flagged(c), "v": c.value} for n, c in columns.items()}
    return found


def _flagged(column: ColumnValue) -> dict[str, int]:
    return {"f": column.flags} if column.flags else {}


def check_key(vector: Vector) -> None:
    """Every member of a key, in the order in which they are written. Ours has `ohk` or `ccl`, as TiCDC's messages."""
    names = "ts schema table row_id partition type only_handle_key claim_check_location"
    ts, schema, table, row_id, partition, kind, handle_only, claim = only(vector["input"], names)
    (expected,) = only(vector["expected"], "key_json")
    assert kind == 1
    cell = cell_of({"name": "id", "type": 8, "flag": 11, "value": row_id})
    made = table_of_cells(schema, table, [cell], has_row_id=True, partition_id=partition)
    changes = make_changes(made, Kind.INSERT, new=[[row_id]], commit_ts=ts)
    encoder = OpenEncoder(options_of(None)).table(made)
    rows = handle_only_rows(encoder, changes) + handle_only_rows(encoder, changes, [claim])
    assert isinstance(handle_only, bool)
    ends = [',"ohk":true' if handle_only else "", f',"ccl":{json.dumps(claim)}' if claim else ""]
    begin = expected.removesuffix("".join(ends) + "}")
    written = [(row.key or b"").decode() for row in rows]
    assert written == [begin + ',"ohk":true}', f'{begin},"ccl":{json.dumps(claim)}}}']
    (message,) = framed_rows(
        OpenEncoder(options_of(None)),
        [EncodedRow(expected.encode(), b'{"u":{"id":{"t":8,"h":true,"f":11,"v":-5}}}', ts)],
    )
    (event,) = OpenDecoder(options_of(None)).decode(message.key, message.value)
    assert isinstance(event, RowEvent)
    read = (
        event.commit_ts,
        event.schema,
        event.table,
        event.row_id,
        event.partition_id,
        event.handle_only,
        event.claim,
    )
    assert read == (ts, schema, table, row_id, partition, handle_only or bool(claim), claim)


def check_ddl(vector: Vector) -> None:
    ts, schema, table, query, kind = only(vector["input"], "commit_ts schema table query ddl_type")
    names = "key_json value_json", "kafka_key_hex kafka_value_hex"
    key, value, key_hex, value_hex = only(vector["expected"], *names)
    (message,) = OpenEncoder(options_of(None)).ddl(Ddl(ts, 0, schema, table, query, kind))
    assert message.key is not None and message.value is not None
    assert (message.key[16:].decode(), message.value[8:].decode()) == (key, value)
    assert message.key.hex() == (key_hex or message.key.hex())
    assert message.value.hex() == (value_hex or message.value.hex())
    found = OpenDecoder(options_of(None)).decode(message.key, message.value)
    assert found == [DdlEvent(ts, schema, table, query, kind)]


def check_resolved(vector: Vector) -> None:
    (ts,) = only(vector["input"], "ts")
    key, length = only(vector["expected"], "key_json kafka_value_length")
    (message,) = OpenEncoder(options_of(None)).resolved(ts)
    assert message.key is not None and message.key[16:].decode() == key
    assert message.value == bytes(length)
    assert OpenDecoder(options_of(None)).decode(message.key, message.value) == [ResolvedEvent(ts)]


def check_order(vector: Vector) -> None:
    """Columns by the bytes of their names; the vector's name with `<` is NULL."""
    (names,) = only(vector["input"], "names")
    (expected,) = only(vector["expected"], "value_json")
    nulls = {name for name, column in json.loads(expected)["u"].items() if column["v"] is None}
    cells = [cell_of({"name": n, "type": 3, "flag": 65, "value": None if n in nulls else 1}) for n in names]
    table = table_of_cells("s", "t", cells)
    changes = make_changes(table, Kind.INSERT, new=[[cell.decoded_value for cell in cells]], commit_ts=1)
    row, message = encoded(changes, options_of(None))
    assert (row.value or b"").decode() == expected
    (event,) = OpenDecoder(options_of(None)).decode(message.key, message.value)
    assert isinstance(event, RowEvent)
    assert plain(event.new) == {cell.name: cell.seen for cell in cells}


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {
    "encode": check_encode,
    "encode_error": check_error,
    "encode_batch": check_batch,
    "decode": check_decode,
    "key_json": check_key,
    "encode_ddl": check_ddl,
    "encode_resolved": check_resolved,
    "size_check": check_size,
    "batching": check_batching,
    "decode_compressed": check_compressed,
    "binary_string_escape": check_escape,
    "column_value": check_column,
    "json_number": check_number,
    "json_string": check_string,
    "json_object_order": check_order,
    "flag": check_flag,
    "handle_key_selection": check_handle,
}
