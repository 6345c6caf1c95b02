"""Slots' blobs in pieces through a shuffle."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.slot_blob import HASH_VERSION, PIECE_BYTES_MAX, BlobError, cut_blob, join_blobs, write_blobs
from drainer.row.layout import identity
from drainer.spark.source.executor import slotted
from tests.support.slot_of import slot_of


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


@given(st.lists(st.binary(max_size=9), max_size=4), st.lists(st.binary(max_size=60), max_size=3), st.randoms())
def test_file_references_among_blob_pieces_are_read(
    tmp_path: Path, in_file: list[bytes], blobs: list[bytes], dice: random.Random
) -> None:
    folder = tmp_path / "aé\udc80 "
    folder.mkdir(exist_ok=True)
    references = write_blobs(str(folder), dict(enumerate(in_file)))
    pieces = [*references.values(), *(piece for blob in blobs for piece in cut_blob(blob, 20))]
    dice.shuffle(pieces)
    assert sorted(join_blobs(pieces)) == sorted([*blobs, *in_file])


def test_torn_file_reference_is_refused(tmp_path: Path) -> None:
    (reference,) = write_blobs(str(tmp_path), {0: b"x"}).values()
    for size in range(16, 32):
        with pytest.raises(BlobError, match="reference"):
            join_blobs([reference[:size]])


# The cut of a batch is recorded, so it must not change unnoticed.


def test_slot_of_key_equals_hash_version_4() -> None:
    """Rule 16: whoever changes these numbers gives the hash a new version."""
    assert HASH_VERSION == 5
    keys = [identity(n) for n in (0, 1, -1, 2**63)] + [identity(b"a"), identity((1, b"a")), identity((1, b"a\0"))]
    assert [slot_of(100, key, 16) for key in keys] == [13, 11, 8, 4, 3, 10, 13]
    assert slot_of(101, keys[0], 1 << 30) != slot_of(100, keys[0], 1 << 30)


def test_integer_identities_sort_as_numbers() -> None:
    """Rows go into a clustered table in the order of its key."""
    numbers = [-(2**63), -5, -1, 0, 1, 255, 256, 2**63 - 1, 2**64 - 1]
    assert sorted(numbers, key=identity) == numbers
