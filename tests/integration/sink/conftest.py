"""An empty database `d` on a server that no earlier test is still connected to, and a Kafka broker to pause."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from tests.support.kafka import Broker, running_kafka
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


@pytest.fixture(scope="module")
def pausable_kafka() -> Iterator[Broker]:
    """A broker that its controller, which is paused with it, does not fence afterwards: a fenced broker's partitions
    have no leader for a moment, and markers of transactions that it has acknowledged are skipped (KAFKA-20734)."""
    with running_kafka(["broker.session.timeout.ms=600000"]) as broker:
        yield broker
