"""Rows as typed columns, and what a DDL during a query does to them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from binlog.cluster import tso
from binlog.errors import DecodeError
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp

from drainer.schema.history.base import Name, Watched, Written
from drainer.spark.typed import row_reader
from drainer.spark.typed.fields import Reading, SchemaChanged, TablesUnfit, ValueUnfit, change_schema, chosen, fields_of
from drainer.spark.typed.rows import Changes
from tests.support.row_case import BEGIN_TS, INT, TEXT, table, transaction

NAME = ("shop", "orders")
OLD = table([("id", INT), ("note", TEXT), ("price", INT)], handle="id", name="orders")
ROW = {1: 1, 2: b"x", 3: 30}
ADDED = ColumnInfo(id=4, name="more", offset=3, type=INT, origin_default="7")
NEW = replace(OLD, columns=(*OLD.columns, ADDED))


def watched_of(*infos: TableInfo, heirs: dict[tuple[int, int], int] | None = None) -> Watched:
    """One table id, a version for each TableInfo."""
    eras = tuple(Written(version, NAME, info) for version, info in enumerate(infos, start=1))
    return Watched({infos[0].id: eras}, {NAME: infos[-1]}, len(infos), heirs or {})


def reading_of(watched: Watched, *, at: int | None = None, collect: bool = False) -> Reading:
    """Of a query that was started when `at` was the newest version."""
    begin = watched.version if at is None else at
    infos = [one.info for one in watched.ids[OLD.id]]
    return Reading(watched, fields_of({NAME: infos[begin - 1]}), begin, collect=collect)


def changes_of(reading: Reading, *payloads: bytes) -> list[dict[str, Any]]:
    changes = Changes(reading)
    for payload in payloads:
        changes.add(payload)
    found: list[dict[str, Any]] = changes.batch().to_pylist()
    assert changes.batch().num_rows == 0
    return found


def insert(info: TableInfo, values: dict[int, Any], version: int, commit_ts: int = BEGIN_TS) -> bytes:
    return transaction([(info, ("insert", {}, values))], commit_ts=commit_ts, version=version)


def test_insert_update_and_delete_rows_have_their_images_and_seq() -> None:
    payload = transaction(
        [
            (OLD, ("insert", {}, ROW)),
            (OLD, ("update", ROW, {**ROW, 2: None})),
            (OLD, ("delete", {**ROW, 2: None}, {})),
        ],
        commit_ts=BEGIN_TS,
        start_ts=BEGIN_TS - 9,
    )
    rows = changes_of(reading_of(watched_of(OLD)), payload)
    one, other = {"id": 1, "note": "x", "price": 30}, {"id": 1, "note": None, "price": 30}
    assert [(row["kind"], row["before"], row["after"]) for row in rows] == [
        ("insert", None, one),
        ("update", one, other),
        ("delete", other, None),
    ]
    assert [row["seq"] for row in rows] == [0, 1, 2]
    assert {(row["commit_ts"], row["start_ts"], row["schema"], row["table"]) for row in rows} == {
        (BEGIN_TS, BEGIN_TS - 9, "shop", "orders")
    }
    moment = datetime.datetime.fromtimestamp(tso.physical_ms(BEGIN_TS) / 1000, datetime.UTC)
    assert rows[0]["commit_time"] == moment


def test_rows_of_unwatched_tables_are_skipped_and_counted_in_seq() -> None:
    other = replace(OLD, id=OLD.id + 1, name="items")
    payload = transaction([(other, ("insert", {}, ROW)), (OLD, ("insert", {}, ROW))], commit_ts=BEGIN_TS)
    (row,) = changes_of(reading_of(watched_of(OLD)), payload)
    assert row["seq"] == 1
    assert changes_of(reading_of(watched_of(OLD)), insert(other, ROW, 1)) == []


def test_older_row_has_default_of_column_added_later() -> None:
    (row,) = changes_of(reading_of(watched_of(OLD, NEW)), insert(OLD, ROW, 1))
    assert row["after"] == {"id": 1, "note": "x", "price": 30, "more": 7}


def test_value_of_column_not_public_yet_is_used() -> None:
    (row,) = changes_of(reading_of(watched_of(OLD, NEW)), insert(NEW, {**ROW, 4: 8}, 1))
    assert row["after"]["more"] == 8


def test_older_row_leaves_out_column_dropped_later() -> None:
    shorter = replace(OLD, columns=OLD.columns[:2])
    (row,) = changes_of(reading_of(watched_of(OLD, shorter)), insert(OLD, ROW, 1))
    assert row["after"] == {"id": 1, "note": "x"}


RENAMED = replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], name="cost")))
WIDENED = replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], type=FieldType(Tp.LONGLONG))))
RETYPED = replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], id=9, type=TEXT)))
HEIRS = {(OLD.id, 9): 3}


@pytest.mark.parametrize(
    ("new", "values", "what"),
    [
        (NEW, {**ROW, 4: 8}, "column more was added"),
        (replace(OLD, columns=OLD.columns[:2]), {1: 1, 2: b"x"}, "column price was dropped"),
        (RENAMED, ROW, "column price was renamed to cost"),
        (WIDENED, ROW, "the type of column price was changed to bigint"),
        (RETYPED, {1: 1, 2: b"x", 9: b"31"}, "the type of column price was changed to varchar"),
    ],
    ids=["added", "dropped", "renamed", "widened", "retyped"],
)
def test_ddl_during_query_raises_schema_changed_with_remedy(new: TableInfo, values: dict[int, Any], what: str) -> None:
    reading = reading_of(watched_of(OLD, new, heirs=HEIRS), at=1)
    assert len(changes_of(reading, insert(OLD, ROW, 1))) == 1, "rows from before it are read"
    with pytest.raises(SchemaChanged) as caught:
        changes_of(reading, insert(new, values, 2))
    assert f"table shop.orders: {what} since the query was started (row of commit_ts {BEGIN_TS})" in str(caught.value)
    assert "Start the query again" in str(caught.value)
    assert "schema-changes = collect" in str(caught.value)


def test_column_added_during_query_is_collected_as_text() -> None:
    reading = reading_of(watched_of(OLD, NEW), at=1, collect=True)
    rows = changes_of(
        reading,
        insert(OLD, ROW, 1),
        insert(NEW, {**ROW, 4: 8}, 2, BEGIN_TS + 1),
        transaction(
            [(NEW, ("update", {**ROW, 4: 8}, {**ROW, 4: None})), (NEW, ("delete", {**ROW, 4: 5}, {}))],
            commit_ts=BEGIN_TS + 2,
            version=2,
        ),
    )
    assert [row["added"] for row in rows] == [None, [("more", "8")], [("more", None)], [("more", "5")]]
    assert all("more" not in (row["after"] or row["before"]) for row in rows)


def test_dropped_column_is_null_and_renamed_column_keeps_its_field() -> None:
    shorter = replace(OLD, columns=OLD.columns[:2])
    (row,) = changes_of(reading_of(watched_of(OLD, shorter), at=1, collect=True), insert(shorter, {1: 1, 2: b"x"}, 2))
    assert row["after"] == {"id": 1, "note": "x", "price": None}
    (row,) = changes_of(reading_of(watched_of(OLD, RENAMED), at=1, collect=True), insert(RENAMED, ROW, 2))
    assert row["after"]["price"] == 30
    assert row["added"] is None


@pytest.mark.parametrize(("written", "read", "added"), [(b"31", 31, None), (b"many", None, [("price", "many")])])
def test_value_of_changed_type_is_cast_or_collected_as_text(written: bytes, read: object, added: object) -> None:
    reading = reading_of(watched_of(OLD, RETYPED, heirs=HEIRS), at=1, collect=True)
    (row,) = changes_of(reading, insert(RETYPED, {1: 1, 2: b"x", 9: written}, 2))
    assert (row["after"]["price"], row["added"]) == (read, added)


def test_value_older_than_type_change_is_cast() -> None:
    (row,) = changes_of(reading_of(watched_of(OLD, RETYPED, heirs=HEIRS)), insert(OLD, ROW, 1))
    assert row["after"]["price"] == "30"


def test_value_older_than_type_change_that_does_not_fit_raises_value_unfit() -> None:
    """Nobody can restart out of it: it is another error than SchemaChanged."""
    watched = watched_of(RETYPED, OLD, heirs={(OLD.id, 3): 9})
    payload = insert(RETYPED, {1: 1, 2: b"x", 9: b"many"}, 1)
    with pytest.raises(ValueUnfit, match=r"table shop.orders, row of commit_ts \d+: column price had another type"):
        changes_of(reading_of(watched), payload)
    (row,) = changes_of(reading_of(watched, collect=True), payload)
    assert (row["after"]["price"], row["added"]) == (None, [("price", "many")])


def test_table_renamed_during_query_raises_schema_changed() -> None:
    eras = (Written(1, NAME, OLD), Written(2, None, replace(OLD, name="orders_old")))
    watched = Watched({OLD.id: eras}, {NAME: OLD}, 2, {})
    fields = fields_of({NAME: OLD})
    with pytest.raises(SchemaChanged, match="it was renamed"):
        changes_of(Reading(watched, fields, 1), insert(OLD, ROW, 2))
    assert changes_of(Reading(watched, fields, 2), insert(OLD, ROW, 2)) == []
    assert changes_of(Reading(watched, fields, 1, collect=True), insert(OLD, ROW, 2)) == []


def test_damaged_row_is_refused_with_table_column_and_commit_ts() -> None:
    strange = table([("id", INT), ("note", INT), ("price", INT)], handle="id", name="orders")
    payload = insert(strange, {1: 1, 2: 5, 3: 30}, 1)
    with pytest.raises(DecodeError) as caught:
        changes_of(reading_of(watched_of(OLD)), payload)
    for part in ("shop.orders", f"commit_ts {BEGIN_TS}", "column note"):
        assert part in str(caught.value)


def test_number_beyond_its_column_is_refused_with_table_column_and_commit_ts() -> None:
    small = replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], type=FieldType(Tp.TINY))))
    with pytest.raises(DecodeError, match=rf"shop\.orders .*commit_ts {BEGIN_TS}\): column price: .*300"):
        changes_of(reading_of(watched_of(small)), insert(small, {**ROW, 3: 300}, 1))


def test_first_bad_row_of_many_transactions_is_reported() -> None:
    """An error is searched for in whole batches, also of one large transaction."""
    payloads = [
        transaction(
            [(OLD, ("insert", {}, {**ROW, 1: n, 2: b"\xff" if number > 4 and n == 5 else b"x"})) for n in range(9)],
            commit_ts=BEGIN_TS + number,
        )
        for number in range(9)
    ]
    with pytest.raises(DecodeError, match=rf"commit_ts {BEGIN_TS + 5}\): column note: .* not UTF-8"):
        changes_of(reading_of(watched_of(OLD)), *payloads)


def test_rows_decoded_one_by_one_in_several_parts_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "ROWS_MAX", 2)
    steps = [(OLD, ("insert", {}, {**ROW, 1: n})) for n in range(5)]
    rows = changes_of(reading_of(watched_of(OLD)), transaction(steps, commit_ts=BEGIN_TS))
    assert [(row["seq"], row["after"]["id"]) for row in rows] == [(n, n) for n in range(5)]


def _union(*tables: tuple[Name, Sequence[tuple[str, FieldType]]]) -> Any:
    return fields_of({name: table(columns, name=name[1]) for name, columns in tables})


def test_tables_share_fields_of_equally_named_columns() -> None:
    found = _union((("a", "x"), [("id", INT), ("note", TEXT)]), (("b", "y"), [("ID", INT), ("more", INT)]))
    assert found.names == ("id", "note", "more")
    assert [c and c.name for c in found.columns["b", "y"]] == ["ID", None, "more"]


def test_equally_named_columns_of_two_types_are_refused() -> None:
    with pytest.raises(TablesUnfit, match=r"a\.x\.v is int and b\.y\.v is string: .* two streams"):
        _union((("a", "x"), [("v", INT)]), (("b", "y"), [("v", TEXT)]))


def test_column_type_unknown_to_spark_is_refused_by_name() -> None:
    with pytest.raises(TablesUnfit, match=r"column a\.x\.v: Spark has no type for geometry"):
        _union((("a", "x"), [("v", FieldType(Tp.GEOMETRY))]))


def test_generated_and_hidden_columns_have_no_fields() -> None:
    hidden = replace(ADDED, state=SchemaState.WRITE_ONLY)
    generated = ColumnInfo(id=5, name="g", offset=4, type=INT, generated_expr="`id` + 1")
    info = replace(OLD, columns=(*OLD.columns, hidden, generated))
    assert fields_of({NAME: info}).names == ("id", "note", "price")


def test_change_schema_has_images_and_added_map() -> None:
    fields = fields_of({NAME: OLD})
    head = (
        "struct<kind:string,commit_ts:bigint,commit_time:timestamp,start_ts:bigint,seq:int,schema:string,table:string"
    )
    images = "before:struct<id:int,note:string,price:int>,after:struct<id:int,note:string,price:int>"
    assert change_schema(fields, collect=False).simpleString() == f"{head},{images}>"
    assert change_schema(fields, collect=True).simpleString() == f"{head},{images},added:map<string,string>>"


def test_table_missing_in_history_is_refused_by_name() -> None:
    watched = watched_of(OLD)
    assert list(chosen(watched, [("SHOP", "Orders")], "etcd")) == [NAME]
    with pytest.raises(TablesUnfit, match=r"table shop\.nothing is not in the DDL history \(etcd\)"):
        chosen(watched, [("shop", "nothing")], "etcd")
