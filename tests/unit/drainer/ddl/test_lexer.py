"""Words, quotes and comments of SQL texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.lexer import pieces, quoted, statements, tokens, without_comments


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
def test_statements_are_split_at_semicolons_outside_quotes_and_comments(sql: str, pieces: tuple[str, ...]) -> None:
    assert statements(sql) == pieces


def test_tokens_have_kind_of_words_names_texts_and_marks() -> None:
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
def test_comments_are_recognised_as_tidb_does(sql: str, values: list[str]) -> None:
    assert [token.value for token in tokens(sql)] == values


@given(st.text(alphabet="ab ;'\"`/*!T[M5-#\n\\.,", max_size=40))
def test_tokens_of_any_text_are_in_order_and_cover_it(sql: str) -> None:
    last = 0
    for token in tokens(sql):
        assert last <= token.start < token.end <= len(sql)
        last = token.end
    assert "".join(sql[piece.start : piece.end] for piece in pieces(sql)) == sql
    statements(sql)


def test_quoted_doubles_backticks_and_joins_with_dots() -> None:
    assert quoted("a`b", "c") == "`a``b`.`c`"


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("ALTER TABLE t ADD a INT /*M! , DROP b */", "ALTER TABLE t ADD a INT"),
        ("ALTER TABLE t ADD a INT /*M!100100 , DROP b */;", "ALTER TABLE t ADD a INT ;"),
        ("ALTER TABLE t ADD a INT/*!999999 , DROP b*/", "ALTER TABLE t ADD a INT , DROP b"),
        ("ALTER TABLE t ADD a INT/*! , DROP b*/", "ALTER TABLE t ADD a INT , DROP b"),
        ("ALTER TABLE t COMMENT /*!1234567*/", "ALTER TABLE t COMMENT 7"),
        ("ALTER TABLE t COMMENT /*!1234*/", "ALTER TABLE t COMMENT 1234"),
        ("ALTER TABLE t /*T! ADD COLUMN b INT */", "ALTER TABLE t ADD COLUMN b INT"),
        ("ALTER TABLE t /*T![ttl,placement] ADD COLUMN b INT */", "ALTER TABLE t ADD COLUMN b INT"),
        ("ALTER TABLE t ADD a INT/*T![ttl,x] , ADD COLUMN b INT */", "ALTER TABLE t ADD a INT"),
        ("ALTER TABLE t /*!50100 ADD a INT /* not /*! this */, ADD b INT */", "ALTER TABLE t ADD a INT , ADD b INT"),
        ("ALTER TABLE t /*! ADD a INT -- */ , ADD b INT\n, ADD c INT */", "ALTER TABLE t ADD a INT , ADD c INT"),
        ("CREATE VIEW v AS SELECT /*+ SET_VAR(sql_mode='') */ 1", "CREATE VIEW v AS SELECT 1"),
        ("ALTER TABLE t COMMENT '/*M! x */' # /*! , DROP a */", "ALTER TABLE t COMMENT '/*M! x */'"),
        ("ALTER TABLE `/*M!x*/` ADD a INT DEFAULT 1--1", "ALTER TABLE `/*M!x*/` ADD a INT DEFAULT 1--1"),
        ("/* first */ ALTER TABLE t ADD a INT /* never closed", "ALTER TABLE t ADD a INT"),
    ],
)
def test_without_comments_removes_upstream_comments_and_opens_executable_ones(sql: str, wanted: str) -> None:
    """And what it runs stands in the open: servers differ in what they take as code."""
    assert " ".join(without_comments(sql).split()) == wanted
    assert without_comments(wanted) == wanted


_MEANINGS = st.sampled_from(
    [
        *((text, True) for text in ("a", "`b``/*!`", "'c*/ ''#'", '"d\\"-- "', ",", "(", ")", "1", "-", "@x", "é€")),
        *((text, False) for text in ("/* x */", "/**/", "/*M! x */", "/*M!100 y*/", "/*+ z */", "/*T![no] w */", " ")),
        *((text, False) for text in ("-- x */ /*!\n", "#*/ '\n", "\n", "/*T![ttl,no] v '*/", "/*t! x */", "/* ' */")),
        ("/*/*!*/", False),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(_MEANINGS), st.sampled_from(["", "/*!", "/*!50100", "/*!123456", "/*T!"]))))
def test_without_comments_keeps_only_tokens_upstream_executes(parts: list[tuple[list[tuple[str, bool]], str]]) -> None:
    """What is left are the tokens that were meant, and nothing that any server could take for a comment."""
    sql, meant = "", []
    for inner, opened in parts:
        sql += f"{opened} " + " ".join(text for text, _ in inner) + (" */ " if opened else " ")
        meant += [text for text, counts in inner if counts]
    left = without_comments(sql)
    found = list(pieces(left))
    assert {piece.kind for piece in found} <= {"space", "name", "text", "word", "mark"}
    wanted = [token.value for text in meant for token in tokens(text)]
    assert [token.value for token in tokens(left)] == wanted == [token.value for token in tokens(sql)]
