"""`drainer check`, one after another, beside transactions and DDL on the same tables: no table differs. A desk test:
skipped without PEER_BIN, in CI too. CHECK_MINUTES sets how long the load runs; without it, one minute.

    CHECK_MINUTES=60 PEER_BIN=… python -m pytest -s tests/integration/test_peer_check_load.py
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from typing import Any

from tests.peer.cluster import Peer
from tests.peer.compare import AS_TEXT, differences
from tests.peer.load import DDLS, TABLES, prepare, running_load
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, wait_until

MINUTES = float(os.environ.get("CHECK_MINUTES", "1"))
DDL_PAUSE_S = 1.0
pytestmark = desk_test(900 + int(60 * MINUTES))


def test_check_beside_transactions_and_ddl_finds_no_difference(peer: Peer, mariadb: MariaDB) -> None:
    """A table that a DDL changes all the time may stay uncompared (exit code 2), but not all of them."""
    peer.our_pump(peer.place("pump"))
    peer.start_tidb()
    with contextlib.closing(peer.connect()) as connection:
        prepare(connection)
    section = f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\n'
    drainer = peer.our_drainer(mariadb, name="checked", more=section)
    drainer.wait_for_output("drainer is running", deadline_s=480)
    made = f"SHOW TABLES FROM app LIKE '{TABLES[-1].split()[2]}'"
    wait_until(lambda: mariadb.query(made), deadline_s=240, what="the tables are there")
    found: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    alarms: list[Any] = []
    ended = threading.Event()
    with running_load(peer.connect, pause_s=0.02) as load:

        def define() -> None:
            while not ended.is_set():
                for ddl in DDLS:
                    load.define([ddl], pause_s=DDL_PAUSE_S)

        defining = threading.Thread(target=define, daemon=True)
        defining.start()
        end_s = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end_s or not found["compared"]:
            found["checks"] += 1
            name = f"check-{found['checks']}"  # and an output of its own
            check = peer.our_drainer(mariadb, "-json", "-table=app.*", name=name, more=section, command=("check",))
            code, text = check.wait(deadline_s=300), check.text()
            assert "[\n  {" in text, text
            tables = json.loads(text[text.rindex("[\n  {") :])
            compared = [one for one in tables if not one["error"]]
            alarms += [one for one in tables if one["differences"] or one["schema"]]
            errors.update(one["error"] for one in tables if one["error"])
            found += Counter(
                {f"exit code {code}": 1, "compared": len(compared), "rows": sum(one["rows"] for one in compared)}
            )
            assert not alarms, (alarms, text[-20000:])
        ended.set()
        defining.join(60)
    print(f"\n{MINUTES} minutes: {dict(found)}, transactions and DDLs {load.committed}, not compared {dict(errors)}")
    assert found["compared"] > len(TABLES) / 2
    assert drainer.stop() == 0, drainer.tail()
    drainer = peer.our_drainer(mariadb, "-until-now", name="checked", more=section)
    assert drainer.wait(deadline_s=400) == 0, drainer.tail()
    ours, theirs = peer.connect(**AS_TEXT), mariadb.connect(**AS_TEXT)
    with contextlib.closing(ours), contextlib.closing(theirs):
        assert list(differences(ours, theirs)) == []
