"""Which warnings of a server mean a changed value."""

from __future__ import annotations

from typing import Any

import pytest

from drainer.batch.work import Folded, Kind, NetRow, TableShape
from drainer.sink.errors import ValueChanged
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import Writer
from tests.support.net_rows import net_columns

TABLE = TableShape(table_id=1, schema="d", table="t", columns=("id", "v"), key=(0,), secondary_unique=(), match=())


class Warns:
    """A session whose every statement has one warning."""

    packet_bytes_max = 1 << 20
    warning_count = 1

    def __init__(self, flavour: str, code: int, text: str, level: str = "Warning") -> None:
        self.flavour = flavour
        self._warning = (level, code, text)

    def execute(self, _sql: bytes) -> int:
        return 1

    def literal(self, value: str) -> bytes:
        return b"'%s'" % value.encode()

    def query(self, _sql: bytes) -> list[tuple[object, ...]]:
        """Nothing is known of the table's keys."""
        return []

    def warnings(self) -> list[tuple[str, int, str]]:
        return [self._warning]


def write(flavour: str, code: int, text: str, level: str = "Warning") -> None:
    session: Any = Warns(flavour, code, text, level)
    row = NetRow(b"1", Kind.INSERT, b"(1,2)", ())
    Writer(session, StatementLimits(), until_ts=7, keys=UniqueKeys()).folded(
        Folded(TABLE, net_columns([row])), thorough=False
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1105, "disable dynamic pruning due to t has no global stats"),
        (1105, "skip plan-cache: no reason"),
        (1690, "constant 200 overflows tinyint"),
    ],
)
def test_tidb_warning_about_plan_or_expression_is_ignored(code: int, text: str) -> None:
    write("tidb", code, text)
    with pytest.raises(ValueChanged, match=str(code)):
        write("mariadb", code, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1264, "Out of range value for column 'v' at row 1"),
        (1105, "something about column 'v' at row 1"),
        (1265, "Data truncated for column '%s' at row %d"),
        (1366, "Incorrect decimal value: '1.234' for column 'v' at row 1"),
    ],
)
def test_warning_about_value_raises_value_changed(code: int, text: str) -> None:
    for flavour in ("tidb", "mariadb", "mysql"):
        with pytest.raises(ValueChanged, match=str(code)):
            write(flavour, code, text)


def test_note_about_value_raises_value_changed() -> None:
    """Blanks at the end of a string and digits of a DECIMAL go with no more than that."""
    for flavour in ("mariadb", "mysql"):
        with pytest.raises(ValueChanged, match="1265"):
            write(flavour, 1265, "Data truncated for column 'v' at row 1", "Note")
        write(flavour, 1051, "Unknown table 'd.t'", "Note")
