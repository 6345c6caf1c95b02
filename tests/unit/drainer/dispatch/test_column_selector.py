"""Column selectors: patterns, which keys must stay, and that rows go on as if the table had no other columns."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC

import pyarrow as pa
import pytest
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.ddl_messages import check_ddl, check_view
from drainer.dispatch.dispatcher import Dispatcher, PartitionSlotting, row_hashes, slots_of_topic
from drainer.dispatch.row_events import DELETES, INSERTS, UPDATES, RowEvents, class_of
from drainer.dispatch.rules import ColumnPatterns, ColumnSelectors, DispatchRule, Router, SelectorRule
from drainer.protocol.open.encoder import partition_ids, row_ids
from drainer.protocol.table import ColumnFlag, Table, table_of
from drainer.row.column_type import ColumnType
from drainer.row.layout import published
from drainer.schema.filter import PatternError
from drainer.schema.steps import Ddl, Located, TableChange
from tests.support.row_case import INT, TEXT, Step, not_null, table, transaction, view_of
from tests.unit.drainer.dispatch.histories import (
    CHOICES,
    SHAPES,
    Event,
    listed,
    payloads_of,
    rows_of_transactions,
    segment_of,
    table_of_shape,
)

PARTITIONS = 3


def described(info: TableInfo) -> Table:
    return table_of("db", info, [(column.id, ColumnType.of(column.type)) for column in published(info)], 5, 5)


def selectors(*columns: str, matcher: Sequence[str] = ("*.*",)) -> ColumnSelectors:
    return ColumnSelectors.parse([SelectorRule(matcher=tuple(matcher), columns=columns)])


@pytest.mark.parametrize(
    ("patterns", "matching", "others"),
    [
        (["*"], ["a", "B", "c d", "ä"], []),
        (["a"], ["a", "A"], ["ab", "b", ""]),
        (["A*"], ["a", "Abc"], ["b"]),
        (["c?"], ["c1", "Cx"], ["c", "c12"]),
        (["c[0-9]"], ["c1"], ["cx"]),
        (["c[!0-9]"], ["cx", "c^"], ["c1"]),
        (["c[^1]"], ["c^", "c1"], ["c2"]),
        (["*", "!a"], ["b"], ["a", "A"]),
        (["!a", "*"], ["a", "b"], []),
        (["*", "!a*", "ab"], ["ab", "c"], ["a", "ac"]),
        (["!a"], [], ["a", "b"]),
        (["`c d`"], ["c d", "C D"], ["c"]),
        (['"c.d"'], ["c.d"], ["c"]),
        (["/^c[0-9]+$/"], ["c12", "C1"], ["c", "xc1"]),
        (["# a remark", "", " a\t"], ["a"], ["b"]),
        (["a\\*"], ["a*"], ["ab"]),
        (["Ä*"], ["äb"], ["a"]),
        (["*Σ"], ["ΑΣ"], ["Σa"]),  # letter by letter: as a whole, ΑΣ ends with ς in lower case
        (["İ?"], ["ib", "İb"], ["i"]),
        (["/^\\w+$/"], ["a_1"], ["ä", "a b"]),  # of ASCII, as Go's are
        (["/^[\\d]$/"], ["1"], ["\u0661"]),
        (["/^Ä[Ö-Ü]$/"], ["äö", "ÄÜ"], ["a"]),
        (["c[A-z]"], ["ca", "cZ", "c_"], ["c1"]),
        (["c[Ä]"], ["cä", "cÄ"], ["ca"]),
        (["a\\-b"], ["a-b"], ["a"]),
    ],
)
def test_column_patterns_match_as_tidbs_column_filter(
    patterns: list[str], matching: list[str], others: list[str]
) -> None:
    """As TiDB's column-filter: the last that matches decides, none means no, case never counts."""
    read = ColumnPatterns.parse(patterns)
    assert [name for name in (*matching, *others) if read.match(name)] == matching


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a.b", "unexpected '.'; put names with such characters in backquotes"),
        ("a b", "unexpected ' '"),
        ("!", "expected the name of a column"),
        ("@file", "cannot be read from another file"),
        ("/(/", "column pattern"),
        ("`a", "unexpected '`'"),
        ("\\d*", "\\d is not an escape"),
        ("c[\\d]", "\\d is not an escape"),
        ("c[a\\\\\\w]", "\\w is not an escape"),
        ("/^[[:alpha:]]+$/", "write [:alpha:] as a range, such as [a-z]"),
        ("/^[^[:^digit:]]+$/", "write [:^digit:] as a range"),
        ("//", "unexpected '/'"),
        ("``", "unexpected '`'"),
        ("/(?L)a/", "column pattern"),
        ("/(?u)a/", "column pattern"),
        ("/a{99999999999999999999}/", "column pattern"),
    ],
)
def test_invalid_column_pattern_is_refused_by_name(pattern: str, words: str) -> None:
    with pytest.raises(PatternError) as refused:
        ColumnPatterns.parse([pattern])
    assert repr(pattern) in str(refused.value) and words in str(refused.value)


