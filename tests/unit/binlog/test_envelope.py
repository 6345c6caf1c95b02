"""The envelope against protobuf's own reading, against recordings, and against bytes that are wrong."""

from __future__ import annotations

import pytest
from binlog.envelope import FIELDS_MAX, BinlogType, encode_binlog, encode_fake, merge, scan, writer_of
from binlog.errors import DecodeError
from binlog.pb import binlog_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.support.capture import GOLDEN, CaptureSet, find_sets

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TSO = st.integers(1 << 56, (1 << 62) - 1)
ANY_TS = st.one_of(TSO, INT64, st.just(0), st.integers(0, 300))
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.one_of(st.none(), st.binary(max_size=300))


@st.composite
def prewrite_values(draw: st.DrawFn) -> bytes:
    value = binlog_pb2.PrewriteValue(schema_version=draw(st.one_of(st.integers(0, 100_000), INT64)))
    for _ in range(draw(st.integers(0, 3))):
        value.mutations.add(table_id=draw(INT64), inserted_rows=[draw(st.binary(max_size=20))], sequence=[0])
    return value.SerializeToString()


@st.composite
def fields(draw: st.DrawFn) -> dict[str, object]:
    return {
        "tp": draw(st.sampled_from([0, 1, 2, 3, 4])),
        "start_ts": draw(ANY_TS),
        "commit_ts": draw(ANY_TS),
        "prewrite_key": draw(TEXT),
        "prewrite_value": draw(st.one_of(st.none(), prewrite_values())),
        "ddl_query": draw(TEXT),
        "ddl_job_id": draw(st.one_of(st.just(0), INT64)),
        "ddl_schema_state": draw(st.one_of(st.just(0), INT32)),
        "writer": draw(st.sampled_from([None, b"w" * 16, bytes(16)])),
    }


def message(values: dict[str, object]) -> binlog_pb2.Binlog:
    return binlog_pb2.Binlog(**{k: v for k, v in values.items() if v is not None})  # type: ignore[arg-type]


def agrees(payload: bytes) -> None:
    """`scan` finds what protobuf finds."""
    parsed = binlog_pb2.Binlog.FromString(payload)
    found = scan(payload)
    assert found.tp == parsed.tp
    assert found.start_ts == parsed.start_ts
    assert found.commit_ts == parsed.commit_ts
    assert found.ddl_job_id == parsed.ddl_job_id
    assert found.ddl_schema_state == parsed.ddl_schema_state
    assert payload[found.key_at : found.key_end] == parsed.prewrite_key
    assert payload[found.value_at : found.value_end] == parsed.prewrite_value
    assert payload[found.query_at : found.query_end] == parsed.ddl_query
    assert writer_of(payload, found) == parsed.writer
    value = binlog_pb2.PrewriteValue.FromString(parsed.prewrite_value)
    assert found.schema_version == value.schema_version


@given(fields())
def test_encode_and_scan_agree_with_protobuf(values: dict[str, object]) -> None:
    payload = encode_binlog(**values)  # type: ignore[arg-type]
    assert binlog_pb2.Binlog.FromString(payload) == message(values)
    agrees(payload)


@given(fields())
def test_encoding_is_canonical(values: dict[str, object]) -> None:
    """W-01: with every scalar set explicitly, protobuf writes the same bytes."""
    values["writer"] = None  # ours alone, and not at its place in the order of numbers
    parsed = message(values)
    assert encode_binlog(**values) == parsed.SerializeToString(deterministic=True)  # type: ignore[arg-type]


@given(fields(), st.randoms(use_true_random=False), st.booleans())
def test_scan_reads_any_field_order_repetition_and_unknown_fields(
    values: dict[str, object], random, unknown: bool
) -> None:  # type: ignore[no-untyped-def]
    """Fields one by one in random order, some twice, some absent, unknown ones of every wire type between them."""
    parts = [message({k: v}).SerializeToString() for k, v in values.items() if random.random() < 0.8]
    parts += [random.choice(parts)] if parts else []
    if unknown:
        parts += [b"\x48\x96\x01", b"\x51" + b"x" * 8, b"\x5a\x03abc", b"\x65abcd", b"\x6b\x08\x01\x73\x74\x6c"]
    random.shuffle(parts)
    agrees(b"".join(parts))


@given(fields(), st.data())
def test_scan_of_cut_binlog_is_refused_or_agrees_with_protobuf(values: dict[str, object], data: st.DataObject) -> None:
    """A cut binlog is refused, or what is left of it is a binlog of its own."""
    payload = encode_binlog(**values)  # type: ignore[arg-type]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    try:
        scan(cut)
    except DecodeError:
        return
    agrees(cut)


