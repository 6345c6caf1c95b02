"""Vectors of Open Protocol about lengths: large messages, batches, compression."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.protocol.encoder import RECORD_OVERHEAD, compress, decompress
from drainer.protocol.errors import MessageTooLarge
from drainer.protocol.large import LargeMessages
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import OpenEncoder
from tests.golden.open_encoded import encoded, options_of
from tests.golden.vector_files import Vector, only
from tests.support.encoded import encoded_rows, fitted_rows, framed_rows
from tests.support.open_rows import row_of


class _OneStore:
    """Gives a location that the vector says."""

    def __init__(self, location: str) -> None:
        self._location = location
        self.objects: dict[str, bytes] = {}

    def location(self, name: str) -> str:
        assert len(name) == len(Path(self._location).name)  # the vector's is TiCDC's random one
        return self._location

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def get(self, name: str) -> bytes:
        return self.objects[name]


def check_size(vector: Vector) -> None:
    if "claim_check_location" in vector["input"]:
        _check_claim_size(vector)
        return
    given = vector["input"]
    only(given, "commit_ts schema table columns sql")
    key, value, key_length, value_length, length, fits_at, too_large_at, code = only(
        vector["expected"], "key_json value_json key_len value_len single_message_length fits_at too_large_at error"
    )
    assert code == "CDC:ErrMessageTooLarge"
    changes, _, _ = row_of(given)
    row, message = encoded(changes, options_of(None))
    assert ((row.key or b"").decode(), (row.value or b"").decode()) == (key, value)
    assert (len(row.key or b""), len(row.value or b""), message.length) == (key_length, value_length, length)
    encoder = OpenEncoder(options_of(None))
    table = encoder.table(changes.table)
    for limit in (fits_at, too_large_at):
        fit = LargeMessages(encoder, options_of(None), limit, "test")
        if limit == fits_at:
            assert fitted_rows(fit, table, changes, [row]) == [row]
            continue
        with pytest.raises(MessageTooLarge, match=f" has {length:,} bytes, and {limit:,} are allowed"):
            fitted_rows(fit, table, changes, [row])


def _check_claim_size(vector: Vector) -> None:
    """A row with a value that is too large, beside the handle key of the vector."""
    given = vector["input"]
    compression, claim = only(
        given, "compression claim_check_location commit_ts schema table row_id handle_key_columns"
    )[:2]
    key, value, key_length, value_length, compressed_length, total = only(
        vector["expected"], "key_json value_json_before_compression key_len value_len lz4_frame_len total"
    )
    options = options_of(None, large_message_handle_option="claim-check", large_message_handle_compression=compression)
    large = {"name": "v", "type": 252, "flag": 65, "value_hex": bytes(range(256)).hex() * 4}
    described = {name: given[name] for name in ("commit_ts", "schema", "table", "row_id")}
    changes, _, _ = row_of({**described, "columns": [*given["handle_key_columns"], large]})
    encoder, store = OpenEncoder(options), _OneStore(claim)
    table = encoder.table(changes.table)
    rows = encoded_rows(table, changes)
    (row,) = fitted_rows(LargeMessages(encoder, options, total, "test", store), table, changes, rows)
    (message,) = framed_rows(encoder, [row])
    assert (row.key or b"").decode() == key
    assert decompress(row.value or b"", compression).decode() == value
    assert (len(row.key or b""), len(value), len(row.value or b"")) == (key_length, value_length, compressed_length)
    assert message.length == total
    with pytest.raises(MessageTooLarge):
        fitted_rows(LargeMessages(encoder, options, total - 1, "test", store), table, changes, rows)
    assert len(store.objects) == 1


def check_batching(vector: Vector) -> None:
    max_bytes, max_rows, repeated, count = only(vector["input"], "max_message_bytes max_batch_size repeat_event count")
    names = "every_message_length_lte rows_per_message length_rule rows_per_message_lte last_message_rows total_rows"
    messages, length, per_message, rule, rows_most, last_rows, total = only(vector["expected"], "messages", names)
    assert rule in (None, "len(Key)+len(Value)+36") and RECORD_OVERHEAD == 36
    changes, _, _ = row_of(repeated["input"])
    (row,) = encoded_rows(OpenEncoder(options_of(None)).table(changes.table), changes)
    options = options_of(None, max_message_bytes=max_bytes, max_batch_size=max_rows)
    found = list(framed_rows(OpenEncoder(options), (row for _ in range(count))))
    assert len(found) == messages
    assert max(message.length for message in found) <= (length or max_bytes)
    assert per_message is None or {message.rows for message in found} == {per_message}
    assert max(message.rows for message in found) <= (rows_most or max_rows)
    assert found[-1].rows == (last_rows or found[-1].rows)
    assert sum(message.rows for message in found) == (total or count)
    decoder = OpenDecoder(options)
    assert [len(decoder.decode(message.key, message.value)) for message in found] == [one.rows for one in found]


def check_compressed(vector: Vector) -> None:
    data, how = only(vector["input"], "compressed_hex compression")
    (text,) = only(vector["expected"], "decompressed_text")
    assert decompress(bytes.fromhex(data), how).decode() == text
    assert decompress(compress(text.encode(), how), how).decode() == text
    if how == "lz4":
        assert len(compress(text.encode(), how)) == len(data) // 2
