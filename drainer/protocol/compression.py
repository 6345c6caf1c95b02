"""TiCDC's compression of values inside messages. A message does not say how it is compressed: writer and reader must be
configured alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import cramjam
import lz4.frame

from drainer.protocol.errors import MessageError
from drainer.protocol.options import Compression

# The longest value in bytes after decompression. TiDB's transactions are much smaller, so a value with a larger length
# is damaged.
LENGTH_MAX: Final = 1 << 30


def _snappy(data: bytes) -> bytes:
    """Compress to Snappy's raw block format, not its framing format."""
    return bytes(cramjam.snappy.compress_raw(data))


def _lz4(data: bytes) -> bytes:
    """Compress to one frame of independent blocks of 4 MiB with a checksum of the content, as pierrec/lz4 writes by
    default."""
    made: bytes = lz4.frame.compress(
        data,
        block_size=lz4.frame.BLOCKSIZE_MAX4MB,
        block_linked=False,
        content_checksum=True,
        store_size=False,
    )
    return made


def _plain(data: bytes) -> bytes:
    return data


def _un_snappy(data: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > LENGTH_MAX:
        raise ValueError(f"more than {LENGTH_MAX:,} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _un_lz4(data: bytes) -> bytes:
    reader = lz4.frame.LZ4FrameDecompressor()
    found: bytes = reader.decompress(data, max_length=LENGTH_MAX)
    if not reader.eof or reader.unused_data:
        raise ValueError("no complete frame, or bytes follow it")
    return found


_COMPRESS: Final[Mapping[Compression, Callable[[bytes], bytes]]] = {"none": _plain, "snappy": _snappy, "lz4": _lz4}
_DECOMPRESS: Final[Mapping[Compression, Callable[[bytes], bytes]]] = {
    "none": _plain,
    "snappy": _un_snappy,
    "lz4": _un_lz4,
}


def compress(data: bytes, how: Compression) -> bytes:
    return _COMPRESS[how](data)


def decompress(data: bytes, how: Compression) -> bytes:
    """Decompress a value. Raises MessageError."""
    try:
        return _DECOMPRESS[how](data)
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError, cramjam.DecompressionError) as error:
        raise MessageError(f"a value of {len(data):,} bytes cannot be decompressed as {how}: {error}") from None
