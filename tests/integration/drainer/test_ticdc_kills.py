"""The round trip: recordings of a real TiDB, a drainer that publishes them, a broker, and a drainer that reads these
topics as TiCDC's into a real MariaDB. Everything is killed in turn, in every protocol that such a drainer reads.

The first drainer leaves transactions that are cut, or messages that come again; the second one dies around rows, or
around DDLs that change everything when they run again (rings of names, exchanges of partitions). At the end every table
is upstream's: tables without keys show what was written twice, MariaDB's own log shows what was run twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from binlog import envelope

from drainer.protocol.registry import ProtocolOptions
from tests.golden.compare import each_difference
from tests.integration.drainer.stubs import Stubs, running_stubs
from tests.integration.drainer.test_recording import configuration
from tests.integration.test_peer_ticdc_topics import parameters
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.processes import descendants
from tests.support.servers import Etcd, MariaDB, Server, running_mariadb, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DEADLINE_S = 240.0  # of one life; one that misses its crash point ends by itself
NEVER: Sequence[str] = ["ks.k_genpk"]  # our topics lack stored generated columns, which TiCDC's have
# Rows without a key that come again are recognised only if an earlier transaction of the same partition of their table
# comes again before them. What comes again has several transactions of every other table without a key.
NEVER_TWICE: Sequence[str] = ["ks.k_list", "ks.k_hashno"]
FORKED = b"drainer.spark.startup.fork_server"
# The second drainer's crash points. Behind the first ones of "keys" its tables exist, and what is committed is rows.
# Those of "ddl_hard" are at a ring of names, the next one, and an exchange of a partition.
OPEN_POINTS = ["drainer.after_intent", "sink.before_commit", "sink.before_chunk_commit"]
CANAL_POINTS = ["drainer.before_commit", "sink.after_commit", "sink.after_chunk_commit"]
SIMPLE_POINTS = ["drainer.after_read:3", "sink.ddl_before_mark:2", "drainer.after_ddl:2"]
AVRO_POINTS = ["sink.ddl_marked:13", "sink.after_mark:2", "sink.ddl_after_exec:5"]
# In MariaDB's log, what is not upstream's.
OWN = re.compile("tidb_binlog|^BEGIN|^COMMIT|^ROLLBACK|SAVEPOINT|^CREATE USER|^GRANT")
# Statements that upstream ran more than once.
TWICE = {"DROP DATABASE `fdb`": 2, "CREATE DATABASE `again` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": 2}
# Tables, and a column that all of them have, for the dispatchers; those in no group have no rule.
GROUPS = {
    "keys": ('"ks.k_[bc]*", "!ks.k_case"', '"ks.k_[iru]*"', '"ks.k_[ahlps]*"', "v"),
    "types": ('"types.p_[bcd]*"', '"types.p_[efgpst]*"', '"types.p_[uvy]*"', "v"),
    "ddl_hard": ('"dh1.[mp]*"', '"dh1.[rx]*"', '"dh2.*"', "id"),
}


@dataclass(frozen=True)
class Way:
    """A recording, the protocol of its topic, and the crash points of both drainers. `turn`: which tables have which
    dispatcher; `distributed`: tasks write to the topic, not the driver; `claims`: rows are too large for messages."""

    name: str
    options: ProtocolOptions
    turn: int
    exactly_once: bool
    publishing: str
    applying: Sequence[str]
    distributed: bool = False
    claims: bool = False

    @property
    def capture(self) -> CaptureSet:
        return CaptureSet(GOLDEN / self.name)

    @property
    def left_out(self) -> Sequence[str]:
        return [*NEVER, *([] if self.exactly_once else NEVER_TWICE)]

    def dispatchers(self) -> str:
        *groups, column = GROUPS[self.name]
        how = ['"index-value"', '"table"', f'"columns"\ncolumns = ["{column}"]']
        rules = zip(groups, how[self.turn :] + how[: self.turn], strict=True)
        return "".join(f"[[syncer.to.dispatchers]]\nmatcher = [{which}]\npartition = {one}\n" for which, one in rules)


OPEN = ProtocolOptions("open-protocol")
CANAL = ProtocolOptions("canal-json", enable_tidb_extension=True)
SIMPLE = ProtocolOptions("simple")
AVRO = ProtocolOptions("simple", encoding_format="avro")


@pytest.fixture(scope="module")
def destination() -> Iterator[MariaDB]:
    with running_mariadb("--log-bin=changes", "--binlog-format=ROW") as server:
        yield server


@dataclass
class Chain:
    """Both drainers, and what is between and behind them."""

    way: Way
    kafka: Broker
    mariadb: MariaDB
    publisher: Stubs
    applier: Stubs
    topic: str
    half_ts: int

    def configurations(self) -> tuple[str, str]:
        """Of both drainers."""
        way, stubs = self.way, self.publisher
        topic = self.topic
        distributed = "distributed-bytes-min = 2000\nbatch-bytes-max = 32768\ndriver-bytes-max = 4096\n"
        driver = "batch-bytes-max = 24000\n"
        rules = ["*.*", *(f"!{table}" for table in way.left_out)]
        one = (
            f'initial-commit-ts = {way.capture.meta["scenario_start_ts"]}\nstatus-addr = ""\n'
            f'{distributed if way.distributed else driver}[schema]\nhistory-file = "{stubs.directory}/history.json"\n'
            f'[syncer]\ndb-type = "kafka"\n[syncer.filter]\nrules = {json.dumps(rules)}\n[syncer.to]\n'
            f'sink-uri = "kafka://{self.kafka.address}/{topic}?partition-num=3"\nslots = 4\n'
            f'control-topic = "{topic}-control"\nexactly-once = {json.dumps(way.exactly_once)}\n'
            f"{settings(way.options)}{way.dispatchers()}"
        )
        uri = f"kafka://{self.kafka.address}/{topic}?{parameters(way.options)}"
        more = f'source = "ticdc"\n{distributed}[ticdc-source]\nuri = "{uri}"\n'
        two = configuration(self.applier, way.capture, self.mariadb, more=more)
        (stubs.directory / "history.json").write_bytes(way.capture.jobs_text)
        return one, two

    def live(self, stubs: Stubs, config: str, points: Sequence[str]) -> Server:
        """Drainers that die at these points one after another, then one that runs. A worker that dies in a task takes
        its drainer with it. One that does not reach its point ends, and fails the test: nothing comes after that."""
        for point in points:
            drainer = stubs.drainer(f"stop-at = {self.half_ts}\n{config}", BINLOG_CRASH_POINT=point).start()
            wait_until(partial(self.reached, stubs, drainer, point), deadline_s=DEADLINE_S, what=drainer.tail)
            drainer.kill()
        return stubs.drainer(config).start()

    def reached(self, stubs: Stubs, drainer: Server, point: str) -> bool:
        text = f"crash point {point.partition(':')[0]} reached"
        spark_log = stubs.directory / "data" / "spark.log"  # what workers say, of all lives
        if text in drainer.text() or (spark_log.exists() and text in spark_log.read_text(errors="replace")):
            return True
        if not drainer.alive:
            pytest.fail(f"ended before {point}:\n{drainer.tail()}")
        return False

    def position(self) -> int:
        return max(
            (ts for (ts,) in self.mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position")), default=0
        )

    def missing(self) -> str:
        found = each_difference(self.mariadb, self.way.capture)
        return next((one[:500] for one in found if one.partition(":")[0] not in self.way.left_out), "")

    def statements(self) -> Counter[str]:
        """How often each statement ran that is not on the drainer's own tables."""
        found: Counter[str] = Counter()
        for log, *_ in self.mariadb.query("SHOW BINARY LOGS"):
            for _, _, kind, _, _, text in self.mariadb.query(f"SHOW BINLOG EVENTS IN '{log}'"):
                if kind == "Query" and not OWN.search(text):
                    found[text.rpartition("check_constraint_checks=0; ")[2]] += 1
        return found


