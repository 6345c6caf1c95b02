"""Binlogs as TiDB writes them for rows, a group at a time: from their bytes to the log's and the index's in one pass.

What they mean is what binlog.envelope, pump.match and pump.store say; here it is said again for one shape, without an
object for each binlog. Any other shape makes `scan_usual` return None, and the matcher judges any binlog that is not
new, or whose prewrite is not waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from binlog.envelope import scan
from google_crc32c import value as crc32c

from pump.index import Batch
from pump.keys import COMPLETE, FLAG_DDL, OUTCOME, TS, pack_complete
from pump.match import WRITE_PENDING, WRITE_SETTLED, Matcher, Place, Prewrite, Verdict, Written, enter
from pump.record import HEADER_BYTES, RECORD_MAGIC, Pointer, pack_header, pack_pointer

_HEADS_KEPT = 1 << 12
_TAG_KEY, _TAG_VALUE = 0x22, 0x2A
_NO_DDL = b"\x38\x00\x40\x00"  # ddl_job_id and ddl_schema_state, both 0
_PREWRITE_HEAD, _COMMIT_HEAD = b"\x08\x00\x10", b"\x08\x01\x10"
_START = Struct("<3sHH5sB")  # tags and type; start_ts: two bytes, two, five; the tag of commit_ts
_COMMIT = Struct("<13xHH5sBB")  # commit_ts likewise; the tag of the key, and its length
_KEY = Struct(">3sQ")
_NUMBER = Struct("<Q")
_tuple = tuple.__new__  # a named tuple, without what its constructor costs

# Two bytes of a varint that both go on, little endian: their fourteen bits.
_LOW: list[Any] = [(two & 0x7F | (two >> 8 & 0x7F) << 7) if two & 0x8080 == 0x8080 else None for two in range(1 << 16)]


class _High(dict[bytes, int]):
    """The last five bytes of a ts of nine: for about a second they are the same."""

    def __missing__(self, five: bytes) -> int:
        if not 0 < five[4] < 128 or any(byte < 128 for byte in five[:4]):
            raise KeyError(five)
        value = 0
        for place, byte in enumerate(five):
            value |= (byte & 0x7F) << 28 + 7 * place
        if len(self) >= _HEADS_KEPT:
            self.clear()
        self[five] = value
        return value


_high = _High()


class Usual(NamedTuple):
    """`binlogs`, parallel to the payloads: (start_ts, commit_ts or 0, where the key ends, schema version)."""

    binlogs: list[tuple[int, int, int, int]]
    largest_ts: int
    largest_bytes: int
    size: int


def scan_usual(payloads: Sequence[bytes]) -> Usual | None:
    """None where one of them is unusual, or none of them is there."""
    binlogs: list[tuple[int, int, int, int]] = []
    add = binlogs.append
    low, high, start, commit = _LOW, _high, _START.unpack_from, _COMMIT.unpack_from
    largest = 0
    try:
        for payload in payloads:
            head, first, second, rest, tag = start(payload)
            start_ts = high[rest] | low[first] | low[second] << 14
            if tag != 0x18:
                return None
            if head == _PREWRITE_HEAD:
                key_end = 16 + payload[15]
                size = payload[key_end + 1]
                value_at = key_end + 2
                if size > 127:
                    size = size & 127 | payload[value_at] << 7
                    value_at += 1
                    if payload[value_at - 1] > 127:
                        return None
                if (
                    payload[13:15] != b"\x00\x22"
                    or key_end > 143
                    or payload[key_end] != _TAG_VALUE
                    or payload[value_at + size :] != _NO_DDL
                    or size < 3
                    or payload[value_at] != 0x08
                    or payload[value_at + 1] > 127
                    or payload[value_at + 2] != 0x12
                ):
                    return None
                add((start_ts, 0, key_end, payload[value_at + 1]))
                if start_ts > largest:
                    largest = start_ts
            elif head == _COMMIT_HEAD:
                first, second, rest, tag, size = commit(payload)
                commit_ts = high[rest] | low[first] | low[second] << 14
                if tag != _TAG_KEY or size > 127 or payload[24 + size :] != _NO_DDL or commit_ts <= start_ts:
                    return None
                add((start_ts, commit_ts, 24 + size, 0))
                if commit_ts > largest:
                    largest = commit_ts
            else:
                return None
    except (TypeError, KeyError, IndexError, StructError):
        return None
    sizes = list(map(len, payloads))
    return Usual(binlogs, largest, max(sizes), sum(sizes)) if binlogs else None


def usual_prewrites(usual: Usual, payloads: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """start_ts, size and prewrite_key of each prewrite among them."""
    for payload, (start_ts, commit_ts, key_end, _) in zip(payloads, usual.binlogs, strict=True):
        if not commit_ts:
            yield start_ts, len(payload), payload[16:key_end]


def enter_usual(
    usual: Usual, payloads: Sequence[bytes], matcher: Matcher, batch: Batch, parts: list[bytes], place: Place
) -> Written:
    """As pump.match.enter."""
    unmatched, outcomes, used, is_new = matcher.unmatched, matcher.outcomes, matcher.used, matcher.is_new
    prewrites, note, put, key = matcher.prewrites, matcher.note, batch.put, _KEY.pack
    visible: list[int] = []
    others: dict[int, Verdict] = {}
    fid, at = place.fid, place.at
    for number, (payload, (start_ts, commit_ts, key_end, version)) in enumerate(
        zip(payloads, usual.binlogs, strict=True)
    ):
        length = len(payload)
        if not commit_ts and is_new(start_ts):
            put(key(TS, start_ts), pack_pointer(fid, at))
            unmatched[start_ts] = _tuple(Prewrite, (_tuple(Pointer, (fid, at)), length, key_end, version, 0))
            prewrites[start_ts] = payload
            used[start_ts] = None
            note(start_ts)
        elif (
            commit_ts
            and (prewrite := unmatched.get(start_ts)) is not None
            and prewrite[1]
            and prewrite[2]
            and start_ts not in outcomes
            and is_new(commit_ts)
        ):
            del unmatched[start_ts]
            (prewrite_fid, offset), size, tail_at, schema_version, job = prewrite
            put(key(TS, commit_ts), pack_pointer(fid, at))
            put(key(OUTCOME, start_ts), _NUMBER.pack(commit_ts))
            flags = FLAG_DDL if job else 0
            entry = pack_complete(start_ts, prewrite_fid, offset, size, tail_at, schema_version, job, flags)
            put(key(COMPLETE, commit_ts), entry + payload[:key_end])
            if prewrite_fid != fid:
                batch.need(prewrite_fid, commit_ts)
            outcomes[start_ts] = commit_ts
            used[commit_ts] = None
            note(commit_ts)
            visible.append(commit_ts)
        else:
            place.at = at
            others[number] = _judged(payload, matcher, batch, parts, place, visible)
            at = place.at
            continue
        parts.append(pack_header(RECORD_MAGIC, length, crc32c(payload)))
        parts.append(payload)
        at += HEADER_BYTES + length
    place.at = at
    accepted = _accepted(usual, others) if others else usual.largest_ts
    matcher.grow(accepted)
    place.max_ts = max(place.max_ts, accepted)
    return Written(_verdicts(usual, others) if others else (), visible)


def _accepted(usual: Usual, others: dict[int, Verdict]) -> int:
    """The largest ts of those that the matcher did not judge; it has seen the others."""
    return max((max(each[:2]) for number, each in enumerate(usual.binlogs) if number not in others), default=0)


def _judged(
    payload: bytes, matcher: Matcher, batch: Batch, parts: list[bytes], place: Place, visible: list[int]
) -> Verdict:
    written = enter((scan(payload),), (payload,), matcher, batch, parts, place)
    visible += written.visible
    return written.verdicts[0]


def _verdicts(usual: Usual, others: dict[int, Verdict]) -> list[Verdict]:
    """One for each binlog."""
    found = [WRITE_SETTLED if binlog[1] else WRITE_PENDING for binlog in usual.binlogs]
    for place, verdict in others.items():
        found[place] = verdict
    return found
