"""TiCDC's compression of values inside messages. A message does not say how it is compressed: writer and reader must be
configured alike."""

from __future__ import annotations

from typing import Final

import cramjam
import lz4.frame

from drainer.protocol.errors import MessageError
from drainer.protocol.options import Compression

# The longest value in bytes after decompression. TiDB's transactions are much smaller, so a value with a larger length
# is damaged.
LENGTH_MAX: Final = 1 << 30


def compress(data: bytes, how: Compression) -> bytes:
    if how == "snappy":  # the raw block format, not the framing format
        return bytes(cramjam.snappy.compress_raw(data))
    if how == "lz4":
        # One frame of independent blocks with a checksum of the content, as pierrec/lz4 writes by default.
        made: bytes = lz4.frame.compress(
            data,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            block_linked=False,
            content_checksum=True,
            store_size=False,
        )
        return made
    return data


def decompress(data: bytes, how: Compression) -> bytes:
    """Decompress a value. Raises MessageError."""
    try:
        if how == "snappy":
            if cramjam.snappy.decompress_raw_len(data) > LENGTH_MAX:
                raise ValueError(f"more than {LENGTH_MAX:,} bytes")
            return bytes(cramjam.snappy.decompress_raw(data))
        if how == "lz4":
            reader = lz4.frame.LZ4FrameDecompressor()
            found: bytes = reader.decompress(data, max_length=LENGTH_MAX)
            if not reader.eof or reader.unused_data:
                raise ValueError("no complete frame, or bytes follow it")
            return found
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError, cramjam.DecompressionError) as error:
        raise MessageError(f"a value of {len(data):,} bytes cannot be decompressed as {how}: {error}") from None
    return data
