"""The real servers start, answer, and are gone afterwards."""

import pytest

from tests.support import Etcd, MariaDB, answers

pytestmark = pytest.mark.integration


def test_etcd_answers(etcd: Etcd) -> None:
    assert answers(int(etcd.endpoint.rsplit(":", 1)[1]))


def test_mariadb_answers(mariadb: MariaDB) -> None:
    assert mariadb.query("SELECT 1 + 1") == [(2,)]


def test_java_for_spark(java: None) -> None:
    """The fixture itself is the check."""
