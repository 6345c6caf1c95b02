"""Two sides of a table are compared: exactly what differs is named, and written it leaves upstream's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.ranges.check import RowDifference, changes, counts, differences, sums, unequal
from drainer.row.codec import Codec, Format
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.snapshot import PackedRows
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.row_case import codec_of
from tests.support.row_changes import make_table
from tests.support.typed_columns import text_type

KINDS = [("id", FieldType(Tp.LONG, Flag.NOT_NULL)), ("name", text_type(Tp.VARCHAR))]
KEYED, BAG = (codec_of(make_table("db", "t", KINDS, primary=key).info) for key in (["id"], []))
NAMED = codec_of(
    make_table("db", "t", [("name", text_type(Tp.VARCHAR)), ("v", text_type(Tp.VARCHAR))], primary=["name"]).info
)
Row = tuple[object, bytes | None]
_values = st.sampled_from([None, b"", b"a", b"A", b"\xff", b"it's", b"NULL"])
_tables = st.dictionaries(st.integers(-3, 9), _values)
_bags = st.lists(st.tuples(st.integers(0, 1), _values))
_formats = st.sampled_from([SQL_TEXT, SQLITE_VALUES])


def blocks(codec: Codec, format_: Format, rows: Sequence[Row]) -> Iterator[PackedRows]:
    """Each row in a block of its own."""
    for row in rows:
        columns = [pa.array([value], of.decoded_type) for of, value in zip(codec.column_types, row, strict=True)]
        yield PackedRows.of(format_, codec, columns)


def found(
    codec: Codec, format_: Format, ours: Sequence[Row], theirs: Sequence[Row], weight_max: int = 1000
) -> tuple[list[RowDifference], bool]:
    both = [sums(blocks(codec, format_, side)) for side in (ours, theirs)]
    assert [int(side[0].sum()) for side in both] == [len(ours), len(theirs)]
    buckets, is_cut = unequal(both[0], both[1], weight_max)
    if not len(buckets):
        return [], False
    chosen = [counts(rows.in_buckets(buckets) for rows in blocks(codec, format_, side)) for side in (ours, theirs)]
    return list(differences(format_, codec.shape, chosen[0], chosen[1])), is_cut


@given(_formats, _tables, _tables)
def test_rows_with_a_key_that_differ_are_named_with_the_columns(
    format_: Format, ours: dict[int, bytes | None], theirs: dict[int, bytes | None]
) -> None:
    rows, _ = found(KEYED, format_, list(ours.items()), list(theirs.items())[::-1])
    named = {int(row.key["id"]): (row.upstream, row.destination) for row in rows}
    assert len(named) == len(rows)
    assert {id_ for id_, sides in named.items() if sides[1] is None} == ours.keys() - theirs.keys()
    assert {id_ for id_, sides in named.items() if sides[0] is None} == theirs.keys() - ours.keys()
    changed = {id_ for id_ in ours.keys() & theirs.keys() if ours[id_] != theirs[id_]}
    assert {id_ for id_, sides in named.items() if None not in sides} == changed
    assert all(side is not None and side.keys() == {"name"} for id_ in changed for side in named[id_])


@given(_formats, _bags, _bags)
def test_rows_without_a_key_are_compared_as_a_bag(format_: Format, ours: list[Row], theirs: list[Row]) -> None:
    rows, _ = found(BAG, format_, ours, theirs)
    missing, surplus = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    assert sum(row.destination is None for row in rows) == missing.total()
    assert sum(row.upstream is None for row in rows) == surplus.total()
    assert len(rows) == missing.total() + surplus.total()


def test_key_that_is_spelled_otherwise_is_a_missing_and_a_surplus_row() -> None:
    rows, _ = found(NAMED, SQL_TEXT, [(b"a", b"1")], [(b"A", b"1")])
    assert [(row.upstream, row.destination) for row in rows] == [
        (None, {"name": "'A'", "v": "'1'"}),
        ({"name": "'a'", "v": "'1'"}, None),
    ]


@pytest.mark.parametrize(("weight_max", "cut"), [(7, True), (50, False)])
@pytest.mark.parametrize("name", [None, b"x" * 9_000])
def test_comparison_of_many_or_of_wide_rows_is_cut_and_says_so(weight_max: int, cut: bool, name: bytes | None) -> None:
    many: list[Row] = [(number, name) for number in range(50)]
    weight = 5 if name else 1
    for ours, theirs in ((many, []), ([], many)):
        rows, is_cut = found(KEYED, SQL_TEXT, ours, theirs, weight_max * weight)
        assert is_cut == cut
        assert 0 < len(rows) <= weight_max
        assert (len(rows) == weight_max) or cut
    assert found(KEYED, SQL_TEXT, many, [], 0)[0], "one bucket at least"


@given(_formats, _tables, _tables)
def test_changes_of_keyed_rows_leave_upstreams(
    format_: Format, ours: dict[int, bytes | None], theirs: dict[int, bytes | None]
) -> None:
    upstream, there = (counts(blocks(KEYED, format_, [*side.items()])) for side in (ours, theirs))
    work = changes(KEYED, format_, upstream, there, 9)
    rows = {key: next(iter(of)) for key, of in there.items()}
    (folded,) = work.folded
    assert [net.identity for net in folded.rows] == sorted(net.identity for net in folded.rows)
    for net in folded.rows:
        assert net.stale == (() if net.row is not None else (format_.unpack(net.identity),))
        assert (net.first is Kind.INSERT) == (net.identity not in there)
        rows.pop(net.identity, None)
        if net.row is not None:
            rows[net.identity] = format_.pack(net.row)
    assert rows == {key: next(iter(of)) for key, of in upstream.items()}
    assert work.change_count == len(found(KEYED, format_, [*ours.items()], [*theirs.items()])[0])


@given(_formats, _bags, _bags)
def test_changes_of_a_bag_leave_upstreams_rows(format_: Format, ours: list[Row], theirs: list[Row]) -> None:
    upstream, there = (counts(blocks(BAG, format_, side)) for side in (ours, theirs))
    wanted, rows = (Counter({format_.split(row): of[row] for row, of in side.items()}) for side in (upstream, there))
    for change in changes(BAG, format_, upstream, there, 9).ordered.changes:
        if change.old is not None:
            assert rows[change.old]
            rows[change.old] -= 1
        if change.new is not None:
            rows[change.new] += 1
    assert +rows == wanted


def test_one_of_several_equal_keys_of_the_destination_is_replaced_by_the_row() -> None:
    """Its table has lost the key."""
    ours, theirs = (counts(blocks(KEYED, SQL_TEXT, rows)) for rows in ([(1, b"a")], [(1, b"a"), (1, b"b")]))
    (folded,) = changes(KEYED, SQL_TEXT, ours, theirs, 9).folded
    assert [(net.first, net.row) for net in folded.rows] == [(Kind.UPDATE, b"(1,'a')")]
