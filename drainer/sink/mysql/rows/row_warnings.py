"""Decides from a server's warnings whether rows were stored exactly. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from drainer.batch.work import TableShape
from drainer.sink.mysql.rows.statements import split_row

TRUNCATED: Final = 1265
_AT_ROW: Final = re.compile(r"column '?(?:[^']*\.)*`?([^'`]+)`?'? at row (\d+)$")
_TIDB_NO_LITERAL: Final = frozenset({1105, 1690})


def literal_at(shape: TableShape, tuples: Sequence[bytes], text: str) -> bytes:
    """The literal that a warning "… for column 'c' at row n" is about; b"" if unknown."""
    found = _AT_ROW.search(text)
    if found is None:
        return b""
    name, row = found.group(1), int(found.group(2))
    if name not in shape.columns or not 0 < row <= len(tuples):
        return b""
    return split_row(tuples[row - 1])[shape.columns.index(name)]


def is_computed(shape: TableShape, text: str) -> bool:
    """Whether a warning is about a column that is generated in the destination, as it is upstream: TiDB accepts a row
    whose VIRTUAL column does not fit its type."""
    found = _AT_ROW.search(text)
    return found is not None and found.group(1) not in shape.columns


def is_about_no_literal(code: int, text: str) -> bool:
    """Warnings of TiDB that name neither column nor row: those without a number of their own come from its planner
    (statistics, hints, plan cache), an overflow from the expression of a generated column. A literal that does not fit
    its column gets another number, and its column is named."""
    return code in _TIDB_NO_LITERAL and _AT_ROW.search(text) is None


def stored_exactly(code: int, literal: bytes) -> bool:
    """Warnings about values that are stored unchanged: 0 in an ENUM or SET (X-14; no other type complains about a 0),
    and the largest FLOAT, whose nine digits are a little more than it is."""
    return (code == TRUNCATED and literal == b"0") or (code == 1264 and literal.lstrip(b"-") == b"3.40282347e+38")
