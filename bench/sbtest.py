"""Sysbench's table and two more with the same columns: their CREATE statements, their DDL jobs, and their rows.

`SBTEST` is the table that sysbench makes, with its secondary key on `k`; pumpload writes its rows too. `UNIQUE` has
three unique keys beside its primary key, `KEYLESS` has no key.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TABLE_ID = 1
# Column flags of TiDB: NOT NULL, and no default value.
_PLAIN_FLAG, _PRIMARY_FLAG = 4097, 4099


@dataclass(frozen=True, slots=True)
class Table:
    """A table `sbtest` of the columns id, k, c and pad. `primary`: whether id is its primary key; `indexes`: the
    others, as (name, column, unique)."""

    primary: bool
    indexes: tuple[tuple[str, str, bool], ...]

    def create(self, schema: str) -> str:
        """Return CREATE TABLE `schema`.sbtest."""
        keys = ["PRIMARY KEY (id)"] if self.primary else []
        keys += [f"{'UNIQUE ' if unique else ''}KEY {name} ({column})" for name, column, unique in self.indexes]
        columns = ["id BIGINT NOT NULL", "k INT NOT NULL", "c CHAR(120) NOT NULL", "pad CHAR(60) NOT NULL"]
        return f"CREATE TABLE {schema}.sbtest ({', '.join(columns + keys)}) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"


SBTEST = Table(True, (("k_1", "k", False),))
UNIQUE = Table(True, (("uk_k", "k", True), ("uk_c", "c", True), ("uk_pad", "pad", True)))
KEYLESS = Table(False, ())


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


def _index(number: int, name: str, column: str, offset: int, unique: bool) -> dict[str, Any]:
    return {
        "id": number,
        "idx_name": {"O": name, "L": name},
        "tbl_name": {"O": "", "L": ""},
        "idx_cols": [{"name": {"O": column, "L": column}, "offset": offset, "length": -1}],
        "is_unique": unique,
        "is_primary": False,
        "is_invisible": False,
        "state": 5,
        "comment": "",
        "index_type": 1,
    }


def jobs(table: Table = SBTEST, *, table_id: int = TABLE_ID, schema: str = "bench") -> str:
    """Return a DDL history that creates `schema`.sbtest at schema version 1, long before any row is written."""
    columns = [
        _column(1, "id", 8, _PRIMARY_FLAG if table.primary else _PLAIN_FLAG, 20, "binary"),
        _column(2, "k", 3, _PLAIN_FLAG, 11, "binary"),
        _column(3, "c", 254, _PLAIN_FLAG, 120, "utf8mb4"),
        _column(4, "pad", 254, _PLAIN_FLAG, 60, "utf8mb4"),
    ]
    names = [column["name"]["O"] for column in columns]
    info = {
        "id": table_id,
        "name": {"O": "sbtest", "L": "sbtest"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": columns,
        "index_info": [
            _index(number, name, column, names.index(column), unique)
            for number, (name, column, unique) in enumerate(table.indexes, 1)
        ],
        "max_col_id": len(columns),
        "max_idx_id": len(table.indexes),
        "state": 5,
        "pk_is_handle": table.primary,
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
        "query": table.create(schema),
        **shared,
        "binlog": {"SchemaVersion": 1, "DBInfo": None, "TableInfo": info, "FinishedTS": 1},
    }
    return json.dumps([create_schema, create_table])


def rows(count: int, seed: int = 1, *, first: int = 1, table: Table = SBTEST) -> Iterator[tuple[int, int, str, str]]:
    """Yield (id, k, c, pad) with ids from `first` on. c and pad have 63 random bits. k is random, or unique to each id
    if the table has a unique key on it."""
    rng = random.Random(seed)
    unique = any(column == "k" and unique for _, column, unique in table.indexes)
    for number in range(first, first + count):
        k = number * 48_271 % 0x7FFFFFFF if unique else rng.randrange(1_000_000)
        yield number, k, f"{rng.getrandbits(63):0120d}", f"{rng.getrandbits(63):060d}"
