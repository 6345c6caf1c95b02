"""Names that are replicated (D-FI-01, D-FI-02)."""

import pickle

import pytest
from binlog.errors import ConfigError

from drainer.schema.filter import Filter


def test_by_default_all_but_system_schemas() -> None:
    names = Filter.create()
    assert names.allows("shop", "orders")
    assert names.allows("shop")
    for schema in ("mysql", "MySQL", "information_schema", "performance_schema", "metrics_schema"):
        assert not names.allows(schema, "t")
        assert not names.allows(schema)


@pytest.mark.parametrize("schema", ["tidb_binlog", "TiDB_Binlog"])
def test_the_schema_of_positions_is_never_replicated(schema: str) -> None:
    """Upstream may itself be the destination of a drainer. Its DROP DATABASE would remove our position."""
    for names in (
        Filter.create(),
        Filter.create(do_dbs=["tidb_binlog"], ignore_schemas=()),
        Filter.create(rules=["*.*"]),
    ):
        assert not names.allows(schema)
        assert not names.allows(schema, "checkpoint")


def test_names_ignore_case_and_are_whole() -> None:
    names = Filter.create(do_dbs=["Shop"])
    assert names.allows("SHOP", "t")
    assert not names.allows("shop2", "t")
    assert not names.allows("myshop", "t")


def test_a_plain_name_is_no_regular_expression() -> None:
    """The original lets `a.b` match `axb` (D-FI-01)."""
    names = Filter.create(do_dbs=["a.b"])
    assert names.allows("a.b", "t")
    assert not names.allows("axb", "t")


def test_a_tilde_begins_an_unanchored_expression() -> None:
    names = Filter.create(do_tables=[("~^shard_[0-9]+$", "~order")])
    assert names.allows("SHARD_7", "big_Orders")
    assert not names.allows("shard_x", "orders")
    assert not names.allows("shard_7", "items")


def test_allow_first_then_ignore() -> None:
    names = Filter.create(do_dbs=["a"], do_tables=[("b", "t")], ignore_tables=[("a", "log")], ignore_schemas=["c"])
    assert names.allows("a", "x")
    assert names.allows("b", "t")
    assert not names.allows("a", "log")
    assert not names.allows("b", "x")
    assert not names.allows("c", "x")


def test_a_database_passes_only_through_do_db() -> None:
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
def test_a_bad_pattern_is_named(given: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Filter.create(**given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_pickles() -> None:
    names = pickle.loads(pickle.dumps(Filter.create(do_dbs=["~^a"])))
    assert names.allows("ab")
    assert not names.allows("b")
