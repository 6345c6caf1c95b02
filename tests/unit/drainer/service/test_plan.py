"""`drainer plan`: tables by the rules, as text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from drainer.__main__ import main
from drainer.config import Config
from drainer.service.plan import Plan, PlannedTable, plan_of, shown
from tests.support.memory_etcd import MemoryEtcd
from tests.support.row_case import INT, TEXT, table

ORDERS = table([("id", INT), ("email", TEXT), ("secret", TEXT)], handle="id", table_id=1, name="orders")
BARE = table([("v", INT)], table_id=2, name="bare")
SYNCER = {
    "hash-key": "k",
    "ignore-schemas": ["mysql"],
    "ignore-table": [{"db-name": "shop", "tbl-name": "~^tmp"}],
    "routes": [{"schema-pattern": "shop", "target-schema": "eu"}],
    "columns": [{"schema-pattern": "shop", "table-pattern": "o*", "leave-out": ["secret"], "mask": {"email": "hash"}}],
    "rows": [{"schema-pattern": "none", "where": "a = 1"}],
}


def plan(**changes: object) -> Plan:
    policy = Config.model_validate({"syncer": {**SYNCER, **changes}}).syncer.policy()
    tmp = table([("v", INT)], table_id=3, name="tmp_1")
    return plan_of(policy, [("shop", ORDERS), ("shop", BARE), ("shop", tmp), ("mysql", BARE)])


def test_each_table_is_shown_with_the_rule_that_decided() -> None:
    assert plan() == Plan(
        (
            PlannedTable("mysql.bare", rules=("ignore-schemas",)),
            PlannedTable(
                "shop.bare", "eu.bare", ("v",), key="none: no primary or unique key", rules=("syncer.routes 1",)
            ),
            PlannedTable(
                "shop.orders", "eu.orders", ("id", "email"), ("secret",), (("email", "hash"),), "id",
                ("syncer.routes 1", "syncer.columns 1"),
            ),
            PlannedTable("shop.tmp_1", rules=("ignore-table",)),
        ),
        ("syncer.rows 1: no table matches none.*",),
        (),
    )  # fmt: skip


def test_refused_rules_are_errors() -> None:
    to_one = [{"schema-pattern": "shop", "target-schema": "eu", "target-table": "t"}]
    found = plan(routes=to_one, columns=[{"schema-pattern": "shop", "leave-out": ["id"]}])
    assert [error.split(": ")[0] for error in found.errors] == [
        "syncer.columns 1 cannot be applied to table shop.orders",
        "tables shop.bare and shop.orders both go to eu.t, where rows of one could replace rows of the other",
    ]


def test_merged_tables_are_shown_with_source_column_and_key() -> None:
    route = {"schema-pattern": "shop", "table-pattern": "o*", "target-schema": "eu", "target-table": "t"}
    policy = Config.model_validate({"syncer": {"routes": [{**route, "source-column": "src"}]}}).syncer.policy()
    other = table([("id", INT), ("v", INT)], handle="id", table_id=4, name="other")
    rules = ("syncer.routes 1", "source-column src")
    assert plan_of(policy, [("shop", ORDERS), ("shop", other)]).tables == (
        PlannedTable("shop.orders", "eu.t", ("id", "email", "secret", "v", "src"), key="id, src", rules=rules),
        PlannedTable("shop.other", "eu.t", ("id", "v", "email", "secret", "src"), key="id, src", rules=rules),
    )
    bare = plan_of(
        policy, [("shop", ORDERS), ("shop", replace(BARE, name="o")), ("shop", table([("src", INT)], name="oo"))]
    )
    assert [error.split(" ")[0] for error in bare.errors] == ["shop.oo,", "tables"]


def test_plan_is_shown_as_table_and_json() -> None:
    lines = shown(plan(), as_json=False).splitlines()
    assert lines[0].split() == ["source", "destination", "columns", "left", "out", "masked", "key", "decided", "by"]
    assert lines[3].startswith("shop.orders  eu.orders    id, email  secret    email (hash)  id")
    assert lines[-1] == "warning: syncer.rows 1: no table matches none.*"
    document = json.loads(shown(plan(), as_json=True))
    assert document["tables"][2]["masked"] == {"email": "hash"}
    assert document["warnings"]


def test_command_reads_the_history_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = {
        "id": 2, "type": 3, "schema_id": 2, "table_id": 1, "schema_name": "shop", "state": 6,
        "binlog": {"SchemaVersion": 2, "FinishedTS": 9, "TableInfo": ORDERS.to_json()},
    }  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps([jobs]))
    (tmp_path / "drainer.toml").write_text(f'[schema]\nhistory-file = "{tmp_path / "history.json"}"\n')
    etcd = MemoryEtcd()
    args = ["drainer", "plan", "-json", "-config", str(tmp_path / "drainer.toml")]
    with mock.patch("sys.argv", args), mock.patch("drainer.service.plan.connect_etcd", lambda *_: etcd):
        assert main() == 0
    (found,) = json.loads(capsys.readouterr().out)["tables"]
    assert (found["source"], found["key"]) == ("shop.orders", "id")