def test_column_selector_without_columns_is_refused() -> None:
    with pytest.raises(DispatchConfigError, match=r"column selector for a\.b: no columns are given"):
        selectors("# none", matcher=["a.b"])


def test_first_selector_matching_table_is_used() -> None:
    read = ColumnSelectors.parse(
        [
            SelectorRule(matcher=("db.t",), columns=("a",)),
            SelectorRule(matcher=("*.*", "!db.free"), columns=("a", "b")),
            SelectorRule(matcher=("*.*",), columns=("b",)),
        ]
    )
    columns = [("a", INT), ("b", INT), ("c", INT)]

    def left(name: str) -> list[str]:
        return [column.name for column in read.select(described(table(columns, name=name))).table.columns]

    assert (left("T"), left("other"), left("free")) == (["a"], ["a", "b"], ["b"])
    assert not ColumnSelectors() and read
    assert repr(read) != repr(selectors("a")) and repr(pickle.loads(pickle.dumps(read))) == repr(read)
    long = ["/" + "a" * 300 + end + "/" for end in "xy"]
    assert repr(selectors(long[0])) != repr(selectors(long[1]))


PRIMARY = {"PRIMARY": ["a", "b"], "uk": ["c"]}
COLUMNS = [("a", not_null(INT)), ("b", not_null(INT)), ("c", not_null(INT)), ("d", INT), ("e", TEXT)]


@pytest.mark.parametrize(
    ("unique", "columns", "handle"),
    [
        (PRIMARY, ["*"], ["a", "b"]),
        (PRIMARY, ["*", "!e"], ["a", "b"]),
        (PRIMARY, ["a", "b"], ["a", "b"]),
        (PRIMARY, ["a", "c", "e"], ["c"]),  # and not the half of the primary key
        ({"PRIMARY": ["a"], "wide": ["b", "c"], "small": ["c"]}, ["*", "!a"], ["c"]),
        ({"PRIMARY": ["a"], "nullable": ["d"]}, ["d", "e"], []),  # as TiCDC: a unique key with NULLs is one
        ({"k": ["c"]}, ["c", "d"], ["c"]),
        ({"nullable": ["d"]}, ["e"], []),  # rows of this table are told apart by nothing
        ({}, ["e"], []),
    ],
)
def test_handle_key_is_chosen_among_selected_columns(
    unique: dict[str, list[str]], columns: list[str], handle: list[str]
) -> None:
    whole = described(table(COLUMNS, unique=unique))
    found = selectors(*columns).select(whole)
    assert [found.table.columns[column_index].name for column_index in found.table.handle] == handle
    assert found.table.key[:4] == whole.key[:4] and found.table.is_keyed == whole.is_keyed
    if found.column_indexes is None:
        assert found.table is whole
        return
    assert [whole.columns[column_index].name for column_index in found.column_indexes] == [
        column.name for column in found.table.columns
    ]
    hidden = ~ColumnFlag.HANDLE_KEY
    for column_index, column in zip(found.column_indexes, found.table.columns, strict=True):
        assert column.flags & hidden == whole.columns[column_index].flags & hidden


