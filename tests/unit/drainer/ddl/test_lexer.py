"""Words, quotes and comments of SQL texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.lexer import pieces, quoted, statements, tokens


@pytest.mark.parametrize(
    ("sql", "pieces"),
    [
        ("a;b", ("a", "b")),
        (" a ; ; b ;", ("a", "b")),
        (
            "create table t (c int comment 'x;y'); drop table `a;b`",
            ("create table t (c int comment 'x;y')", "drop table `a;b`"),
        ),
        ("a /* ; */; b -- ; c\n; # d;\n", ("a /* ; */", "b -- ; c")),
        ("a 'it''s; \\'; fine'; b", ("a 'it''s; \\'; fine'", "b")),
        ("/* nothing */ ; -- here", ()),
        ("", ()),
        ("create table ct3 (id int primary key) /* ; */", ("create table ct3 (id int primary key) /* ; */",)),
        ("/*T![x] a ; b */", ()),
        ("/*T![ttl] a ; b */; c", ("/*T![ttl] a */", "/*T![ttl] b */", "c")),
        ("a /*!50100 b; */ ; c", ("a /*!50100 b */", "c")),
        ("/*M! a; */ b; /*! c /*! d */ e", ("/*M! a; */ b", "/*! c /*! d */ e")),
    ],
)
def test_statements(sql: str, pieces: tuple[str, ...]) -> None:
    assert statements(sql) == pieces


def test_kinds() -> None:
    found = [(t.kind, t.value) for t in tokens("Ab `c``d` 'e' \"f\" * */ . --x")]
    assert found == [
        ("word", "Ab"),
        ("name", "c`d"),
        ("text", "'e'"),
        ("text", '"f"'),
        ("mark", "*"),
        ("mark", "*"),
        ("mark", "/"),
        ("mark", "."),
        ("mark", "-"),
        ("mark", "-"),
        ("word", "x"),
    ]


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("/*! a /*! b */ c */", ["a", "b", "c", "*", "/"]),  # code does not nest
        ("/*!1234 a */ /*!123456 b */ /*!1234567 c */", ["1234", "a", "b", "7", "c"]),
        ("/*T! a */ /*T![ttl] b */ /*T![ttl,other] c */ /*T![] d */", ["a", "b", "[", "]", "d"]),
        ("/*t! a */ /*M! b */ /*+ c */ /*/ d */ e", ["e"]),
        ("a--b --\tc\nd --\u3000e --", ["a", "-", "-", "b", "d", "-", "-", "\u3000e"]),
    ],
)
def test_comments_are_what_tidb_takes_for_one(sql: str, values: list[str]) -> None:
    assert [token.value for token in tokens(sql)] == values


@given(st.text(alphabet="ab ;'\"`/*!T[M5-#\n\\.,", max_size=40))
def test_never_fails_and_never_overlaps(sql: str) -> None:
    last = 0
    for token in tokens(sql):
        assert last <= token.start < token.end <= len(sql)
        last = token.end
    assert "".join(sql[piece.start : piece.end] for piece in pieces(sql)) == sql
    statements(sql)


def test_quoted() -> None:
    assert quoted("a`b", "c") == "`a``b`.`c`"
