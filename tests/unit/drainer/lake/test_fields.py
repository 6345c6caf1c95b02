"""The fields of a lake's tables after each DDL: a column is known by its id, and no old value is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.tidb.flatten import flatten
from binlog.tidb.table import ColumnInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from drainer.lake.delta import HISTORY, ROLE, TableState, errors, history_schema, schema_action
from drainer.lake.fields import (
    Field,
    alters,
    conversion,
    default_of,
    evolved,
    in_partitions,
    key_of,
    literal,
    quoted,
    type_name,
    widens,
)
from drainer.row.partition import PartitionUnknown, locator
from drainer.sink.errors import DestinationDown
from tests.support.row_case import INT, TEXT, not_null, table

LONG = FieldType(Tp.LONGLONG)
DECIMAL = FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)
DOUBLE = FieldType(Tp.DOUBLE)
NONE: Mapping[int, int] = {}


def of(*columns: ColumnInfo) -> TableInfo:
    return replace(table([]), columns=tuple(replace(one, offset=n) for n, one in enumerate(columns)))


def column(id_: int, name: str, kind: FieldType = INT, **more: object) -> ColumnInfo:
    return ColumnInfo(id=id_, name=name, offset=0, type=kind, **more)  # type: ignore[arg-type]


def made(*columns: ColumnInfo) -> tuple[Field, ...]:
    return evolved((), of(*columns), count(1), was=NONE, keeps=False)


def names(fields: tuple[Field, ...]) -> dict[str, str]:
    return {field.name: field.physical for field in fields}


@pytest.mark.parametrize("keeps", [False, True])
def test_renamed_and_moved_columns_keep_their_place_in_files(keeps: bool) -> None:
    fields = made(column(1, "a"), column(2, "b"))
    after = evolved(fields, of(column(2, "c"), column(1, "a")), count(9), was=NONE, keeps=keeps)
    assert names(after) == {"c": "c2", "a": "c1"}
    assert list(names(after)) == ["c", "a"]


def test_column_dropped_and_added_again_is_another_one() -> None:
    fields = made(column(1, "a"), column(2, "b"))
    without = evolved(fields, of(column(1, "a")), count(9), was=NONE, keeps=False)
    again = evolved(without, of(column(1, "a"), column(3, "b")), count(9), was=NONE, keeps=False)
    assert names(again) == {"a": "c1", "b": "c3"}


def test_history_keeps_a_dropped_column_beside_the_new_one_of_its_name() -> None:
    fields = made(column(1, "a"), column(2, "b"))
    after = evolved(fields, of(column(1, "a")), count(9), was=NONE, keeps=True)
    assert names(after) == {"a": "c1", "b": "c2"}
    again = evolved(after, of(column(1, "a"), column(3, "B")), count(9), was=NONE, keeps=True)
    assert names(again) == {"a": "c1", "B": "c3", "c2__before": "c2"}
    assert [one.column_id for one in again] == [1, 3, -1]
    assert evolved(again, of(column(1, "a"), column(3, "B")), count(99), was=NONE, keeps=True) == again


def test_wider_type_is_read_from_old_files_and_says_so() -> None:
    fields = made(column(1, "a"))
    (after,) = evolved(fields, of(column(1, "a", LONG)), count(9), was=NONE, keeps=False)
    assert (after.physical, after.type, after.widened, after.fill) == ("c1", "long", (("integer", "long"),), "")


def test_column_with_a_new_id_of_a_type_that_holds_the_old_values_stays() -> None:
    before, fields = of(column(1, "a", DECIMAL)), made(column(1, "a", DECIMAL))
    wider = of(column(4, "a", FieldType(Tp.NEWDECIMAL, flen=12, decimal=3)))
    (after,) = evolved(fields, wider, count(9), before=before, was={4: 1}, keeps=False)
    assert (after.physical, after.column_id, after.type) == ("c1", 4, "decimal(12,3)")


def test_old_values_under_another_type_are_computed_before_the_old_column_goes() -> None:
    before, info = of(column(1, "a")), of(column(4, "a", TEXT))
    fields = made(column(1, "a"))
    found = evolved(fields, info, count(9), before=before, was={4: 1}, keeps=False)
    assert names(found) == {"a": "c4", "c1__before": "c1"}
    assert found[0].fill == "CAST(tidb_column_4(CAST(`c1__before` AS STRING)) AS STRING)"
    assert evolved(found, info, count(99), before=before, was={4: 1}, keeps=False) == found, "as after a crash"
    kept = evolved(fields, info, count(9), was={4: 1}, keeps=True)
    assert names(kept) == {"a": "c4", "c1__before": "c1"}
    assert not kept[0].fill, "changes of the past have the values of the past"


def test_column_that_gets_another_name_and_type_at_once_is_computed_from_the_old_one() -> None:
    before, info = of(column(1, "a")), of(column(4, "b", TEXT))
    found = evolved(made(column(1, "a")), info, count(9), before=before, was={4: 1}, keeps=False)
    assert names(found) == {"b": "c4", "c1__before": "c1"}


def test_longer_text_with_a_new_id_stays_as_it_is() -> None:
    short, long = (replace(TEXT, flen=length) for length in (5, 50))
    before, info = of(column(1, "a", short)), of(column(4, "a", long))
    found = evolved(made(column(1, "a", short)), info, count(9), before=before, was={4: 1}, keeps=False)
    assert (names(found), found[0].fill) == ({"a": "c1"}, "")


def test_history_says_nothing_of_values_from_before_a_column() -> None:
    info = of(column(1, "a"), column(2, "b", origin_default="7"))
    assert evolved(made(column(1, "a")), info, count(9), was=NONE, keeps=True)[1].fill == ""


def test_a_lake_has_columns_names_types_order_and_key_of_a_table() -> None:
    info = table([("a", INT), ("b", TEXT)], handle="a")
    one, other = info.columns
    assert not alters(info, replace(info, comment="x"))
    assert not alters(info, replace(info, columns=(one, replace(other, type=replace(TEXT, flen=9)))))
    for columns in (
        (one,),
        (one, replace(other, name="c")),
        (one, replace(other, type=INT)),
        (one, replace(other, id=9)),
    ):
        assert alters(info, replace(info, columns=columns))
    assert alters(info, replace(info, columns=(replace(other, offset=0), replace(one, offset=1))))
    assert alters(info, replace(info, pk_is_handle=False, columns=(replace(one, type=INT), other)))


def test_times_with_fewer_digits_are_computed_although_their_type_stays() -> None:
    fine, coarse = (FieldType(Tp.DATETIME, decimal=digits) for digits in (3, 0))
    before = of(column(1, "a", fine))
    found = evolved(
        made(column(1, "a", fine)), of(column(4, "a", coarse)), count(9), before=before, was={4: 1}, keeps=False
    )
    assert "date_format(`c1__before`, 'yyyy-MM-dd HH:mm:ss.SSS')" in found[0].fill
    before = of(column(1, "a", coarse))
    found = evolved(
        made(column(1, "a", coarse)), of(column(4, "a", fine)), count(9), before=before, was={4: 1}, keeps=False
    )
    assert names(found) == {"a": "c1"}


@pytest.mark.parametrize(
    ("old", "new", "given", "wanted"),
    [
        (DOUBLE, TEXT, "1.0E10", "10000000000"),
        (FieldType(Tp.DATETIME, decimal=3), FieldType(Tp.DATETIME, decimal=0),
         "2020-01-01 00:00:00.500", "2020-01-01 00:00:01"),
        (FieldType(Tp.DATETIME, decimal=0), FieldType(Tp.DATE), "2020-01-01 10:00:00", "2020-01-01"),
        (TEXT, FieldType(Tp.DATE), "2020-00-00", None),
        (TEXT, FieldType(Tp.DATETIME, decimal=0), "0000-00-00 00:00:00", None),
        (TEXT, INT, " 12 ", "12"),
        (INT, DECIMAL, "7", "7.00"),
        (TEXT, FieldType(Tp.BLOB, charset="binary"), "é", "é".encode()),
        (INT, TEXT, None, None),
    ],
)  # fmt: skip
def test_values_are_converted_as_tidb_does(old: FieldType, new: FieldType, given: str | None, wanted: object) -> None:
    assert conversion(old, new)(given) == wanted


@pytest.mark.parametrize(
    ("added", "sql"),
    [
        (column(3, "n"), ""),
        (column(3, "n", origin_default="7"), "CAST('7' AS INT)"),
        (column(3, "n", not_null(INT)), "CAST('0' AS INT)"),
        (column(3, "n", TEXT, origin_default="it's \\"), "'it\\'s \\\\'"),
        (column(3, "n", FieldType(Tp.DATETIME, flag=Flag.NOT_NULL)), ""),
        (column(3, "n", FieldType(Tp.DATE), origin_default="2020-00-00"), ""),
        (column(3, "n", FieldType(Tp.DATE), origin_default="2020-02-29"), "CAST('2020-02-29' AS DATE)"),
        (column(3, "n", FieldType(Tp.DATETIME), origin_default="2021-02-29 00:00:00"), ""),
        (column(3, "n", FieldType(Tp.DATETIME), origin_default="2020-01-02 03:04:05"),
         "CAST('2020-01-02 03:04:05' AS TIMESTAMP_NTZ)"),
        (column(3, "n", FieldType(Tp.STRING, charset="binary"), origin_default_bit=b"\x00\xff"), "X'00ff'"),
        (column(3, "n", FieldType(Tp.BIT, flen=9), origin_default_bit=b"\x01\x01"), "CAST('257' AS BIGINT)"),
    ],
)  # fmt: skip
def test_old_rows_get_the_default_of_an_added_column(added: ColumnInfo, sql: str) -> None:
    fields = made(column(1, "a"))
    after = evolved(fields, of(column(1, "a"), added), count(9), was=NONE, keeps=False)
    assert after[1].fill == sql == default_of(added, type_name(added.type, "t.n"))
    assert made(column(1, "a"), added)[1].fill == "", "a new table has no old rows"


def test_type_without_equivalent_is_refused_with_its_column() -> None:
    with pytest.raises(ConfigError, match=r"column t\.g: a lake has no type"):
        made(column(1, "g", FieldType(Tp.GEOMETRY)))


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        ("byte", "short", True), ("long", "integer", False), ("integer", "decimal(10,0)", True),
        ("integer", "decimal(10,1)", False), ("long", "decimal(20,0)", True), ("decimal(5,2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(6,1)", False), ("decimal(5,2)", "decimal(5,3)", False), ("float", "double", True),
        ("long", "double", False), ("integer", "double", True), ("string", "binary", False),
    ],
)  # fmt: skip
def test_widening_is_what_delta_reads_without_a_change_of_files(old: str, new: str, can: bool) -> None:
    assert widens(old, new) is can


def test_key_is_that_of_the_handle() -> None:
    assert key_of(table([("a", INT), ("b", INT)], handle="b")) == (2,)
    assert key_of(table([("a", not_null(INT)), ("b", INT)], unique={"u": ["a"]})) == (1,)
    assert key_of(table([("a", INT)], unique={"u": ["a"]})) == (), "NULL tells no rows apart"


COLUMNS = st.permutations([1, 2, 3, 4]).flatmap(lambda ids: st.integers(1, 4).map(lambda n: ids[:n]))


@given(st.lists(COLUMNS, max_size=6))
def test_any_sequence_of_ddl_keeps_names_and_numbers_of_fields_apart(steps: list[list[int]]) -> None:
    for keeps in (False, True):
        fields, ids = made(column(1, "a")), count(9)
        places = {1: "c1"}
        for step in steps:
            info = of(*(column(id_, "aAbB"[id_ - 1] + str(n)) for n, id_ in enumerate(step)))
            fields = evolved(fields, info, ids, was=NONE, keeps=keeps)
            lowered = [field.name.lower() for field in fields]
            assert len(set(lowered)) == len(lowered)
            assert len({field.id for field in fields}) == len({field.physical for field in fields}) == len(fields)
            assert [field.column_id for field in fields if field.column_id >= 0] == step
            if keeps:
                places |= {id_: field.physical for id_, field in zip(step, fields, strict=False) if id_ not in places}
                assert set(places.values()) <= {field.physical for field in fields}, "a history forgets nothing"


def test_schema_that_is_written_is_the_schema_that_is_read() -> None:
    before = evolved((), of(column(1, "a")), count(9, 2), was=NONE, keeps=True)
    info = of(column(1, "a", LONG), column(2, "b`", TEXT))
    fields = evolved(before, info, count(11, 2), was=NONE, keeps=True)
    for settings, schema in (({}, [one.json() for one in fields]), ({ROLE: HISTORY}, history_schema(fields))):
        action = schema_action("x", schema, 99, settings)["metaData"]
        read = json.loads(action["schemaString"])["fields"]
        state = TableState(0, "x", read, action["configuration"])
        assert (state.fields, state.max_id) == (fields, 99)
        ids = [one["metadata"]["delta.columnMapping.id"] for one in _each(read)]
        assert len(set(ids)) == len(ids)


def _each(fields: list[dict[str, object]]) -> list[dict[str, object]]:
    inner = [one["type"]["fields"] for one in fields if isinstance(one["type"], dict)]  # type: ignore[index]
    return [*fields, *(one for some in inner for one in some)]


@given(st.text(max_size=9))
def test_texts_in_sql_end_where_they_end(text: str) -> None:
    inner = literal(text)[1:-1]
    assert inner.replace("\\\\", "").replace("\\'", "").count("'") == 0
    assert not (len(inner) - len(inner.rstrip("\\"))) % 2
    assert quoted(text)[1:-1].replace("``", "").count("`") == 0


def test_rows_of_a_partition_are_told_from_the_values_that_spark_returns() -> None:
    day = FieldType(Tp.DATETIME, flen=19, decimal=0)
    columns = (ColumnInfo(1, "Id", 0, not_null(INT)), ColumnInfo(2, "day", 1, day), ColumnInfo(3, "note", 2, TEXT))
    bounds = [
        PartitionDefinition(11, "p0", less_than=("2024",)),
        PartitionDefinition(12, "p1", less_than=("MAXVALUE",)),
    ]
    parts = PartitionInfo(PartitionType.RANGE, "YEAR(`Day`)", definitions=tuple(bounds))
    info = replace(table([]), columns=columns, partition=parts)
    arguments, belongs = in_partitions(made(*info.columns), info, {11})
    assert arguments == "date_format(`day`, 'yyyy-MM-dd HH:mm:ss')"
    assert [belongs(text) for text in ("2023-12-31 23:59:59", "2024-01-01 00:00:00", None)] == [True, False, True]


def test_rows_of_a_partition_by_a_key_without_columns_are_told_from_the_table_s_key() -> None:
    found = tuple(PartitionDefinition(id_, f"p{id_}") for id_ in (0, 1, 2, 3))
    info = replace(
        table([("a", INT), ("b", TEXT)], handle="a"), partition=PartitionInfo(PartitionType.KEY, "", (), True, found)
    )
    arguments, belongs = in_partitions(made(*info.columns), info, {0, 3})
    assert arguments == "CAST(`a` AS STRING)"
    located = locator(info)
    assert [belongs(str(key)) for key in range(20)] == [located({1: key}) in (0, 3) for key in range(20)]


def test_partition_by_a_column_that_the_mirror_lacks_is_unknown() -> None:
    column = ColumnInfo(2, "twice", 1, INT, generated_expr="`a` * 2")
    parts = PartitionInfo(PartitionType.HASH, "`twice`", definitions=(PartitionDefinition(7, "p0"),))
    info = replace(table([("a", INT)]), partition=parts)
    info = replace(info, columns=(*info.columns, column))
    arguments, belongs = in_partitions(made(*info.columns), info, {7})
    assert arguments == ""
    with pytest.raises(PartitionUnknown, match="twice"):
        belongs()


def test_bits_and_zero_dates_are_those_of_the_row_in_a_partition() -> None:
    day, bits = (not_null(kind) for kind in (FieldType(Tp.DATE), FieldType(Tp.BIT, flen=9)))
    found = tuple(PartitionDefinition(id_, f"p{id_}") for id_ in range(7))
    parts = PartitionInfo(PartitionType.KEY, "", ("day", "bits"), True, found)
    info = replace(table([("day", day), ("bits", bits), ("n", FieldType(Tp.DATE))]), partition=parts)
    row = {1: flatten("0000-00-00", day), 2: flatten(257, bits)}
    _, belongs = in_partitions(made(*info.columns), info, {locator(info)(row)})  # type: ignore[arg-type]
    assert belongs(None, "257")
    assert not all(belongs(None, str(n)) for n in range(9))
    info = replace(info, partition=replace(parts, columns=("n",)))
    _, belongs = in_partitions(made(*info.columns), info, {locator(info)({3: None})})  # type: ignore[arg-type]
    assert belongs(None), "it may be NULL"


def test_partition_that_is_unknown_to_a_function_in_spark_is_no_error_of_spark() -> None:
    text = "Job aborted: Traceback …\n  drainer.row.partition.PartitionUnknown: row of table t: text under x\n at …"
    with pytest.raises(PartitionUnknown, match=r"^row of table t: text under x$"), errors(Path("lake")):
        raise PySparkException(text)
    with pytest.raises(DestinationDown), errors(Path("lake")):
        raise PySparkException("no space")