@pytest.mark.parametrize(
    ("unique", "handle", "columns", "words"),
    [
        (PRIMARY, "", ["a", "d"], "the primary key (a, b) lacks b; the unique key uk (c) lacks c. Add these columns"),
        ({"k": ["c"]}, "", ["d"], "the unique key k (c) lacks c"),
        ({}, "a", ["b"], "the primary key (a) lacks a"),
        (PRIMARY, "", ["nosuch"], "leaves no column of it"),
        ({}, "", ["nosuch"], "leaves no column of it"),
    ],
)
def test_table_whose_selected_columns_hold_no_whole_key_is_refused(
    unique: dict[str, list[str]], handle: str, columns: list[str], words: str
) -> None:
    """The error names table, selector and what is missing."""
    with pytest.raises(DispatchError) as refused:
        selectors(*columns, matcher=["db.*", "!db.x"]).select(described(table(COLUMNS, unique=unique, handle=handle)))
    text = str(refused.value)
    assert text.startswith(f"table `db`.`t`: the column selector for db.*, !db.x ({', '.join(columns)}) leaves")
    assert words in text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"partition": "columns", "columns": ("D", "e")}, "columns left out by its column selector: e; its dispatch"),
        ({"partition": "index-value", "index": "uk"}, "names the index uk, whose columns c are left out by its column"),
        ({"partition": "index-value", "index": "primary"}, "index primary, whose columns b are left out"),
        ({"partition": "columns", "columns": ("nosuch",)}, "columns not found: nosuch"),
    ],
)
def test_column_named_by_dispatch_rule_must_be_selected(rule: dict[str, object], words: str) -> None:
    rules = [DispatchRule(matcher=("*.*",), **rule)]  # type: ignore[arg-type]
    chosen = [
        SelectorRule(
            matcher=("*.*",), columns=("a", "d", "k") if rule.get("index") == "primary" else ("a", "b", "d", "k")
        )
    ]
    router = Router(rules, "all", selectors=chosen)
    info = table([*COLUMNS, ("k", not_null(INT))], unique={**PRIMARY, "k": ["k"]})
    with pytest.raises(DispatchError) as refused:
        router.check(described(info))
    assert words in str(refused.value)
    with pytest.raises(DispatchConfigError, match=r"`db`\.`t`"):
        check_view(view_of(info), router)
    check_view(view_of(table([("nosuch", INT), ("a", INT), ("D", INT), ("e", INT)], name="no")), Router([], "all"))


def kept(info: TableInfo, *columns: str) -> tuple[int, ...]:
    return tuple(at for at, column in enumerate(info.columns) if column.name in columns)


def cut(event: Event, column_indexes: Sequence[int]) -> Event:
    kind, *images = event
    old, new = (
        None if image is None else tuple(image[column_index] for column_index in column_indexes) for image in images
    )
    return kind, old, new


@given(data=st.data(), shape=st.sampled_from(SHAPES), raw=st.booleans(), rows_min=st.sampled_from([1, 1 << 30]))
def test_events_of_selected_columns_equal_those_of_the_whole_table_cut(
    data: st.DataObject, shape: str, raw: bool, rows_min: int
) -> None:
    """In the same order, split and merged by all columns; one that changed other columns alone is there, too."""
    info = table_of_shape(shape)
    chosen = data.draw(st.sampled_from(CHOICES))
    segment = segment_of([info], payloads_of(info, data.draw(rows_of_transactions(shape))), rows_min=rows_min)
    whole = listed(RowEvents(raw=raw).of(segment))
    found = listed(RowEvents(raw=raw, selectors=selectors(*chosen)).of(segment))
    assert found == [(commit_ts, cut(event, kept(info, *chosen))) for commit_ts, event in whole]


RULES = {
    "default": DispatchRule(matcher=("*.*",)),
    "index-value": DispatchRule(matcher=("*.*",), partition="index-value"),
    "columns": DispatchRule(matcher=("*.*",), partition="columns", columns=("u",)),
    "v": DispatchRule(matcher=("*.*",), partition="columns", columns=("v",)),
    "index": DispatchRule(matcher=("*.*",), partition="index-value", index="u"),
    "conflict": DispatchRule(matcher=("*.*",), partition="conflict"),
}


