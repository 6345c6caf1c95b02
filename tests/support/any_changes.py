"""Tables with some columns of tests.support.typed_columns and changes of their rows, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from binlog.tidb.types import FieldType, Tp
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import DecodedValue
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import COLUMNS, decoded_values_of

BIG = FieldType(Tp.LONGLONG, 0, 20, 0)
KINDS = dict(COLUMNS[1:])
Draw = Callable[[Any], Any]


@st.composite
def tables(draw: Draw, *, table_id: int = 100) -> Table:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6, unique=True))
    columns = [("id", BIG), *((name, KINDS[name]) for name in names)]
    primary = ["id"] if draw(st.booleans()) else []
    return make_table(
        draw(st.sampled_from(["shop", "tëst`s"])), f"t{table_id}", columns, primary=primary, table_id=table_id
    )


def rows(table: Table, min_size: int = 1, max_size: int = 4) -> Any:
    key, *others = (decoded_values_of(column.column_type.kind) for column in table.columns)
    return st.lists(st.tuples(key, *(st.none() | one for one in others)), min_size=min_size, max_size=max_size)


@st.composite
def changes(draw: Draw, *, table_id: int = 100) -> RowChanges:
    """Of one kind, in ascending transactions, several rows in some."""
    table = draw(tables(table_id=table_id))
    kind = draw(st.sampled_from(list(Kind)))
    images: list[tuple[DecodedValue, ...]] = draw(rows(table))
    others = draw(rows(table, len(images), len(images)))
    stamps = sorted(draw(st.lists(st.integers(2, 4), min_size=len(images), max_size=len(images))))
    return make_changes(
        table,
        kind,
        old=None if kind is Kind.INSERT else others,
        new=None if kind is Kind.DELETE else images,
        commit_ts=[400_000_000_000_000_000 + ts for ts in stamps],
    )
