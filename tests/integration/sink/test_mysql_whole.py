"""Rule 33: readers see complete transactions, while a drainer writes, is killed and goes on.

TRANSFERS=100000 in the environment makes it that many transfers, which takes ten minutes.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from drainer.batch.work import Folded
from drainer.sink.mysql.rows.slot_writer import Phase
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import opened, server_config, shape, work
from tests.integration.sink.case import put as row
from tests.integration.sink.test_mysql_distributed import at_once, audit, audited, intent
from tests.integration.sink.test_rule_21 import Killer, killed, reset, standing
from tests.support.row_case import INT, table
from tests.support.servers import MariaDB
from tests.unit.drainer.cut_case import Cuts, Op, Stream, Values, change, drain, put, stream_of

pytestmark = pytest.mark.integration

COLUMNS = [("k", INT), ("u", INT), ("v", INT)]
ACCOUNTS = tuple(table(COLUMNS, handle="k", table_id=201 + n, name=f"account_{n}") for n in range(4))
IN_EACH = 250
BRANCHES = 20  # money moves within a branch, so that there are several groups
BALANCE = 100
TRANSFERS = int(os.environ.get("TRANSFERS", "5000"))
TOTAL = len(ACCOUNTS) * IN_EACH * BALANCE


def transfers(rng: random.Random, count: int) -> tuple[Stream, dict[str, list[Values]]]:
    """Accounts in one transaction, then transfers between two of them; what is there in the end. `v`: the number of
    the last transfer."""
    balance: dict[tuple[int, int], Values] = {
        (n, k): (k, BALANCE, 0) for n in range(len(ACCOUNTS)) for k in range(IN_EACH)
    }
    drawn: list[list[Op]] = [[op for (n, _), row in balance.items() for op in put(ACCOUNTS[n], *row)]]
    for number in range(1, count + 1):
        branch, amount = rng.randrange(BRANCHES), rng.randint(1, 50)
        mine = range(branch, IN_EACH, BRANCHES)
        (giver, taker) = rng.sample([(n, k) for n in range(len(ACCOUNTS)) for k in mine], 2)
        ops = []
        for account, more in ((giver, -amount), (taker, amount)):
            old = balance[account]
            balance[account] = new = old[0], (old[1] or 0) + more, number
            ops += change(ACCOUNTS[account[0]], old, new)
        drawn.append(ops)
    rows = {info.name: sorted([balance[n, k] for k in range(IN_EACH)], key=repr) for n, info in enumerate(ACCOUNTS)}
    return stream_of(ACCOUNTS, drawn, upserts=False), rows


@dataclass
class Reader:
    """Reads all accounts in one snapshot, again and again. `sums`: what was seen once the accounts were there."""

    db: MariaDB
    sums: list[int] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        end = threading.Event()

        def read_on() -> None:
            while not end.is_set():
                self.read()

        thread = threading.Thread(target=read_on)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(60)

    def read(self) -> None:
        connection = self.db.connect(autocommit=False)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            found = []
            for info in ACCOUNTS:
                cursor.execute(f"SELECT COUNT(*), SUM(u) FROM d.{info.name}")
                found += cursor.fetchall()
        if sum(count for count, _ in found) == len(ACCOUNTS) * IN_EACH:
            self.sums.append(int(sum(total for _, total in found)))


def test_unique_values_exchanged_in_a_slot_are_one_transaction(db: MariaDB) -> None:
    """Rows that should not be there yet are in the way: the slot is written again, with all its deletions first."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("INSERT INTO d.t VALUES (1,1), (2,2), (3,3)")
    audit(db)
    rows = tuple(row(key, b"(%d,%d)" % (key, key % 3 + 1)) for key in (1, 2, 3))
    slots = {0: work(100, 200, Folded(shape("t", "id u", unique=["u"]), rows))}
    assert at_once(opened(db), intent(slots=1, chunk_rows=0), slots) == [Phase.DIRECT]
    assert db.query("SELECT id, u FROM d.t ORDER BY id") == [(1, 2), (2, 3), (3, 1)]
    assert audited(db) == {("direct", 0, 1): 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "count", "in_batch"),
    [pytest.param(False, 200, 100, id="row"), pytest.param(True, TRANSFERS, 500, id="transaction")],
)
def test_readers_see_the_sum_of_all_accounts_only_if_transactions_are_whole(
    db: MariaDB, whole: bool, count: int, in_batch: int
) -> None:
    """Kills leave a batch with some slots committed, which every reader sees until the next life: `row` shows other
    sums then."""
    stream, rows = transfers(random.Random(33), count)
    ends = frozenset(range(0, count, in_batch))
    how = Cuts(ends, (False, *[True] * len(ends)), 2, whole)
    reset(db)
    assert drain(MySQLSink(server_config(db)), Stream(stream.tables, stream.binlogs[:1], False), Cuts()) is None
    reader = Reader(db)
    reader.read()
    with reader.reading():
        for places in (5, 6, 7, 8, 9, 21, 34, 47):
            killed(db, stream, how, Killer(places))
            reader.read()
        assert drain(MySQLSink(server_config(db, takeover="force")), stream, how) is None
    assert standing(db, stream) == rows
    assert reader.sums[0] == TOTAL and (set(reader.sums) == {TOTAL}) == whole
    assert len(reader.sums) > 10
