"""Where TiDB puts a row, and what becomes of rows that come behind a DDL on their partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.row.codec import Decoder
from drainer.row.partition import ExpressionUnreadable, PartitionUnknown, locator, parse_expression
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.fold_model import work_of
from tests.support.row_case import INT, TEXT, Step, changes_of, table, transaction
from tests.support.schema_case import BEGIN_TS, belongs, job, ts

UBIG = FieldType(Tp.LONGLONG, flag=int(Flag.UNSIGNED), flen=20, decimal=0)
DATE = FieldType(Tp.DATE, flen=10, decimal=0)
STAMP = FieldType(Tp.TIMESTAMP, flen=19, decimal=0)
GENERAL_CI = FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_general_ci")


def parted(
    columns: Sequence[tuple[str, FieldType]],
    kind: PartitionType,
    expr: str,
    *bounds: object,
    handle: str = "",
) -> TableInfo:
    """A partition for each of `bounds`, with ids 201, 202, …; `expr` names columns when it begins with a comma."""
    definitions = []
    for number, bound in enumerate(bounds):
        parts = tuple(bound) if isinstance(bound, list | tuple) else (bound,)
        listed = tuple(p if isinstance(p, tuple) else (str(p),) for p in parts) if kind is PartitionType.LIST else ()
        less = tuple(str(p) for p in parts) if kind is PartitionType.RANGE else ()
        definitions.append(PartitionDefinition(201 + number, f"p{number}", less, listed))
    names = tuple(expr[1:].split(",")) if expr.startswith(",") else ()
    info = PartitionInfo(kind, "" if names else expr, names, True, tuple(definitions), len(definitions))
    return replace(table(columns, handle=handle, table_id=100), partition=info)


R, L, H, K = PartitionType.RANGE, PartitionType.LIST, PartitionType.HASH, PartitionType.KEY
IDS = [("id", INT), ("v", INT)]
PLACES = [
    (parted(IDS, R, "`id`", 10, 20, "MAXVALUE"), [{1: 9}, {1: 10}, {1: 20}, {1: None}, {1: -5}], [0, 1, 2, 0, 0]),
    (parted(IDS, R, "`id` * 2 + `v`", 10, 20), [{1: 3, 2: 3}, {1: 3, 2: 4}, {1: 30, 2: 0}], [0, 1, None]),
    (parted(IDS, H, "`id`", 0, 0, 0, 0), [{1: 7}, {1: -7}, {1: None}], [3, 3, 0]),
    (parted([("id", UBIG)], H, "`id`", 0, 0, 0), [{1: (1 << 64) - 2}], [2]),
    (parted(IDS, L, "`id`", (1, 2), (3, "NULL")), [{1: 2}, {1: None}, {1: 9}], [0, 1, None]),
    (parted(IDS, L, "`id`", (1, 2), ("DEFAULT",)), [{1: 2}, {1: 9}], [0, 1]),
    (parted(IDS, L, ",id,v", (("1", "1"),), (("2", "NULL"),)), [{1: 1, 2: 1}, {1: 2, 2: None}], [0, 1]),
    (
        parted([("d", DATE)], R, ",d", "'2024-04-01'", "MAXVALUE"),
        [{1: "2024-03-31"}, {1: "2024-04-01"}, {1: None}],
        [0, 1, 0],
    ),
    (parted([("d", DATE)], R, "YEAR(`d`)", 2020, 2025), [{1: "2019-12-31"}, {1: "2020-01-01"}], [0, 1]),
    (parted([("d", DATE)], R, "to_days(`d`)", 738_000, 739_315), [{1: "2024-03-04"}, {1: "2024-03-05"}], [1, None]),
    (parted([("t", STAMP)], R, "UNIX_TIMESTAMP(`t`)", 1_709_618_828, "MAXVALUE"), [{1: "2024-03-05 06:07:08"}], [1]),
    (parted([("c", TEXT)], R, ",c", "'m'", "MAXVALUE"), [{1: "lz"}, {1: "m "}, {1: "M"}], [0, 1, 0]),
    (parted([("c", GENERAL_CI)], L, ",c", ("'a'", "'b'"), ("'x''y'",)), [{1: "A "}, {1: "X'Y"}], [0, 1]),
    # CRC-32 of the value's text, or of one NUL: 0x83DCEFB7, 0x1AD5BE0D, 0xD202EF8D.
    (parted(IDS, K, ",id", 0, 0, 0), [{1: 1}, {1: 2}, {1: None}], [2, 1, 1]),
]


@pytest.mark.parametrize(("info", "rows", "places"), PLACES)
def test_locator_finds_partition_of_row(
    info: TableInfo, rows: list[dict[int, object]], places: list[int | None]
) -> None:
    locate = locator(info)
    types = {column.id: column.type for column in info.columns}
    found = [locate({i: flatten(value, types[i]) for i, value in row.items()}) for row in rows]
    assert found == [None if place is None else 201 + place for place in places]


def test_locator_refuses_unsupported_partition_expression() -> None:
    with pytest.raises(PartitionUnknown, match="rand"):
        locator(parted(IDS, R, "rand(`id`)", 10))
    with pytest.raises(PartitionUnknown):
        locator(parted([("c", GENERAL_CI)], L, ",c", ("'ä'",)))
    with pytest.raises(ExpressionUnreadable, match="is not supported"):
        parse_expression("`id` ? 3")
    assert locator(table(IDS, table_id=7))({}) == 7


# The whole way: jobs, then rows of older versions.

OLD = parted(IDS, R, "`id`", 10, 20, "MAXVALUE", handle="id")
assert OLD.partition is not None
NEW_DEFINITIONS = (replace(OLD.partition.definitions[0], id=301), *OLD.partition.definitions[1:])
TRUNCATED = replace(OLD, partition=replace(OLD.partition, definitions=NEW_DEFINITIONS))
DROPPED = replace(OLD, partition=replace(OLD.partition, definitions=OLD.partition.definitions[1:]))
NORMAL = table(IDS, handle="id", table_id=150, name="n")
EXCHANGED = replace(
    OLD,
    partition=replace(OLD.partition, definitions=(replace(OLD.partition.definitions[0], id=150), *NEW_DEFINITIONS[1:])),
)
CREATED = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d")),
    job(2, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=100, table_info=OLD),
    job(3, ActionType.CREATE_TABLE, 3, schema_id=2, table_id=150, table_info=NORMAL),
]


def after(*jobs: Job) -> Schema:
    """All jobs have run."""
    return Schema.open(JobHistory([*CREATED, *jobs]), position_ts=BEGIN_TS, schema_version=99)


def insert(info: TableInfo, at: int, version: int, *ids: int) -> bytes:
    steps: list[tuple[TableInfo, Step]] = [(info, ("insert", {}, {1: i, 2: 0})) for i in ids]
    return transaction(steps, commit_ts=ts(at), version=version)


def written(schema: Schema, *payloads: bytes) -> list[tuple[str, object]]:
    """(table, row) of everything, in the fold's order; the same from the one-by-one decoder."""
    work = work_of(schema.view(), payloads, SQLITE_VALUES)
    found: list[tuple[str, object]] = [(folded.shape.table, row.row) for folded in work.folded for row in folded.rows]
    changes = changes_of(Decoder(schema.view()), payloads, SQLITE_VALUES)
    assert sorted((c.shape.table, c.new or c.old) for c in changes) == sorted(found)
    return found


