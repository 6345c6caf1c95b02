"""Clustered keys of every type, whole and by prefix, with both settings of new collations; columns that stay behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.datum import Datum
from binlog.tidb.json import BinaryJSON, encode_json
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.column_type import ColumnType
from drainer.row.layout import Same, choose_key, key_function
from tests.support.row_case import INT, TEXT, codec_of, not_null, table
from tests.unit.drainer.changes.cases import KINDS, datums
from tests.unit.drainer.row.test_fast_path import both

COLLATED = tuple(
    FieldType(tp, 0, 60, 0, charset, collate)
    for tp in (Tp.VARCHAR, Tp.STRING)
    for charset, collate in (
        ("utf8mb4", "utf8mb4_bin"),
        ("utf8mb4", "utf8mb4_general_ci"),
        ("utf8mb4", "utf8mb4_unicode_ci"),
        ("utf8mb4", "utf8mb4_0900_ai_ci"),
        ("utf8mb4", "utf8mb4_0900_bin"),
        ("gbk", "gbk_chinese_ci"),
        ("gbk", "gbk_bin"),
        ("latin1", "latin1_bin"),
        ("ascii", "ascii_bin"),
        ("binary", "binary"),
    )
)
KEYS = (*(kind for kind in KINDS if kind.tp not in (Tp.JSON, Tp.BLOB)), *COLLATED)
# What a CHAR holds: never spaces at its end.
TEXTS = st.text(st.sampled_from("aAbß é中😀 "), max_size=12).map(lambda text: text.rstrip(" ").encode())


def value_of(kind: FieldType) -> st.SearchStrategy[Datum]:
    if kind.tp in (Tp.FLOAT, Tp.DOUBLE):
        return datums(kind).map(lambda value: value + 0.0)  # type: ignore[operator]  # -0.0 is written as 0.0
    if kind.is_string and kind.charset != "binary":
        return TEXTS if kind.tp is Tp.STRING else TEXTS | TEXTS.map(lambda text: text + b" ")
    return datums(kind)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableInfo, dict[int, Datum], dict[int, Datum], bool]:
    """A clustered table with a hidden expression column, a stored and a virtual one, an array and plain ones."""
    kinds = [not_null(draw(st.sampled_from(KEYS))) for _ in range(draw(st.integers(1, 3)))]
    names = [(f"k{n}", kind) for n, kind in enumerate(kinds)]
    made = table([*names, ("v", INT), ("w", INT), ("x", INT), ("s", INT), ("g", INT), ("h", INT), ("m", INT)])
    columns = list(made.columns)
    place = {column.name: n for n, column in enumerate(columns)}
    for name, stored, hidden in (("s", True, False), ("g", False, False), ("h", False, True), ("m", False, True)):
        at = place[name]
        kind = replace(INT, array=True) if name == "m" else INT
        columns[at] = replace(columns[at], generated_expr="`v` + 1", generated_stored=stored, hidden=hidden, type=kind)
    order = draw(st.permutations(range(len(kinds))))
    parts = []
    for n in order:
        prefixed = kinds[n].is_string and draw(st.booleans())
        parts.append(IndexColumn(f"k{n}", n, draw(st.integers(1, 3)) if prefixed else -1))
    primary = IndexInfo(1, "PRIMARY", tuple(parts), unique=True, primary=True)
    columns = [c if c.name not in dict(names) else _in_key(c) for c in columns]
    info = replace(made, columns=tuple(columns), indexes=(primary,), is_common_handle=True)

    def row() -> dict[int, Datum]:
        found: dict[int, Datum] = {}
        for column in info.columns:
            if column.name == "m":
                found[column.id] = BinaryJSON(encode_json([1, 2]))
            elif column.is_not_null:
                found[column.id] = draw(value_of(column.type))
            else:
                found[column.id] = draw(st.none() | st.integers(-5, 5))
        return found

    return info, row(), row(), draw(st.booleans())


def _in_key(column: ColumnInfo) -> ColumnInfo:
    return replace(column, type=replace(column.type, flag=column.type.flag | Flag.PRI_KEY))


@given(case=cases())
def test_rows_of_every_clustered_key_are_read_by_both_decoders(
    case: tuple[TableInfo, dict[int, Datum], dict[int, Datum], bool],
) -> None:
    """Both ways give the columns that were written; generated ones are not among them."""
    info, old, new, new_collation = case
    codec = codec_of(info)
    expected = {
        which: [t.column_type.decoded_value(row[t.id]) for t in codec.layout.targets]
        for which, row in (("old", old), ("new", new))
    }
    assert [t.name for t in codec.layout.targets] == [c.name for c in info.columns if not c.is_generated]
    insert = encode_insert(info, new, new_collation=new_collation)
    update, delete = encode_update(info, old, new), encode_delete(info, old)
    assert codec._read_general(Kind.INSERT, insert, 9) == (None, expected["new"])
    assert codec._read_general(Kind.UPDATE, update, 9) == (expected["old"], expected["new"])
    assert codec._read_general(Kind.DELETE, delete, 9) == (expected["old"], None)
    for kind, row in ((Kind.INSERT, insert), (Kind.UPDATE, update), (Kind.DELETE, delete)):
        fast, slow = both(codec, kind, row)
        assert fast is None or fast == slow


# Which key folds (rules 9, 10 and 13).


NN_INT, NN_TEXT = not_null(INT), not_null(TEXT)
CI = not_null(FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_general_ci"))
NO_PAD = not_null(FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_0900_bin"))
DOUBLE = not_null(FieldType(Tp.DOUBLE, flen=22, decimal=-1))
PRICE = not_null(FieldType(Tp.NEWDECIMAL, flen=10, decimal=2))


def prefixed(info: TableInfo) -> TableInfo:
    index = info.indexes[0]
    part = index.columns[0]
    return replace(info, indexes=(replace(index, columns=(IndexColumn(part.name, part.offset, 3),)),))


def generated(info: TableInfo) -> TableInfo:
    return replace(info, columns=(info.columns[0], replace(info.columns[1], generated_expr="`a` + 1")))


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (table([("a", INT)]), "no primary or unique key"),
        (table([("a", INT)], unique={"u": ["a"]}), "u: column a may be NULL"),
        (table([("a", CI)], unique={"PRIMARY": ["a"]}), "PRIMARY: column a is varchar utf8mb4_general_ci"),
        (table([("a", DOUBLE)], unique={"PRIMARY": ["a"]}), "PRIMARY: column a is double"),
        (prefixed(table([("a", NN_TEXT)], unique={"PRIMARY": ["a"]})), "PRIMARY: holds a prefix of a"),
        (
            generated(table([("a", INT), ("g", NN_INT)], unique={"u": ["g"]})),
            "u: column g is generated or not public",
        ),
    ],
)
def test_table_without_usable_key_is_applied_in_order(info: TableInfo, why: str) -> None:
    key = choose_key(info)
    assert key.columns == ()
    assert key.why == why


def test_first_usable_key_is_chosen() -> None:
    info = table(
        [("a", CI), ("b", INT), ("c", NN_TEXT), ("d", NN_INT)],
        unique={"PRIMARY": ["a"], "u1": ["b"], "u2": ["d", "c"], "u3": ["d"]},
    )
    key = choose_key(info)
    assert (key.name, key.columns, key.others) == ("u2", (3, 2), ("PRIMARY", "u1", "u3"))
    assert key.imaged


@pytest.mark.parametrize(
    ("kind", "a", "b", "same"),
    [
        (NN_TEXT, b"a", b"a  ", True),
        (NN_TEXT, b"a", b"A", False),
        (NN_TEXT, b"a", b"a\t", False),
        (NO_PAD, b"a", b"a ", False),
        (PRICE, b"1.5", b"1.50", True),
        (PRICE, b"10", b"1", False),
        (PRICE, b"-0.5", b"0.5", False),
    ],
)
def test_key_identity_compares_as_collation_does(kind: FieldType, a: bytes, b: bytes, same: bool) -> None:
    key = choose_key(table([("k", kind)], unique={"PRIMARY": ["k"]}))
    compared = key_function(key, [ColumnType.of(kind)])
    decoded_values = [text.decode() if kind.tp is Tp.NEWDECIMAL else text for text in (a, b)]
    assert (compared(decoded_values[:1]) == compared(decoded_values[1:])) is same


def test_integer_key_is_compared_exactly() -> None:
    assert choose_key(table([("id", INT)], handle="id")).same == (Same.EXACT,)
