"""Values of secondary unique keys, of every type: the quick way and the general way read the same, and of the rest of a
row what is read without them."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.claimed import ClaimCodec, other_keys
from drainer.row.form import Dialect
from tests.support.row_case import codec_of, not_null, table
from tests.unit.drainer.row.test_program import KINDS, _encoded, datums, quick

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


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
@settings(deadline=None, max_examples=150)
@given(case=rows())
def test_claims_quick_and_general_agree(
    dialect: Dialect, case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]]
) -> None:
    info, old, new = case
    keys = other_keys(info).followed
    codec = codec_of(info, dialect)
    assume(keys and codec.shape.foldable)
    claimed = ClaimCodec(codec, keys)
    lengths = {Kind.INSERT: 3, Kind.UPDATE: 5, Kind.DELETE: 2}
    for kind, row in _encoded(info, old, new).items():
        name = kind.name.lower()
        fast = quick(getattr(claimed, f"{name}_program"), row)
        try:
            slow = getattr(claimed, name)(row, 0, len(row), 9)
        except DecodeError:
            assert fast is None
            continue
        assert fast is None or fast == slow
        assert (fast is None) == (quick(getattr(codec.programs, name), row) is None) or kind is not Kind.INSERT
        plain = getattr(codec, name)(row, 0, len(row), 9)
        assert slow[: lengths[kind]] == plain[: lengths[kind]]
        for values in slow[lengths[kind] :]:
            assert len(values) == len(keys)
            of = old if kind is Kind.DELETE or (kind is Kind.UPDATE and values is slow[5]) else new
            ids = [c.id for c in info.columns]
            for key, value in zip(keys, values, strict=True):
                assert (value is None) == any(of[ids[at]] is None for at in key.places)
