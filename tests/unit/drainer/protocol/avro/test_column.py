"""TIMESTAMPs of a whole column in a zone, against one by one."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.time import Civil, pack, timestamp_text
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.column_text import texts_of
from drainer.row.column_type import ColumnType
from tests.unit.drainer.protocol.avro.cases import INSTANTS, MOMENTS

ZONES = ["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Monrovia"]


@given(
    st.lists(st.one_of(st.none(), INSTANTS, MOMENTS), max_size=6),
    st.sampled_from(ZONES).map(ZoneInfo),
    st.integers(0, 6),
)
def test_timestamp_column_texts_equal_those_of_each_value(values: list[int | None], zone: ZoneInfo, fsp: int) -> None:
    """Africa/Monrovia was off by 44 minutes and 30 seconds until 1972; changes to summer time are among the others."""
    column_type = ColumnType.of(FieldType(Tp.TIMESTAMP, decimal=fsp))
    found = texts_of(column_type, pa.array(values, pa.uint64()), zone).to_pylist()
    assert found == [None if value is None else timestamp_text(value, fsp, zone).encode() for value in values]


@pytest.mark.parametrize("name", ZONES)
def test_timestamp_column_texts_around_time_zone_change_are_right(name: str) -> None:
    zone, column_type = ZoneInfo(name), ColumnType.of(FieldType(Tp.TIMESTAMP, decimal=6))
    moments = [
        pack(Civil(year, month, day, hour, minute, 59, 999_999))
        for year, month, day in ((1971, 12, 31), (1972, 1, 7), (2026, 3, 8), (2026, 4, 4), (2026, 11, 1))
        for hour in (0, 5, 6, 7, 14, 15, 23)
        for minute in (0, 29, 30, 44, 45, 59)
    ]
    found = texts_of(column_type, pa.array(moments, pa.uint64()), zone).to_pylist()
    assert found == [timestamp_text(moment, 6, zone).encode() for moment in moments]


def test_timestamp_column_with_invalid_bits_is_refused() -> None:
    column_type = ColumnType.of(FieldType(Tp.TIMESTAMP))
    for name in ("UTC", "Asia/Shanghai"):
        with pytest.raises(DecodeError):
            texts_of(column_type, pa.array([(1 << 64) - 1], pa.uint64()), ZoneInfo(name))
