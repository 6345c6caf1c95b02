"""ddl-rewrite rules."""

from dataclasses import replace

import pytest
from binlog.errors import ConfigError
from binlog.tidb.job import ActionType

from drainer.schema.catalog import Catalog
from drainer.schema.job_policy import RewriteRule, RewriteRules
from drainer.schema.state import independent
from tests.support.schema_case import job, table


def test_rewrite_rule_is_found_by_job_id_or_commit_ts() -> None:
    rules = RewriteRules([RewriteRule(("A",), job_id=7), RewriteRule((), commit_ts=99)])
    assert rules.text_for(7, 1) == ("A",)
    assert rules.text_for(8, 99) == ()
    assert rules.text_for(8, 1) is None


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([RewriteRule(("A",))], "rule 1: give either job-id or commit-ts"),
        ([RewriteRule((), job_id=1, commit_ts=2)], "rule 1: give either"),
        ([RewriteRule((), job_id=1), RewriteRule((), job_id=1)], "rule 2: a second rule for 1"),
    ],
)
def test_invalid_rewrite_rule_is_refused_with_its_number(rules: list[RewriteRule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RewriteRules(rules)


# CREATE TABLE LIKE from another current database (cases of names: tests/cases/schema/names.txt).


SOURCE = table(10, "s", ("id", "v"))


def catalog(*schemas: str) -> Catalog:
    """A table `s` in each of these."""
    made = Catalog()
    for number, schema in enumerate(schemas, start=20):
        made.put(number, schema, 1, replace(SOURCE, id=number))
    return made


@pytest.mark.parametrize(
    ("schemas", "text", "wanted"),
    [
        (("a",), "CREATE TABLE `b`.`t` LIKE `s`", "CREATE TABLE `b`.`t` LIKE `a`.`s`"),
        (("a",), "create table if not exists b.t (like s) /* x */", "CREATE TABLE `b`.`t` LIKE `a`.`s`"),
        (("a", "c"), "CREATE TABLE `b`.`t` LIKE `s`", None),
        ((), "CREATE TABLE `b`.`t` LIKE `s`", None),
        (("a",), "CREATE TABLE `t` LIKE `s`", None),
        (("a",), "CREATE TABLE `b`.`t` LIKE `a`.`s`", None),
        (("a",), "CREATE TABLE `b`.`t` (`like` INT, `s` INT)", None),
    ],
)
def test_create_table_like_names_schema_of_its_source_table(
    schemas: tuple[str, ...], text: str, wanted: str | None
) -> None:
    """The text stays where it says enough, and where more than one table may be meant."""
    made = job(5, ActionType.CREATE_TABLE, 5, schema_id=30, table_info=replace(SOURCE, id=11, name="t"))
    assert independent(made, text, catalog(*schemas)) == (wanted or text)
