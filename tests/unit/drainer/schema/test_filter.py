"""Names that are replicated (D-FI-01, D-FI-02)."""

import pickle

import pytest
from binlog.errors import ConfigError

from drainer.schema.filter import Filter


def test_default_filter_allows_all_but_system_schemas() -> None:
    names = Filter.create()
    assert names.allows("shop", "orders")
    assert names.allows("shop")
    for schema in ("mysql", "MySQL", "information_schema", "performance_schema", "metrics_schema"):
        assert not names.allows(schema, "t")
        assert not names.allows(schema)


@pytest.mark.parametrize("schema", ["tidb_binlog", "TiDB_Binlog"])
def test_position_schema_is_never_replicated(schema: str) -> None:
    """Upstream may itself be the destination of a drainer. Its DROP DATABASE would remove our position."""
    for names in (
        Filter.create(),
        Filter.create(do_dbs=["tidb_binlog"], ignore_schemas=()),
        Filter.create(rules=["*.*"]),
    ):
        assert not names.allows(schema)
        assert not names.allows(schema, "checkpoint")


def test_filter_names_ignore_case_and_match_whole_names() -> None:
    names = Filter.create(do_dbs=["Shop"])
    assert names.allows("SHOP", "t")
    assert not names.allows("shop2", "t")
    assert not names.allows("myshop", "t")


def test_filter_name_without_tilde_is_not_regular_expression() -> None:
    """The original lets `a.b` match `axb` (D-FI-01)."""
    names = Filter.create(do_dbs=["a.b"])
    assert names.allows("a.b", "t")
    assert not names.allows("axb", "t")


def test_filter_name_with_tilde_is_unanchored_regular_expression() -> None:
    names = Filter.create(do_tables=[("~^shard_[0-9]+$", "~order")])
    assert names.allows("SHARD_7", "big_Orders")
    assert not names.allows("shard_x", "orders")
    assert not names.allows("shard_7", "items")


def test_filter_applies_do_rules_before_ignore_rules() -> None:
    names = Filter.create(do_dbs=["a"], do_tables=[("b", "t")], ignore_tables=[("a", "log")], ignore_schemas=["c"])
    assert names.allows("a", "x")
    assert names.allows("b", "t")
    assert not names.allows("a", "log")
    assert not names.allows("b", "x")
    assert not names.allows("c", "x")


def test_database_ddl_is_allowed_only_by_do_db() -> None:
    assert not Filter.create(do_tables=[("b", "t")]).allows("b")
    assert Filter.create(do_dbs=["b"]).allows("b")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_dbs": [""]}, "replicate-do-db: empty name"),
        ({"ignore_schemas": ["~"]}, "ignore-schemas: empty name"),
        ({"do_tables": [("a", "~(")]}, "replicate-do-table: '~(' is not a regular expression"),
        ({"ignore_tables": [("", "t")]}, "ignore-table: empty name"),
    ],
)
def test_invalid_filter_pattern_is_refused_by_name(given: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Filter.create(**given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_pickled_filter_allows_the_same_names() -> None:
    names = pickle.loads(pickle.dumps(Filter.create(do_dbs=["~^a"])))
    assert names.allows("ab")
    assert not names.allows("b")
