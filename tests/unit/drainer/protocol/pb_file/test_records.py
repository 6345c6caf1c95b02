"""Files of records: names, framing, and every way in which a file may be damaged."""

from __future__ import annotations

import gzip
import io
import tarfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.pb_file import (
    MAGIC_BYTES,
    OVERHEAD,
    RecordDamaged,
    compressed_name,
    file_name,
    parse_name,
    records,
    sorted_files,
)
from tests.support.file_case import framed

PAYLOADS = [b"first", b"", b"x" * 300, MAGIC_BYTES * 3, b"last one"]
WHOLE = b"".join(map(framed, PAYLOADS))
ENDS = [sum(len(payload) + OVERHEAD for payload in PAYLOADS[: n + 1]) for n in range(len(PAYLOADS))]


def read(path: Path, data: bytes, *, is_last: bool = False) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Payloads, and (offset, length) of what was skipped."""
    path.write_bytes(data)
    skipped: list[tuple[int, int]] = []
    found = records(path, is_last=is_last, skipped=lambda damage, length: skipped.append((damage.offset, length)))
    return [one.payload for one in found], skipped


def test_record_bytes_have_upstreams_layout() -> None:
    assert framed(b"pay", b"load")[:19] == bytes.fromhex("04051b1c 0700000000000000 7061796c6f6164")
    # CRC-32C of "123456789" is the check value of the polynomial.
    assert framed(b"123456789")[-4:] == (0xE3069283).to_bytes(4, "little")


def test_file_names_of_every_upstream_version_are_parsed() -> None:
    plain = parse_name("binlog-0000000000000007-20181010101010")
    assert plain is not None and (plain.number, plain.first_ts, plain.is_compressed) == (7, 0, False)
    old = parse_name("binlog-0000000000000001")
    assert old is not None and old.number == 1
    packed = parse_name("binlog-0000000000000001-20181010101010-407623959013752832.tar.gz")
    assert packed is not None and (packed.number, packed.first_ts, packed.is_compressed) == (
        1,
        407623959013752832,
        True,
    )
    made = file_name(12, datetime(2024, 2, 29, 13, 5, 6))
    assert made == "binlog-0000000000000012-20240229130506"
    again = parse_name(compressed_name(made, 99))
    assert again is not None and (again.number, again.first_ts, again.is_compressed) == (12, 99, True)
    for other in ("binlog-x", "position.json", "binlog-0000000000000001.lock", "binlog-1-2-3-4", "binlog-1-2.tmp"):
        assert parse_name(other) is None, other


def test_files_are_sorted_by_number_and_plain_file_is_preferred_to_compressed(tmp_path: Path) -> None:
    for name in ("binlog-10-t", "binlog-9-t-55.gz", "binlog-9-t", "binlog-8-t-5.gz", ".lock", "other"):
        (tmp_path / name).touch()
    assert [one.text for one in sorted_files(tmp_path, parse_name)] == ["binlog-8-t-5.gz", "binlog-9-t", "binlog-10-t"]


def test_records_are_read_with_their_offsets(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(WHOLE)
    found = list(records(tmp_path / "f"))
    assert [one.payload for one in found] == PAYLOADS
    assert [one.offset for one in found] == [0, *ENDS[:-1]]
    assert found[-1].read_bytes == len(WHOLE)


def test_file_cut_at_any_byte_is_damaged_unless_it_is_last(tmp_path: Path) -> None:
    """The last file ends in silence at its last whole record; in any other, a cut is damage and is named."""
    for size in range(len(WHOLE) + 1):
        whole = [payload for payload, end in zip(PAYLOADS, ENDS, strict=True) if end <= size]
        end = max([0, *(end for end in ENDS if end <= size)])
        assert read(tmp_path / "f", WHOLE[:size], is_last=True) == (whole, [])
        skipped = [] if end == size else [(end, size - end)]
        assert read(tmp_path / "f", WHOLE[:size]) == (whole, skipped)
        if skipped:
            with pytest.raises(RecordDamaged, match=rf"/f: damaged at byte {end}: the record is cut off"):
                list(records(tmp_path / "f"))


def test_changed_byte_loses_only_its_record(tmp_path: Path) -> None:
    starts = [0, *ENDS[:-1]]
    for at in range(len(WHOLE)):
        for is_last in (False, True):
            hit = next(n for n, end in enumerate(ENDS) if at < end)
            data = WHOLE[:at] + bytes([WHOLE[at] ^ 0x40]) + WHOLE[at + 1 :]
            found, skipped = read(tmp_path / "f", data, is_last=is_last)
            assert found == [payload for n, payload in enumerate(PAYLOADS) if n != hit]
            torn_tail = hit == len(PAYLOADS) - 1 and is_last and 4 <= at - starts[hit] < 8
            assert skipped == ([] if torn_tail else [(starts[hit], ENDS[hit] - starts[hit])]), at


def test_wrong_checksum_is_reported_with_its_offset(tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    data[ENDS[1] + 20] ^= 1
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(RecordDamaged, match=rf"/f: damaged at byte {ENDS[1]}: CRC-32C is 0x\w+, not 0x\w+ as recorded"):
        list(records(tmp_path / "f", is_last=True))


@given(st.binary(max_size=200), st.integers(0, len(ENDS) - 1))
def test_bytes_between_records_are_skipped(tmp_path_factory: pytest.TempPathFactory, junk: bytes, n: int) -> None:
    path = tmp_path_factory.getbasetemp() / "junk"
    data = WHOLE[: ENDS[n]] + junk + WHOLE[ENDS[n] :]
    found, _ = read(path, data, is_last=True)
    assert found == PAYLOADS or MAGIC_BYTES in junk


def tarred(data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        info = tarfile.TarInfo("binlog-1-2")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("pack", [gzip.compress, tarred])
def test_compressed_file_that_is_cut_is_never_read_as_whole(tmp_path: Path, pack: object) -> None:
    packed = pack(WHOLE)  # type: ignore[operator]
    path = tmp_path / "f.tar.gz"
    assert read(path, packed) == (PAYLOADS, [])
    for size in range(len(packed)):
        found, skipped = read(path, packed[:size])
        assert found == PAYLOADS[: len(found)]
        assert skipped or size == 0 or found == PAYLOADS, size
    for at in range(0, len(packed), 3):
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 0x10]) + packed[at + 1 :])
        found = [one.payload for one in records(path, skipped=lambda damage, length: None)]
        assert all(payload in PAYLOADS for payload in found)


def test_record_with_absurd_size_is_skipped_without_allocating(tmp_path: Path) -> None:
    for size in ((1 << 63) - 1, 1 << 40, (1 << 31) - 1):
        data = MAGIC_BYTES + size.to_bytes(8, "little") + b"x" * 50 + WHOLE
        assert read(tmp_path / "f", data)[0] == PAYLOADS
