"""A batch of TiDB's that was read to be spread and may not be (rule 21), through the whole daemon: the query begins
again, the batch goes inline, and the error names the transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import reached
from tests.support.schema_case import BEGIN_TS, ts
from tests.support.servers import MariaDB, Server, free_port
from tests.unit.drainer.cut_case import BARE, INT_KEY, SECONDARY, Op, beginning, change, gone, jobs, payloads, put

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TABLES = (SECONDARY, INT_KEY, BARE)
COUNT = 40


def each(n: int) -> list[Op]:
    """A row of every table; from the fourth on a value moves from the row before, and a keyless row goes."""
    made = [*put(SECONDARY, n, n), *put(INT_KEY, n, n), *put(BARE, 1, 1), *put(BARE, n, None)]
    if n > 3:
        made += [*change(SECONDARY, (n - 1, n - 1, 1), (n - 1, 1000 + n, 2)), *gone(BARE, 1, 1)]
    return made


GOOD = [each(n) for n in range(COUNT)]


def serve(stubs: Stubs, stream: Sequence[Sequence[Op]], *, first: int | None = None) -> int:
    """Two pumps that hold the stream; the ts up to which they are resolved: behind the `first` so many, or all."""
    known = jobs(TABLES, upserts=False)
    # A job of a later version than the rows' tells each life at its start that none is missing: it may spread at once.
    later = Job(id=99, type=ActionType.CREATE_SCHEMA, schema_version=30, schema_id=9, db_info=DBInfo(9, "later"))
    (stubs.directory / "history.json").write_text(json.dumps([job.to_json() for job in [*known, later]]))
    stubs.add("a")
    stubs.add("b")
    stubs.share([*beginning(known), *payloads(stream, upserts=False)])
    end = ts(10 + len(stream) + 5) if first is None else ts(10 + first - 1)
    stubs.resolve(end)
    return end


def drainer(stubs: Stubs, db: MariaDB, port: int, *, syncer: str = "") -> Server:
    config = (
        f'initial-commit-ts = {BEGIN_TS}\nstatus-addr = "127.0.0.1:{port}"\n'
        "inline-bytes-max = 1024\nspread-bytes-min = 1\n"
        f'[schema]\nhistory-file = "{stubs.directory}/history.json"\n'
        f'[syncer]\ndb-type = "mariadb"\ntxn-rows-max = 7\nworker-count = 3\n{syncer}\n'
        f'[syncer.to]\nhost = "{db.host}"\nport = {db.port}\nuser = "{db.user}"\npassword = "{db.password}"\n'
    )
    return stubs.drainer(config).start()


def standing(db: MariaDB) -> dict[str, list[tuple[object, ...]]]:
    return {
        info.name: sorted([tuple(row) for row in db.query(f"SELECT k, u, v FROM d.{info.name}")], key=repr)
        for info in TABLES
    }


def after(count: int) -> dict[str, list[tuple[object, ...]]]:
    """What so many transactions of GOOD leave."""
    secondary = {n: (n, n, 1) for n in range(count)}
    secondary |= {n - 1: (n - 1, 1000 + n, 2) for n in range(4, count)}
    bare: list[tuple[object, ...]] = [(n, None, 1) for n in range(count)]
    bare += [(1, 1, 1)] * (count - max(count - 4, 0))
    found = {"secondary": list(secondary.values()), "int_key": [(n, n, 1) for n in range(count)], "bare": bare}
    return {name: sorted([tuple(row) for row in rows], key=repr) for name, rows in found.items()}


BREAKS = [
    pytest.param([*put(INT_KEY, 77, 77), *put(SECONDARY, 77, 1017)], "another row|two rows", id="a value"),
    pytest.param([*put(INT_KEY, 77, 77), *gone(BARE, 78, 78)], "d.bare", id="a keyless row"),
]


@pytest.mark.parametrize(("bad", "why"), BREAKS)
def test_a_transaction_that_is_refused(stubs: Stubs, mariadb: MariaDB, bad: list[Op], why: str) -> None:
    """It is named with everything before it applied and nothing behind it, in every life; passed over, all the rest
    comes, and once: a table without a key would show a repetition."""
    mariadb.reset()
    at = 25
    stream = [*GOOD[:at], bad, *GOOD[at:]]
    end = serve(stubs, stream)
    refused = ts(10 + at)
    for life in range(2):
        stopped = drainer(stubs, mariadb, free_port())
        assert stopped.wait(deadline_s=300) not in (0, None), stopped.tail()
        said = stopped.text()
        assert f"commit_ts {refused}, start_ts {refused - 3}, table d." in said, said
        assert f"put {refused} into syncer.ignore-txn-commit-ts" in said
        assert life or (
            "the batch is applied by the driver alone" in said and "the batch failed and is retried" in said
        ), said
        assert standing(mariadb) == after(at)
        ((commit_ts, intent),) = mariadb.query("SELECT commit_ts, intent FROM tidb_binlog.drainer_position")
        assert (commit_ts < refused, intent) == (True, None)
    port = free_port()
    running = drainer(stubs, mariadb, port, syncer=f"ignore-txn-commit-ts = [{refused}]")
    reached(running, port, end)
    assert running.stop(deadline_s=240) == 0, running.tail()
    assert standing(mariadb) == after(COUNT)
