"""A drainer's rules for columns, rows and events in the typed change stream: the same by columns and row by row."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from binlog.errors import ConfigError
from binlog.tidb.datum import Uint
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.row.rules import Condition
from drainer.schema.errors import RuleRefused
from drainer.schema.filter import Wildcards
from drainer.schema.history.base import Watched, Written
from drainer.schema.rules import ColumnRule, Mask, MaskKind, RowRule, Rules
from drainer.schema.view import SchemaView, TableVersions
from drainer.spark.typed.fields import Reading, StreamRules, fields_of
from drainer.spark.typed.reader import read_rules
from drainer.spark.typed.rows import KIND_NAMES
from tests.support.row_case import BEGIN_TS, INT, transaction
from tests.unit.drainer.spark.typed.test_column_batch import both
from tests.unit.drainer.spark.typed.test_rows import HEIRS, NAME, OLD, RETYPED, ROW, insert, watched_of

HASH = ColumnRule("columns", Wildcards("shop"), (), (("note", Mask(MaskKind.HASH, "k")),))
WIDE = FieldType(Tp.VARCHAR, flen=200, charset="utf8mb4", collate="utf8mb4_bin")
INFO = replace(OLD, columns=(OLD.columns[0], replace(OLD.columns[1], type=WIDE), OLD.columns[2]))


def hashed(text: bytes) -> str:
    return hmac.new(b"k", text, hashlib.sha256).hexdigest()


def rules_of(*columns: ColumnRule, where: str = "") -> StreamRules:
    rows = [RowRule("rows", Wildcards("shop"), Condition.parse(where, "rows"))] if where else []
    return StreamRules(Rules((), columns, rows))


def reading_of(rules: StreamRules, watched: Watched, *, at: int | None = None, collect: bool = False) -> Reading:
    """Of a query that was started when `at` was the newest version."""
    begin = watched.version if at is None else at
    info = watched.ids[OLD.id][begin - 1].info
    return Reading(watched, fields_of({NAME: rules.applied(NAME, info)}), begin, collect=collect, rules=rules)


def rows_of(reading: Reading, *payloads: bytes) -> list[dict[str, Any]]:
    found = both(reading, payloads)
    assert isinstance(found, pa.RecordBatch), found
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_columns_are_left_out_and_masked() -> None:
    rule = replace(HASH, leave_out=("pri*",))
    reading = reading_of(rules_of(rule), watched_of(INFO))
    changed = {**ROW, 2: None}
    steps = [(INFO, ("insert", {}, ROW)), (INFO, ("update", ROW, changed)), (INFO, ("delete", changed, {}))]
    rows = rows_of(reading, transaction(steps, commit_ts=BEGIN_TS))  # type: ignore[arg-type]
    one, other = {"id": 1, "note": hashed(b"x")}, {"id": 1, "note": None}
    assert [(row["before"], row["after"]) for row in rows] == [(None, one), (one, other), (other, None)]


def test_row_that_leaves_condition_is_delete_and_one_that_enters_is_insert() -> None:
    reading = reading_of(rules_of(where="price > 10 or note is null"), watched_of(INFO))
    low = {**ROW, 3: 5}
    steps = [
        ("insert", {}, low),
        ("update", low, ROW),
        ("update", ROW, {**ROW, 2: None}),
        ("update", ROW, low),
        ("delete", low, {}),
        ("delete", ROW, {}),
    ]
    rows = rows_of(reading, transaction([(INFO, step) for step in steps], commit_ts=BEGIN_TS))  # type: ignore[misc]
    one = {"id": 1, "note": "x", "price": 30}
    assert [(row["seq"], row["kind"], row["before"], row["after"]) for row in rows] == [
        (1, "insert", None, one),
        (2, "update", one, {**one, "note": None}),
        (3, "delete", one, None),
        (5, "delete", one, None),
    ]


VALUES = st.fixed_dictionaries({1: st.just(1), 2: st.sampled_from([None, b"", b"x", b"y"]), 3: st.integers(0, 3)})
STEPS = st.one_of(
    st.tuples(st.just("insert"), st.just({}), VALUES),
    st.tuples(st.just("update"), VALUES, VALUES),
    st.tuples(st.just("delete"), VALUES, st.just({})),
)
WHERES = st.sampled_from(["price > 1", "note = 'x' and not price in (0, 2)", "note is null or note != 'y'"])


@given(steps=st.lists(STEPS, min_size=1, max_size=8), where=WHERES, masks=st.booleans())
def test_stream_has_the_changes_that_a_drainer_applies(steps: Sequence[Any], where: str, masks: bool) -> None:
    rules = rules_of(*[HASH] * masks, where=where)
    payload = transaction([(INFO, step) for step in steps], commit_ts=BEGIN_TS)
    rows = rows_of(reading_of(rules, watched_of(INFO)), payload)
    found = [(row["seq"], row["kind"], values_of(row["before"]), values_of(row["after"])) for row in rows]
    versions = TableVersions("shop", 1, (1,), (INFO,), applied=rules.values.applied("shop", INFO))
    decoder = ColumnDecoder(SchemaView({INFO.id: versions}, {}, 0, 1 << 62, None))
    applied = [change for changes in decoder.decode(scan_all([payload]).rows) for change in one_by_one(changes)]
    assert found == sorted(applied, key=lambda change: change[0])


def values_of(image: dict[str, Any] | None) -> list[Any] | None:
    return None if image is None else list(image.values())


def one_by_one(changes: Changes) -> Iterator[tuple[int, str, list[Any] | None, list[Any] | None]]:
    for number, sequence in enumerate(changes.sequence.tolist()):
        images = [
            None if columns is None else [text_of(column[number].as_py()) for column in columns]
            for columns in (changes.old, changes.new)
        ]
        yield sequence, KIND_NAMES[changes.kind], images[0], images[1]


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_masked_column_added_during_query_is_collected_masked() -> None:
    more = replace(INFO, columns=(*INFO.columns, ColumnInfo(id=4, name="more", offset=3, type=WIDE)))
    for mask, shown in ((Mask(MaskKind.HASH, "k"), hashed(b"secret")), (Mask(MaskKind.CONSTANT, "-"), "-")):
        rule = ColumnRule("columns", Wildcards("shop"), masks=(("more", mask),))
        reading = reading_of(rules_of(rule), watched_of(INFO, more), at=1, collect=True)
        (row,) = rows_of(reading, insert(more, {**ROW, 4: b"secret"}, 2))
        assert row["added"] == [("more", shown)]
        (row,) = rows_of(reading, insert(more, {**ROW, 4: None}, 2))
        assert row["added"] == [("more", None)]


def test_delete_made_by_condition_has_the_added_columns_of_the_row_before() -> None:
    more = replace(INFO, columns=(*INFO.columns, ColumnInfo(id=4, name="more", offset=3, type=INT)))
    reading = reading_of(rules_of(where="price > 10"), watched_of(INFO, more), at=1, collect=True)
    step = ("update", {**ROW, 4: 7}, {**ROW, 3: 5, 4: 8})
    (row,) = rows_of(reading, transaction([(more, step)], commit_ts=BEGIN_TS, version=2))  # type: ignore[list-item]
    assert (row["kind"], row["added"]) == ("delete", [("more", "7")])


def test_masked_value_that_does_not_fit_its_field_is_not_shown() -> None:
    rule = ColumnRule("columns", Wildcards("shop"), masks=(("price", Mask(MaskKind.CONSTANT, "0")),))
    watched = watched_of(OLD, RETYPED, heirs=HEIRS)
    payload = insert(RETYPED, {1: 1, 2: b"x", 9: b"many"}, 2)
    (row,) = rows_of(reading_of(rules_of(rule), watched, at=1, collect=True), payload)
    assert (row["after"]["price"], row["added"]) == (None, [("price", None)])
    older = watched_of(RETYPED, OLD, heirs={(OLD.id, 3): 9})
    refused = str(both(reading_of(rules_of(rule), older), [insert(RETYPED, {1: 1, 2: b"x", 9: b"many"}, 1)]))
    assert "ValueUnfit: table shop.orders" in refused
    assert "a masked value does not fit" in refused
    assert "many" not in refused


@pytest.mark.parametrize("mask", [Mask(MaskKind.HASH, "k"), Mask(MaskKind.LAST_FOUR), Mask(MaskKind.CONSTANT, "-")])
def test_value_of_a_type_that_the_mask_is_not_for_is_cast_and_masked(mask: Mask) -> None:
    """An ENUM is a string of Spark, too."""
    kind = replace(INFO.columns[1], name="kind", type=FieldType(Tp.ENUM, elems=("secret",)))
    now = replace(INFO.columns[1], id=9)
    older, newer = (replace(INFO, columns=(INFO.columns[0], c, INFO.columns[2])) for c in (kind, now))
    reading = reading_of(
        rules_of(replace(HASH, masks=(("note", mask),))), watched_of(older, newer, heirs={(OLD.id, 9): 2})
    )
    (row,) = rows_of(reading, insert(older, {**ROW, 2: Uint(1)}, 1))
    shown = {MaskKind.HASH: hashed(b"secret"), MaskKind.LAST_FOUR: "**cret", MaskKind.CONSTANT: "-"}
    assert row["after"]["note"] == shown[mask.kind]


def test_value_whose_mask_is_not_for_the_type_of_today_is_not_shown() -> None:
    now = replace(INFO.columns[1], id=9, name="amount", type=INT)
    newer = replace(INFO, columns=(INFO.columns[0], now, INFO.columns[2]))
    watched, payload = watched_of(INFO, newer, heirs={(OLD.id, 9): 2}), insert(INFO, {**ROW, 2: b"31"}, 1)
    assert "a masked value does not fit" in str(both(reading_of(rules_of(HASH), watched), [payload]))
    (row,) = rows_of(reading_of(rules_of(HASH), watched, collect=True), payload)
    assert (row["after"]["amount"], row["added"]) == (None, [("amount", None)])


def test_damaged_value_of_masked_column_is_not_in_the_error() -> None:
    number = replace(INFO.columns[2], name="number", type=FieldType(Tp.SET, elems=("a", "b")))
    older = replace(INFO, columns=(*INFO.columns[:2], number))
    newer = replace(INFO, columns=(*INFO.columns[:2], replace(INFO.columns[2], id=9)))
    rule = ColumnRule("columns", Wildcards("shop"), masks=(("price", Mask(MaskKind.CONSTANT, "0")),))
    watched, payload = watched_of(older, newer, heirs=HEIRS), insert(older, {**ROW, 3: Uint(4711)}, 1)
    assert "4711" in str(both(reading_of(StreamRules(), watched), [payload]))
    assert "4711" not in (text := str(both(reading_of(rules_of(rule), watched), [payload])))
    assert "column price: a masked value cannot be read" in text


@pytest.mark.parametrize("masked", ["note", "remark"])
def test_column_is_masked_by_its_name_of_the_row_and_of_today(masked: str) -> None:
    renamed = replace(INFO, columns=(INFO.columns[0], replace(INFO.columns[1], name="remark"), INFO.columns[2]))
    rule = replace(HASH, masks=((masked, Mask(MaskKind.HASH, "k")),))
    (row,) = rows_of(reading_of(rules_of(rule), watched_of(INFO, renamed)), insert(INFO, ROW, 1))
    assert row["after"]["remark"] == hashed(b"x")


def test_value_of_masked_column_not_public_yet_is_masked() -> None:
    coming = replace(INFO, columns=(INFO.columns[0], replace(INFO.columns[1], state=SchemaState.WRITE_ONLY)))
    (row,) = rows_of(reading_of(rules_of(HASH), watched_of(coming, INFO)), insert(INFO, ROW, 1))
    assert row["after"]["note"] == hashed(b"x")


def test_value_left_out_under_its_former_name_is_null() -> None:
    renamed = replace(INFO, columns=(*INFO.columns[:2], replace(INFO.columns[2], name="cost")))
    rule = ColumnRule("columns", Wildcards("shop"), ("price",))
    (row,) = rows_of(reading_of(rules_of(rule), watched_of(INFO, renamed)), insert(INFO, ROW, 1))
    assert row["after"]["cost"] is None


@pytest.mark.parametrize("written", [True, False], ids=["while it changes", "before"])
def test_value_left_out_under_its_former_name_is_null_after_change_of_name_and_type(written: bool) -> None:
    """While the DDL runs, rows have the value in two columns."""
    kind = FieldType(Tp.LONGLONG, Flag.NOT_NULL)
    coming = ColumnInfo(id=9, name="_Col$_price_0", offset=3, type=kind, state=SchemaState.WRITE_ONLY)
    during = replace(INFO, columns=(*INFO.columns, coming)) if written else INFO
    cost = replace(coming, name="cost", offset=2, state=SchemaState.PUBLIC)
    watched = watched_of(during, replace(INFO, columns=(*INFO.columns[:2], cost)), heirs=HEIRS)
    reading = reading_of(rules_of(ColumnRule("columns", Wildcards("shop"), ("price",))), watched)
    (row,) = rows_of(reading, insert(during, {**ROW, 9: 30} if written else ROW, 1))
    assert row["after"]["cost"] is None


def test_column_that_gets_name_and_type_of_rule_during_query_is_masked_or_left_out() -> None:
    cost = ColumnInfo(id=9, name="cost", offset=2, type=FieldType(Tp.LONGLONG))
    changed = replace(INFO, columns=(*INFO.columns[:2], cost))
    watched, payload = watched_of(INFO, changed, heirs=HEIRS), insert(changed, {1: 1, 2: b"x", 3: 30, 9: 30}, 2)
    for rule, shown in (
        (ColumnRule("columns", Wildcards("shop"), masks=(("cost", Mask(MaskKind.CONSTANT, "0")),)), 0),
        (ColumnRule("columns", Wildcards("shop"), ("cost",)), None),
    ):
        (row,) = rows_of(reading_of(rules_of(rule), watched, at=1, collect=True), payload)
        assert (row["after"]["price"], row["added"]) == (shown, None)


@pytest.mark.parametrize("column_id", [3, 9], ids=["renamed", "with another type"])
def test_column_that_was_left_out_at_the_start_is_not_collected_under_another_name(column_id: int) -> None:
    cost = ColumnInfo(id=column_id, name="cost", offset=2, type=FieldType(Tp.LONGLONG))
    changed = replace(INFO, columns=(*INFO.columns[:2], cost))
    watched = watched_of(INFO, changed, heirs=HEIRS if column_id == 9 else {})
    payload = insert(changed, {1: 1, 2: b"x", column_id: 30}, 2)
    rules = rules_of(ColumnRule("columns", Wildcards("shop"), ("price",)))
    (row,) = rows_of(reading_of(rules, watched, at=1, collect=True), payload)
    assert (row["after"], row["added"]) == ({"id": 1, "note": "x"}, None)
    assert "column cost was added" in str(both(reading_of(rules, watched, at=1), [payload]))


def test_column_not_public_yet_is_masked_or_left_out_by_its_name_of_then() -> None:
    coming = ColumnInfo(id=4, name="secret", offset=3, type=WIDE, state=SchemaState.WRITE_ONLY)
    during = replace(INFO, columns=(*INFO.columns, coming))
    later = replace(INFO, columns=(*INFO.columns, replace(coming, name="more", state=SchemaState.PUBLIC)))
    for rule, shown in (
        (replace(HASH, masks=(("secret", Mask(MaskKind.HASH, "k")),)), hashed(b"y")),
        (ColumnRule("columns", Wildcards("shop"), ("secret",)), None),
        (ColumnRule("columns", Wildcards("shop"), known=("id", "note", "price", "more"), new_column="stop"), "y"),
    ):
        (row,) = rows_of(reading_of(rules_of(rule), watched_of(during, later)), insert(during, {**ROW, 4: b"y"}, 1))
        assert row["after"]["more"] == shown


def test_new_column_passes_is_left_out_or_stops_by_choice() -> None:
    more = replace(INFO, columns=(*INFO.columns, ColumnInfo(id=4, name="more", offset=3, type=INT)))
    watched, payload = watched_of(INFO, more), insert(more, {**ROW, 4: 7}, 2)
    rule = ColumnRule("columns", Wildcards("shop"), known=("id", "note", "price"))
    left_out = reading_of(rules_of(replace(rule, new_column="leave-out")), watched, at=1)
    assert rows_of(left_out, payload)[0]["after"] == {"id": 1, "note": "x", "price": 30}
    assert "SchemaChanged" in str(both(reading_of(rules_of(rule), watched, at=1), [payload]))
    stopped = both(reading_of(rules_of(replace(rule, new_column="stop")), watched, at=1), [payload])
    assert "RuleRefused: columns cannot be applied to table shop.orders: column more is new" in str(stopped)


def test_rule_of_one_table_counts_for_rows_of_its_name_only() -> None:
    """Two tables of the stream that exchanged their names: a row has the rules of the name that it was written to."""
    names = {INFO.id: ("shop", "orders"), INFO.id + 1: ("shop", "items")}
    infos = {table_id: replace(INFO, id=table_id) for table_id in names}
    eras: dict[int, tuple[Written, ...]] = {}
    for (table_id, name), now in zip(names.items(), reversed(names.values()), strict=True):
        eras[table_id] = tuple(
            Written(number, one, replace(infos[table_id], name=one[1])) for number, one in enumerate((name, now), 1)
        )
    newest = {one[-1].name: one[-1].info for one in eras.values() if one[-1].name is not None}
    rule = ColumnRule("columns", Wildcards("shop", "items"), ("price",), HASH.masks)
    rules = rules_of(rule)
    fields = fields_of({name: rules.applied(name, info) for name, info in newest.items()})
    payloads = [insert(infos[i], ROW, version, BEGIN_TS + i + 5 * version) for version in (1, 2) for i in infos]
    rows = rows_of(Reading(Watched(eras, newest, 2, {}), fields, 2, rules=rules), *payloads)
    shown = {"orders": ("x", 30), "items": (hashed(b"x"), None)}
    assert [row["table"] for row in rows] == ["orders", "items", "items", "orders"]
    assert [(row["after"]["note"], row["after"]["price"]) for row in rows] == [shown[row["table"]] for row in rows]


def test_rule_that_cannot_be_applied_is_refused_before_the_stream_begins() -> None:
    with pytest.raises(RuleRefused, match=r"columns cannot be applied to table shop.orders: column id cannot be left"):
        reading_of(rules_of(ColumnRule("columns", Wildcards("shop"), ("id",))), watched_of(INFO))


CONFIG = """
[syncer]
hash-key = "k"
ignore-txn-commit-ts = [{ignored}]