def settings(options: ProtocolOptions) -> str:
    """As parameters() of an address, in `[syncer.to]`."""
    values = dict(pair.split("=", 1) for pair in unquote(parameters(options)).split("&"))
    return "".join(f"{key} = {value if value == 'true' else json.dumps(value)}\n" for key, value in values.items())


def kill_workers(drainer: Server) -> None:
    """All of Spark's Python workers, but not the processes that make them, which end with the drainer."""
    assert drainer.process is not None
    found = descendants(drainer.process.pid)
    server = next(pid for pid in found if FORKED in command(pid) and b"supervisor.py" not in command(pid))
    workers = {worker for daemon in descendants(server) for worker in descendants(daemon)}
    assert workers
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


@pytest.mark.parametrize(
    "way",
    [
        Way("keys", OPEN, 2, False, "kafka.rows_acknowledged:31", OPEN_POINTS),
        Way("keys", CANAL, 0, True, "kafka.slot_flushed", CANAL_POINTS, distributed=True),
        Way("types", SIMPLE, 1, True, "kafka.rows_sent:2", SIMPLE_POINTS, claims=True),
        Way("ddl_hard", AVRO, 0, False, "kafka.rows_acknowledged:4", AVRO_POINTS),
    ],
    ids=lambda way: f"{way.options.protocol}-{way.options.encoding_format}",
)
def test_recording_makes_round_trip_through_topic_while_everything_is_killed(
    etcd: Etcd, java: None, kafka: Broker, destination: MariaDB, tmp_path: Path, way: Way
) -> None:
    """Two thirds of the recording while drainers die; then workers, the destination and the broker in the rest."""
    destination.reset()
    destination.query("RESET MASTER")
    if way.claims:
        claims: dict[str, Any] = {
            "large_message_handle_option": "claim-check",
            "claim_check_storage_uri": f"file://{tmp_path}/claims",
        }
        way = replace(way, options=replace(way.options, **claims))
    start_ts = way.capture.meta["scenario_start_ts"]
    commits = sorted(ts for one in way.capture.binlogs if (ts := envelope.scan(one).commit_ts) > start_ts)
    half_ts = commits[len(commits) * 2 // 3]
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(running_stubs(etcd))
        for pump in "ab":
            publisher.add(pump)
        publisher.share(way.capture.binlogs)
        publisher.resolve(half_ts)
        applier = replace(publisher, node_id="d2", directory=tmp_path, servers=publisher.servers)  # which it ends
        topic = kafka.topic(3, max_message_bytes="60000" if way.claims else "1048588")
        chain = Chain(way, kafka, destination, publisher, applier, topic, half_ts)
        one, two = chain.configurations()
        with ThreadPoolExecutor(2) as pool:
            lives = (
                pool.submit(chain.live, publisher, one, [way.publishing]),
                pool.submit(chain.live, applier, two, way.applying),
            )
            first, second = [life.result() for life in lives]
        second.wait_for_output("drainer is running", deadline_s=DEADLINE_S)
        publisher.resolve(way.capture.meta["scenario_end_ts"] + 10)
        wait_until(lambda: chain.position() > half_ts, deadline_s=DEADLINE_S, what=second.tail)
        kill_workers(second)
        destination.server.kill()
        kafka.kill()
        destination.server.start()
        kafka.start()
        wait_until(
            lambda: not chain.missing(), deadline_s=DEADLINE_S, what=lambda: f"{chain.missing()}\n{second.tail()}"
        )
        assert (second.stop(), first.stop()) == (0, 0), f"{second.tail()}\n{first.tail()}"
        assert chain.missing() == ""
        again = {text: count for text, count in chain.statements().items() if count > 1}
        assert again == (TWICE if way.name == "ddl_hard" else {})
        assert not way.claims or any((tmp_path / "claims").iterdir())
