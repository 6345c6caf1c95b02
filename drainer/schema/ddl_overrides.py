"""`ddl-rewrite` rules: statements configured by the operator in place of a DDL. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Replacement of one DDL, named by its job id or by the commit_ts of its binlog. Empty `sql`: the DDL is skipped.

    A DDL that runs before its binlog (rule 14: DDL before the rows that need it) has no commit_ts yet unless its binlog
    is in the same batch; a job id always matches.
    """

    sql: tuple[str, ...]
    job_id: int | None = None
    commit_ts: int | None = None


class RewriteRules:
    """Finds the rule of a DDL. Raises ConfigError for a rule with neither or both names, or two rules for one DDL."""

    def __init__(self, rules: Sequence[RewriteRule] = ()) -> None:
        self._by_job: dict[int, tuple[str, ...]] = {}
        self._by_ts: dict[int, tuple[str, ...]] = {}
        for number, rule in enumerate(rules, start=1):
            if (rule.job_id is None) == (rule.commit_ts is None):
                raise ConfigError(f"ddl-rewrite rule {number}: give either job-id or commit-ts")
            key = rule.job_id if rule.job_id is not None else rule.commit_ts
            table = self._by_job if rule.job_id is not None else self._by_ts
            assert key is not None
            if key in table:
                raise ConfigError(f"ddl-rewrite rule {number}: a second rule for {key}")
            table[key] = rule.sql

    def text_for(self, job_id: int, commit_ts: int) -> tuple[str, ...] | None:
        """The replacement statements; None where no rule names this DDL. `commit_ts`: 0 if unknown."""
        by_job = self._by_job.get(job_id)
        return by_job if by_job is not None else self._by_ts.get(commit_ts)
