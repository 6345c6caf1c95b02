"""DDL statements as text, for statements that declare no columns. A small grammar; any other text is refused.

CREATE DATABASE d | DROP DATABASE d | DROP TABLE d.t | TRUNCATE [TABLE] d.t | RENAME TABLE d.t TO d.t
DROP INDEX i ON d.t | ALTER TABLE d.t DROP [COLUMN] c [, DROP …] | CREATE [UNIQUE] INDEX i ON d.t (c [, c…])
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pumpclient.sdk import statements
from pumpclient.sdk.ddl import MakeStatement
from pumpclient.sdk.errors import BadDeclaration
from pumpclient.sdk.statements import Alteration
from pumpclient.sdk.table import Index

_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TABLE = rf"({_NAME})\s*\.\s*({_NAME})"
_FLAGS = re.IGNORECASE | re.DOTALL


def parse_ddl(statement: str) -> MakeStatement:
    """Return the plan of a statement. Raises BadDeclaration if the grammar above does not include it."""
    text = statement.strip().removesuffix(";").strip()
    for pattern, build in _GRAMMAR:
        match = pattern.fullmatch(text)
        if match:
            return build(match)
    raise BadDeclaration(
        f"{statement.strip()[:80]!r} is not a statement that the SDK accepts as text; declare tables, columns and keys "
        "with create_table and alter_table (a table is written database.table)"
    )


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _names(match: re.Match[str]) -> list[str]:
    return [_bare(group) for group in match.groups()]


def _alter(match: re.Match[str]) -> MakeStatement:
    schema, table = _bare(match[1]), _bare(match[2])
    columns: list[str] = []
    for part in re.split(r",(?=\s*DROP\b)", match[3], flags=_FLAGS):
        one = re.fullmatch(rf"\s*DROP\s+(?:COLUMN\s+)?({_NAME})\s*", part, _FLAGS)
        if one is None:
            raise BadDeclaration(f"ALTER TABLE {schema}.{table}: {part.strip()!r} is not accepted as text")
        columns.append(_bare(one[1]))
    return statements.alter_table(schema, table, Alteration(drop=tuple(columns)))


def _create_index(match: re.Match[str]) -> MakeStatement:
    unique, name, schema, table = bool(match[1]), _bare(match[2]), _bare(match[3]), _bare(match[4])
    key = Index.over(name, [_bare(c) for c in re.findall(_NAME, match[5])], unique=unique)
    change = Alteration(add_unique=(key,)) if unique else Alteration(add_index=(key,))
    return statements.alter_table(schema, table, change)


def _drop_index(match: re.Match[str]) -> MakeStatement:
    name, schema, table = _names(match)
    return statements.alter_table(schema, table, Alteration(drop_index=(name,)))


def _on(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), _FLAGS)


_GRAMMAR: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], MakeStatement]], ...] = (
    (_on(rf"CREATE (?:DATABASE|SCHEMA) ({_NAME})"), lambda m: statements.create_database(*_names(m))),
    (_on(rf"DROP (?:DATABASE|SCHEMA) ({_NAME})"), lambda m: statements.drop_database(*_names(m))),
    (_on(rf"DROP TABLE {_TABLE}"), lambda m: statements.drop_table(*_names(m))),
    (_on(rf"TRUNCATE (?:TABLE\s+)?{_TABLE}"), lambda m: statements.truncate_table(*_names(m))),
    (_on(rf"RENAME TABLE {_TABLE} TO {_TABLE}"), lambda m: statements.rename_table(*_names(m))),
    (_on(rf"DROP INDEX ({_NAME}) ON {_TABLE}"), _drop_index),
    (_on(rf"ALTER TABLE {_TABLE} (DROP .+)"), _alter),
    (
        _on(rf"CREATE (UNIQUE\s+)?INDEX ({_NAME}) ON {_TABLE}\s*\(\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*\)"),
        _create_index,
    ),
)
