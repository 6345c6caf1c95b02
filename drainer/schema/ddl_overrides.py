"""`ddl-rewrite` rules: the operator's own text for a DDL the destination cannot run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """For one DDL, named by its job id or by the commit_ts of its binlog. Empty `sql`: it does not run at all.

    A DDL that runs ahead of its binlog (rule 14) has no commit_ts yet unless its binlog is in the same batch: a job
    id always finds it.
    """

    sql: tuple[str, ...]
    job_id: int | None = None
    commit_ts: int | None = None


class RewriteRules:
    """Looks a rule up. Raises ConfigError on a rule that names nothing, or two rules for one DDL."""

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
        """The replacing statements, or None where no rule speaks of this DDL. `commit_ts` 0 = not known."""
        by_job = self._by_job.get(job_id)
        return by_job if by_job is not None else self._by_ts.get(commit_ts)
