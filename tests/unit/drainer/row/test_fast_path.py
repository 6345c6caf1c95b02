"""The fast path and the general decoder read the same decoded values from rows of any table."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import ROWID, TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.fast_path import Cells
from tests.support.row_case import INT, TEXT, codec_of, not_null, table
from tests.support.tidb_codecs import encode_row
from tests.unit.drainer.changes.cases import KEY_SHAPES, tables, values_of


@st.composite
def rows(draw: st.DrawFn) -> tuple[TableInfo, dict[int, Datum], dict[int, Datum]]:
    """A table with an int handle, a clustered key or no key, and two rows of it."""
    info = draw(tables([shape for shape in KEY_SHAPES if shape != "unique"]))
    return info, draw(values_of(info)), draw(values_of(info))


def by_fast_path(codec: Codec, kind: Kind, row: bytes) -> object:
    """The decoded values, of an update (old, new); None where the general decoder must read the row."""
    reader = codec._fast
    assert reader is not None
    return getattr(reader, kind.name.lower())(row, 0, len(row))


def by_general(codec: Codec, kind: Kind, row: bytes) -> object:
    """As `by_fast_path`, by the general decoder: of old images what the codec was asked for."""
    old, new = codec._read_general(kind, row, 9)
    shown = [None if old is None else asked(codec, old), None if new is None else list(new)]
    return (shown[0], shown[1]) if kind is Kind.UPDATE else shown[0] or shown[1]


def asked(codec: Codec, old: Cells) -> list[object]:
    """An old image without what nobody asks for, which the fast path may leave out."""
    return [cell if at in codec.needed else None for at, cell in enumerate(old)]


def both(codec: Codec, kind: Kind, row: bytes) -> tuple[object, object]:
    """(usual, by_general), None where the row is refused; old images as far as they are asked for."""
    found = by_fast_path(codec, kind, row)
    if found is not None and kind is not Kind.INSERT:
        old, new = found if kind is Kind.UPDATE else (found, None)  # type: ignore[misc]
        found = (asked(codec, old), new) if kind is Kind.UPDATE else asked(codec, old)
    try:
        return found, by_general(codec, kind, row)
    except DecodeError as error:
        assert "`db`.`t`" in str(error)
        assert "commit_ts 9" in str(error)
        return found, None


def _encoded(info: TableInfo, old: dict[int, Datum], new: dict[int, Datum]) -> dict[Kind, bytes]:
    return {
        Kind.INSERT: encode_insert(info, new, rowid=7),
        Kind.UPDATE: encode_update(info, old, new),
        Kind.DELETE: encode_delete(info, old),
    }


@pytest.mark.parametrize("needed", ["key", "all"])
@given(case=rows())
def test_fast_path_and_general_decoder_read_equal_values(
    needed: str, case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]]
) -> None:
    info, old, new = case
    codec = codec_of(info)
    codec = codec.asking_for(range(len(info.columns))) if needed == "all" else codec
    for kind, row in _encoded(info, old, new).items():
        fast, slow = both(codec, kind, row)
        assert slow is not None
        assert fast == slow or (fast is None and _is_left_to_general(old, new))


def _is_left_to_general(old: dict[int, Datum], new: dict[int, Datum]) -> bool:
    """Packed times of the first years, which are shorter than others."""
    return any(isinstance(v, Uint) and 0 < v < 1 << 56 for v in (*old.values(), *new.values()))


@given(case=rows(), data=st.data())
def test_damaged_row_is_never_accepted_by_fast_path_alone(
    case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]], data: st.DataObject
) -> None:
    """Cut at every byte, and with one byte changed: the fast path gives what the general decoder gives, or nothing.
    Only damage within an old value that nobody asks for may pass, and then the result is the undamaged row's."""
    info, old, new = case
    codec = codec_of(info)
    for kind, row in _encoded(info, old, new).items():
        intact, _ = both(codec, kind, row)
        at = data.draw(st.integers(0, len(row) - 1))
        changed = row[:at] + bytes((data.draw(st.integers(0, 255)),)) + row[at + 1 :]
        for damaged in (changed, *(row[:n] for n in range(len(row)))):
            fast, slow = both(codec, kind, damaged)
            assert fast is None or repr(fast) == repr(slow) or (slow is None and fast == intact), (kind, damaged)


