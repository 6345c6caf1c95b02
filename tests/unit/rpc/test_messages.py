"""Messages out of a stream's bytes, in whatever pieces; and those that are none."""

from __future__ import annotations

import gzip
import itertools
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from binlog.rpc import messages
from binlog.rpc.messages import HEAD_BYTES, MAPPED_BYTES_MIN, Collector, TooLong, gunzip, gzip_size
from binlog.rpc.method import timeout_s
from binlog.rpc.status import RpcError, Status, percent_encoded, refusal, trailers
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20


def framed(data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(data)) + data


def feed(collector: Collector, data: bytes, cuts: list[int]) -> list[tuple[bytes, bool, object]]:
    reservations = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(reservations)]
    return [(bytes(m.data), m.compressed, m.reservation) for piece in pieces for m in collector.feed(piece)]


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=8), st.lists(st.integers(0, 2500)))
def test_messages_come_whole_and_in_order(sent: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    announced: list[int] = []

    def announce(size: int) -> int:
        announced.append(size)
        return len(announced)

    collector = Collector(1000, announce)
    data = b"".join(framed(message, compressed) for message, compressed in sent)
    found = feed(collector, data, cuts)
    assert found == [(*each, number) for number, each in enumerate(sent, 1)]
    assert announced == [len(message) for message, _ in sent]
    assert collector.is_between


def test_a_message_is_announced_before_its_bytes() -> None:
    announced: list[int] = []
    collector = Collector(1000, announced.append)
    assert collector.feed(b"\0\0\0") == [] and not collector.is_between and announced == []
    assert collector.feed(b"\0\7") == [] and announced == [7] and not collector.is_between
    assert collector.feed(b"123456") == []
    assert collector.feed(b"7")[0].data == b"1234567"


@pytest.mark.parametrize("size", [0, 1, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 1])
def test_collector_returns_large_message_as_read_only_view(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    collector = Collector(1 << 30, lambda _: None)
    cut = framed(data)
    found = [m for at in range(0, len(cut), 16384) for m in collector.feed(cut[at : at + 16384])]
    assert [bytes(m.data) for m in found] == [data]
    if size >= MAPPED_BYTES_MIN:
        assert isinstance(found[0].data, memoryview) and found[0].data.readonly


def test_collector_allocates_memory_only_as_bytes_arrive() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096

    before = resident()
    sizes = [256 * MIB] * 4 + [MAPPED_BYTES_MIN - 1] * 1000
    collectors = [Collector(1 << 31, lambda _: None) for _ in sizes]
    for collector, size in zip(collectors, sizes, strict=True):
        collector.feed(struct.pack(">BI", 0, size) + bytes(1000))
    assert resident() - before < 64 * MIB


def test_collector_refuses_message_above_limit_with_its_beginning() -> None:
    def announced(_size: int) -> None:
        raise AssertionError("there is nothing to find room for")

    for cut in range(1, 5 + HEAD_BYTES):
        collector = Collector(1000, announced)
        data = framed(bytes(range(200)) * 6)
        collector.feed(data[:cut])
        with pytest.raises(TooLong) as found:
            collector.feed(data[cut:300])
        assert (found.value.size, found.value.head) == (1200, bytes(range(HEAD_BYTES)))


@pytest.mark.parametrize("flags", [2, 255])
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_collector_refuses_unknown_flags(flags: int, cut: int) -> None:
    collector = Collector(1000, lambda _: None)
    data = framed(b"abc", flags)
    with pytest.raises(RpcError, match="unknown flags"):
        feed(collector, data, [cut])


@given(st.binary(max_size=5000), st.integers(0, 9))
def test_gunzip_returns_compressed_data_and_gzip_size_its_size(data: bytes, level: int) -> None:
    packed = gzip.compress(data, level)
    assert gzip_size(packed) == len(data)
    assert gunzip(packed, len(data)) == data


def test_gunzip_of_large_message_returns_view() -> None:
    data = bytes(9 * MIB)
    found = gunzip(gzip.compress(data), len(data))
    assert isinstance(found, memoryview) and found == data


@given(st.binary(max_size=60), st.data())
def test_gunzip_of_damaged_data_raises_only_rpc_error(data: bytes, choose: st.DataObject) -> None:
    packed = bytearray(gzip.compress(data))
    for _ in range(choose.draw(st.integers(1, 3))):
        packed[choose.draw(st.integers(0, len(packed) - 1))] ^= choose.draw(st.integers(1, 255))
    found = bytes(packed[: choose.draw(st.integers(0, len(packed)))])
    try:
        size = gzip_size(found)
        if size < MIB:
            assert len(gunzip(found, size)) == size
    except RpcError as error:
        assert error.status is Status.INTERNAL


LIES: dict[str, Callable[[], tuple[bytes, int]]] = {
    "it holds more than it says": lambda: (gzip.compress(bytes(5000)), 4999),
    "it holds less": lambda: (gzip.compress(bytes(5000)), 5001),
    "something follows": lambda: (gzip.compress(bytes(5000)) + b"more", 5000),
    "it is cut off": lambda: (gzip.compress(bytes(5000))[:-9], 5000),
    "it is a zlib stream": lambda: (zlib.compress(bytes(5000)), 5000),
}


@pytest.mark.parametrize("name", LIES)
def test_gunzip_refuses_data_of_other_size_than_stated(name: str) -> None:
    packed, size = LIES[name]()
    with pytest.raises(RpcError):
        gunzip(packed, size)


def test_gunzip_of_longer_data_than_stated_needs_little_memory() -> None:
    packed = gzip.compress(bytes(200 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(RpcError, match="longer than it says"):
            gunzip(packed, 1000)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_failed_allocation_is_status_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RpcError) as found:
        messages.allocate(1 << 62)
    assert found.value.status is Status.UNAVAILABLE


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"40m", 0.04), (b"5u", 5e-6), (b"99999999n", 0.1)]
)
def test_timeout_s_reads_grpc_timeout(value: bytes, seconds: float) -> None:
    assert timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"S", b"5", b"-1S", b"1.5S", b"123456789S", b"1s", b" 1S", b"1S "])
def test_timeout_s_refuses_invalid_grpc_timeout(value: bytes) -> None:
    with pytest.raises(RpcError, match="grpc-timeout"):
        timeout_s(value)


@given(st.text(max_size=300))
def test_percent_encoded_status_text_is_decodable(text: str) -> None:
    from urllib.parse import unquote

    found = percent_encoded(text)
    assert all(0x20 <= byte < 0x7F for byte in found)
    assert unquote(found.decode()) == text.encode("utf-8", "replace").decode()


def test_a_long_status_text_is_cut_between_characters() -> None:
    found = percent_encoded("ä" * 5000)
    assert len(found) <= 4096 and len(found) % 6 == 0


def test_status_blocks_contain_code_and_message() -> None:
    assert Decoder().decode(trailers(Status.OK)) == [("grpc-status", "0")]
    assert Decoder().decode(refusal(Status.ABORTED, "no, 5%"))[3:] == [
        ("grpc-status", "10"),
        ("grpc-message", "no, 5%25"),
    ]
