"""The tables that are measured are the ones that their jobs describe."""

from __future__ import annotations

import json

import pytest
from binlog.pb.binlog_pb2 import Binlog, PrewriteValue
from binlog.tidb.datum import decode_one
from binlog.tidb.table import TableInfo

from bench.fill import transactions
from bench.sbtest import KEYLESS, SBTEST, UNIQUE, Table, jobs, rows


def info_of(table: Table) -> TableInfo:
    return TableInfo.from_json(json.loads(jobs(table))[1]["binlog"]["TableInfo"])


@pytest.mark.parametrize(("table", "unique"), [(SBTEST, 1), (UNIQUE, 4), (KEYLESS, 0)])
def test_bench_table_info_and_create_statement_have_same_keys(table: Table, unique: int) -> None:
    info = info_of(table)
    assert len(info.unique_indexes()) == unique
    statement = table.create("bench")
    assert ("PRIMARY KEY (id)" in statement) is info.pk_is_handle
    for index in info.indexes:
        kind = "UNIQUE KEY" if index.unique else "KEY"
        assert f"{kind} {index.name} ({index.columns[0].name})" in statement
        assert info.columns[index.columns[0].offset].name == index.columns[0].name


def test_sbtest_table_has_secondary_key_of_sysbench() -> None:
    assert "KEY k_1 (k)" in SBTEST.create("x")


def test_unique_columns_hold_no_value_twice() -> None:
    halves = [*rows(5_000, 0, first=1, table=UNIQUE), *rows(5_000, 1, first=5_001, table=UNIQUE)]
    for column in zip(*halves, strict=True):
        assert len(set(column)) == 10_000


def test_bench_transactions_contain_rows_in_commit_order() -> None:
    last = 0
    ids = []
    for prewrite, commit in transactions(50, 3, base=7, table=KEYLESS, table_id=42):
        written, committed = Binlog.FromString(prewrite), Binlog.FromString(commit)
        assert last < written.start_ts == committed.start_ts < committed.commit_ts
        last = committed.commit_ts
        (mutation,) = PrewriteValue.FromString(written.prewrite_value).mutations
        assert mutation.table_id == 42
        ids += [decode_one(row)[0] for row in mutation.inserted_rows]
    assert ids == list(range(7, 157))


def test_bench_transactions_of_two_pumps_share_no_timestamp() -> None:
    found = [
        Binlog.FromString(payload).commit_ts or Binlog.FromString(payload).start_ts
        for seed in range(2)
        for pair in transactions(300, 1, seed=seed)
        for payload in pair
    ]
    assert len(set(found)) == len(found)
