"""CREATE TABLE a.t LIKE s, made independent of the writer's current database (the X-17 family). Pure.

No job tells that database. Where the created name is qualified it may be another one than the job's, and the source
means something else downstream: it is looked for among the tables of that name that have these columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job

from drainer.ddl.lexer import Token, quoted, tokens
from drainer.schema.catalog import Catalog

_log = get_logger(__name__)


def independent(job: Job, query: str, catalog: Catalog) -> str:
    """`query` as it may be run in the job's own database. `catalog`: before the job."""
    if job.table_info is None or job.type != ActionType.CREATE_TABLE:
        return query
    words = list(tokens(query))
    at = next((i + 1 for i, t in enumerate(words) if t.is_word("TABLE")), None)
    if at is not None and [w.value.upper() for w in words[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
        at += 3
    if at is None or not _dotted(words, at):
        return query
    rest = words[at + 3 :]
    if rest and rest[0].value == "(":
        rest = rest[1:]
    if len(rest) < 2 or not rest[0].is_word("LIKE") or _dotted(rest, 1) or not rest[1].is_name:
        return query
    homes = _homes(job, rest[1].value, catalog)
    if len(homes) != 1:
        _log.warning("CREATE TABLE LIKE: the database of the source is not known", job_id=job.id, candidates=homes)
        return query
    return f"CREATE TABLE {quoted(words[at].value, words[at + 2].value)} LIKE {quoted(homes[0], rest[1].value)}"


def _homes(job: Job, name: str, catalog: Catalog) -> list[str]:
    """Databases with a table of this name and the new table's columns."""
    assert job.table_info is not None
    wanted = [(c.name, c.type) for c in job.table_info.columns]
    return [
        table.schema
        for table in catalog.tables.values()
        if table.name.lower() == name.lower() and [(c.name, c.type) for c in table.current.public_columns] == wanted
    ]


def _dotted(words: Sequence[Token], at: int) -> bool:
    """Whether the name at `at` is qualified."""
    return at + 2 < len(words) and words[at].is_name and words[at + 1].value == "." and words[at + 2].is_name
