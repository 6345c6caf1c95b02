"""A slot's blob of several Arrow IPC streams: a head, the row-by-row part, then each stream with its length.

The head is a Struct whose first three fields are the blob's version (one byte), the length of the row-by-row part and
the number of streams; the caller may add more fields. A length is `<I`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from drainer.changes.slot_blob import BlobError

_SIZE: Final = Struct("<I")
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of an IPC stream
_Stream = TypeVar("_Stream")
Pieces: TypeAlias = "Sequence[Any]"  # bytes and Arrow buffers, one after another: a blob copies each once


def ipc_batches(schema: Any, batches: Sequence[Any]) -> Pieces:
    """Return serialized record batches as an Arrow IPC stream. `schema`: that of the batches, with the stream's
    metadata.
    """
    return [schema.serialize(), *batches, _END]


def pack_streams(head: Struct, version: int, rest: bytes, streams: Sequence[Pieces], *fields: int) -> bytes:
    """Return a blob. `rest`: the row-by-row part; `fields`: the caller's fields of the head, after the first three."""
    sized = [piece for stream in streams for piece in (_SIZE.pack(sum(map(len, stream))), *stream)]
    return b"".join([head.pack(version, len(rest), len(streams), *fields), rest, *sized])


def unpack_streams(
    blob: bytes, head: Struct, version: int, read: Callable[[memoryview], _Stream]
) -> tuple[bytes, list[_Stream], tuple[int, ...]]:
    """Return the row-by-row part, the result of `read` for each stream, and the caller's fields of the head.

    Raises BlobError for another version, and for bytes that are missing, damaged, or too many."""
    what = f"a slot's blob of {len(blob)} bytes"
    if len(blob) < head.size or blob[0] != version:
        raise BlobError(f"{what} has version {blob[:1].hex() or 'none'}, not {version:x}")
    _, rest, count, *fields = head.unpack_from(blob)
    view, at = memoryview(blob), head.size + rest
    streams = []
    try:
        for _ in range(count):
            (size,) = _SIZE.unpack_from(blob, at)
            at += _SIZE.size + size
            streams.append(read(view[at - size : at]))
    except (StructError, pa.ArrowException, StopIteration, KeyError, TypeError, ValueError, OSError) as error:
        raise BlobError(f"{what} is damaged: {error}") from None
    if at != len(blob):
        raise BlobError(f"{what} is damaged: it should have {at}")
    return bytes(view[head.size : head.size + rest]), streams, tuple(fields)
