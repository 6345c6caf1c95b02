"""The original's arbiter and ours, in turn on one topic into a real TiDB, and what its drainer writes into a topic and
into files. Skipped without PEER_BIN."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from drainer.arbiter.__main__ import main
from drainer.protocol.secondary import commit_ts_of
from drainer.reparo.__main__ import main as reparo
from tests.golden.compare import differences
from tests.integration.sink.forks import children
from tests.integration.sink.test_arbiter import ROW, flags, started, write
from tests.integration.test_peer import begin
from tests.integration.test_peer_readers import BY_TABLE, MINUS_ZERO, arbiter, written
from tests.peer.cluster import Peer
from tests.peer.compare import AS_TEXT
from tests.peer.compare import differences as of_tidb
from tests.peer.load import CALM_DDLS, running_load
from tests.peer.marks import desk_test
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.servers import MariaDB, Server, running_mariadb, wait_until

pytestmark = desk_test(900)


def applied(reader: Server, tidb: MariaDB, ts: int) -> None:
    """It has applied everything up to `ts`."""

    def is_there() -> bool:
        assert reader.alive, reader.tail()
        return tidb.query(ROW) == [(ts, 1)]

    wait_until(is_there, deadline_s=200, what=lambda: f"{tidb.query(ROW)} is {ts}: {reader.tail()}")


def test_arbiters_take_over_from_one_another(kafka: Broker, tidb: MariaDB, tmp_path: Path) -> None:
    """Ours is killed, the original's goes on and is killed, ours goes on and is stopped, the original's ends it."""
    (records,) = kafka.read(written(kafka, tmp_path, "secondary-binlog", [BY_TABLE], partitions=1, in_pieces=False))
    values = [record.value or b"" for record in records]
    third = len(values) // 3
    topic = kafka.topic(1)
    write(kafka, topic, *values[:third])
    child = children().start(
        main, (flags(kafka, topic, tidb, tmp_path, "-down.batch-size", "2"),), tmp_path, "replay.after_commit:20"
    )
    assert child.wait() == -signal.SIGKILL
    ((ts, status),) = tidb.query(ROW)
    assert 0 < ts < commit_ts_of(values[third - 1]) and status == 1
    original = arbiter(kafka, topic, tmp_path, tidb)
    applied(original, tidb, commit_ts_of(values[third - 1]))
    original.kill()
    write(kafka, topic, *values[third : 2 * third])
    ours = started(kafka, topic, tidb, tmp_path)
    applied(ours, tidb, commit_ts_of(values[2 * third - 1]))
    assert ours.stop() == 0, ours.tail()
    assert tidb.query(ROW) == [(commit_ts_of(values[2 * third - 1]), 0)]
    write(kafka, topic, *values[2 * third :])
    original = arbiter(kafka, topic, tmp_path, tidb)
    applied(original, tidb, commit_ts_of(values[-1]))
    original.kill()
    assert differences(tidb, CaptureSet(GOLDEN / "keys"), prints_as_tidb=True) == []


def run_reparo(files: Path, destination: MariaDB, directory: Path) -> None:
    config = directory / "reparo.toml"
    config.write_text(
        f'data-dir = "{files}"\ndest-type = "mariadb"\n[dest-db]\nhost = "{destination.host}"\n'
        f'port = {destination.port}\nuser = "{destination.user}"\npassword = "{destination.password}"\n'
    )
    assert reparo(["-config", str(config), "-txn-batch", "50"]) == 0


def is_equal(peer: Peer, destination: MariaDB) -> bool:
    upstream, downstream = peer.connect(**AS_TEXT), destination.connect(**AS_TEXT)
    with contextlib.closing(upstream), contextlib.closing(downstream):
        return next(of_tidb(upstream, downstream), None) is None


def test_what_go_drainers_write_makes_tables_equal_to_tidb(
    peer: Peer, kafka: Broker, tidb: MariaDB, tmp_path: Path
) -> None:
    """A topic, by our arbiter, and files, by our reparo in several runs while they grow. Each program is killed once,
    so the topic and the files have transactions twice."""
    peer.go_pump(peer.place("pump-a"))
    begin(peer)
    topic, files = kafka.topic(1), tmp_path / "files"
    with running_mariadb("--character-set-server=utf8mb4", "--collation-server=utf8mb4_nopad_bin") as copy:
        for seed, ddls in ((1, CALM_DDLS[:12]), (2, CALM_DDLS[12:])):
            programs = [peer.go_kafka_drainer(kafka.address, topic), peer.go_file_drainer(files, name="files")]
            reader = started(kafka, topic, tidb, tmp_path)
            with running_load(peer.connect, pause_s=0.2, seed=seed) as load:
                load.define(ddls)
            assert load.failed_ddls == []
            wait_until(lambda: any(files.glob("binlog-*")), deadline_s=120, what="the drainer writes files")
            run_reparo(files, copy, tmp_path)  # to wherever they have come
            if seed == 1:
                for program in (*programs, reader):
                    program.kill()

        def applied_all() -> bool:
            assert reader.alive, reader.tail()
            return is_equal(peer, tidb)

        def replayed_all() -> bool:
            run_reparo(files, copy, tmp_path)
            return is_equal(peer, copy)

        try:
            wait_until(applied_all, deadline_s=180, what=lambda: f"the tables are equal: {reader.tail()}")
            wait_until(replayed_all, deadline_s=180, what="what the files make is equal")
        finally:
            reader.kill()


def test_our_arbiter_makes_tidbs_tables(kafka: Broker, tidb: MariaDB, tmp_path: Path) -> None:
    """Of what a killed drainer wrote, with YEAR 0000, which the original's makes 2000. Transactions in pieces:
    tests/integration/sink/test_arbiter.py."""
    topic = written(kafka, tmp_path, "secondary-binlog", [BY_TABLE], "types", partitions=1)
    (records,) = kafka.read(topic)
    reader = started(kafka, topic, tidb, tmp_path)
    try:
        applied(reader, tidb, commit_ts_of(records[-1].value or b""))
    finally:
        reader.kill()
    found = differences(tidb, CaptureSet(GOLDEN / "types"), prints_as_tidb=True)
    assert [line for line in found if line != MINUS_ZERO] == []