[[syncer.routes]]
schema-pattern = "shop"
target-schema = "elsewhere"

[[syncer.columns]]
schema-pattern = "shop"
mask = {{ note = "hash" }}

[[syncer.rows]]
schema-pattern = "shop"
where = "price >= 30"

[[syncer.filter.event-filters]]
matcher = ["shop.*"]
ignore-event = ["delete"]
"""


def test_rules_of_a_drainers_configuration_apply(tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text(CONFIG.format(ignored=BEGIN_TS + 1))
    reading = reading_of(read_rules(str(file)), watched_of(INFO))
    kept = transaction([(INFO, ("insert", {}, ROW)), (INFO, ("delete", ROW, {}))], commit_ts=BEGIN_TS)
    rows = rows_of(reading, kept, insert(INFO, ROW, 1, BEGIN_TS + 1), insert(INFO, {**ROW, 3: 29}, 1, BEGIN_TS + 2))
    assert [(row["commit_ts"], row["kind"], row["schema"]) for row in rows] == [(BEGIN_TS, "insert", "shop")]
    assert rows[0]["after"]["note"] == hashed(b"x")
    assert not read_rules("").values


def test_rules_file_that_is_invalid_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    with pytest.raises(ConfigError, match=r"drainer\.toml"):
        read_rules(str(file))
    file.write_text(CONFIG.format(ignored=1).replace("price >= 30", "price"))
    with pytest.raises(ConfigError, match=r"syncer\.rows 1: where, character 6"):
        read_rules(str(file))
