"""An empty database `d` on a server that no earlier test is still connected to."""

from __future__ import annotations

import pymysql
import pytest

from tests.support.servers import MariaDB


@pytest.fixture
def db(mariadb: MariaDB) -> MariaDB:
    mine = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER='lab' AND ID<>CONNECTION_ID()"
    for (connection,) in mariadb.query(mine):
        try:
            mariadb.query(f"KILL {connection}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != 1094:  # it ended by itself
                raise
    mariadb.reset()
    mariadb.query("CREATE DATABASE d DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin")
    return mariadb
