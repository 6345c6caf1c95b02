"""The cut of a batch is recorded, so it must not change unnoticed."""

from __future__ import annotations

import pytest

from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slot_blob import HASH_VERSION, BlobError
from drainer.changes.slots import merge_slot
from drainer.row.key import identity
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, INT, table, transaction, view_of
from tests.support.slot_of import slot_of


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


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_damaged_slot_blob_is_refused(cut: int) -> None:
    bare = table([("id", INT)], handle="id")
    builder = SegmentCutter(SegmentDecoder(view_of(bare), SQL_TEXT))
    builder.add_all([transaction([(bare, ("insert", {}, {1: 1}))], commit_ts=BEGIN_TS)])
    (blob,) = builder.cut(1).values()
    with pytest.raises(BlobError, match="blob"):
        merge_slot([blob[:cut]], SQL_TEXT)
    with pytest.raises(BlobError, match="version"):
        merge_slot([b"\x63" + blob[1:]], SQL_TEXT)