def test_column_missing_in_insert_is_null() -> None:
    """TiDB leaves NULLs out of an insert; a row of a table with its key alone is one 00 behind the handle."""
    info = table([("id", INT), ("a", INT), ("b", TEXT)], handle="id")
    codec = codec_of(info)
    row = encode_insert(info, {1: 300, 2: None, 3: b"x"})
    assert both(codec, Kind.INSERT, row) == ([300, None, b"x"], [300, None, b"x"])
    alone = table([("a", not_null(INT)), ("b", not_null(TEXT))], unique={"PRIMARY": ["a", "b"]}, clustered=True)
    codec = codec_of(alone)
    row = encode_insert(alone, {1: 5, 2: b"k"}, new_collation=False)
    assert row.endswith(b"\0")
    assert both(codec, Kind.INSERT, row) == ([5, b"k"], [5, b"k"])


def test_update_whose_images_have_different_columns_is_refused() -> None:
    """Also those that nobody asks for: what stands in one image alone is damage, and the general decoder says so."""
    info = table([("id", INT), ("a", INT)], handle="id")
    codec = codec_of(info)
    for old, new in (({1: 5}, {1: 5, 2: 7}), ({1: 5, 2: 7}, {1: 5})):
        for asking in (codec, codec.asking_for((0, 1))):
            assert both(asking, Kind.UPDATE, encode_row(old) + encode_row(new)) == (None, None)


@pytest.mark.parametrize("rowid", [1, 100, 1 << 20, 1 << 62])
def test_rowid_after_row_is_skipped(rowid: int) -> None:
    """Rows without a clustered key end with it, in an update both images."""
    info = table([("a", INT), ("b", TEXT)])
    codec = codec_of(info)
    old: dict[int, Datum] = {1: 5, 2: None, ROWID: rowid}
    new: dict[int, Datum] = {1: 6, 2: b"x", ROWID: rowid}
    assert both(codec, Kind.UPDATE, encode_update(info, old, new)) == (([5, None], [6, b"x"]),) * 2
    assert both(codec, Kind.DELETE, encode_delete(info, old)) == ([5, None],) * 2


@pytest.mark.parametrize("rowid", [b"\0", b"\0\x08", b"\x01\x05", b"\x02\0", b"\x05\x05", b"\x09\x05"])
def test_malformed_rowid_is_left_to_general_decoder(rowid: bytes) -> None:
    info = table([("a", INT), ("b", TEXT)])
    codec = codec_of(info)
    values: dict[int, Datum] = {1: 5, 2: b"x"}
    row, behind = encode_row(values), b"\x08\x01" + rowid
    for kind, damaged in (
        (Kind.INSERT, b"\x08\x0e" + row + behind),
        (Kind.UPDATE, row + behind + row + behind),
        (Kind.DELETE, row + behind),
    ):
        assert by_fast_path(codec, kind, damaged) is None, kind


def test_rowid_after_only_one_image_of_update_is_refused() -> None:
    info = table([("a", INT), ("b", TEXT)])
    codec = codec_of(info)
    values: dict[int, Datum] = {1: 5, 2: b"x"}
    row, behind = encode_row(values), encode_row({ROWID: 7})
    assert both(codec, Kind.UPDATE, row + behind + row) == (None, None)
    assert both(codec, Kind.UPDATE, row + row + behind) == (None, None)
    assert both(codec, Kind.UPDATE, row + row) == (([5, b"x"], [5, b"x"]),) * 2
