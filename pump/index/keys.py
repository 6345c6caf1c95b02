"""Keys and values of the index: bytes in, values out. See FORMAT.md, "Index"."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pump.log.record import POINTER_BYTES, Pointer
from pump.log.value_log import Head

TS = b"ts:"
COMPLETE = b"cm:"
OUTCOME = b"sc:"

HEAD = b"!binlog!headPointer"
HANDLE = b"!binlog!handlePointer"
MAX_COMMIT = b"!binlog!maxCommitTS"
PURGED = b"!binlog!gcts"
OWN_HEAD = b"sc!head"
NEED = b"sc!need"
CHECK = b"sc!check"
FLUSHED = b"sc!flushed"
DAMAGE = b"sc!damage"
ENDED = b"sc!ended"
NODE = b"sc!node"

FLAG_DDL = 1
FLAG_FAKE = 2
FLAG_GENERAL = 4
FLAG_DAMAGED = 8
FLAG_SKIPPED = 16

_BE = Struct(">Q")
_BE_FID = Struct(">I")
_LE = Struct("<Q")
_COMPLETE = Struct("<qIqIIqqB")
_RECORD_OFFSET = Struct("<8xIqII16xB")
_PLANNED = Struct("<20xIIq8xB")
_OWN_HEAD = Struct("<qq")
COMPLETE_BYTES = _COMPLETE.size

TS_MAX = (1 << 63) - 1
pack_ts = _BE.pack


def ts_key(ts: int) -> bytes:
    """Return `ts:` and the ts in big endian (`P-ST-07`), so that ascending keys are ascending ts."""
    return TS + pack_ts(ts)


def complete_key(commit_ts: int) -> bytes:
    return COMPLETE + pack_ts(commit_ts)


def outcome_key(start_ts: int) -> bytes:
    return OUTCOME + pack_ts(start_ts)


def need_key(fid: int) -> bytes:
    return NEED + _BE_FID.pack(fid)


def damage_key(pointer: Pointer) -> bytes:
    return DAMAGE + _BE_FID.pack(pointer.fid) + _BE.pack(pointer.offset)


def damage_pointer(key: bytes) -> Pointer:
    return Pointer(int.from_bytes(key[-12:-8], "big"), int.from_bytes(key[-8:], "big"))


def key_ts(key: bytes) -> int:
    """Return the ts of any key with a prefix of three bytes."""
    return int.from_bytes(key[3:], "big")


def encode_number(value: int) -> bytes:
    return _LE.pack(value)


def decode_number(value: bytes | None) -> int:
    """Decode a number; 0 if the key is absent (None), like the original."""
    return 0 if value is None else int.from_bytes(value[:8], "little")


class Complete(NamedTuple):
    """The index entry of a binlog that can be served: the position of its prewrite (or of the fake itself), and what a
    plan needs to know."""

    start_ts: int
    fid: int
    offset: int
    length: int
    tail_at: int
    schema_version: int
    ddl_job_id: int
    flags: int
    head: bytes

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.fid, self.offset)

    @property
    def served_bytes(self) -> int:
        """Bytes that a pull serves for this binlog; approximate if it is merged field by field (FLAG_GENERAL)."""
        return len(self.head) + self.length - self.tail_at


def encode_complete(complete: Complete) -> bytes:
    return _COMPLETE.pack(*complete[:8]) + complete.head


def decode_complete(value: bytes) -> Complete:
    return Complete._make((*_COMPLETE.unpack_from(value), value[COMPLETE_BYTES:]))


def decode_start_ts(value: bytes) -> int:
    """Return the start_ts of a `cm:` value."""
    return int.from_bytes(value[:8], "little", signed=True)


# For loops in which every nanosecond counts.
pack_complete = _COMPLETE.pack  # the fields of a Complete, without its head
unpack_record_offset = _RECORD_OFFSET.unpack_from  # (fid, offset, length, tail_at, flags)
unpack_planned = _PLANNED.unpack_from  # (length, tail_at, schema_version, flags)


def encode_head(head: Head) -> bytes:
    return head.pointer.encode() + _OWN_HEAD.pack(head.end, head.max_ts)


def decode_head(value: bytes) -> Head:
    return Head(Pointer.decode(value[:POINTER_BYTES]), *_OWN_HEAD.unpack_from(value, POINTER_BYTES))
