"""Rows above what a topic takes: nothing is left out, and nothing is written that no message names."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from drainer.batch.work import Kind
from drainer.protocol.errors import EncodeError, MessageError, MessageTooLarge, ProtocolConfigError
from drainer.protocol.event import Change, RowEvent
from drainer.protocol.large import (
    ArrowStore,
    ClaimStore,
    ClaimStoreError,
    LargeMessages,
    arrow_uri,
    claim_name,
    claimed_row,
    open_store,
)
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import OpenEncoder
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges
from drainer.row.column_type import DecodedValue
from tests.support.encoded import EncodedRow, encoded_rows, fitted_rows, framed_rows
from tests.support.row_changes import make_changes, make_table

INT = FieldType(Tp.LONG, Flag.NOT_NULL)
TEXT = FieldType(Tp.VARCHAR, 0, 16, charset="utf8mb4", collate="utf8mb4_bin")
TABLE = make_table("shop", "orders", [("id", INT), ("note", TEXT)], primary=["id"])
KEYLESS = make_table("shop", "log", [("note", TEXT)], table_id=101)
LIMIT = 300
OPTIONS = ProtocolOptions("open-protocol", max_message_bytes=LIMIT)
CLAIMS = replace(OPTIONS, large_message_handle_option="claim-check")
HANDLES = replace(OPTIONS, large_message_handle_option="handle-key-only")


@dataclass
class MemoryStore:
    """A store that remembers what happened to it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)

    def location(self, name: str) -> str:
        return f"file:///claims/{name}"

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self.puts.append(name)

    def get(self, name: str) -> bytes:
        return self.objects[name]

    def check(self) -> None:
        """Memory takes everything."""


def rows_of(*notes: bytes, kind: Kind = Kind.INSERT, commit_ts: int = 7) -> RowChanges:
    rows: list[list[DecodedValue]] = [[n, note] for n, note in enumerate(notes)]
    return make_changes(
        TABLE,
        kind,
        old=None if kind is Kind.INSERT else rows,
        new=None if kind is Kind.DELETE else rows,
        commit_ts=commit_ts,
    )


def fitted(
    changes: RowChanges, options: ProtocolOptions, store: ClaimStore | None = None, limit: int = LIMIT
) -> tuple[list[EncodedRow], list[RowEvent]]:
    encoder, decoder = OpenEncoder(options), OpenDecoder(options)
    table = encoder.table(changes.table)
    rows = fitted_rows(
        LargeMessages(encoder, options, limit, "feed", store), table, changes, encoded_rows(table, changes)
    )
    messages = [message for row in rows for message in framed_rows(encoder, [row])]
    assert all(message.length <= limit for message in messages)
    events = [event for message in messages for event in decoder.decode(message.key, message.value)]
    return rows, [event for event in events if isinstance(event, RowEvent)]


def notes(events: list[RowEvent]) -> list[object]:
    return [(e.new or e.old or {})["note"].value if "note" in (e.new or e.old or {}) else None for e in events]


def test_rows_within_limit_are_returned_unchanged() -> None:
    changes = rows_of(b"a", b"b")
    table = OpenEncoder(OPTIONS).table(TABLE)
    parts = table.encode_columns(changes)
    assert LargeMessages(OpenEncoder(OPTIONS), OPTIONS, LIMIT, "feed").fitted(table, changes, parts) is parts


def test_row_of_exactly_limit_fits_and_one_byte_more_does_not() -> None:
    changes = rows_of(b"a" * 100)
    (message,) = framed_rows(OpenEncoder(OPTIONS), encoded_rows(OpenEncoder(OPTIONS).table(TABLE), changes))
    fitted(changes, OPTIONS, limit=message.length)
    with pytest.raises(MessageTooLarge):
        fitted(changes, OPTIONS, limit=message.length - 1)


def test_oversized_row_without_option_is_refused_with_its_key() -> None:
    with pytest.raises(MessageTooLarge, match=r"id = 1 of `shop`.`orders` at commit_ts 77 has 6\d\d bytes, and 300"):
        fitted(rows_of(b"a", b"b" * 500, commit_ts=77), OPTIONS)


