"""Changes as rows of a history, without Spark."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from binlog.tidb.types import FieldType, Tp

from drainer.changes.decode import ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.lake.fields import evolved, key_of
from drainer.lake.history import HistoryTable
from drainer.protocol.errors import EncodeError
from tests.support.row_case import INT, not_null, table, transaction, view_of

INFO = table([("d", not_null(FieldType(Tp.DATE))), ("v", INT)], unique={"PRIMARY": ["d"]}, clustered=True)
ZERO, NO_DAY, DAY = 0, (2020 * 13 + 1) << 46, ((2020 * 13 + 1) << 5 | 2) << 41


def written(*days: int, key: tuple[int, ...], fails: bool = False) -> list[Any]:
    payload = transaction([(INFO, ("insert", {}, {1: day, 2: 1})) for day in days], commit_ts=9)
    (changes,) = ColumnDecoder(view_of(INFO)).decode(scan_all([payload]).rows)
    fields = evolved((), INFO, iter((9, 11)), was={}, keeps=True)
    history = HistoryTable(None, fields, zero_dates_fail=fails, key=key)  # type: ignore[arg-type]
    return [row["after"]["c1"] for row in history.rows(changes, history.schema()).to_pylist()]


def test_dates_that_spark_cannot_hold_are_null_but_in_a_key_only_one_of_them_is() -> None:
    assert written(ZERO, NO_DAY, DAY, key=()) == [None, None, date(2020, 1, 2)]
    assert written(ZERO, DAY, key=key_of(INFO)) == [None, date(2020, 1, 2)]
    with pytest.raises(EncodeError, match=r"of the key of a mirror.*2020-01-00"):
        written(ZERO, NO_DAY, key=key_of(INFO))
    with pytest.raises(EncodeError, match="0000-00-00"):
        written(ZERO, key=key_of(INFO), fails=True)
