"""What docs/kafka.md says that programs of others cannot do is what a test shows."""

from __future__ import annotations

import re

from tests.support.servers import ROOT

READERS = ("TiCDC's consumer", "arbiter", "JDBC sink", "Confluent's deserialisers")


def rows() -> list[list[str]]:
    _, _, table = (ROOT / "docs/kafka.md").read_text().partition("This is what they cannot do")
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_rows_of_reader_table_cite_test_with_case_and_error() -> None:
    for row in rows():
        shown_by = re.fullmatch(r'`(tests/[\w/]+\.py)` "([^"]+)" \|', row[-1])
        assert shown_by, row
        shown = (ROOT / shown_by[1]).read_text()
        assert shown_by[2] in shown, row
        for error in re.findall(r"(?:ends:|ends: the|ends with|stops at) `([^`]+)`", row[2]):
            assert error in shown, row


def test_reader_table_has_a_row_for_each_reader() -> None:
    assert {name for row in rows() for name in row[0].removeprefix("| ").split(", ")} == set(READERS)
