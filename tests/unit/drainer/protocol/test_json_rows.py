"""Documents from constants and columns."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol import json_text
from drainer.protocol.json_text import Rows, Slot, constant, fragments_of, joined, numbers, old_fragments
from tests.support.row_changes import make_changes, make_table

TEXTS = st.lists(st.none() | st.text("ab%s{}", max_size=4), min_size=1, max_size=9)


def binary(values: list[str | None]) -> pa.Array:
    return pa.array([None if value is None else value.encode() for value in values], pa.binary())


@given(TEXTS)
def test_json_rows_insert_values_into_their_slots(values: list[str | None]) -> None:
    """Quoted or not, with NULLs and without, one slot used twice."""
    rows = Rows(['{"a":', Slot(0, quoted=True), ',"%s":', Slot(0, quoted=True), ',"n":', Slot(1), "}"])
    counts = pa.array([str(n).encode() if n % 2 else None for n in range(len(values))], pa.binary())
    found = [json.loads(row) for row in rows.build([binary(values), counts]).to_pylist()]
    assert found == [{"a": value, "%s": value, "n": n if n % 2 else None} for n, value in enumerate(values)]


def test_json_rows_with_adjacent_slots_are_joined() -> None:
    rows = Rows([Slot(0), Slot(1, quoted=True), Slot(0)])
    assert rows.build([binary(["1"]), binary(["x"])]).to_pylist() == [b'1"x"1']


def test_json_rows_beyond_one_array_are_joined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are joined part by part; columns that no slot names may be empty."""
    rows = Rows(["<", Slot(1, quoted=True), ">"])
    columns = [binary([]), binary([str(n) if n % 3 else None for n in range(50)])]
    whole = rows.build(columns).to_pylist()
    monkeypatch.setattr(json_text, "JOINED_BYTES_MAX", 20)
    assert rows.build(columns).to_pylist() == whole
    assert whole[:3] == [b"<null>", b'<"1">', b'<"2">']


def test_joined_parts_have_commas_between() -> None:
    assert joined([["a", Slot(0)]]) == ["a", Slot(0)]
    assert joined([["a", Slot(0)], ["b"]]) == ["a", Slot(0), ",", "b"]
    assert joined([]) == []


def test_numbers_and_constants_become_text_columns() -> None:
    assert numbers(np.array([0, (1 << 64) - 1], np.uint64)).to_pylist() == [b"0", b"18446744073709551615"]
    assert constant(b"x", 2).to_pylist() == [b"x", b"x"]


def test_unchanged_column_of_updates_is_written_once() -> None:
    """The old image's text is the new one's; 0 and -0 are equal numbers with two texts."""
    table = make_table(
        "shop", "orders", [("n", FieldType(Tp.LONG)), ("f", FieldType(Tp.DOUBLE)), ("g", FieldType(Tp.DOUBLE))]
    )
    written: list[object] = []

    def shown(array: pa.Array) -> pa.Array:
        written.append(array.to_pylist())
        return array.cast(pa.string()).cast(pa.binary())

    changes = make_changes(
        table, Kind.UPDATE, old=[[1, 0.0, 2.5], [None, 1.5, 2.5]], new=[[1, -0.0, 2.5], [None, 1.5, 3.5]]
    )
    new = fragments_of(changes, changes.image, [shown] * 3, [0, 1, 2])
    old = old_fragments(changes, [shown] * 3, [2, 1, 0], [new[2], new[1], new[0]])
    assert [column.to_pylist() for column in old] == [[b"2.5", b"2.5"], [b"0", b"1.5"], [b"1", None]]
    assert old[2] is new[0]
    assert len(written) == 5