def test_partition_is_computed_from_selected_columns() -> None:
    columns = [("id", not_null(INT)), ("k", not_null(INT)), ("secret", TEXT)]
    whole = table(columns, unique={"PRIMARY": ["id"], "k": ["k"]})
    narrow = table(columns[1:2], unique={"k": ["k"]})
    steps: list[tuple[TableInfo, Step]] = [(whole, ("insert", {}, {1: n, 2: n + 100, 3: b"x"})) for n in range(20)]
    segment = segment_of([whole], [transaction(steps, commit_ts=9, start_ts=1)])
    router = Router([RULES["index-value"]], "all", selectors=[SelectorRule(matcher=("*.*",), columns=("k",))])
    to = Dispatcher(router, {"all": 7}, UTC)
    (routes,) = to.routes(RowEvents(selectors=router.selectors).of(segment))
    assert [one.name for one in routes.changes.table.columns] == ["k"]
    hashes = row_hashes(described(narrow), (0,), routes.changes.image, 20, UTC)
    assert routes.partitions.tolist() == (hashes % 7).tolist()
    assert len(set(routes.partitions.tolist())) > 3
    (slots,) = pickle.loads(pickle.dumps(PartitionSlotting(to, 7))).slots_of(segment.changes[0], 7)
    assert slots.tolist() == slots_of_topic(to, "all", 7)[routes.partitions].tolist()


def test_split_update_is_in_delete_and_insert_classes() -> None:
    """Also where the key that tells the rows apart is left out: deletes come first."""
    info = table([("id", INT), ("u", INT), ("v", INT)], handle="id", unique={"u": ["u"]})
    steps: list[Step] = [("update", {1: n, 2: n, 3: n}, {1: n, 2: n, 3: n + 50}) for n in range(30)]
    segment = segment_of([info], [transaction([(info, one) for one in steps], commit_ts=9, start_ts=1)])
    router = Router([RULES["v"]], "all", selectors=[SelectorRule(matcher=("*.*",), columns=("u", "v"))])
    routes = Dispatcher(router, {"all": 3}, UTC).routes(RowEvents(selectors=router.selectors).of(segment))
    wanted = {Kind.DELETE: DELETES, Kind.UPDATE: UPDATES, Kind.INSERT: INSERTS}
    assert {one.changes.kind for one in routes} == wanted.keys()
    assert all(class_of(one.changes) == wanted[one.changes.kind] for one in routes)


def test_conflict_dispatch_ignores_unique_keys_of_unselected_columns() -> None:
    """Rows that meet in a unique key that is left out are distributed as if there were none."""
    info = table([("id", INT), ("u", INT)], handle="id", unique={"u": ["u"]})
    payloads = [
        transaction([(info, ("insert", {}, {1: 1, 2: 5}))], commit_ts=3, start_ts=1),
        transaction([(info, ("delete", {1: 1, 2: 5}, {}))], commit_ts=5, start_ts=4),
        transaction([(info, ("insert", {}, {1: 2, 2: 5}))], commit_ts=7, start_ts=6),
    ]
    segment = segment_of([info], payloads)

    def places(*columns: str) -> set[int]:
        router = Router([RULES["conflict"]], "all", selectors=[SelectorRule(matcher=("*.*",), columns=columns)])
        routes = Dispatcher(router, {"all": 1000}, UTC).routes(RowEvents(selectors=router.selectors).of(segment))
        return {number for one in routes for number in one.partitions.tolist()}

    assert len(places("*")) == 1
    assert len(places("id")) == 2


def test_update_of_unselected_columns_is_still_event() -> None:
    """As TiCDC sends it; and one of a unique key that is left out is a delete and an insert."""
    info = table([("id", INT), ("v", INT), ("u", INT)], handle="id", unique={"u": ["u"]})
    updates: list[Step] = [
        ("update", {1: 1, 2: 5, 3: 1}, {1: 1, 2: 6, 3: 1}),
        ("update", {1: 2, 2: 5, 3: 2}, {1: 2, 2: 5, 3: 3}),
    ]
    segment = segment_of([info], [transaction([(info, one) for one in updates], commit_ts=9, start_ts=1)])
    found = [event for _, event in listed(RowEvents(selectors=selectors("id")).of(segment))]
    assert found == [(Kind.DELETE, (2,), None), (Kind.UPDATE, (1,), (1,)), (Kind.INSERT, None, (2,))]


def test_row_id_and_partition_id_are_left_out_without_their_columns() -> None:
    """Open Protocol's `rid` is the primary key's value; its partition's id is not guessed from a default."""
    parts = (PartitionDefinition(11, "p0", ()), PartitionDefinition(12, "p1", ()))
    info = replace(
        table([("id", INT), ("k", not_null(INT)), ("v", INT)], handle="id", unique={"k": ["k"]}),
        partition=PartitionInfo(PartitionType.HASH, "`id`", definitions=parts),
    )
    columns = tuple(pa.array([value], pa.int64()) for value in (5, 6, 7))

    def told(*names: str) -> tuple[object, object]:
        selection = selectors(*names).select(described(info))
        ids, partitions = row_ids(selection.table), partition_ids(selection.table)
        assert partitions is not None
        left = selection.of(columns)
        return ids(left).to_pylist() if ids is not None else None, partitions(left).to_pylist()

    assert told("*") == told("id") == ([5], [12])
    assert told("k", "v") == (None, [None])


