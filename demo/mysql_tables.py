"""Compares the shop's tables in a MySQL, MariaDB or TiDB with the rows that it wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from demo.compare import Comparison, canonical, comparison, written_rows
from demo.model import TableModel, Value

TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    user: str
    password: str = field(repr=False)


def server_of(url: str) -> Server:
    """Parse `mysql://user:password@host:port`. Raises ValueError naming the required form."""
    parts = urlsplit(url)
    if parts.scheme != "mysql" or not parts.hostname or parts.username is None:
        raise ValueError("an address of the form mysql://user:password@host:port is needed")
    return Server(parts.hostname, parts.port or 3306, unquote(parts.username), unquote(parts.password or ""))


def compare_tables(url: str, schema: str, models: Iterable[TableModel]) -> list[Comparison]:
    """Return one comparison for each model. If the server rejects a query or does not answer, the error is the
    `problem`.
    """
    server = server_of(url)
    try:
        with pymysql.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00'",
            connect_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
        ) as connection:
            return [_compare(connection, schema, model) for model in models]
    except pymysql.MySQLError as error:
        return [_unreadable(model, error) for model in models]


def _compare(connection: pymysql.Connection[Any], schema: str, model: TableModel) -> Comparison:
    written, json_columns = written_rows(model)
    names = ",".join(f"`{column}`" for column in model.columns)
    fsp = [model.fsp.get(column, 0) for column in model.columns]
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM `{schema}`.`{model.name}`")
            found: Counter[tuple[Value, ...]] = Counter(
                tuple(_found(value, fsp[i], as_json=i in json_columns) for i, value in enumerate(row))
                for row in cursor.fetchall()
            )
    except pymysql.err.ProgrammingError as error:  # the table does not exist yet
        return _unreadable(model, error)
    return comparison(model.name, written, found)


def _unreadable(model: TableModel, error: Exception) -> Comparison:
    return Comparison(model.name, len(model.all_rows()), 0, 0, [], [], problem=str(error))


def _found(value: Value, fsp: int, *, as_json: bool) -> Value:
    if as_json and isinstance(value, str):
        return json.dumps(json.loads(value), sort_keys=True)
    return canonical(value, fsp)
