"""The first bytes of a connection say what it speaks: HTTP/2, or anything else, which is HTTP/1's to answer."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from binlog.http2.frames import PREFACE
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http2.peer import GREETING, REQUEST, data, headers, parse
from tests.unit.http2.test_fuzz import play as play_core
from tests.unit.rpc.sniffing import play

ECHO = (*REQUEST[:2], (":path", "/t/Echo"), ("content-type", "application/grpc"), ("te", "trailers"))
CALL = GREETING + headers(1, ECHO) + data(1, b"\0\0\0\0\5hello", end=True)
GET = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"


def cut(whole: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({each % (len(whole) + 1) for each in at} | {len(whole)})
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


@given(st.lists(st.integers(0, 1000), max_size=8))
async def test_http2_call_in_any_pieces_is_answered(at: list[int]) -> None:
    handed_over, said, _ = await play(cut(CALL, at))
    assert handed_over is None
    assert [each.payload for each in parse(said) if each.kind == 0] == [b"\0\0\0\0\5hello"]


@given(st.lists(st.integers(0, 1000), max_size=8), st.binary(max_size=40), st.integers(0, len(PREFACE) - 1))
async def test_bytes_without_http2_preface_are_handed_over_whole(at: list[int], more: bytes, same: int) -> None:
    """Even where it begins as a preface does."""
    for whole in (GET + more, PREFACE[:same] + b"\0" + more):
        handed_over, said, _ = await play(cut(whole, at))
        assert (handed_over, said) == (whole, b"")


@pytest.mark.parametrize("size", range(1, len(PREFACE)))
async def test_partial_http2_preface_is_neither_answered_nor_handed_over(size: int) -> None:
    handed_over, said, _ = await play([PREFACE[:size]])
    assert (handed_over, said) == (None, b"")


async def test_inputs_found_by_fuzzing_raise_no_exception() -> None:
    """Six minutes of atheris over `Connection.receive` and a whole connection, begun with every case of
    `conformance_cases`: what it kept, because each reached a place that none before had reached. The first byte says
    whether a greeting stands before the others, and in what pieces they come."""
    with ZipFile(Path(__file__).parents[1] / "http2" / "corpus" / "fuzzed.zip") as corpus:
        found = [corpus.read(name) for name in corpus.namelist()]
    assert len(found) > 100
    for each in found:
        how, body = each[0], each[1:]
        body = GREETING + body if how & 1 else body
        size = ((how >> 2) * 3 + 1) * 8
        pieces = [body] if how & 2 else [body[at : at + size] for at in range(0, len(body), size)]
        play_core(pieces)
        handed_over, said, _ = await play(pieces)
        if handed_over is None:
            list(parse(said))
        else:
            assert body.startswith(handed_over) and said == b""
