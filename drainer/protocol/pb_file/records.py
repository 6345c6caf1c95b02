"""Files of records: their names (`D-FO-01`) and the layout of a record (`D-FO-02`). Pure.

magic u32 | size of the payload i64 | payload | CRC-32C of the payload u32        all little-endian
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    """A parsed name. `first_ts`: the commit_ts of the first record if the name contains it, else 0."""

    text: str
    number: int
    first_ts: int = 0

    @property
    def is_compressed(self) -> bool:
        return self.text.endswith(GZIP)


def parse_name(text: str) -> FileName | None:
    """Parse a name. Return None if it is not the name of a file of records."""
    found = None if text.endswith(_TEMPORARY) else _NAME.fullmatch(text)
    return None if found is None else FileName(text, int(found[1]), int(found[2] or 0))


def file_name(number: int, now: datetime) -> str:
    """Return the name of a file. `now`: local time, as upstream uses it."""
    return f"binlog-{number:016d}-{now:%Y%m%d%H%M%S}"


def compressed_name(text: str, first_ts: int) -> str:
    """Return the name of a complete, compressed file. `first_ts`: the commit_ts of its first record."""
    return f"{text}-{first_ts}{GZIP}"


def record(parts: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Yield the bytes of a record whose payload has these parts, of `length` bytes together."""
    yield HEAD.pack(MAGIC, length)
    crc = 0
    for part in parts:
        yield part
        crc = extend(crc, part)
    yield TAIL.pack(crc)
