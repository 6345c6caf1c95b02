"""Words, quotes and comments of SQL texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.schema.sqltext import quoted, statements, tokens


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
        ("/*T![x] a ; b */", ("/*T![x] a", "b */")),
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


@given(st.text(alphabet="ab ;'\"`/*!-#\n\\.,", max_size=40))
def test_never_fails_and_never_overlaps(sql: str) -> None:
    last = 0
    for token in tokens(sql):
        assert last <= token.start < token.end <= len(sql)
        last = token.end
    statements(sql)


def test_quoted() -> None:
    assert quoted("a`b", "c") == "`a``b`.`c`"