def truncate(version: int = 20) -> Job:
    return job(9, ActionType.TRUNCATE_TABLE_PARTITION, version, schema_id=2, table_id=100, table_info=TRUNCATED)


def test_late_row_of_truncated_partition_is_skipped() -> None:
    late, new = insert(OLD, 1, 19, 5, 15), insert(OLD, 2, 20, 6, 25)
    assert written(after(truncate()), late, new) == [("t", (6, 0)), ("t", (15, 0)), ("t", (25, 0))]


def test_row_of_older_version_that_commits_after_the_ddl_has_finished_is_kept() -> None:
    """Its transaction began before the DDL and used the table only afterwards (metadata locks)."""
    schema = after(replace(truncate(), finished_ts=ts(5)))
    assert written(schema, insert(OLD, 5, 19, 4, 14), insert(OLD, 6, 19, 5)) == [("t", (5, 0)), ("t", (14, 0))]


def test_late_update_and_delete_in_truncated_partition_are_skipped() -> None:
    schema = after(truncate())
    values: list[Mapping[int, Datum]] = [{1: 5, 2: 0}, {1: 5, 2: 1}]
    steps: list[tuple[TableInfo, Step]] = [(OLD, ("update", values[0], values[1])), (OLD, ("delete", values[1], {}))]
    assert written(schema, transaction(steps, commit_ts=ts(1), version=19)) == []


