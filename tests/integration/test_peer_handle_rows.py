"""Rows whose messages have their handle key alone are read in a real TiDB. A desk test: skipped without PEER_BIN, in CI
too. A cluster of its own, because the drainer that publishes reads all its binlogs.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from urllib.parse import urlencode

import pytest

from drainer.protocol.errors import MessageError
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.ranges.upstream import Upstream as Reader
from drainer.schema.history.sources import parse_jobs
from drainer.ticdc.pull import whole_row
from tests.integration import test_peer_ranges
from tests.integration.test_peer_ranges import BEYOND_A_MESSAGE, KEYS, ODD, VALUES, Upstream, gc_passed
from tests.peer.compare import AS_TEXT, table_differences, tables
from tests.peer.marks import desk_test
from tests.support.kafka import Broker
from tests.support.servers import MariaDB

pytestmark = desk_test(900)

upstream = test_peer_ranges.upstream


@pytest.fixture(scope="module")
def handles(upstream: Upstream) -> str:
    """A database with rows of each type, and with keys of each type, none of which fits a message. Keys change, and do
    not."""
    schema = "handles"
    more = f"REPEAT('x', {BEYOND_A_MESSAGE})"
    odd = ODD.replace("odd", f"{schema}.odd").replace(" ZEROFILL", "").replace("VIRTUAL", "VIRTUAL, more MEDIUMTEXT")
    upstream.run(f"CREATE DATABASE {schema}", odd)
    for column, values in VALUES.items():
        # MariaDB has UTF-8 alone, and shows six digits of a FLOAT.
        text = (
            one for one in values if not (column == "v" and one[0] == "x") and one not in ("16777217", "123456.789")
        )
        upstream.run(*(f"INSERT INTO {schema}.odd ({column}, more) VALUES ({value}, {more})" for value in text))
    for n, (kind, values) in enumerate(KEYS.items()):
        of = ("PRIMARY KEY (k) CLUSTERED", "PRIMARY KEY (k, v) NONCLUSTERED", "UNIQUE KEY (v, k)")[n % 3]
        upstream.run(f"CREATE TABLE {schema}.k{n} (k {kind} NOT NULL, v INT NOT NULL, w INT, more MEDIUMTEXT, {of})")
        some = [one for one in values.split(", ") if kind != "VARCHAR(20)" or not one.startswith("x")]
        upstream.run(*(f"INSERT INTO {schema}.k{n} VALUES ({one}, {v}, 0, {more})" for v, one in enumerate(some)))
        upstream.run(f"UPDATE {schema}.k{n} SET w = 1", f"UPDATE {schema}.k{n} SET v = v + 9 WHERE v % 3 = 1")
        upstream.run(f"DELETE FROM {schema}.k{n} WHERE v % 3 = 2")
    upstream.run(
        f"UPDATE {schema}.odd SET z = 7 WHERE id % 3 = 0", f"UPDATE {schema}.odd SET id = -id WHERE id % 5 = 1"
    )
    upstream.run(f"DELETE FROM {schema}.odd WHERE id % 7 = 3")
    return schema


@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
def test_rows_whose_messages_have_their_key_alone_are_read_upstream(
    upstream: Upstream, handles: str, mariadb: MariaDB, kafka: Broker, protocol: str
) -> None:
    """In a time zone of the changefeed's. A row that GC has passed is named."""
    schema = handles
    peer, topic = upstream.peer, kafka.topic(3, max_message_bytes=str(BEYOND_A_MESSAGE - 1000))
    options = ProtocolOptions(
        protocol,
        enable_tidb_extension=protocol == "canal-json",
        time_zone="America/New_York",
        encoding_format="avro" if protocol == "simple" else "json",
        large_message_handle_option="handle-key-only",
    )
    values = ((one.name.replace("_", "-"), getattr(options, one.name), one.default) for one in fields(options))
    given = {name: value for name, value, default in values if value != default}
    chosen = f'replicate-do-db = ["{schema}"]\n'
    to = f'db-type = "kafka"\n{chosen}[syncer.to]\naddresses = ["{kafka.address}"]\ntopic = "{topic}"\n'
    to += "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
    producer = peer.our_drainer(to, "-until-now", name=topic, more=f'changefeed = "{topic}"\n')
    assert producer.wait(deadline_s=400) == 0, producer.tail()
    decoder = make_decoder(options)
    events = [event for part in kafka.read(topic) for one in part for event in decoder.decode(one.key, one.value)]
    rows = [event for event in events if isinstance(event, RowEvent)]
    assert len(rows) > 100 and all(one.handle_only for one in rows)
    name, jobs = rows[0].table, parse_jobs(upstream.jobs().decode(), "peer")
    (info,) = [one for job in jobs if (one := job.table_info) and (job.schema_name, one.name) == (schema, name)]
    words = rf"`{schema}`\.`{name}` at commit_ts \d+ .*\((id|k|v) = .*\).* tidb_gc_life_time.* claim-check"
    with gc_passed(upstream), pytest.raises(MessageError, match=words):
        whole_row(rows[0], info, Reader(upstream.snapshot), options)

    uri = f"kafka://{kafka.address}/{topic}?{urlencode(given).replace('True', 'true')}"
    source = f'source = "ticdc"\ndistributed-bytes-min = 1\n[ticdc-source]\nuri = "{uri}"\n'
    source += f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\n'
    ended = peer.our_drainer(mariadb, "-until-now", name=f"{topic}-source", more=source, syncer=chosen)
    assert ended.wait(deadline_s=400) == 0, ended.tail()
    found, downstream = peer.connect(**AS_TEXT), mariadb.connect(**AS_TEXT)
    with contextlib.closing(found), contextlib.closing(downstream):
        lines = [one for name in tables(found, schema) for one in table_differences(found, downstream, schema, name)]
    assert not lines, lines