def test_oversized_row_becomes_handle_key_only() -> None:
    for kind in Kind:
        _, events = fitted(rows_of(b"a", b"b" * 500, b"c", kind=kind), HANDLES)
        assert [event.handle_only for event in events] == [False, True, False]
        assert notes(events) == ["a", None, "c"]
        assert [(e.new or e.old or {})["id"].value for e in events] == [0, 1, 2]


def test_oversized_row_without_handle_key_is_refused() -> None:
    changes = make_changes(KEYLESS, Kind.INSERT, new=[[b"a" * 500]], commit_ts=9)
    for options in (HANDLES, CLAIMS):
        store = MemoryStore()
        with pytest.raises(EncodeError, match=r"`shop`.`log` has no handle key, so the insert"):
            fitted(changes, options, store)
        assert not store.puts
    with pytest.raises(MessageTooLarge, match=r"the row without a key of `shop`.`log` at commit_ts 9"):
        fitted(changes, OPTIONS)


def test_oversized_handle_key_is_refused_and_leaves_no_claim() -> None:
    table = make_table("shop", "t", [("name", TEXT)], primary=["name"])
    changes = make_changes(table, Kind.INSERT, new=[[b"n" * 500]])
    for options in (HANDLES, CLAIMS):
        store = MemoryStore()
        with pytest.raises(MessageTooLarge, match="the row name = 'nnn"):
            fitted(changes, options, store)
        assert not store.puts


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_claim_check_resolves_to_the_whole_row(compression: str) -> None:
    options = replace(CLAIMS, large_message_handle_compression=compression)  # type: ignore[arg-type]
    note = b"".join(b"%x" % (n * n) for n in range(500))
    for kind in Kind:
        store = MemoryStore()
        _, events = fitted(rows_of(b"a", note, kind=kind), options, store, limit=400)
        assert [bool(event.claim) for event in events] == [False, True]
        whole = claimed_row(events[1], OpenDecoder(options), store)
        assert notes([whole]) == [note.decode()]
        assert (whole.change, whole.commit_ts, whole.row_id, whole.handle_only) == (Change[kind.name], 7, 1, False)
        assert whole.claim == events[1].claim


def test_claim_check_object_holds_key_and_value_in_base64() -> None:
    """TiCDC's form: `key` and `value` in base64."""
    store = MemoryStore()
    changes = rows_of(b"b" * 500)
    fitted(changes, CLAIMS, store)
    (message,) = framed_rows(OpenEncoder(OPTIONS), encoded_rows(OpenEncoder(OPTIONS).table(TABLE), changes))
    (content,) = store.objects.values()
    document = json.loads(content)
    assert list(document) == ["key", "value"]
    assert (b64decode(document["key"]), b64decode(document["value"])) == (message.key, message.value)


def test_raw_claim_check_object_holds_only_value() -> None:
    options, store = replace(CLAIMS, claim_check_raw_value=True), MemoryStore()
    changes = rows_of(b"b" * 500)
    fitted(changes, options, store)
    (message,) = framed_rows(OpenEncoder(OPTIONS), encoded_rows(OpenEncoder(OPTIONS).table(TABLE), changes))
    assert list(store.objects.values()) == [message.value]


def test_repeated_attempt_writes_the_same_claim_check() -> None:
    store = MemoryStore()
    first, _ = fitted(rows_of(b"b" * 500), CLAIMS, store)
    again, _ = fitted(rows_of(b"b" * 500), CLAIMS, store)
    assert first == again
    assert len(store.objects) == 1 and len(store.puts) == 2


