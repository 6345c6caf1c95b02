"""Which rule a table has, and which topic."""

from __future__ import annotations

import pytest
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.rules import DispatchRule, Method, Router, TopicExpression, checked_topic
from drainer.protocol.table import Table
from drainer.schema.filter import PatternError, TablePatterns
from tests.support.row_changes import make_table

INT = FieldType(Tp.LONG, flen=11, decimal=0)


def test_first_matching_rule_decides_topic_and_partition() -> None:
    router = Router(
        [
            DispatchRule(matcher=("a.*",), partition="ts"),
            DispatchRule(matcher=("a.t", "b.*"), partition="index-value", topic="{schema}_{table}"),
        ],
        "all",
    )
    assert (router.rule("a", "t").method, router.topic("a", "t")) == (Method.TS, "all")
    assert (router.rule("b", "t").method, router.topic("b", "t")) == (Method.INDEX_VALUE, "b_t")
    assert (router.rule("c", "t").method, router.topic("c", "t")) == (Method.TABLE, "all")
    assert router.topic("b", "") == "all"
    assert router.topics([("b", "t"), ("a", "t"), ("b", "t")]) == ["b_t", "all"]


def test_unknown_partition_method_is_warned_of_and_goes_by_table() -> None:
    router = Router(
        [DispatchRule(matcher=("*.*",), partition="even"), DispatchRule(matcher=("*.*",), dispatcher="rowid")], "t"
    )
    assert [rule.method for rule in router.rules] == [Method.TABLE, Method.INDEX_VALUE, Method.TABLE]
    assert [("'even'" in one, "'rowid'" in one) for one in router.warnings] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (DispatchRule(matcher=("a.b",), partition="ts", dispatcher="ts"), "one setting"),
        (DispatchRule(matcher=("a.b",), partition="columns"), "none are given"),
        (DispatchRule(matcher=("a.b",), partition="ts", columns=("x",)), "columns are given"),
        (DispatchRule(matcher=("a.b",), partition="table", index="k"), "an index is given"),
        (DispatchRule(matcher=(), partition="ts"), "no matcher"),
        (DispatchRule(matcher=("a.b",), topic="{table}_{schema}"), "{table}_{schema}"),
    ],
)
def test_contradictory_dispatch_rule_is_refused(rule: DispatchRule, said: str) -> None:
    with pytest.raises((DispatchConfigError, PatternError)) as caught:
        Router([rule], "t")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250])
def test_invalid_topic_name_is_refused(name: str) -> None:
    with pytest.raises(DispatchConfigError):
        checked_topic(name, "topic")


@given(schema=st.text(max_size=300), table=st.text(max_size=300))
def test_topic_expression_gives_valid_topic_for_any_table(schema: str, table: str) -> None:
    assert checked_topic(TopicExpression.parse("{schema}.{table}").topic(schema, table), "topic")


def test_avro_topic_expression_may_be_fixed_or_name_schema_and_table() -> None:
    assert TopicExpression.parse("all", "avro").topic("a", "b") == "all"
    with pytest.raises(DispatchConfigError, match="as Avro needs"):
        TopicExpression.parse("x{schema}", "avro")


def some_table() -> Table:
    return make_table("d", "t", [("id", INT), ("U", INT), ("v", INT)], primary=["id"], unique=[["U"]])


def test_dispatch_rule_resolves_its_column_indexes() -> None:
    def column_indexes(**rule: object) -> tuple[int, ...]:
        return Router([DispatchRule(matcher=("*.*",), **rule)], "t").rule("d", "t").column_indexes(some_table())  # type: ignore[arg-type]

    assert column_indexes(partition="columns", columns=("V", "u")) == (2, 1)
    assert column_indexes(partition="index-value") == (0,)
    assert column_indexes(partition="index-value", index="UK0") == (1,)
    assert column_indexes(partition="index-value", index="primary") == (0,)
    assert column_indexes(partition="table") == column_indexes(partition="ts") == ()
    with pytest.raises(DispatchError, match="columns not found: w, x"):
        column_indexes(partition="columns", columns=("v", "w", "x"))
    with pytest.raises(DispatchError, match="index not found: nosuch"):
        column_indexes(partition="index-value", index="nosuch")


def test_router_check_refuses_table_lacking_rule_columns() -> None:
    router = Router([DispatchRule(matcher=("d.t",), partition="columns", columns=("nosuch",))], "t")
    with pytest.raises(DispatchError, match=r"`d`\.`t`"):
        router.check(some_table())


def test_repr_of_long_table_patterns_differs_in_their_ends() -> None:
    """What a batch was cut by is recorded as a digest of the rules' repr (rule 16)."""
    one, other = (TablePatterns.parse([f"/{'a' * 300}{end}/.*"]) for end in "xy")
    assert repr(one) != repr(other)
    assert repr(one) == repr(TablePatterns.parse([f"/{'a' * 300}x/.*"]))