def test_dropped_partition_ddl_runs_before_rows_of_its_last_two_versions() -> None:
    """Rows of the last two know it no more, and TiDB puts them into the next range: the DDL runs before them."""
    drop = job(9, ActionType.DROP_TABLE_PARTITION, 20, schema_id=2, table_id=100, table_info=DROPPED)
    late, inside = insert(OLD, 1, 17, 5, 15), insert(OLD, 2, 18, 6)
    assert written(after(drop), late, inside) == [("t", (6, 0)), ("t", (15, 0))]
    waiting = Schema.open(JobHistory([*CREATED, drop]), position_ts=BEGIN_TS, schema_version=3)
    assert [belongs(waiting.view(), version) for version in (17, 18, 19)] == [True, False, False]
    before = replace(drop, id=8, schema_version=18, type=ActionType.MODIFY_TABLE_COMMENT)
    waiting = Schema.open(JobHistory([*CREATED, before, drop]), position_ts=BEGIN_TS, schema_version=18)
    assert [belongs(waiting.view(), version) for version in (18, 19)] == [True, False]


def test_late_rows_of_exchanged_partitions_go_to_other_table() -> None:
    swap = job(9, ActionType.EXCHANGE_TABLE_PARTITION, 20, schema_id=2, table_id=150, table_info=EXCHANGED)
    old = insert(OLD, 1, 19, 5, 15), insert(NORMAL, 2, 19, 6)
    new = insert(OLD, 3, 20, 7), insert(replace(NORMAL, id=201), 4, 20, 8)
    found = written(after(swap), *old, *new)
    assert found == [("t", (6, 0)), ("t", (7, 0)), ("t", (15, 0)), ("n", (5, 0)), ("n", (8, 0))]


def test_late_row_follows_exchange_and_then_truncate() -> None:
    """A row finds its way through everything that happened to its physical id."""
    swap = job(8, ActionType.EXCHANGE_TABLE_PARTITION, 20, schema_id=2, table_id=150, table_info=EXCHANGED)
    assert found_after_truncate(swap) == [("t", (15, 0)), ("n", (5, 0))]


def found_after_truncate(swap: Job) -> list[tuple[str, object]]:
    old = insert(OLD, 1, 19, 5, 15), insert(NORMAL, 2, 19, 6)
    return written(after(swap, truncate(21)), *old)


def test_late_rows_of_reorganized_partitions_are_kept() -> None:
    assert OLD.partition is not None
    split = replace(OLD, partition=replace(OLD.partition, definitions=NEW_DEFINITIONS[:1]))
    for kind in (ActionType.REORGANIZE_PARTITION, ActionType.ADD_TABLE_PARTITION):
        schema = after(job(9, kind, 20, schema_id=2, table_id=100, table_info=split))
        assert written(schema, insert(OLD, 1, 19, 5, 15)) == [("t", (5, 0)), ("t", (15, 0))]


def test_late_row_with_unreadable_partition_expression_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    def unread(info: TableInfo) -> TableInfo:
        assert info.partition is not None
        return replace(info, partition=replace(info.partition, expr="mystery(`id`)"))

    create = replace(CREATED[1], table_info=unread(OLD))
    jobs = [CREATED[0], create, replace(truncate(), table_info=unread(TRUNCATED))]
    schema = Schema.open(JobHistory(jobs), position_ts=BEGIN_TS, schema_version=99)
    assert written(schema, insert(OLD, 1, 19, 5)) == [("t", (5, 0))]
