"""The table that pumpload writes, its Job, its rows as binlogs, and the plain loader that is the ceiling."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

from bench.report import timed
from tests.support.servers import MariaDB

TABLE_ID = 1
CREATE = (
    "CREATE TABLE {schema}.sbtest (id BIGINT NOT NULL PRIMARY KEY, k INT NOT NULL, "
    "c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
)


def _column(number: int, name: str, tp: int, flag: int, flen: int, charset: str) -> dict[str, Any]:
    collate = "binary" if charset == "binary" else "utf8mb4_bin"
    return {
        "id": number,
        "name": {"O": name, "L": name},
        "offset": number - 1,
        "origin_default": None,
        "default": None,
        "type": {
            "Tp": tp,
            "Flag": flag,
            "Flen": flen,
            "Decimal": 0,
            "Charset": charset,
            "Collate": collate,
            "Elems": None,
        },
        "state": 5,
        "version": 2,
    }


def jobs(table_id: int = TABLE_ID, schema: str = "bench") -> str:
    """DDL history that knows `schema`.sbtest from schema version 1 on: long before any row that pumpload writes."""
    table = {
        "id": table_id,
        "name": {"O": "sbtest", "L": "sbtest"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [
            _column(1, "id", 8, 4099, 20, "binary"),
            _column(2, "k", 3, 4097, 11, "binary"),
            _column(3, "c", 254, 4097, 120, "utf8mb4"),
            _column(4, "pad", 254, 4097, 60, "utf8mb4"),
        ],
        "index_info": None,
        "state": 5,
        "pk_is_handle": True,
        "is_common_handle": False,
        "version": 5,
    }
    database = {
        "id": 900,
        "db_name": {"O": schema, "L": schema},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "state": 5,
    }
    shared = {"state": 6, "schema_state": 5, "schema_id": 900, "start_ts": 1, "version": 1}
    create_schema = {
        "id": 901,
        "type": 1,
        "table_id": 0,
        "schema_name": schema,
        "query": f"CREATE DATABASE {schema}",
        **shared,
        "binlog": {"SchemaVersion": 1, "DBInfo": database, "TableInfo": None, "FinishedTS": 1},
    }
    create_table = {
        "id": 902,
        "type": 3,
        "table_id": table_id,
        "schema_name": schema,
        "query": CREATE.format(schema=schema),
        **shared,
        "binlog": {"SchemaVersion": 1, "DBInfo": None, "TableInfo": table, "FinishedTS": 1},
    }
    return json.dumps([create_schema, create_table])


def rows(count: int, seed: int = 1) -> Iterator[tuple[int, int, str, str]]:
    rng = random.Random(seed)
    for number in range(1, count + 1):
        yield number, rng.randrange(1_000_000), f"{rng.getrandbits(63):0120d}", f"{rng.getrandbits(63):060d}"


def ceiling(mariadb: MariaDB, count: int, *, connections: int, rows_a_statement: int) -> float:
    """Rows a second of plain multi-row REPLACE over some connections: what the server takes when nothing else works."""
    mariadb.query("CREATE DATABASE IF NOT EXISTS ceiling")
    mariadb.query("DROP TABLE IF EXISTS ceiling.sbtest")
    mariadb.query(CREATE.format(schema="ceiling"))
    statements: list[list[bytes]] = [[] for _ in range(connections)]
    batch: list[str] = []
    for number, (i, k, c, pad) in enumerate(rows(count), 1):
        batch.append(f"({i},{k},'{c}','{pad}')")
        if len(batch) == rows_a_statement or number == count:
            text = "REPLACE INTO ceiling.sbtest (id,k,c,pad) VALUES " + ",".join(batch)
            statements[(number // rows_a_statement) % connections].append(text.encode())
            batch = []

    def load(mine: list[bytes]) -> None:
        with mariadb.connect(autocommit=False) as connection:
            for n, statement in enumerate(mine, 1):
                connection.query(statement)
                if n % 20 == 0:
                    connection.commit()
            connection.commit()

    threads = [threading.Thread(target=load, args=(mine,)) for mine in statements]
    with timed() as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    mariadb.query("DROP DATABASE ceiling")
    return count / watch.seconds