def test_claim_check_names_differ_for_different_changes() -> None:
    """The delete and the insert that an update is split into have one key and one commit_ts."""
    other = make_table("shop", "orders", [("id", INT), ("note", TEXT)], primary=["id"], table_id=102)
    named = [
        claim_name("feed", rows_of(b"a"), 0),
        claim_name("feed", rows_of(b"a", b"a"), 1),
        claim_name("feed", rows_of(b"a", kind=Kind.DELETE), 0),
        claim_name("feed", rows_of(b"a", commit_ts=8), 0),
        claim_name("other feed", rows_of(b"a"), 0),
        claim_name("feed", make_changes(other, Kind.INSERT, new=[[0, b"a"]], commit_ts=7), 0),
    ]
    assert len(set(named)) == len(named)
    assert claim_name("feed", rows_of(b"x", b"b"), 1) == named[1]
    assert all(len(name) == 41 and name.endswith(".json") for name in named)


def test_claim_check_without_storage_is_refused() -> None:
    with pytest.raises(EncodeError, match="there is no store for claims"):
        fitted(rows_of(b"b" * 500), CLAIMS)


def test_claim_check_location_is_resolved_by_its_object_name() -> None:
    """And a location that names none is refused: the store is the reader's own."""
    store = MemoryStore()
    _, (event,) = fitted(rows_of(b"b" * 500), CLAIMS, store)
    moved = event._replace(claim=event.claim.replace("file:///claims", "s3://elsewhere/x"))
    assert notes([claimed_row(moved, OpenDecoder(CLAIMS), store)]) == ["b" * 500]
    for claim in ("file:///claims/", "..", "x/..", "a/\0"):
        with pytest.raises(MessageError, match="does not name an object"):
            claimed_row(event._replace(claim=claim), OpenDecoder(CLAIMS), store)


def test_claim_check_of_another_row_or_invalid_content_is_refused() -> None:
    store = MemoryStore()
    _, (event,) = fitted(rows_of(b"b" * 500), CLAIMS, store)
    (name,) = store.objects
    with pytest.raises(
        MessageError, match=r"holds a row of `shop`.`orders` at commit_ts 7, and the message that names it"
    ):
        claimed_row(event._replace(commit_ts=8), OpenDecoder(CLAIMS), store)
    for content, why in (
        (b"", "no JSON at character 0"),
        (b"{}", "no member 'value', a string is expected"),
        (b'{"key":"?","value":""}', "key or value is not base64"),
        (b"[1]", "a JSON list where an object is expected"),
        (b'{"key":1,"value":2}', "key is 1, a string is expected"),
    ):
        store.objects[name] = content
        with pytest.raises(MessageError, match=f"the claim {name}: {why}"):
            claimed_row(event, OpenDecoder(CLAIMS), store)
    store.objects[name] = b'{"key":"AAAAAAAAAAE=","value":""}'
    with pytest.raises(MessageError, match="holds 0 events, not one row"):
        claimed_row(event, OpenDecoder(CLAIMS), store)
    encoder = OpenEncoder(ProtocolOptions("open-protocol"))
    (both,) = framed_rows(encoder, encoded_rows(encoder.table(TABLE), rows_of(b"a", b"b")))
    parts = {"key": b64encode(both.key or b"").decode(), "value": b64encode(both.value or b"").decode()}
    store.objects[name] = json.dumps(parts).encode()
    with pytest.raises(MessageError, match="holds 2 events, not one row"):
        claimed_row(event, OpenDecoder(CLAIMS), store)


