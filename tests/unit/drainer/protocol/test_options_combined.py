"""Options together: rows that are too large, compressed, of which updates and deletes say little, are whole again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.event import RowEvent
from drainer.protocol.large import LargeMessages, claimed_row, open_store
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows, fitted_rows, framed_rows
from tests.support.protocol_cases import values
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

LIMIT = 2000
TABLE = make_table(
    "a.b",
    "c`d\u2028",
    [
        ("id", text_type(Tp.VARCHAR, 20)),
        ("bin", FieldType(Tp.VARCHAR, Flag.BINARY, 20)),
        ("note", text_type(Tp.LONG_BLOB)),
        ("data", FieldType(Tp.LONG_BLOB, Flag.BINARY)),
        ("n", FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20)),
    ],
    primary=["id", "bin"],
)
_LARGE = random.Random(1).randbytes(4000)
OLD: list[list[DecodedValue]] = [["é".encode(), b"\xff", b"", b"", (1 << 64) - 1], [b"", b"", b"<", _LARGE, None]]
NEW: list[list[DecodedValue]] = [["é".encode(), b"\xff", b"x", None, (1 << 64) - 1], [b"", b"", None, _LARGE, 0]]
PROTOCOLS: list[dict[str, Any]] = [
    {"protocol": "open-protocol"},
    {"protocol": "canal-json", "enable_tidb_extension": True},
    {"protocol": "simple"},
    {"protocol": "simple", "encoding_format": "avro"},
]
LESS: dict[str, Any] = {"only_output_updated_columns": True, "delete_only_output_handle_key_columns": True}


def said(row: list[DecodedValue]) -> dict[str, Any]:
    pairs = zip(TABLE.columns, row, strict=True)
    is_text = ("id", "note")
    return {c.name: value.decode() if c.name in is_text and isinstance(value, bytes) else value for c, value in pairs}


def is_part(found: Mapping[str, object], whole: Mapping[str, object], *, names: set[str]) -> bool:
    """Some of the columns, with their values; at least these."""
    return names <= set(found) and all(whole[name] == value for name, value in found.items())


@pytest.mark.parametrize("chosen", PROTOCOLS, ids=lambda chosen: "-".join(map(str, chosen.values())))
@pytest.mark.parametrize("kind", Kind)
def test_rows_read_back_whole_with_combined_large_message_options(
    chosen: dict[str, Any], kind: Kind, tmp_path: Path
) -> None:
    less: dict[str, Any] = {} if chosen["protocol"] == "simple" else LESS
    how = product(("handle-key-only", "claim-check"), ("none", "snappy", "lz4"), ({}, less), (False, True))
    for number, (large, compression, more, raw) in enumerate(how):
        if raw and (large == "handle-key-only" or chosen["protocol"] == "open-protocol"):
            continue
        options = ProtocolOptions(
            large_message_handle_option=large,
            large_message_handle_compression=compression,
            claim_check_raw_value=raw,
            claim_check_storage_uri=f"file://{tmp_path}/{number}",
            max_message_bytes=LIMIT,
            **chosen,
            **more,
        )
        check(kind, options, where=(large, compression, sorted(more), raw))


def check(kind: Kind, options: ProtocolOptions, where: object) -> None:
    encoder, decoder = make_encoder(options), make_decoder(options)
    for message in encoder.bootstrap(TABLE, 5):
        decoder.decode(message.key, message.value)
    old, new = (None if kind is Kind.INSERT else OLD), (None if kind is Kind.DELETE else NEW)
    changes, store = make_changes(TABLE, kind, old=old, new=new), open_store(options.claim_check_storage_uri)
    table = encoder.table(TABLE)
    rows = fitted_rows(
        LargeMessages(encoder, options, LIMIT, "feed", store), table, changes, encoded_rows(table, changes)
    )
    messages = list(framed_rows(encoder, rows))
    assert all(message.length <= LIMIT for message in messages), where
    events = [event for one in messages for event in decoder.decode(one.key, one.value)]
    assert len(events) == 2
    updated = options.only_output_updated_columns
    for at, event in enumerate(events):
        assert isinstance(event, RowEvent)
        is_bare = kind is Kind.DELETE and options.delete_only_output_handle_key_columns
        is_claimed = bool(at) and not is_bare and options.large_message_handle_option == "claim-check"
        assert bool(event.claim) == is_claimed, where
        if is_claimed:
            event = claimed_row(event, decoder, store, raw_value=options.claim_check_raw_value)
        only_keys = is_bare or (at == 1 and not is_claimed)
        if new is not None:
            found, whole = values(event.new), said(NEW[at])
            assert found == ({name: whole[name] for name in ("id", "bin")} if only_keys else whole), where
        if old is not None:
            found, whole = values(event.old), said(OLD[at])
            if only_keys:
                assert is_part(found, whole, names=set() if updated else {"id", "bin"}), where
                assert set(found) <= {"id", "bin"}, where
            elif updated and kind is Kind.UPDATE:
                changed = {name for name, value in whole.items() if said(NEW[at])[name] != value}
                assert found == {name: whole[name] for name in changed}, where
            else:
                assert found == whole, where
