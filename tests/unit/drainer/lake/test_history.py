"""Changes as rows of a history, without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from binlog.tidb.datum import Duration
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes import ChangeSegment
from drainer.changes.decode import ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.texts import decoded_column
from drainer.lake.fields import IMAGE_IDS, evolved, key_of, type_name
from drainer.lake.history import (
    ByTime,
    HistorySlotWriter,
    HistoryTable,
    _converted,
    arrow_type,
    decoded_of,
    files_of,
)
from drainer.protocol.errors import EncodeError
from drainer.row.column_type import ColumnType, DecodedValue
from tests.support.row_case import INT, TEXT, not_null, table, transaction, view_of
from tests.support.row_packets import shown
from tests.support.typed_columns import COLUMNS, decoded_values_of

TIME = table([("id", INT), ("t", FieldType(Tp.DURATION))], handle="id", name="t")
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


SECOND = 1000 << 18  # in TSOs


def segment(*commits: tuple[int, int]) -> ChangeSegment:
    """One of a table: (commit_ts, number of rows) of transactions that change 1 to 2 and so on."""
    payloads = [
        transaction(
            [(TIME, ("update", {1: n, 2: None}, {1: n + 1, 2: Duration(n * 10**9)})) for n in range(rows)],
            commit_ts=commit_ts,
        )
        for commit_ts, rows in commits
    ]
    changes = list(ColumnDecoder(view_of(TIME)).decode(scan_all(payloads).rows))
    return ChangeSegment(0, 9 * SECOND, tuple(changes), sum(map(len, changes)), 0)


def test_file_has_the_rows_after_those_that_its_history_has_and_says_where_they_begin_and_end(tmp_path: Path) -> None:
    older = evolved(
        (), table([("id", INT), ("gone", TEXT), ("t", INT)], name="t"), iter((9, 11, 13)), was={}, keeps=True
    )
    fields = (
        replace(older[0], column_id=1),
        replace(older[1], column_id=-1),
        replace(older[2], column_id=2, type="string"),
    )
    table_ = HistoryTable(tmp_path, fields, committed_ts=3 * SECOND)
    writer = HistorySlotWriter({("db", "t"): table_}, 9 * SECOND)
    receipt = writer.write(4, segment((2 * SECOND, 1), (3 * SECOND, 1), (4 * SECOND, 2), (5 * SECOND + 1, 1)))
    ((name, file),) = files_of([receipt, writer.write(5, segment((3 * SECOND, 1)))])
    assert (name, file.rows, file.low, file.high) == (("db", "t"), 3, 4 * SECOND, 5 * SECOND + 1)
    assert file.size == (tmp_path / file.path).stat().st_size
    assert file.path.startswith(f"{9 * SECOND}-4-")
    read = pq.read_table(tmp_path / file.path)
    rows = read.to_pylist()
    assert [(one["commit_ts"], one["start_ts"], one["place"]) for one in rows] == [
        (4 * SECOND, 4 * SECOND - 3, 0), (4 * SECOND, 4 * SECOND - 3, 1), (5 * SECOND + 1, 5 * SECOND - 2, 0),
    ]  # fmt: skip
    assert rows[1]["kind"] == "update"
    assert rows[1]["commit_time"] == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert (rows[1]["before"], rows[1]["after"]) == ({"c1": 1, "c3": None}, {"c1": 2, "c3": "00:00:01"})

    def id_of(field: Any) -> int:
        return int(field.metadata[b"PARQUET:field_id"])

    images = {side: [id_of(one) for one in read.schema.field(side).type] for side in IMAGE_IDS}
    assert images == {"before": [8, 12], "after": [9, 13]}
    assert {side: id_of(read.schema.field(side)) for side in IMAGE_IDS} == IMAGE_IDS


def test_transaction_stays_in_one_slot_and_times_are_spread_over_all(tmp_path: Path) -> None:
    (changes,) = segment((SECOND, 3), *((n * SECOND // 10, 1) for n in range(11, 40))).changes
    (slots,) = ByTime().slots_of(changes, 7)
    assert len(set(slots[:3])) == 1
    assert set(slots) == set(range(7))
    assert slots.dtype == np.int64


WIDE = FieldType(Tp.NEWDECIMAL, 0, 65, 4)
SMALL = FieldType(Tp.NEWDECIMAL, 0, 12, 9)
OTHERS = [*(not_null(kind) for _, kind in COLUMNS if kind.tp in (Tp.DATE, Tp.DATETIME)), WIDE, FieldType(Tp.BIT, 0, 64)]


def read_back(kind: FieldType, values: list[DecodedValue]) -> list[DecodedValue]:
    of = ColumnType.of(kind)
    written = _converted(of, arrow_type(type_name(kind, "t.c")), False, pa.array(values, of.decoded_type))
    found = decoded_of(of, written)
    assert found.type == of.decoded_type
    return list(found.to_pylist())


@pytest.mark.parametrize("kind", [*(kind for _, kind in COLUMNS), *OTHERS], ids=str)
@given(data=st.data())
def test_values_come_back_as_a_load_from_tidb_has_them(kind: FieldType, data: st.DataObject) -> None:
    of = ColumnType.of(kind)
    null = st.nothing() if kind.is_not_null else st.none()
    values = data.draw(st.lists(null | decoded_values_of(kind), max_size=5))
    there = decoded_column(of, pa.array([shown(of, one) for one in values], pa.binary())).to_pylist()
    is_date = kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP)
    assert read_back(kind, values) == [None if is_date and not one and not kind.is_not_null else one for one in there]


def test_smallest_and_first_values_come_back() -> None:
    assert read_back(SMALL, ["0.000000001", "-0.000000100", "0.000000000"]) == [
        "0.000000001",
        "-0.000000100",
        "0.000000000",
    ]
    first = (13 + 1) << 5 | 1
    assert read_back(FieldType(Tp.DATE), [first << 41]) == [first << 41]
    with pytest.raises(KeyError, match="b"):
        decoded_of(ColumnType.of(FieldType(Tp.ENUM, elems=("a",))), pa.array(["b"]))