def test_directory_store_keeps_claim_checks(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/deep/claims/")
    _, (event,) = fitted(rows_of(b"b" * 500), CLAIMS, store, limit=400)
    name = event.claim.rpartition("/")[2]
    assert event.claim == f"file://{tmp_path}/deep/claims/{name}"
    assert [path.name for path in (tmp_path / "deep/claims").iterdir()] == [name]
    assert notes([claimed_row(event, OpenDecoder(CLAIMS), store)]) == ["b" * 500]
    assert open_store(str(tmp_path)).location("x") == f"file://{tmp_path}/x"
    with pytest.raises(ClaimStoreError, match=r"x.json cannot be read: No such file"):
        store.get("x.json")


def test_unwritable_claim_directory_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClaimStoreError, match=r"the claim file://.*/file/x cannot be written: "):
        open_store(f"file://{tmp_path}/file").put("x", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_claim_check_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    store.put("x", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ClaimStoreError, match="No space left on device"):
        store.put("x", b"new")
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_concurrent_writers_of_one_claim_check_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in processes of the same id, on two machines. Neither takes the file of the other one away."""
    real = os.fsync
    others = [open_store(str(tmp_path))]
    shown: list[bytes] = []

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if others:
            others.pop().put("x.json", b"content")
            shown.append((tmp_path / "x.json").read_bytes())

    monkeypatch.setattr("drainer.protocol.large.os.fsync", fsync)
    store = open_store(str(tmp_path))
    store.put("x.json", b"content")
    assert shown == [b"content"] == [store.get("x.json")]
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_new_claim_directories_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new directory is synced in its parent, or a crash of the machine takes acknowledged claims away."""
    synced: list[Path] = []
    for module in ("binlog.runtime.directories", "drainer.protocol.large"):
        monkeypatch.setattr(f"{module}.sync_directory", synced.append)
    store = open_store(str(tmp_path / "a" / "b"))
    store.put("x", b"1")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    store.put("y", b"2")
    assert synced == [tmp_path / "a" / "b"]


def test_arrow_store_writes_and_reads_claim_checks(tmp_path: Path) -> None:
    """With Arrow's own file system over a directory: S3 itself is not run here."""
    (tmp_path / "claims").mkdir()
    files = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    store = ArrowStore(files, "claims/", "s3://bucket/claims")
    _, (event,) = fitted(rows_of(b"b" * 500), CLAIMS, store, limit=400)
    assert event.claim.startswith("s3://bucket/claims/")
    assert notes([claimed_row(event, OpenDecoder(CLAIMS), store)]) == ["b" * 500]
    with pytest.raises(ClaimStoreError, match="s3://bucket/claims/gone cannot be read"):
        store.get("gone")
    with pytest.raises(ClaimStoreError, match="s3://bucket/claims/no/such/folder cannot be written"):
        store.put("no/such/folder", b"")


def test_object_store_address_is_translated_for_arrow_without_showing_secrets() -> None:
    secret = (
        "s3://bucket/a/b?endpoint=http://127.0.0.1:9000&access-key=AK&secret-access-key=S%2FK&force-path-style=true"
    )
    expected = "s3://AK:S%2FK@bucket/a/b?endpoint_override=127.0.0.1%3A9000&scheme=http"
    assert arrow_uri(secret) == expected
    assert arrow_uri("s3://bucket/a?region=eu-west-1") == "s3://bucket/a?region=eu-west-1"
    assert open_store(f"{secret}&region=eu-west-1").location("x.json") == "s3://bucket/a/b/x.json"
    assert open_store("s3://AK:SK@bucket/?region=eu-west-1").location("x.json") == "s3://bucket/x.json"
    with pytest.raises(ProtocolConfigError) as caught:
        open_store("s3://AK:SECRET@bucket/a?region=x&colour=blue")
    assert "SECRET" not in str(caught.value) and "s3://bucket/a" in str(caught.value)
    for wrong in ("relative/path", "file://host/path", "gopher://bucket/x"):
        with pytest.raises(ProtocolConfigError, match="claim-check-storage-uri"):
            open_store(wrong)


def test_directory_store_check_refuses_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ClaimStoreError, match=r"claim-check-storage-uri file://.*/file: claims cannot be written there: "
    ):
        open_store(f"file://{tmp_path}/file").check()
    open_store(str(tmp_path / "new" / "claims")).check()
    assert not list((tmp_path / "new" / "claims").iterdir())


def test_arrow_store_check_refuses_unwritable_place(tmp_path: Path) -> None:
    local = LocalFileSystem()
    ArrowStore(local, str(tmp_path), "s3://b").check()
    with pytest.raises(ClaimStoreError, match="claim-check-storage-uri s3://b: claims cannot be written there: "):
        ArrowStore(local, str(tmp_path / "none"), "s3://b").check()
