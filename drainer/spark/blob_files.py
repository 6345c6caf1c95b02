"""Store slots' blobs in files when all tasks run on one machine, so that only references pass through the JVM and its
shuffle.

Through the JVM a blob is copied six times and compressed, which is a third of a batch's CPU beside the destination's. A
task writes one file with the blobs of all its slots. The files of a batch are in a folder of their own. The folder is
removed when no reference to the batch is left, at the latest when its query has ended (drainer.spark.query). Files left
by a killed drainer are removed with its temporary folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from drainer.order.blob_pieces import BlobError, BlobOffset, refer


def folder_of(base: str, after_ts: int, until_ts: int) -> str:
    """Return the folder of the batch (after_ts, until_ts]; empty without a `base`, which is the folder of the query."""
    return os.path.join(base, f"{after_ts}-{until_ts}") if base else ""  # noqa: PTH118  a task's value, without pathlib


def write(folder: str, slots: Mapping[int, bytes], head: bytes = b"") -> dict[int, bytes]:
    """Write the blobs into a new file, each after `head`. Return slot → reference to both. Raises OSError if the file
    cannot be written; the file is removed then."""
    path = Path(folder) / uuid.uuid4().hex
    blob_offsets, offset = {}, 0
    try:
        with path.open("xb") as file:
            for slot, blob in slots.items():
                file.write(head)
                file.write(blob)
                blob_offsets[slot] = BlobOffset(str(path), offset, len(head) + len(blob))
                offset += len(head) + len(blob)
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk it would occupy the space that the next attempt needs
        raise
    return {slot: refer(blob_offset) for slot, blob_offset in blob_offsets.items()}


def read(blob_offset: BlobOffset) -> bytes:
    """Read a blob. Raises BlobError if the file is too short, OSError if it does not exist."""
    with Path(blob_offset.path).open("rb") as file:  # buffered: a single read call of the kernel returns at most 2 GiB
        file.seek(blob_offset.offset)
        found = file.read(blob_offset.length)
    if len(found) != blob_offset.length:
        raise BlobError(f"a slot's blob in {blob_offset.path} has {len(found)} of its {blob_offset.length} bytes")
    return found
