"""A sound stream over tables with a key, a secondary unique key and none, in two pumps, for a drainer that spreads its
batches."""

from __future__ import annotations

import json
from collections.abc import Sequence

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo

from tests.integration.drainer.stubs import Stubs
from tests.support.schema_case import BEGIN_TS, ts
from tests.support.servers import MariaDB, Server
from tests.unit.drainer.cut_case import BARE, INT_KEY, SECONDARY, Op, beginning, change, gone, jobs, payloads, put

TABLES = (SECONDARY, INT_KEY, BARE)
COUNT = 40


def each(n: int) -> list[Op]:
    """A row of every table; from the fourth on a value moves from the row before, and a keyless row goes."""
    made = [*put(SECONDARY, n, n), *put(INT_KEY, n, n), *put(BARE, 1, 1), *put(BARE, n, None)]
    if n > 3:
        made += [*change(SECONDARY, (n - 1, n - 1, 1), (n - 1, 1000 + n, 2)), *gone(BARE, 1, 1)]
    return made


GOOD = [each(n) for n in range(COUNT)]


def serve(stubs: Stubs, stream: Sequence[Sequence[Op]], *, first: int) -> int:
    """Two pumps that hold the stream; the ts up to which they are resolved: behind the `first` so many."""
    known = jobs(TABLES, upserts=False)
    # A job of a later version than the rows' tells each life at its start that none is missing: it may distribute at
    # once.
    later = Job(id=99, type=ActionType.CREATE_SCHEMA, schema_version=30, schema_id=9, db_info=DBInfo(9, "later"))
    (stubs.directory / "history.json").write_text(json.dumps([job.to_json() for job in [*known, later]]))
    stubs.add("a")
    stubs.add("b")
    stubs.share([*beginning(known), *payloads(stream, upserts=False)])
    end = ts(10 + first - 1)
    stubs.resolve(end)
    return end


def drainer(stubs: Stubs, db: MariaDB, port: int, **env: str) -> Server:
    config = (
        f'initial-commit-ts = {BEGIN_TS}\nstatus-addr = "127.0.0.1:{port}"\n'
        "driver-bytes-max = 1024\ndistributed-bytes-min = 1\n"
        f'[schema]\nhistory-file = "{stubs.directory}/history.json"\n'
        '[syncer]\ndb-type = "mariadb"\ntxn-rows-max = 7\nworker-count = 3\n'
        f'[syncer.to]\nhost = "{db.host}"\nport = {db.port}\nuser = "{db.user}"\npassword = "{db.password}"\n'
    )
    return stubs.drainer(config, **env).start()


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
