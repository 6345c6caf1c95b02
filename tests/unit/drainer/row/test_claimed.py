"""Values of secondary unique keys, of every type, from rows read by the usual and by the general decoder."""

from __future__ import annotations

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import assume, given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.claimed import needed_of, other_keys, value_function
from tests.support.row_case import codec_of, not_null, table
from tests.unit.drainer.changes.cases import KINDS, datums
from tests.unit.drainer.row.test_usual import _encoded

KEYED = [kind for kind in KINDS if kind.tp is not Tp.JSON]


@st.composite
def rows(draw: st.DrawFn) -> tuple[TableInfo, dict[int, Datum], dict[int, Datum]]:
    """A table with a key to fold by, which may be of any type, and unique keys over any columns; two rows of it."""
    kinds = draw(st.lists(st.sampled_from(KEYED), min_size=1, max_size=5))
    names = [(f"c{n}", not_null(kind) if draw(st.booleans()) else kind) for n, kind in enumerate(kinds)]
    parts = st.lists(st.sampled_from([name for name, _ in names]), min_size=1, max_size=3, unique=True)
    unique = {f"u{n}": draw(parts) for n in range(draw(st.integers(1, 3)))}
    if draw(st.booleans()):
        info = table([*names, ("id", FieldType(Tp.LONGLONG, 0, 20, 0))], handle="id", unique=unique)
    else:
        key = ("k", not_null(draw(st.sampled_from(KEYED))))
        info = table([key, *names], unique={"PRIMARY": ["k"], **unique}, clustered=draw(st.booleans()))

    def values() -> dict[int, Datum]:
        return {c.id: draw(datums(c.type) if c.is_not_null else st.none() | datums(c.type)) for c in info.columns}

    return info, values(), values()


@given(case=rows())
def test_both_ways_give_the_values(case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]]) -> None:
    info, old, new = case
    keys = other_keys(info).followed
    codec = codec_of(info)
    assume(keys and codec.shape.foldable)
    asking = codec.asking_for(needed_of(codec.shape.key, keys))
    values_of = value_function(keys, codec.forms)
    ids = [c.id for c in info.columns]
    for kind, row in _encoded(info, old, new).items():
        told = asking.images(kind, row, 9)
        found = asking._read_general(kind, row, 9)
        general = (None if kind is Kind.INSERT else found[0]), (None if kind is Kind.DELETE else found[-1])
        for cells, other, of in zip(told, general, (old, new), strict=True):
            if cells is None or other is None:
                assert cells is other
                continue
            values = values_of(cells)
            assert values == values_of(other)
            assert codec.key(cells, 9) == codec.key(other, 9)
            assert len(values) == len(keys)
            for key, value in zip(keys, values, strict=True):
                assert (value is None) == any(of[ids[at]] is None for at in key.places)
