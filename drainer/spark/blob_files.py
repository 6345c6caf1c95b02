"""Slots' blobs in files, where all tasks run on one machine: only references go through the JVM and its shuffle.

Through the JVM a blob is copied six times and compressed, which is a third of a batch's CPU beside the destination's.
A task writes one file, with the blobs of all its slots. Files of a batch lie in a folder of their own, which is removed
when nobody refers to the batch any more, at the latest when its query has ended (drainer.spark.query); what a killed
drainer leaves is removed with its temporary folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from drainer.order.blob_pieces import Place, refer
from drainer.order.errors import BlobError


def folder_of(base: str, after_ts: int, until_ts: int) -> str:
    """Of the batch (after_ts, until_ts]; empty where there is no `base`, which is the folder of the query."""
    return os.path.join(base, f"{after_ts}-{until_ts}") if base else ""  # noqa: PTH118  a task's value, without pathlib


def write(folder: str, slots: Mapping[int, bytes], head: bytes = b"") -> dict[int, bytes]:
    """Write the blobs into a new file, each behind `head`; slot → reference to both. OSError where it cannot be
    written; it is gone then."""
    path = Path(folder) / uuid.uuid4().hex
    places, offset = {}, 0
    try:
        with path.open("xb") as file:
            for slot, blob in slots.items():
                file.write(head)
                file.write(blob)
                places[slot] = Place(str(path), offset, len(head) + len(blob))
                offset += len(head) + len(blob)
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk it would take the room of the next attempt
        raise
    return {slot: refer(place) for slot, place in places.items()}


def read(place: Place) -> bytes:
    """BlobError where the file is too short; OSError where there is none."""
    with Path(place.path).open("rb") as file:  # buffered: a single read of the kernel's has at most 2 GiB
        file.seek(place.offset)
        found = file.read(place.length)
    if len(found) != place.length:
        raise BlobError(f"a slot's blob in {place.path} has {len(found)} of its {place.length} bytes")
    return found
