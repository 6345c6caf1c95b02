"""Qualifies the source table of CREATE TABLE a.t LIKE s, which upstream resolved in its session's database. Pure.

The job does not record that database. Where the created name is qualified, it may differ from the job's database, and
an unqualified source would name another table downstream. The source is found by its name and its columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job

from drainer.ddl.lexer import Token, quoted, tokens
from drainer.schema.catalog import Catalog

_log = get_logger(__name__)


def independent(job: Job, query: str, catalog: Catalog) -> str:
    """`query` with the source table qualified, so that it can run in any database; unchanged where the source is not
    unqualified or not unique. `catalog`: before the job."""
    if job.table_info is None or job.type != ActionType.CREATE_TABLE:
        return query
    words = list(tokens(query))
    at = next((i + 1 for i, t in enumerate(words) if t.is_word("TABLE")), None)
    if at is not None and [w.value.upper() for w in words[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
        at += 3
    if at is None or not _is_qualified(words, at):
        return query
    rest = words[at + 3 :]
    if rest and rest[0].value == "(":
        rest = rest[1:]
    if len(rest) < 2 or not rest[0].is_word("LIKE") or _is_qualified(rest, 1) or not rest[1].is_name:
        return query
    databases = _databases(job, rest[1].value, catalog)
    if len(databases) != 1:
        _log.warning(
            "CREATE TABLE LIKE: the database of the source table is not known; the statement runs as upstream wrote it",
            job_id=job.id,
            candidates=databases,
        )
        return query
    return f"CREATE TABLE {quoted(words[at].value, words[at + 2].value)} LIKE {quoted(databases[0], rest[1].value)}"


def _databases(job: Job, name: str, catalog: Catalog) -> list[str]:
    """Databases that have a table of this name with the new table's columns."""
    assert job.table_info is not None
    wanted = [(c.name, c.type) for c in job.table_info.columns]
    return [
        table.schema
        for table in catalog.tables.values()
        if table.name.lower() == name.lower() and [(c.name, c.type) for c in table.current.public_columns] == wanted
    ]


def _is_qualified(words: Sequence[Token], at: int) -> bool:
    """Whether the name at `at` is qualified."""
    return at + 2 < len(words) and words[at].is_name and words[at + 1].value == "." and words[at + 2].is_name
