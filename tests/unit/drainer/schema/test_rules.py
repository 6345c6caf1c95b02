"""Rules for routes, columns and rows: what becomes of tables, rows and DDLs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.decode import ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.config import Config
from drainer.dispatch.ddl_messages import ddl_messages
from drainer.dispatch.rules import Router
from drainer.row.codec import Decoder
from drainer.row.rules import Condition
from drainer.schema.errors import RuleRefused
from drainer.schema.filter import Wildcards
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy, RewriteRule, RewriteRules
from drainer.schema.rules import ColumnRule, Mask, Route, RowRule, Rules
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.schema.view import SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import INT, TEXT, Step, altered, changes_of, not_null, transaction, view_of
from tests.support.row_case import table as row_table
from tests.support.schema_case import BEGIN_TS, job, ts
from tests.support.schema_case import table as schema_table
from tests.unit.drainer.schema.test_segmenter import DONE

KEY = "k3y"
EVERY = Wildcards("*")


def configured(**syncer: object) -> Rules:
    return Config.model_validate({"syncer": {"hash-key": KEY, **syncer}}).syncer.rules()


def columns(**rule: object) -> Rules:
    return configured(columns=[{"schema-pattern": "*", **rule}])


def ruled(view: SchemaView, rules: Rules) -> SchemaView:
    tables, _ = Policy(rules=rules).viewed(dict(view.tables))
    return replace(view, tables=tables)


# Rows: the columns `gone` and, masked, `secret` (hash) and `note` (last four), in each of the tables.
KINDS = [("k", INT), ("secret", TEXT), ("note", TEXT), ("region", TEXT), ("v", INT), ("gone", TEXT)]


def tables_of(kinds: Sequence[tuple[str, FieldType]]) -> tuple[TableInfo, ...]:
    by_text = [(name, not_null(kind) if name == "secret" else kind) for name, kind in kinds]
    return (
        row_table(kinds, handle="k", table_id=101, name="keyed"),
        row_table(by_text, unique={"PRIMARY": ["secret"]}, table_id=102, name="by_text"),
        row_table(kinds, table_id=103, name="bare"),
    )


UPSTREAM, DESTINATION = tables_of(KINDS), tables_of(KINDS[:-1])
Row = tuple[int, str, str | None, str | None, int | None]
Truth = Callable[[Row], bool | None]


def compared(at: int, operator: str, literal: object) -> Truth:
    tests: Mapping[str, Callable[[Any, Any], bool]] = {
        "=": lambda a, b: a == b,
        "<>": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        ">=": lambda a, b: a >= b,
    }
    return lambda row: None if row[at] is None else tests[operator](row[at], literal)


def conditions() -> st.SearchStrategy[tuple[str, Truth]]:
    """A condition, and the same as a function of a row."""
    operators = st.sampled_from(["=", "<>", "<", ">="])
    of_v = st.builds(lambda op, n: (f"v {op} {n}", compared(4, op, n)), operators, st.integers(-2, 2))
    of_region = st.builds(
        lambda op, text: (f"region {op} '{text}'", compared(3, op, text)), operators, st.sampled_from(["eu", "us"])
    )
    nulls = st.sampled_from([("v", 4), ("region", 3)]).map(
        lambda one: (f"{one[0]} IS NULL", lambda r: r[one[1]] is None)
    )
    among = st.just(("region in ('eu', 'x''y')", lambda r: None if r[3] is None else r[3] in ("eu", "x'y")))

    def joined(word: str, stop: bool) -> Callable[[tuple[str, Truth], tuple[str, Truth]], tuple[str, Truth]]:
        def join(a: tuple[str, Truth], b: tuple[str, Truth]) -> tuple[str, Truth]:
            def truth(row: Row) -> bool | None:
                found = {a[1](row), b[1](row)}
                return stop if stop in found else None if None in found else not stop

            return f"({a[0]} {word} {b[0]})", truth

        return join

    def negated(one: tuple[str, Truth]) -> tuple[str, Truth]:
        return f"not {one[0]}", lambda row: None if one[1](row) is None else not one[1](row)

    one = of_v | of_region | nulls | among  # type: ignore[operator]
    two = st.builds(joined("and", False), one, one) | st.builds(joined("or", True), one, one.map(negated))
    return one | two | two.map(negated) | st.builds(joined("or", True), two, one)


ROWS = st.tuples(
    st.integers(1, 3),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, "4111-1111", "x"]),
    st.sampled_from([None, "eu", "us", "x'y"]),
    st.none() | st.integers(-2, 2),
)
STEPS = st.tuples(st.integers(0, 2), st.sampled_from(["insert", "update", "delete"]), ROWS, ROWS)


def masked(row: Row) -> Row:
    note = row[2] and ("*****1111" if len(row[2]) > 4 else "*")
    return (row[0], hmac.new(KEY.encode(), row[1].encode(), hashlib.sha256).hexdigest(), note, *row[3:])


def values(row: Row, more: tuple[str, ...] = ()) -> dict[int, Any]:
    cells = (*row, *more)
    return {at: cell.encode() if isinstance(cell, str) else cell for at, cell in enumerate(cells, start=1)}


def by_model(chosen: Truth, kind: str, old: Row, new: Row) -> tuple[str, Row, Row] | None:
    was = kind != "insert" and chosen(old) is True
    now = kind != "delete" and chosen(new) is True
    return (
        ("update" if was and now else "insert" if now else "delete", masked(old), masked(new)) if was or now else None
    )


def shown(view: SchemaView, binlogs: list[bytes], rows_min: int) -> list[object]:
    """Folded, in the driver and cut to slots; and every change."""
    decoder = SegmentDecoder(view, SQL_TEXT, columns_rows_min=rows_min)
    decoder.columns._vector_rows_min = 0
    cutter = SegmentCutter(decoder)
    cutter.add_all(binlogs)
    works = [
        decoder.segment(binlogs, 0, 1),
        *(merge_slot([blob], SQL_TEXT) for _, blob in sorted(cutter.cut(2).items())),
    ]
    found: list[object] = [
        (
            [(one.shape, list(one.rows)) for one in work.folded],
            [(one.shape, one.kind, one.old, one.new, one.commit_ts) for one in work.ordered.changes],
            work.change_count,
        )
        for work in works
    ]
    changes = []
    for one in ColumnDecoder(view, vector_rows_min=rows_min).decode(scan_all(binlogs).rows):
        images = [zip(*(column.to_pylist() for column in image or ()), strict=True) for image in (one.old, one.new)]
        images = [list(image) or [None] * len(one) for image in images]
        rows = zip(one.commit_ts.tolist(), *images, strict=True)
        changes += [(one.shape.table_id, one.shape.schema, one.kind, *row) for row in rows]
    return [*found, sorted(changes, key=repr)]


@pytest.mark.parametrize("rows_min", [0, 256], ids=["as columns", "one by one"])
@given(drawn=st.lists(st.lists(STEPS, min_size=1, max_size=4), max_size=6), condition=conditions())
def test_changes_by_rules_equal_those_of_a_stream_to_which_a_model_applied_the_rules(
    rows_min: int, drawn: list[list[tuple[int, str, Row, Row]]], condition: tuple[str, Truth]
) -> None:
    rules = configured(
        routes=[{"schema-pattern": "db", "target-schema": "eu"}],
        columns=[{"schema-pattern": "*", "leave-out": ["GONE"], "mask": {"secret": "hash", "note": "last-four"}}],
        rows=[{"schema-pattern": "*", "where": condition[0]}],
    )
    everything, wanted = [], []
    for number, steps in enumerate(drawn):
        made: list[tuple[TableInfo, Step]] = []
        kept: list[tuple[TableInfo, Step]] = []
        for table, kind, old, new in steps:
            made.append((UPSTREAM[table], (kind, values(old, ("g",)), values(new, ("h",)))))
            model = by_model(condition[1], kind, old, new)
            if model is not None:
                kept.append((DESTINATION[table], (model[0], values(model[1]), values(model[2]))))
        everything.append(transaction(made, commit_ts=BEGIN_TS + number))
        wanted.append(transaction(kept, commit_ts=BEGIN_TS + number))
    plain = view_of(*DESTINATION)
    plain = replace(plain, tables={i: replace(one, schema="eu") for i, one in plain.tables.items()})
    assert shown(ruled(view_of(*UPSTREAM), rules), everything, rows_min) == shown(plain, wanted, rows_min)


def test_row_with_a_left_out_column_that_is_newer_than_its_table_is_decoded() -> None:
    """A row of schema version 1 that has a column which version 2 adds, and which is left out."""
    old, new = row_table([("k", INT)], handle="k"), row_table([("k", INT), ("gone", INT)], handle="k")
    view = ruled(altered(old, new, unknown_columns={}), columns(**{"leave-out": ["gone"]}))
    payload = transaction([(new, ("insert", {}, {1: 1, 2: 7}))], commit_ts=BEGIN_TS, version=1)
    (change,) = changes_of(Decoder(view), [payload])
    assert (change.shape.columns, change.new) == (("k",), (b"1",))


@pytest.mark.parametrize(
    ("kind", "mask", "why"),
    [
        (FieldType(Tp.VARCHAR, flen=15, charset="utf8mb4"), "hash", "its length is 15, and a hash needs 16"),
        (INT, "hash", "which 'hash' is not for"),
        (FieldType(Tp.BLOB, flen=255, charset="binary"), "last-four", "which 'last-four' is not for"),
        (INT, "constant:x", "'x' is no value of its type"),
        (FieldType(Tp.VARCHAR, flen=2, charset="utf8mb4"), "constant:abc", "its length is 2"),
        (FieldType(Tp.VARCHAR, flen=64, charset="utf8mb4"), "hash", ""),
        (FieldType(Tp.DATE, flen=10), "constant:1970-01-01", ""),
    ],
)
def test_mask_is_refused_for_a_type_it_does_not_fit(kind: FieldType, mask: str, why: str) -> None:
    info = row_table([("k", INT), ("c", kind)], handle="k")
    rules = columns(mask={"c": mask})
    if not why:
        assert rules.applied("db", info) is not None
        return
    with pytest.raises(RuleRefused, match=r"syncer\.columns 1 cannot be applied to table db\.t: column c .*" + why):
        rules.applied("db", info)


GENERATED = ColumnInfo(3, "g", 2, INT, generated_expr="`c` + 1")
BEGUN = IndexInfo(1, "u", (IndexColumn("u", 2, 10),), unique=True)
PARTED = PartitionInfo(PartitionType.HASH, expr="`c`", num=2)


@pytest.mark.parametrize(
    ("change", "rule", "why"),
    [
        ({}, {"leave-out": ["K"]}, "column k cannot be left out: it is part of the primary key"),
        ({}, {"mask": {"u": "last-four"}}, "column u cannot be masked: a unique key has it"),
        (
            {"indexes": (BEGUN,)},
            {"mask": {"u": "hash"}},
            "column u cannot be masked: a unique key has only its beginning",
        ),
        ({}, {"new-column": "stop", "known": ["k", "c"]}, "column u is new: add it to known"),
        (
            {"partition": PARTED},
            {"leave-out": ["c"]},
            "column c cannot be left out or masked: the table is partitioned",
        ),
        ({"generated": GENERATED}, {"mask": {"c": "constant:1"}}, "column g is generated from c"),
        ({"generated": GENERATED}, {"mask": {"g": "constant:1"}}, "column g cannot be masked: it is generated"),
    ],
)
def test_rule_that_cannot_be_applied_is_refused_naming_rule_table_and_column(
    change: dict[str, Any], rule: dict[str, object], why: str
) -> None:
    info = row_table([("k", INT), ("c", INT), ("u", TEXT)], handle="k", unique={"u": ["u"]})
    if "generated" in change:
        info = replace(info, columns=(*info.columns[:2], change["generated"]), indexes=())
    else:
        info = replace(info, **change)
    with pytest.raises(RuleRefused, match=r"syncer\.columns 1 cannot be applied to table db\.t: " + why):
        columns(**rule).applied("db", info)


def test_left_out_column_takes_its_indexes_checks_and_hidden_columns_along() -> None:
    info = row_table([("k", INT), ("c", INT), ("d", INT)], handle="k", unique={"c_d": ["c", "d"], "d": ["d"]})
    hidden = ColumnInfo(4, "_v$_e_0", 3, INT, generated_expr="`C` * 2", hidden=True)
    on_hidden = IndexInfo(9, "e", (IndexColumn(hidden.name, 3),))
    checks = [
        {"id": 1, "constraint_name": {"O": "x"}, "expr_string": "`c` > 0"},
        {"id": 2, "constraint_name": {"O": "y"}, "expr_string": "`d` > 0"},
    ]
    info = replace(
        info,
        columns=(*info.columns, hidden),
        indexes=(*info.indexes, on_hidden),
        rest={"constraint_info": checks},  # type: ignore[dict-item]
    )
    made = columns(**{"leave-out": ["c"]}).applied("db", info)
    assert made is not None
    assert [(column.name, column.offset) for column in made.info.columns] == [("k", 0), ("d", 1)]
    assert [(index.name, index.columns[0].offset) for index in made.info.indexes] == [("d", 1)]
    assert made.info.rest["constraint_info"] == checks[1:]


def key(schema: str, parent: str) -> dict[str, object]:
    return {"id": 1, "fk_name": {"O": "f"}, "ref_schema": {"O": schema}, "ref_table": {"O": parent}}


def test_foreign_key_follows_its_parent_and_is_left_out_where_rows_or_columns_have_rules() -> None:
    rules = configured(
        routes=[{"schema-pattern": "db", "table-pattern": "p*", "target-schema": "eu"}],
        rows=[{"schema-pattern": "db", "table-pattern": "p2", "where": "k = 1"}],
    )
    child = replace(row_table([("k", INT)], handle="k"), rest={"fk_info": [key("db", "p1"), key("db", "p2")]})  # type: ignore[dict-item]
    made = rules.applied("db", child)
    assert made is not None
    assert made.info.rest["fk_info"] == [
        {**key("db", "p1"), "ref_schema": {"O": "eu", "L": "eu"}, "ref_table": {"O": "p1", "L": "p1"}}
    ]


def test_two_tables_of_one_name_at_the_destination_are_refused_naming_both() -> None:
    rules = configured(routes=[{"schema-pattern": "d*", "table-pattern": "t", "target-schema": "x"}])
    tables = [("d1", schema_table(1, "t")), ("d2", schema_table(2, "T"))]
    with pytest.raises(RuleRefused, match=r"tables d1\.t and d2\.T both go to x\.T"):
        rules.unions(tables)


def made(kind: ActionType, *changes: TableChange, rules: Rules, sql: str = "", query: str = "…") -> Ddl | None:
    rewrite = RewriteRules([RewriteRule((sql,), job_id=9)] if sql else [])
    proposed = Ddl(job(9, kind, 9), ts(2), False, "d", "", (), query, ts(2), changes)
    return Policy(rules=rules, rewrite=rewrite).step(proposed, query)


def at(table_id: int, name: str, *names: str) -> Located:
    return Located(table_id, "d", replace(schema_table(table_id, name, names or ("a",)), collate="utf8mb4_bin"))


A, AB = at(1, "t", "a"), at(1, "t", "a", "b")
TO_X = configured(routes=[{"schema-pattern": "d", "target-schema": "x"}])
TO_D = configured(routes=[{"schema-pattern": "e", "target-schema": "D"}])
T_TO_X = configured(routes=[{"schema-pattern": "d", "table-pattern": "t", "target-schema": "x", "target-table": "y"}])
NO_B = columns(**{"leave-out": ["b"]})
SEQUENCE = replace(at(3, "s"), info=replace(at(3, "s").info, rest={"sequence": {}}))


@pytest.mark.parametrize(
    ("kind", "changes", "rules", "sql"),
    [
        (ActionType.ADD_COLUMN, [TableChange(A, AB)], TO_X, ["ALTER TABLE `x`.`t` ADD COLUMN `b` BIGINT"]),
        (ActionType.ADD_COLUMN, [TableChange(A, AB)], NO_B, None),
        (ActionType.DROP_TABLE, [TableChange(A, None)], T_TO_X, ["DROP TABLE IF EXISTS `x`.`y`"]),
        (ActionType.TRUNCATE_TABLE, [TableChange(A, at(2, "t"))], T_TO_X, ["TRUNCATE TABLE `x`.`y`"]),
        (ActionType.RENAME_TABLE, [TableChange(A, at(1, "u"))], TO_X, ["RENAME TABLE `x`.`t` TO `x`.`u`"]),
        (ActionType.RENAME_TABLE, [TableChange(A, at(1, "u"))], T_TO_X, ["RENAME TABLE `x`.`y` TO `d`.`u`"]),
        (ActionType.RECOVER_TABLE, [TableChange(None, A)], TO_X, ["RECOVER TABLE `x`.`t`"]),
        (
            ActionType.DROP_SCHEMA,
            [TableChange(A, None), TableChange(at(2, "u"), None)],
            T_TO_X,
            ["DROP TABLE IF EXISTS `x`.`y`", "DROP TABLE IF EXISTS `d`.`u`"],
        ),
        (ActionType.CREATE_SCHEMA, [], TO_X, None),
        (ActionType.CREATE_SCHEMA, [], T_TO_X, ["…"]),
        (ActionType.DROP_SCHEMA, [], T_TO_X, ["…"]),
        (ActionType.DROP_SCHEMA, [], TO_X, None),
        (ActionType.DROP_SCHEMA, [], TO_D, None),
        (ActionType.DROP_SCHEMA, [TableChange(A, None)], TO_D, ["DROP TABLE IF EXISTS `d`.`t`"]),
        (ActionType.DROP_SCHEMA, [TableChange(SEQUENCE, None)], TO_D, ["DROP SEQUENCE IF EXISTS `d`.`s`"]),
    ],
)
def test_ddl_is_made_from_the_tables_of_the_destination(
    kind: ActionType, changes: list[TableChange], rules: Rules, sql: list[str] | None
) -> None:
    step = made(kind, *changes, rules=rules)
    assert (step and [text.split(" DEFAULT")[0].split(" NULL")[0] for text in step.sql]) == sql


def test_dropped_database_is_published_as_drop_of_each_table() -> None:
    step = made(ActionType.DROP_SCHEMA, TableChange(A, None), TableChange(at(2, "u"), None), rules=TO_X)
    assert step is not None
    found = [(one.ddl.schema, one.ddl.table, one.ddl.query) for one in ddl_messages(step, Router([], "all"))]
    assert found == [("x", "t", "DROP TABLE IF EXISTS `x`.`t`"), ("x", "u", "DROP TABLE IF EXISTS `x`.`u`")]


def test_renamed_table_of_several_that_keeps_its_name_at_the_destination_is_not_published() -> None:
    both = configured(
        routes=[{"schema-pattern": "d", "table-pattern": "[tu]", "target-schema": "x", "target-table": "y"}]
    )
    other = TableChange(at(2, "v"), at(2, "w"))
    step = made(ActionType.RENAME_TABLES, TableChange(A, at(1, "u")), other, rules=both)
    assert step is not None
    assert [one.ddl.query for one in ddl_messages(step, Router([], "all"))] == ["RENAME TABLE `d`.`v` TO `d`.`w`"]


@pytest.mark.parametrize("rest", [{"view": {}}, {"temp_table_type": 1}])
def test_view_or_temporary_table_of_a_routed_name_is_left_out(rest: dict[str, Any]) -> None:
    other = replace(A, info=replace(A.info, rest=rest))
    assert made(ActionType.CREATE_VIEW, TableChange(None, other), rules=TO_X) is None


def test_ddl_of_unknown_effect_stops_and_an_operators_text_runs_instead() -> None:
    with pytest.raises(RuleRefused, match=r"DDL job 9 .* its effect on x\.t, which rules alter, is not known"):
        made(ActionType.ADD_COLUMN, TableChange(None, A), rules=TO_X)
    step = made(ActionType.ADD_COLUMN, TableChange(None, A), rules=TO_X, sql="select 1")
    assert step is not None
    assert (step.sql, step.use, step.rewritten) == (("select 1",), "x", True)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ActionType.RENAME_TABLE, [TableChange(A, at(1, "u"))]),
        (ActionType.EXCHANGE_TABLE_PARTITION, [TableChange(AB, AB), TableChange(at(2, "u"), at(3, "u"))]),
    ],
)
def test_ddl_that_gives_rows_to_other_rules_stops(kind: ActionType, changes: list[TableChange]) -> None:
    routes = [{"schema-pattern": "d", "target-schema": "x"}]
    rows = [{"schema-pattern": "d", "table-pattern": "t", "where": "a = 1"}]
    masks = [{"schema-pattern": "d", "table-pattern": "t", "mask": {"a": "constant:1"}}]
    for rules in (configured(routes=routes, rows=rows), configured(rows=rows), configured(columns=masks)):
        with pytest.raises(RuleRefused, match=r"different columns or rows rules apply to d\.t and d\.u"):
            made(kind, *changes, rules=rules)
    assert made(kind, *changes, rules=configured(rows=rows), sql="select 1") is not None


@pytest.mark.parametrize("column_id", [2, 3], ids=["same type", "another type"])
def test_left_out_column_that_gets_another_name_stops(column_id: int) -> None:
    """The destination would add it without the values that it has upstream."""
    shown = at(1, "t", "a", "b")
    after = replace(shown.info.columns[1], id=column_id, name="c")
    change = TableChange(AB, replace(shown, info=replace(shown.info, columns=(shown.info.columns[0], after))))
    with pytest.raises(RuleRefused, match=r"column c of d\.t was left out under its former name"):
        made(ActionType.MODIFY_COLUMN, change, rules=NO_B)
    assert made(ActionType.MODIFY_COLUMN, change, rules=columns(**{"leave-out": ["b", "c"]})) is None


def test_schema_refuses_the_table_before_its_ddl_runs() -> None:
    schema = Schema.open(
        JobHistory(DONE), position_ts=BEGIN_TS, policy=Policy(rules=columns(**{"new-column": "stop", "known": ["a"]}))
    )
    schema.view()
    added = job(9, ActionType.ADD_COLUMN, 9, schema_id=2, table_id=10, table_info=schema_table(10, "t", ["a", "b"]))
    schema.learn([added])
    with pytest.raises(RuleRefused, match=r"syncer\.columns 1 cannot be applied to table d\.t: column b is new"):
        schema.plan(added, query="…", commit_ts=ts(5), own_ts=ts(5), early=False)


def test_view_names_the_destination_and_refused_keys_are_looked_for_there() -> None:
    keyed = row_table([("a", INT), ("u", INT)], unique={"u": ["u"]}, table_id=10, name="t")
    jobs = [*DONE[:1], replace(DONE[1], table_info=keyed)]
    schema = Schema.open(JobHistory(jobs), position_ts=BEGIN_TS, policy=Policy(rules=T_TO_X))
    found = schema.view().tables[10]
    assert (found.schema, found.name, found.infos[0].name) == ("x", "y", "t")
    dropped = job(9, ActionType.DROP_INDEX, 9, schema_id=2, table_id=10, table_info=replace(keyed, indexes=()))
    schema.learn([dropped])
    assert schema.job_that_drops(schema="X", table="Y", key="u") == dropped
    assert schema.job_that_drops(schema="d", table="t", key="u") is None


def test_rules_that_match_nothing_are_named() -> None:
    rules = Rules(
        [Route("routes 1", Wildcards("nowhere"), "x")],
        [ColumnRule("columns 1", EVERY, ("zz*",), (("a", Mask.parse("hash", KEY, "")),))],
        [RowRule("rows 1", Wildcards("d", "none"), Condition.parse("a = 1", ""))],
    )
    assert list(rules.warnings([("d", A.info)])) == [
        "routes 1: no table matches nowhere.*",
        "columns 1: no table that it matches has a column zz*",
        "rows 1: no table matches d.none",
    ]


@pytest.mark.parametrize(
    ("syncer", "why"),
    [
        ({"columns": [{"schema-pattern": "d", "mask": {"c": "hush"}}]}, "mask of c: 'hush' is no mask"),
        ({"hash-key": "", "columns": [{"schema-pattern": "d", "mask": {"c": "hash"}}]}, "needs syncer.hash-key"),
        ({"rows": [{"schema-pattern": "d", "where": "a ="}]}, "syncer.rows 1: where, character 4: expected a text"),
        ({"routes": [{"schema-pattern": "d", "target-schema": ""}]}, "at least 1 character"),
    ],
)
def test_configured_rule_that_is_invalid_is_refused(syncer: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Config.model_validate({"syncer": syncer})


def test_digest_of_filters_has_the_rules_and_stays_without_them() -> None:
    def digest(**syncer: object) -> str:
        return Config.model_validate({"syncer": syncer}).syncer.digest()

    row = {"schema-pattern": "d", "where": "a = 1"}
    assert digest() == digest(**{"hash-key": "x"}) == "baedfb656e1eed08"
    assert len({digest(), digest(rows=[row]), digest(rows=[{**row, "where": "a = 2"}])}) == 3


def test_key_of_the_hash_is_not_shown() -> None:
    assert "k3y" not in repr(Config.model_validate({"syncer": {"hash-key": KEY}}))
    assert "k3y" not in repr(Mask.parse("hash", KEY, ""))