@given(st.binary(max_size=120))
def test_scan_of_any_bytes_succeeds_or_raises_decode_error(payload: bytes) -> None:
    try:
        scan(payload)
    except DecodeError as error:
        assert error.what == "binlog"
        assert 0 <= error.offset <= len(payload)


@given(fields(), st.integers(0, 10_000), st.integers(0, 255))
def test_scan_and_merge_of_binlog_with_wrong_byte_raise_only_decode_error(
    values: dict[str, object], at: int, byte: int
) -> None:
    payload = bytearray(encode_binlog(**values))  # type: ignore[arg-type]
    payload[at % len(payload)] = byte
    for attempt in (lambda: scan(bytes(payload)), lambda: merge(bytes(payload), bytes(payload))):
        try:
            attempt()
        except DecodeError:
            continue


def test_scan_and_merge_of_recorded_binlogs_cut_anywhere_raise_only_decode_error() -> None:
    """The shapes TiDB sends, cut at every byte: only DecodeError, and merge as well."""
    capture = find_sets(GOLDEN)[0]
    for payload in capture.writes[:40]:
        for end in range(len(payload)):
            for attempt in (lambda cut: scan(cut), lambda cut, whole=payload: merge(cut, whole)):
                try:
                    attempt(payload[:end])
                except DecodeError as error:
                    assert error.offset <= len(payload)


def test_writer_field_keeps_fast_path_of_scan_and_is_dropped_by_merge() -> None:
    """With TSOs of nine bytes: the fields behind it are found where they are, and a merge drops it without looking."""
    start_ts, writer = 450_000_000_000_000_000, bytes(range(16))
    values = {"tp": 0, "start_ts": start_ts, "prewrite_key": b"k", "prewrite_value": b"\x08\x05\x12\x01r"}
    plain, named = encode_binlog(**values), encode_binlog(**values, writer=writer)  # type: ignore[arg-type]
    found, bare = scan(named), scan(plain)
    assert writer_of(named, found) == writer and writer_of(plain, bare) == b""
    assert (found.body_offset, found.key_at, found.value_end) == tuple(
        at + len(named) - len(plain) for at in (bare.body_offset, bare.key_at, bare.value_end)
    )
    commit = encode_binlog(tp=1, start_ts=start_ts, commit_ts=start_ts + 1, prewrite_key=b"k")
    assert merge(named, commit) == merge(plain, commit)
    longer = named.replace(b"\xa2\x06\x10" + writer, b"\xa2\x06\x11" + writer + b"x")
    assert writer_of(longer, scan(longer)) == b"" and merge(longer, commit) == merge(plain, commit)


def test_empty_payload_is_a_probe() -> None:
    """It decodes as a prewrite with zeros (W-03), which asks and stores nothing (P-RPC-05)."""
    found = scan(b"")
    assert (found.start_ts, found.commit_ts) == (0, 0)
    assert not found.is_fake
    assert found.tp == BinlogType.PREWRITE


def test_fake_binlog_is_recognised() -> None:
    fake = scan(encode_fake(443_852_055_297_916_932))
    assert fake.is_fake
    assert fake.tp == BinlogType.ROLLBACK
    assert not scan(encode_binlog(tp=2, start_ts=5, commit_ts=0)).is_fake


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (b"\x08", "unexpected EOF in a varint at byte 1"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "varint longer than 10 bytes at byte 1"),
        (b"\x0d\x00\x00\x00\x00", "tp has wire type 5 instead of 0 at byte 0"),
        (b"\x20\x05", "prewrite_key has wire type 0 instead of 2 at byte 0"),
        (b"\x22\x05abc", "unexpected EOF in a field at byte 5"),
        (b"\x00\x01", "illegal field number 0 at byte 0"),
        (b"\x4c", "field 9 has wire type 4 at byte 1"),
        (b"\x4b\x54", "end of group 10 without its start at byte 2"),
        (b"\x4f", "field 9 has wire type 7 at byte 1"),
        (b"\x2a\x02\x08\x80", "unexpected EOF in a varint at byte 4"),
    ],
)
def test_decode_error_names_field_and_byte(payload: bytes, detail: str) -> None:
    with pytest.raises(DecodeError) as caught:
        scan(payload)
    assert str(caught.value) == f"binlog: {detail}"


