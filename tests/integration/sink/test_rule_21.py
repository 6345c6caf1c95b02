"""Rule 21 on a real server: one outcome wherever a stream is cut; a service's stream also where batches are spread."""

from __future__ import annotations

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drainer.sink.mysql.destination import MySQLDestination
from tests.integration.sink.case import server_config
from tests.support import MariaDB
from tests.unit.drainer.cut_case import (
    BARE,
    COMPOSITE,
    LOOSE,
    NULLABLE,
    SECONDARY,
    Cuts,
    Outcome,
    Stream,
    cuts,
    drain,
    outcome,
    stream_of,
    streams,
)

pytestmark = pytest.mark.integration

EACH = Cuts(frozenset(range(99)))
EXAMPLES = settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def into_server(db: MariaDB, stream: Stream, how: Cuts) -> Outcome:
    """Into an empty database, by way of the stream's own DDL."""
    for schema in ("d", "tidb_binlog"):
        db.query(f"DROP DATABASE IF EXISTS {schema}")
    error = drain(MySQLDestination(server_config(db, takeover="force")), stream, how)
    found = {
        info.name: sorted([tuple(row) for row in db.query(f"SELECT k, u, v FROM d.{info.name}")], key=repr)
        for info in stream.tables
    }
    return outcome(found, error)


@pytest.mark.parametrize("info", [COMPOSITE, SECONDARY, NULLABLE, LOOSE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_a_stream_of_a_service(db: MariaDB, info: TableInfo, data: st.DataObject) -> None:
    stream = stream_of([info], data.draw(streams([info])), upserts=True)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    expected = into_server(db, stream, EACH)
    assert expected.error == "", expected.text
    assert into_server(db, stream, how) == expected


@pytest.mark.parametrize("info", [COMPOSITE, SECONDARY, NULLABLE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_a_stream_of_tidb(db: MariaDB, info: TableInfo, data: st.DataObject) -> None:
    stream = stream_of([info], data.draw(streams([info])), upserts=False)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    assert into_server(db, stream, how) == into_server(db, stream, EACH)
