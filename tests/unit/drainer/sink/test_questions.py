"""What is asked of a server before a batch is begun."""

from __future__ import annotations

from drainer.plan import Probe, TableShape
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.examine import MySQLExaminer, questions

SHAPE = TableShape(1, "d", "t", ("k1", "k2", "a", "b"), (0, 1), "", ("ab",), ())


def test_rows_of_other_keys_that_hold_a_value() -> None:
    probe = Probe(SHAPE, (2, 3), (b"(1,'it''s, ')", b"(1,'IT')"), b"(7,'x')")
    own = b"NOT (`k1`=7 AND `k2`='x')"
    assert list(questions([probe])) == [
        b"SELECT `a`,`b` FROM `d`.`t` WHERE (`a`=1 AND `b`='it''s, ' AND " + own + b") OR "
        b"(`a`=1 AND `b`='IT' AND " + own + b") LIMIT 1"
    ]


def test_statements_are_bounded_and_ask_for_all() -> None:
    probes = [Probe(SHAPE, (2,), (b"(%d)" % n,), b"(%d,1)" % n) for n in range(1001)]
    asked = list(questions(probes))
    assert len(asked) == 6 and all(sql.count(b" OR ") < 200 for sql in asked)
    assert all(any(b"(`a`=%d AND" % n in sql for sql in asked) for n in range(1001))
    large = [Probe(SHAPE, (2,), (b"('" + b"x" * (200 << 10) + b"')",), b"(1,1)")] * 3
    assert len(list(questions(large))) == 2


def test_nothing_to_ask_needs_no_server() -> None:
    assert MySQLExaminer(ServerConfig("127.0.0.1", 1, "nobody")).conflict(()) == ""
