"""ddl-rewrite rules."""

import pytest
from binlog.errors import ConfigError

from drainer.schema.job_policy import RewriteRule, RewriteRules


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
