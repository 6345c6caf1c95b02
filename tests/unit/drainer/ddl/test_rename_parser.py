"""RENAME TABLE texts (X-09)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.lexer import quoted
from drainer.ddl.rename_parser import RenamePair, RenameUnreadable, rename_pairs


@pytest.mark.parametrize(
    ("sql", "pairs"),
    [
        ("rename table a to b", [(None, "a", None, "b")]),
        ("RENAME TABLE `a` TO `b`, `c`.`d` TO `e`.`f`;", [(None, "a", None, "b"), ("c", "d", "e", "f")]),
        ("rename /* why */ table a -- so\n to x . b # end", [(None, "a", "x", "b")]),
        (
            "RENAME TABLES `we``ird` TO `to`, `,`.`.` TO `table`",
            [(None, "we`ird", None, "to"), (",", ".", None, "table")],
        ),
        ("/*!50000 rename */ table /*T![ttl] a */ to b", [(None, "a", None, "b")]),
        ("rename table `表 1` to 表2", [(None, "表 1", None, "表2")]),
        ("rename table 1a to b$", [(None, "1a", None, "b$")]),
    ],
)
def test_rename_table_text_is_parsed_into_pairs(sql: str, pairs: list[tuple[str | None, str, str | None, str]]) -> None:
    assert rename_pairs(sql) == tuple(RenamePair(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("sql", "offset", "wanted"),
    [
        ("", 0, "RENAME"),
        ("alter table a rename b", 0, "RENAME"),
        ("rename table a b", 15, "TO"),
        ("rename table a to", 17, "a name"),
        ("rename table a to b,", 20, "a name"),
        ("rename table a to b; drop table c", 21, "the end"),
        ("rename table 'a' to b", 13, "a name"),
        ("rename table a. to b", 19, "TO"),
    ],
)
def test_invalid_rename_text_is_refused_with_offset_and_expectation(sql: str, offset: int, wanted: str) -> None:
    with pytest.raises(RenameUnreadable, match=f"character {offset}: {wanted} expected") as caught:
        rename_pairs(sql)
    assert caught.value.offset == offset


names = st.text(min_size=1, max_size=12).filter(lambda name: "\0" not in name)
schemas = st.none() | names


@given(st.lists(st.tuples(schemas, names, schemas, names), min_size=1, max_size=5))
def test_quoted_rename_pairs_are_parsed_back(pairs: list[tuple[str | None, str, str | None, str]]) -> None:
    def place(schema: str | None, name: str) -> str:
        return quoted(schema, name) if schema is not None else quoted(name)

    text = "RENAME TABLE " + ", ".join(f"{place(a, b)} TO {place(c, d)}" for a, b, c, d in pairs)
    assert rename_pairs(text) == tuple(RenamePair(*pair) for pair in pairs)


@given(st.text(max_size=60))
def test_any_rename_text_is_parsed_or_refused_with_offset(text: str) -> None:
    try:
        rename_pairs("rename table " + text)
    except RenameUnreadable as error:
        assert 0 <= error.offset <= len(text) + 13
