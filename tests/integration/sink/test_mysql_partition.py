"""DDL on partitions takes the rows that lie in them upstream, also where the server keeps them in another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.tidb.flatten import flatten
from binlog.tidb.job import ActionType
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.row.partition import locator
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.errors import DdlFailed
from tests.integration.sink.case import opened
from tests.integration.sink.ddl_case import column, step, table
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

BIGINT = FieldType(Tp.LONGLONG, flen=20)
UNSIGNED = replace(BIGINT, flag=int(Flag.UNSIGNED))
FIRM = replace(BIGINT, flag=int(Flag.NOT_NULL))
DATE = FieldType(Tp.DATE, flen=10)
SMALLEST = -(1 << 63)
NUMBERS: tuple[object, ...] = (None, 0, 1, 2, 3, 4, 5, 7, -1, -2, -3, -7, 9, 10, 11, 12, SMALLEST + 1)
DATES: tuple[object, ...] = (None, "0000-00-00", "0001-01-01", "1999-12-31", "2000-02-29", "2024-01-01", "9999-12-31")


def parted(kind: PartitionType, of: FieldType, *bounds: str | Sequence[str], expr: str = "`a`") -> TableInfo:
    """`d.t` (id, a) with a partition for each bound: a number, a list, or anything for HASH."""
    definitions = tuple(
        PartitionDefinition(
            80 + n,
            f"p{n}",
            less_than=(bound,) if kind == PartitionType.RANGE and isinstance(bound, str) else (),
            in_values=tuple((value,) for value in bound) if kind == PartitionType.LIST else (),
        )
        for n, bound in enumerate(bounds)
    )
    parts = PartitionInfo(kind, expr, enable=True, definitions=definitions, num=len(definitions))
    return replace(table(50, "t", column(1, "id", BIGINT), column(2, "a", of), key=False), partition=parts)


CASES: dict[str, tuple[str, TableInfo, Sequence[object]]] = {
    **{
        f"hash {n}": (
            f"a BIGINT) PARTITION BY HASH (a) PARTITIONS {n}",
            parted(PartitionType.HASH, BIGINT, *["x"] * n),
            NUMBERS,
        )
        for n in (1, 2, 3, 5, 7)
    },
    "hash not null": (
        "a BIGINT NOT NULL) PARTITION BY HASH (a+1) PARTITIONS 3",
        parted(PartitionType.HASH, FIRM, "x", "x", "x", expr="`a`+1"),
        NUMBERS[1:],
    ),
    "hash unsigned": (
        "a BIGINT UNSIGNED) PARTITION BY HASH (a) PARTITIONS 3",
        parted(PartitionType.HASH, UNSIGNED, "x", "x", "x"),
        (None, 0, 1, 5, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 2),
    ),
    "hash of dates": (
        "a DATE) PARTITION BY HASH (YEAR(a)) PARTITIONS 3",
        parted(PartitionType.HASH, DATE, "x", "x", "x", expr="YEAR(`a`)"),
        DATES,
    ),
    "range": (
        "a BIGINT) PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (-2), PARTITION p1 VALUES LESS THAN (3), "
        "PARTITION p2 VALUES LESS THAN MAXVALUE)",
        parted(PartitionType.RANGE, BIGINT, "-2", "3", "MAXVALUE"),
        NUMBERS,
    ),
    "range unsigned": (
        "a BIGINT UNSIGNED) PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN "
        "(18446744073709551615), PARTITION p2 VALUES LESS THAN MAXVALUE)",
        parted(PartitionType.RANGE, UNSIGNED, "3", "18446744073709551615", "MAXVALUE"),
        (None, 0, 3, 1 << 63, (1 << 64) - 2, (1 << 64) - 1),
    ),
    "range of days": (
        "a DATE) PARTITION BY RANGE (TO_DAYS(a)) (PARTITION p0 VALUES LESS THAN (730000), PARTITION p1 VALUES LESS "
        "THAN MAXVALUE)",
        parted(PartitionType.RANGE, DATE, "730000", "MAXVALUE", expr="TO_DAYS(`a`)"),
        DATES,
    ),
    "list": (
        "a BIGINT) PARTITION BY LIST (a) (PARTITION p0 VALUES IN (1,-7), PARTITION p1 VALUES IN (NULL,2))",
        parted(PartitionType.LIST, BIGINT, ("1", "-7"), ("NULL", "2")),
        (None, 1, -7, 2),
    ),
    "list default": (
        "a BIGINT) PARTITION BY LIST (a) (PARTITION p0 VALUES IN (1,-7), PARTITION p1 DEFAULT)",
        parted(PartitionType.LIST, BIGINT, ("1", "-7"), ("DEFAULT",)),
        (None, 1, -7, 2),
    ),
}


def setup(db: MariaDB, case: str) -> tuple[TableInfo, dict[int, int | None]]:
    """The table with its rows; each row's id and the physical id of its partition upstream."""
    rest, info, values = CASES[case]
    db.query("DROP TABLE IF EXISTS d.t, d.n")
    db.query(f"CREATE TABLE d.t (id BIGINT, {rest}")
    db.query(f"CREATE TABLE d.n (id BIGINT, {rest.split(')', 1)[0]})")
    db.query(f"INSERT INTO d.t VALUES {','.join(f'({n},{literal(v)})' for n, v in enumerate(values))}")
    locate, kind = locator(info), info.columns[1].type
    return info, {n: locate({1: n, 2: flatten(value, kind)}) for n, value in enumerate(values)}