@pytest.mark.parametrize("unknown", [b"\x98\x06\x01", b"\x9b\x06\x08\x01\x9c\x06"], ids=["fields", "groups"])
def test_scan_refuses_more_than_fields_max_fields(unknown: bytes) -> None:
    """In a binlog, and in its value in front of a schema version."""
    tags = 1 if unknown[0] == 0x98 else 3
    some = unknown * (FIELDS_MAX // tags)
    for payload in (some, encode_binlog(tp=0, start_ts=1, prewrite_value=some)):
        agrees(payload)
    for payload in (some + unknown, encode_binlog(tp=0, start_ts=1, prewrite_value=some + unknown)):
        with pytest.raises(DecodeError, match="more than 32 fields"):
            scan(payload)


def test_schema_version_is_read_wherever_it_is_in_value() -> None:
    """Not the first field of its message, repeated, or absent: as protobuf reads it."""
    rows = b"\x12\x02\x08\x07"
    for value in (rows + b"\x08\x2a", b"\x08\x01\x08\x2a", b"\x08\x07", b"\x08\x81\x01" + rows, rows, b""):
        agrees(encode_binlog(tp=0, start_ts=1, prewrite_value=value))


@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_merge_serves_what_the_go_pump_served(capture: CaptureSet) -> None:
    """P-PULL-02 corrected by X-01: byte for byte what a real pump streamed."""
    prewrites: dict[int, bytes] = {}
    commits: dict[int, bytes] = {}
    for payload in capture.writes:
        found = scan(payload)
        kept = {BinlogType.PREWRITE: prewrites, BinlogType.COMMIT: commits}.get(BinlogType(found.tp))
        if kept is not None:
            kept[found.start_ts] = payload
    assert len(capture.binlogs) > 100
    for served in capture.binlogs:
        found = scan(served)
        if found.is_fake:
            assert encode_fake(found.start_ts) == served
        else:
            assert merge(prewrites[found.start_ts], commits[found.start_ts]) == served


@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_recorded_binlogs_are_encoded_to_the_same_bytes(capture: CaptureSet) -> None:
    """Scalars also when 0 (W-01, X-03): against what TiDB sent."""
    for payload in capture.writes:
        agrees(payload)
        found = scan(payload)
        assert found.body_offset > 0
        again = encode_binlog(
            tp=found.tp,
            start_ts=found.start_ts,
            commit_ts=found.commit_ts,
            prewrite_key=payload[found.key_at : found.key_end] if found.key_at else None,
            prewrite_value=payload[found.value_at : found.value_end] if found.value_at else None,
            ddl_query=payload[found.query_at : found.query_end] if found.query_at else None,
            ddl_job_id=found.ddl_job_id,
            ddl_schema_state=found.ddl_schema_state,
        )
        assert again == payload


@given(fields(), fields(), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_merge_of_any_field_order_is_canonical(
    p: dict[str, object], c: dict[str, object], random, mix_p: bool, mix_c: bool
) -> None:  # type: ignore[no-untyped-def]
    """Shuffled or canonical, the merged binlog has the right fields from each side, in canonical bytes."""
    p |= {"tp": 0, "commit_ts": 0}
    c |= {"tp": 1, "start_ts": p["start_ts"], "writer": None}  # only prewrites name one
    expected = encode_binlog(
        **(p | {"tp": 1, "commit_ts": c["commit_ts"], "prewrite_key": c["prewrite_key"], "writer": None})  # type: ignore[arg-type]
    )

    def bytes_of(values: dict[str, object], mixed: bool) -> bytes:
        if not mixed:
            return encode_binlog(**values)  # type: ignore[arg-type]
        parts = [message({k: v}).SerializeToString() for k, v in values.items()]
        random.shuffle(parts)
        return b"".join(parts)

    assert merge(bytes_of(p, mix_p), bytes_of(c, mix_c)) == expected


def test_merge_refuses_another_transaction() -> None:
    with pytest.raises(DecodeError, match="start_ts 6 cannot be merged with the prewrite of 5"):
        merge(encode_binlog(tp=0, start_ts=5), encode_binlog(tp=1, start_ts=6, commit_ts=7))


def test_merge_ignores_commit_ts_inside_prewrite_tail() -> None:
    """Concatenation is only allowed where the tail can hold nothing but fields 5 to 8."""
    ts = 443_852_055_297_916_932
    tail = b"\x2a\x02\x08\x05\x38\x00\x40\x00"
    p = encode_binlog(tp=0, start_ts=ts, prewrite_key=b"k")[:-4] + b"\x18\x09" + tail
    c = encode_binlog(tp=1, start_ts=ts, commit_ts=ts + 1, prewrite_key=b"k")
    assert scan(merge(p, c)).commit_ts == ts + 1