def ddl_to(info: TableInfo) -> Ddl:
    job = Job(8, ActionType.ADD_COLUMN, schema_version=9)
    change = TableChange(None, Located(info.id, "db", info))
    return Ddl(job, 77, False, "db", "t", ("x",), "ALTER TABLE t x", 70, (change,))


def test_ddl_whose_table_does_not_fit_its_selector_is_refused_before_publication() -> None:
    """The error names job, statement, table, selector and what is missing; a dropped table is no matter."""
    router = Router([], "all", selectors=[SelectorRule(matcher=("*.*",), columns=("id", "v"))])
    check_ddl(ddl_to(table([("id", INT), ("v", INT), ("w", INT)], handle="id")), router)
    broken = ddl_to(table([("k", not_null(INT)), ("v", INT)], unique={"PRIMARY": ["k"]}))
    with pytest.raises(DispatchError) as refused:
        check_ddl(broken, router)
    text = str(refused.value)
    assert text.startswith("DDL job 8 at commit_ts 77 is not published (ALTER TABLE t x): after it, table `db`.`t`: ")
    assert "the primary key (k) lacks k" in text and "the column selector for *.* (id, v)" in text
    gone = replace(broken, changes=(replace(broken.changes[0], before=broken.changes[0].after, after=None),))
    check_ddl(gone, router)
    check_ddl(broken, Router([], "all"))


@pytest.mark.parametrize("kind", ["view", "sequence"])
@pytest.mark.parametrize("rule", ["columns", "index", "default"])
def test_view_or_sequence_ddl_is_published_whatever_its_columns(kind: str, rule: str) -> None:
    """It has no rows, so no selector and no rule must fit it."""
    router = Router([RULES[rule]], "all", selectors=[SelectorRule(matcher=("*.*",), columns=("id", "u"))])
    info = table([("total", INT)] if kind == "view" else [], name="v")
    check_ddl(ddl_to(replace(info, rest={kind: {}})), router)
    with pytest.raises(DispatchError, match=r"`db`\.`v`"):
        check_ddl(ddl_to(table([("total", INT)], name="v")), router)


def test_intermediate_name_of_rename_need_not_fit_its_selector() -> None:
    """RENAME TABLE a TO tmp, b TO a, tmp TO b: no row is ever of tmp, or of a table that is not there behind it."""
    router = Router(
        [],
        "all",
        selectors=[
            SelectorRule(matcher=("db.tmp",), columns=("nosuch",)),
            SelectorRule(matcher=("*.*",), columns=("id",)),
        ],
    )
    a, b = (
        table([("id", INT), ("v", INT)], handle="id", table_id=number, name=name)
        for number, name in ((1, "a"), (2, "b"))
    )

    def located(info: TableInfo, name: str) -> Located:
        return Located(info.id, "db", replace(info, name=name))

    changes = (
        TableChange(located(a, "a"), located(a, "tmp")),
        TableChange(located(b, "b"), located(b, "a")),
        TableChange(located(a, "tmp"), located(a, "b")),
    )
    check_ddl(replace(ddl_to(a), changes=changes), router)
    with pytest.raises(DispatchError, match=r"`db`\.`tmp`"):
        check_ddl(replace(ddl_to(a), changes=changes[:2]), router)
    gone = TableChange(located(a, "tmp"), None)
    check_ddl(replace(ddl_to(a), changes=(*changes[:2], gone)), router)


def test_recorded_repr_of_column_patterns_is_stable() -> None:
    """A range that was begun with them is finished with them, by a later version, too (rule 16)."""
    read = ColumnPatterns.parse(["c[A-C]*", "/^T[A-Z]$/", "!Ab"])
    assert repr(read.patterns) == (
        r"(_Pattern(True, '\\Ac[a-c](?s:.*)\\Z'), _Pattern(True, '^T[A-Z]$'), _Pattern(False, '\\Aab\\Z'))"
    )
