"""What hypothesis draws for the codecs of TiDB's rows."""

from __future__ import annotations

from binlog.tidb.datum import Duration, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import Code, encode_json
from binlog.tidb.time import DURATION_NS_MAX, Civil
from hypothesis import strategies as st

from tests.support.tidb_codecs import json_duration, json_opaque, json_time

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
uint64 = st.integers(0, (1 << 64) - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
durations = st.integers(-DURATION_NS_MAX // 1000, DURATION_NS_MAX // 1000).map(lambda us: us * 1000)

civil = st.builds(
    Civil,
    st.integers(0, 9999),
    st.integers(0, 12),
    st.integers(0, 31),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999_999),
)


@st.composite
def decimals(draw: st.DrawFn) -> Decimal:
    """Canonical text of some DECIMAL(precision, frac)."""
    precision = draw(st.integers(1, 65))
    frac = draw(st.integers(0, min(precision, 30)))
    digits = draw(st.text("0123456789", min_size=precision, max_size=precision))
    head, tail = digits[: precision - frac].lstrip("0") or "0", digits[precision - frac :]
    sign = "-" if draw(st.booleans()) and digits.strip("0") else ""
    return Decimal(f"{sign}{head}.{tail}" if frac else f"{sign}{head}", precision, frac)


json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_leaves = st.one_of(
    st.none(),
    st.booleans(),
    int64,
    st.integers(1 << 63, (1 << 64) - 1),
    finite,
    json_text,
)
json_values = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_text, inner, max_size=4),
    max_leaves=20,
)
json_specials = st.one_of(
    st.builds(json_opaque, st.integers(0, 255), st.binary(max_size=200)),
    st.builds(json_time, st.sampled_from([Code.DATE, Code.DATETIME, Code.TIMESTAMP]), civil),
    st.builds(json_duration, durations, st.integers(0, 6)),
)
binary_json = st.one_of(json_values, json_specials, st.lists(json_specials | json_leaves, max_size=4)).map(encode_json)

datums = st.one_of(
    st.none(),
    int64,
    uint64.map(Uint),
    finite.filter(lambda f: f != 0 or str(f) == "0.0"),
    decimals(),
    durations.map(Duration),
    st.binary(max_size=40),
    binary_json,
)
# What stands in a row: a duration only ever in a handle.
row_datums = datums.filter(lambda value: not isinstance(value, Duration))
rows = st.dictionaries(st.integers(1, 1 << 40), row_datums, max_size=8)
