"""Slots' blobs in pieces through a shuffle."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.order.blob_pieces import PIECE_BYTES_MAX, BlobError, BlobOffset, cut_blob, join_blobs, refer
from drainer.spark.source.executor import slotted


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(1, 70), st.randoms())
def test_shuffled_blob_pieces_join_to_the_same_blobs(blobs: list[bytes], bytes_max: int, dice: random.Random) -> None:
    pieces = [piece for blob in blobs for piece in cut_blob(blob, bytes_max)]
    assert all(len(piece) <= bytes_max + 16 for piece in pieces)
    dice.shuffle(pieces)
    assert sorted(join_blobs(pieces)) == sorted(blobs)


def test_incomplete_blob_pieces_are_refused() -> None:
    pieces = list(cut_blob(bytes(100), 30))
    for broken in (pieces[1:], pieces[:-1], [pieces[0]], [b"short"]):
        with pytest.raises(BlobError, match="blob"):
            join_blobs(broken)


def test_slotted_rows_and_batches_are_bounded_in_size() -> None:
    """What a reading task gives to the JVM."""
    slots = {0: bytes(11 << 20), 1: b"small", 2: bytes(3 << 20), 3: b"", 4: bytes(4 << 20)}
    batches = list(slotted(slots))
    assert max(batch.nbytes for batch in batches) < 3 * PIECE_BYTES_MAX
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        for slot, piece in zip(batch.column("seq").to_pylist(), batch.column("blob").to_pylist(), strict=True):
            assert len(piece) <= PIECE_BYTES_MAX + 16
            found.setdefault(slot, []).append(piece)
    assert {slot: join_blobs(pieces) for slot, pieces in found.items()} == {s: [b] for s, b in slots.items()}


PLACES = st.builds(BlobOffset, st.text("/aé\udc80 ", max_size=9), st.integers(0, 1 << 60), st.integers(0, 1 << 60))


@given(st.lists(PLACES, max_size=4), st.lists(st.binary(max_size=60), max_size=3), st.randoms())
def test_file_references_among_blob_pieces_are_read(
    blob_offsets: list[BlobOffset], blobs: list[bytes], dice: random.Random
) -> None:
    pieces = [*map(refer, blob_offsets), *(piece for blob in blobs for piece in cut_blob(blob, 20))]
    dice.shuffle(pieces)
    asked: list[BlobOffset] = []

    def read(blob_offset: BlobOffset) -> bytes:
        asked.append(blob_offset)
        return b"of the file"

    assert sorted(join_blobs(pieces, read)) == sorted([*blobs, *[b"of the file"] * len(blob_offsets)])
    assert sorted(asked) == sorted(blob_offsets)


def test_unexpected_or_torn_file_reference_is_refused() -> None:
    reference = refer(BlobOffset("/f", 1, 2))
    with pytest.raises(BlobError, match="lies in a file"):
        join_blobs([reference])
    for size in range(16, 32):
        with pytest.raises(BlobError, match="reference"):
            join_blobs([reference[:size]], lambda _: b"")
