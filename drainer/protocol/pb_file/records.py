"""Files of records: their names (`D-FO-01`) and how a record lies in them (`D-FO-02`). Pure.

magic u32 | size of the payload i64 | payload | CRC-32C of the payload u32        all little-endian
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from struct import Struct
from typing import Final

from google_crc32c import extend

MAGIC: Final = 471532804
HEAD: Final = Struct("<Iq")
TAIL: Final = Struct("<I")
OVERHEAD: Final = HEAD.size + TAIL.size
MAGIC_BYTES: Final = HEAD.pack(MAGIC, 0)[:4]
GZIP: Final = ".gz"
_NAME: Final = re.compile(r"binlog-([0-9]{1,20})(?:-[^-]*(?:-([0-9]+)(?:\.[^-]*)?)?)?")
_TEMPORARY: Final = (".lock", ".tmp", "checkpoint")


@dataclass(frozen=True, slots=True)
class FileName:
    """`first_ts`: the commit_ts of its first record where the name says it, else 0."""

    text: str
    number: int
    first_ts: int = 0

    @property
    def is_compressed(self) -> bool:
        return self.text.endswith(GZIP)


def parse_name(text: str) -> FileName | None:
    """None for what is no file of records."""
    found = None if text.endswith(_TEMPORARY) else _NAME.fullmatch(text)
    return None if found is None else FileName(text, int(found[1]), int(found[2] or 0))


def file_name(number: int, now: datetime) -> str:
    """`now`: local time, as upstream has it."""
    return f"binlog-{number:016d}-{now:%Y%m%d%H%M%S}"


def compressed_name(text: str, first_ts: int) -> str:
    """Of a complete file whose first record has this commit_ts."""
    return f"{text}-{first_ts}{GZIP}"


def record(parts: Iterable[bytes]) -> bytes:
    """A payload in its parts as one record."""
    payload = b"".join(parts)
    return b"".join((head(len(payload)), payload, TAIL.pack(extend(0, payload))))


def head(length: int) -> bytes:
    """What stands before a payload of so many bytes."""
    return HEAD.pack(MAGIC, length)
