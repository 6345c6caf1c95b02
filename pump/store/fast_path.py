"""Fast path for binlogs of rows in the shape that TiDB writes: they are converted in one pass.

The pass converts the bytes of a group of binlogs to log records and index entries, without an object for each binlog.
The rules are those of binlog.envelope, pump.store.matcher and pump.store.write_path, repeated here for this one shape.
If a binlog has any other shape, `scan_fast` returns None. A binlog whose ts is not new, and a commit without a waiting
prewrite, are judged by the matcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from binlog.envelope import scan
from google_crc32c import value as crc32c

from pump.index.keys import COMPLETE, FLAG_DDL, OUTCOME, TS, pack_complete
from pump.index.leveldb import Batch
from pump.log.record import HEADER_BYTES, RECORD_MAGIC, Pointer, pack_header, pack_pointer
from pump.store.matcher import WRITE_PENDING, WRITE_SETTLED, Matcher, Prewrite, Result, WriteOffset, Written, enter

_HEADS_KEPT = 1 << 12
_TAG_KEY, _TAG_VALUE = 0x22, 0x2A
_NO_DDL = b"\x38\x00\x40\x00"  # ddl_job_id and ddl_schema_state, both 0
_PREWRITE_HEAD, _COMMIT_HEAD = b"\x08\x00\x10", b"\x08\x01\x10"
_START = Struct("<3sHH5sB")  # tags and type; start_ts as two, two and five bytes; the tag of commit_ts
_COMMIT = Struct("<13xHH5sBB")  # commit_ts as two, two and five bytes; the tag of the key; the key's length
_KEY = Struct(">3sQ")
_NUMBER = Struct("<Q")
_tuple = tuple.__new__  # makes a named tuple without the cost of its constructor

# Index: two bytes of a varint, little endian. Value: their fourteen bits, or None unless both are continued.
_LOW: list[Any] = [(two & 0x7F | (two >> 8 & 0x7F) << 7) if two & 0x8080 == 0x8080 else None for two in range(1 << 16)]


class _High(dict[bytes, int]):
    """Cache of decoded upper parts: the last five bytes of a nine-byte ts. They stay the same for about a second."""

    def __missing__(self, five: bytes) -> int:
        if not 0 < five[4] < 128 or any(byte < 128 for byte in five[:4]):
            raise KeyError(five)
        value = 0
        for write_offset, byte in enumerate(five):
            value |= (byte & 0x7F) << 28 + 7 * write_offset
        if len(self) >= _HEADS_KEPT:
            self.clear()
        self[five] = value
        return value


_high = _High()


class FastBinlogs(NamedTuple):
    """Scanned fast-path binlogs. `binlogs` is parallel to the payloads: (start_ts, commit_ts or 0 for a prewrite,
    offset of the key's end, schema version). `largest_bytes` and `size`: bytes of the largest payload and of all
    payloads."""

    binlogs: list[tuple[int, int, int, int]]
    largest_ts: int
    largest_bytes: int
    size: int


def scan_fast(payloads: Sequence[bytes]) -> FastBinlogs | None:
    """Scan payloads. Return None if any of them is unusual or if `payloads` is empty."""
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
                # 18 00 22: no commit_ts, then the key, whose length is one byte. Behind it the value's length of one or
                # two bytes; the value reaches to the fields of no DDL, and begins with a schema_version of one byte and
                # a mutation.
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
    return FastBinlogs(binlogs, largest, max(sizes), sum(sizes)) if binlogs else None


def fast_prewrites(fast: FastBinlogs, payloads: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield start_ts, size in bytes and prewrite_key of each prewrite."""
    for payload, (start_ts, commit_ts, key_end, _) in zip(payloads, fast.binlogs, strict=True):
        if not commit_ts:
            yield start_ts, len(payload), payload[16:key_end]


def enter_fast(
    fast: FastBinlogs,
    payloads: Sequence[bytes],
    matcher: Matcher,
    batch: Batch,
    parts: list[bytes],
    write_offset: WriteOffset,
) -> Written:
    """Do for fast-path binlogs what pump.store.matcher.enter does for any."""
    unmatched, outcomes, used, is_new = matcher.unmatched, matcher.outcomes, matcher.used, matcher.is_new
    prewrites, note, put, key = matcher.prewrites, matcher.note, batch.put, _KEY.pack
    visible: list[int] = []
    others: dict[int, Result] = {}
    fid, at = write_offset.fid, write_offset.at
    for number, (payload, (start_ts, commit_ts, key_end, version)) in enumerate(
        zip(payloads, fast.binlogs, strict=True)
    ):
        length = len(payload)
        # A prewrite waits for its commit. A commit of a prewrite that waits, is whole and has no other outcome gets its
        # entries. `others` are judged by the general path, which moves the offset itself if it writes.
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
            write_offset.at = at
            others[number] = _judged(payload, matcher, batch, parts, write_offset, visible)
            at = write_offset.at
            continue
        parts.append(pack_header(RECORD_MAGIC, length, crc32c(payload)))
        parts.append(payload)
        at += HEADER_BYTES + length
    write_offset.at = at
    accepted = _accepted(fast, others) if others else fast.largest_ts
    matcher.grow(accepted)
    write_offset.max_ts = max(write_offset.max_ts, accepted)
    return Written(_results(fast, others) if others else (), visible)


def _accepted(fast: FastBinlogs, others: dict[int, Result]) -> int:
    """Return the largest ts of the binlogs that the matcher did not judge. The matcher has counted the others."""
    return max((max(each[:2]) for number, each in enumerate(fast.binlogs) if number not in others), default=0)


def _judged(
    payload: bytes, matcher: Matcher, batch: Batch, parts: list[bytes], write_offset: WriteOffset, visible: list[int]
) -> Result:
    written = enter((scan(payload),), (payload,), matcher, batch, parts, write_offset)
    visible += written.visible
    return written.results[0]


def _results(fast: FastBinlogs, others: dict[int, Result]) -> list[Result]:
    """Return one result for each binlog. `others`: the matcher's results, by position."""
    found = [WRITE_SETTLED if binlog[1] else WRITE_PENDING for binlog in fast.binlogs]
    for write_offset, result in others.items():
        found[write_offset] = result
    return found
