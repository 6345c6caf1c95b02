"""Records, footers, pointers, and the scan over damage (FORMAT.md)."""

from __future__ import annotations

import pytest
from binlog.envelope import encode_fake
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import DamagedRecord
from pump.log.record import (
    FOOTER_BYTES,
    MAGIC_BYTES,
    WINDOW_BYTES,
    Pointer,
    Scan,
    Scanned,
    check_record,
    decode_footer,
    encode_footer,
)
from tests.unit.pump.build import encode_record

FORMAT_EXAMPLE = bytes.fromhex(
    "e8563a82 1a00000000000000 fcabc257 0802 108180 80a8b6e5fbc306 18818080a8b6e5fbc306 3800 4000"
)


def scan(data: bytes) -> list[Scanned]:
    return list(Scan(lambda at, size: data[at : at + size], 0, len(data)))


def payloads(data: bytes) -> list[bytes]:
    return [step.payload for step in scan(data) if step.payload is not None]


def test_encoded_record_equals_format_page_example() -> None:
    """FORMAT.md shows a record of the original; ours has the same bytes."""
    assert encode_record(encode_fake(470607655740637185)) == FORMAT_EXAMPLE


def test_footer_decodes_its_max_ts_and_rejects_other_bytes() -> None:
    """P-ST-02: maxTS and the end magic; anything else is none."""
    assert decode_footer(encode_footer(77)) == 77
    assert decode_footer(b"data" + encode_footer(77)) == 77
    assert decode_footer(encode_footer(77)[:-1]) is None
    assert decode_footer(bytes(FOOTER_BYTES)) is None


def test_pointer_has_12_bytes_and_sorts_in_log_order() -> None:
    """P-ST-06: 12 bytes, ordered as the log is."""
    pointer = Pointer(3, 1 << 33)
    assert pointer.encode().hex() == "030000000000000002000000"
    assert Pointer.decode(pointer.encode()) == pointer
    assert Pointer(0, 99) < Pointer(1, 0) < Pointer(1, 1)
    with pytest.raises(ValueError, match="12 bytes"):
        Pointer.decode(b"short")


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_scan_returns_any_payloads_that_were_encoded(wanted: list[bytes]) -> None:
    """Whatever the payloads hold, also magics and footers."""
    data = b"".join(map(encode_record, wanted))
    assert payloads(data) == wanted


@pytest.mark.parametrize("cut", range(60))
def test_scan_returns_whole_records_of_log_cut_at_any_byte(cut: int) -> None:
    """A log cut at any byte serves its whole records and one stretch of rest that reaches the end."""
    records = [encode_record(b"first"), encode_record(b"second!")]
    data = b"".join(records)[:cut]
    steps = scan(data)
    whole = 2 if cut >= len(records[0]) + len(records[1]) else 1 if cut >= len(records[0]) else 0
    assert [s.payload for s in steps if s.payload is not None] == [b"first", b"second!"][:whole]
    assert (steps[-1].end if steps else 0) == len(data)


@given(st.data())
def test_scan_loses_one_record_for_one_wrong_byte(data: st.DataObject) -> None:
    """Damage is stepped over, named, and the scan ends."""
    records = [encode_record(bytes([i]) * 20) for i in range(5)]
    log = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= data.draw(st.integers(1, 255))
    hit = at // len(records[0])
    wanted = [bytes([i]) * 20 for i in range(5) if i != hit]
    if 4 <= at % len(records[0]) < 12:  # a wrong length may cost the records up to the announced end, and adds none
        found = payloads(bytes(log))
        assert found == [one for one in wanted if one in found] and found[:hit] == wanted[:hit]
        return
    assert payloads(bytes(log)) == wanted
    lost = [step for step in scan(bytes(log)) if step.payload is None]
    assert [(step.offset, step.end) for step in lost] == [(hit * 36, hit * 36 + 36)]
    assert lost[0].reason


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=3), st.data())
def test_scan_never_returns_records_inside_a_damaged_or_cut_payload(inside: list[bytes], data: st.DataObject) -> None:
    """Whether the record is damaged in its payload or cut off by a kill in the middle of its append."""
    outer = encode_record(b"row" + b"".join(map(encode_record, inside)) + b"row")
    at = data.draw(st.integers(16, len(outer) - 1))
    damaged = outer[:at] + bytes([outer[at] ^ 1]) + outer[at + 1 :]
    before, after = encode_record(b"before"), encode_record(b"after")
    assert payloads(before + damaged + after) == [b"before", b"after"]
    cut = before + outer[:at]
    found = Scan(lambda at, size: cut[at : at + size], 0, len(cut), torn_from=len(before))
    assert [step.payload for step in found if step.payload is not None] == [b"before"]


def test_scan_finds_record_between_stretches_of_magic_bytes() -> None:
    """A stretch full of record magics is searched once, window by window."""
    garbage = MAGIC_BYTES * 50_000
    assert payloads(garbage + encode_record(b"after") + garbage) == [b"after"]


def test_scan_finds_record_and_magic_across_window_borders() -> None:
    """A payload larger than the scan's window, and a magic cut by a window's edge."""
    big = bytes(WINDOW_BYTES + 5)
    data = encode_record(big) + b"x" * (WINDOW_BYTES - 2) + encode_record(b"end")
    assert [len(p) for p in payloads(data)] == [len(big), 3]


def test_check_record_error_names_fault_file_and_offset() -> None:
    """P-ST-05: wrong magic, length, CRC and a missing end each have their words."""
    record = encode_record(b"payload")
    assert check_record(record, 0, length=7, place="f", offset=9) == b"payload"
    for broken, length, word in (
        (b"\0" + record[1:], 7, "wrong magic"),
        (record, 6, "length 7"),
        (record[:-1] + b"!", 7, "checksum mismatch"),
        (record[:-1], 7, "ends inside"),
    ):
        with pytest.raises(DamagedRecord, match=word) as caught:
            check_record(broken, 0, length=length, place="000007.vlog", offset=9)
        assert "000007.vlog at byte 9" in str(caught.value)