def literal(value: object) -> str:
    return "NULL" if value is None else repr(value)


def anew(info: TableInfo, *numbers: int) -> TableInfo:
    """The table with new ids for these partitions."""
    assert info.partition is not None
    definitions = tuple(
        replace(d, id=d.id + 100) if n in numbers else d for n, d in enumerate(info.partition.definitions)
    )
    return replace(info, partition=replace(info.partition, definitions=definitions))


def truncate(info: TableInfo, *numbers: int) -> Ddl:
    names = ", ".join(f"`p{n}`" for n in numbers)
    text = f"ALTER TABLE `t` TRUNCATE PARTITION {names}"
    kind = ActionType.TRUNCATE_TABLE_PARTITION
    return step(next(jobs), kind, next(times), text, before=info, after=anew(info, *numbers))


jobs, times = itertools.count(10), itertools.count(1000)


def ids(db: MariaDB, name: str) -> set[int]:
    return {int(row[0]) for row in db.query(f"SELECT id FROM d.{name}")}


@pytest.mark.parametrize("case", CASES)
def test_truncate_partition_deletes_rows_upstream_holds_there(db: MariaDB, case: str) -> None:
    """NULL, negative and unsigned numbers and dates: every set of one or two partitions of every kind."""
    destination = opened(db)
    count = len(CASES[case][1].partition.definitions)  # type: ignore[union-attr]
    for numbers in [*itertools.combinations(range(count), 1), *itertools.combinations(range(count), 2)]:
        info, places = setup(db, case)
        destination.ddl(truncate(info, *numbers))
        assert ids(db, "t") == {n for n, place in places.items() if place not in {80 + k for k in numbers}}, numbers


@pytest.mark.parametrize("case", ["hash 2", "hash 3", "hash 7", "hash of dates", "range", "list"])
def test_exchange_partition_moves_rows_upstream_holds_there(db: MariaDB, case: str) -> None:
    """And the table's own rows come where the server keeps such rows."""
    destination = opened(db)
    for number in range(min(3, len(CASES[case][1].partition.definitions))):  # type: ignore[union-attr]
        info, places = setup(db, case)
        moving = {n for n, place in places.items() if place == 80 + number}
        db.query(f"INSERT INTO d.n SELECT id + 100, a FROM d.t WHERE id IN ({','.join(map(str, moving))})")
        normal = Located(60, "d", replace(info, id=60, name="n", partition=None))
        exchange = step(next(jobs), ActionType.EXCHANGE_TABLE_PARTITION, next(times),
                        f"ALTER TABLE `t` EXCHANGE PARTITION `p{number}` WITH TABLE `n`")  # fmt: skip
        left = replace(normal, table_id=80 + number)
        changes = (TableChange(Located(50, "d", info), Located(50, "d", info)), TableChange(normal, left))
        destination.ddl(replace(exchange, changes=changes))
        assert ids(db, "n") == moving
        assert ids(db, "t") == (places.keys() - moving) | {n + 100 for n in moving}


def test_linear_hash_partitioning_is_created_as_plain_hash(db: MariaDB) -> None:
    """TiDB reads LINEAR and partitions by plain HASH; here it would put rows elsewhere."""
    destination = opened(db)
    _, info, values = CASES["hash 3"]
    text = "CREATE TABLE `t` (`id` BIGINT,`a` BIGINT) PARTITION BY LINEAR HASH (`a`) PARTITIONS 3"
    destination.ddl(step(1, ActionType.CREATE_TABLE, 200, text, after=info))
    db.query(f"INSERT INTO d.t VALUES {','.join(f'({n},{literal(v)})' for n, v in enumerate(values))}")
    destination.ddl(truncate(info, 0))
    assert {row[0] for row in db.query("SELECT a FROM d.t")} == {v for v in values if v is not None and int(str(v)) % 3}


def test_table_partitioned_otherwise_downstream_is_refused_unchanged(db: MariaDB) -> None:
    """The same name holds other rows: refused with both kinds named, and no row is gone."""
    _, info, _ = CASES["hash 3"]
    db.query("CREATE TABLE d.t (id BIGINT, a BIGINT) PARTITION BY LINEAR HASH (a) PARTITIONS 3")
    db.query("INSERT INTO d.t VALUES (1,1),(2,2),(3,3)")
    destination = opened(db)
    with pytest.raises(DdlFailed, match=r"d\.t is partitioned by LINEAR HASH here and by HASH upstream"):
        destination.ddl(truncate(info, 1))
    db.query("ALTER TABLE d.t PARTITION BY HASH (a) PARTITIONS 4")
    with pytest.raises(DdlFailed, match=r"d\.t has 4 partitions here and 3 upstream"):
        destination.ddl(truncate(info, 1))
    assert ids(db, "t") == {1, 2, 3}
