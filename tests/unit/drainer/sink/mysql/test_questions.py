"""What is asked of a server before a batch is begun."""

from __future__ import annotations

import pytest

from drainer.batch.work import Probe, TableShape
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.rows.examine import MySQLExaminer, questions, refuses
from drainer.sink.mysql.rows.unique_keys import Part, UniqueKey

SHAPE = TableShape(1, "d", "t", ("k1", "k2", "a", "b"), (0, 1), "", ("ab",), ())


def test_rows_of_other_keys_that_hold_a_value() -> None:
    probe = Probe(SHAPE, (2, 3), (b"(1,'it''s, ')", b"(1,'IT')"), b"(7,'x')")
    (question,) = questions([probe])
    assert question.quick() == (
        b"SELECT `a`,`b` FROM `d`.`t` WHERE (`a`,`b`) IN ((1,'it''s, '),(1,'IT')) AND (`a`,`b`,`k1`,`k2`) NOT IN "
        b"((1,'it''s, ',7,'x'),(1,'IT',7,'x')) LIMIT 1"
    )
    assert question.exact() == (
        b"SELECT `a`,`b` FROM `d`.`t` WHERE (`a`,`b`) IN ((1,'it''s, '),(1,'IT')) AND NOT "
        b"((`a`,`b`,`k1`,`k2`)=(1,'it''s, ',7,'x') OR (`a`,`b`,`k1`,`k2`)=(1,'IT',7,'x')) LIMIT 1"
    )


def test_statements_are_bounded_and_ask_for_all() -> None:
    probes = [Probe(SHAPE, (2,), (b"(%d)" % n,), b"(%d,1)" % n) for n in range(1001)]
    asked = [question.quick() for question in questions(probes)]
    assert len(asked) == 6
    assert all(any(b"(%d)" % n in sql and b"(%d,%d,1)" % (n, n) in sql for sql in asked) for n in range(1001))
    large = [Probe(SHAPE, (2,), (b"('" + b"x" * (200 << 10) + b"')",), b"(1,1)")] * 3
    assert len(list(questions(large))) == 3


def test_nothing_to_ask_needs_no_server() -> None:
    assert MySQLExaminer(ServerConfig("127.0.0.1", 1, "nobody")).conflict(()) == ""


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([], False),
        ([["id"]], False),
        ([["id"], ["B", "a"]], True),
        ([["id"], ["a"]], True),
        ([["a", "b", "c"]], False),
        ([["a", ""]], False),
    ],
)
def test_a_table_without_the_key_refuses_nothing(keys: list[list[str]], found: bool) -> None:
    """A key on fewer of the columns refuses as well, one on more of them, or on an expression, does not."""
    there = [UniqueKey("k", tuple(Part(column, "", True) for column in key)) for key in keys]
    assert refuses(there, ["A", "b"]) is found
