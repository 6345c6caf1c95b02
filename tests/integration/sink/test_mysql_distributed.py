"""Ranges applied slot by slot in marked chunks, on a real server: together, killed, repeated, overtaken."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drainer.batch.work import Folded, Kind, Match, SegmentWork, TableShape
from drainer.sink.base import Identity, Intent
from drainer.sink.errors import Fenced, PositionMoved, UniqueConflict
from drainer.sink.mysql import position
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.position import Changefeed
from drainer.sink.mysql.rows.slot_writer import MySQLSlotWriter, Phase
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import (
    LOADS,
    change,
    gone,
    loads,
    opened,
    put,
    server_config,
    shape,
    waits_for_a_row,
    work,
)
from tests.integration.sink.child import distributed, run_until_done
from tests.support.servers import MariaDB, wait_until

pytestmark = pytest.mark.integration


def intent(after: int = 100, until: int = 200, *, slots: int = 4, chunk_rows: int = 3) -> Intent:
    return Intent(after, until, slots, chunk_rows, 1, "all", ("a", "b"))


def at_once(destination: MySQLSink, range_: Intent, slots: Mapping[int, SegmentWork]) -> list[Phase]:
    """A range with every slot on its own thread, the target pickled as Spark does. Returns the phases."""
    phases = []
    target: MySQLSlotWriter | None = destination.begin(range_)
    with ThreadPoolExecutor(8) as pool:
        while target is not None:
            phases.append(target.phase)
            copies = {slot: pickle.loads(pickle.dumps(target)) for slot in slots}
            results = list(pool.map(lambda slot, copies=copies: copies[slot].write(slot, slots[slot]), slots))
            target = destination.commit(range_, results, 1)
    return phases


def audit(db: MariaDB) -> None:
    """Every chunk's mark, in the chunk's own transaction, into a table without a key."""
    opened(db).close(clean=True)
    db.query("CREATE TABLE d.audit (epoch INT, phase VARCHAR(8), slot INT, chunk INT)")
    db.query(
        "CREATE TRIGGER tidb_binlog.audit AFTER UPDATE ON tidb_binlog.drainer_mark FOR EACH ROW "
        "BEGIN IF NEW.chunks_done<>OLD.chunks_done THEN "
        "INSERT INTO d.audit VALUES (NEW.epoch, NEW.phase, NEW.slot, NEW.chunks_done); END IF; END"
    )


def audited(db: MariaDB) -> Counter[tuple[str, int, int]]:
    return Counter(db.query("SELECT phase, slot, chunk FROM d.audit"))


def test_slots_commit_in_marked_chunks(db: MariaDB) -> None:
    """Four slots of ten rows in chunks of three: each chunk once, the position at the end, no marks left."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    audit(db)
    t = shape("t", "id v")
    slots = {
        s: work(100, 200, Folded(t, tuple(put(i, b"(%d,%d)" % (i, s)) for i in range(s, 40, 4)))) for s in range(4)
    }
    destination = opened(db)
    assert at_once(destination, intent(), slots) == [Phase.DIRECT]
    assert db.query("SELECT id, v FROM d.t ORDER BY id") == [(i, i % 4) for i in range(40)]
    assert audited(db) == Counter(("direct", s, c) for s in range(4) for c in (1, 2, 3, 4))
    assert db.query("SELECT COUNT(*) FROM tidb_binlog.drainer_mark") == [(0,)]
    assert db.query("SELECT commit_ts, intent FROM tidb_binlog.drainer_position") == [(200, None)]


def test_slot_applied_again_writes_nothing(db: MariaDB) -> None:
    """Spark repeats a task whose answer it lost: keyless inserts must not double."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    steps = [change(t, Kind.INSERT, new="5", ts=101, seq=i) for i in range(8)]
    target = opened(db).begin(intent())
    first = target.write(0, work(100, 200, ordered=steps))
    again = target.write(0, work(100, 200, ordered=list(reversed(steps))))
    assert (first.chunks, first.skipped) == (3, 0)
    assert (again.chunks, again.skipped, again.rows) == (3, 3, 0)
    assert db.query("SELECT COUNT(*) FROM d.t") == [(8,)]


def test_concurrent_attempts_of_one_slot_commit_each_chunk_once(db: MariaDB) -> None:
    """Spark may run a task twice: each chunk is committed by one of the two, the other goes on behind it."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    steps = [change(t, Kind.INSERT, new=str(i), ts=101, seq=i) for i in range(60)]
    target = opened(db).begin(intent(chunk_rows=2))
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: target.write(0, work(100, 200, ordered=steps)), range(3)))
    assert sum(result.rows for result in results) == 60
    assert db.query("SELECT n FROM d.t ORDER BY n") == [(i,) for i in range(60)]


def test_unique_values_exchanged_between_slots_are_applied_in_phases(db: MariaDB) -> None:
    """Rule 12: unique values trade places between slots; no slot may be in the way of another in the end."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("INSERT INTO d.t SELECT seq, seq FROM d.seq_1_to_20")
    t = shape("t", "id u", unique=["u"])
    slots = {}
    for s in range(4):
        rows = [put(i, b"(%d,%d)" % (i, i % 20 + 1), Kind.UPDATE) for i in range(1, 21) if i % 4 == s]
        slots[s] = work(100, 200, Folded(t, tuple(rows)))
    assert at_once(opened(db), intent(), slots) == [Phase.DIRECT, Phase.DELETE, Phase.INSERT]
    assert db.query("SELECT id, u FROM d.t ORDER BY id") == [(i, i % 20 + 1) for i in range(1, 21)]


def test_untouched_row_in_conflict_stops_range(db: MariaDB) -> None:
    """Rule 12: what remains in the way after every touched key is deleted is a row upstream did not touch."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT, UNIQUE KEY uu (u))")
    db.query("INSERT INTO d.t VALUES (1,5)")
    t = shape("t", "id u", unique=["uu"])
    destination = opened(db)
    slots = {0: work(100, 200, Folded(t, (put(2, b"(2,5)"),)))}
    with pytest.raises(UniqueConflict, match=r"d\.t: unique key 'uu'"):
        distributed(destination, intent(), slots)
    assert db.query("SELECT * FROM d.t") == [(1, 5)]
    db.query("ALTER TABLE d.t DROP KEY uu")
    again = opened(db)
    distributed(again, intent(), slots)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 5), (2, 5)]


def test_range_with_incomplete_slot_is_not_committed(db: MariaDB) -> None:
    """Whoever counts the slots may be wrong; the marks are not. The position stays, and the range stays open."""
    destination = opened(db)
    destination.begin(intent())
    db.query("UPDATE tidb_binlog.drainer_mark SET chunks_done=1, chunks_total=3 WHERE slot=2")
    with pytest.raises(PositionMoved, match=r"slots \[2\] of .* are not complete"):
        destination.commit(intent(), [], 1)
    assert db.query("SELECT commit_ts, intent IS NULL FROM tidb_binlog.drainer_position") == [(100, 0)]


def test_slot_writer_of_old_epoch_writes_nothing(db: MariaDB) -> None:
    """Rule 15's counterexample: an executor of the old driver wakes while its successor spreads the same range, and
    again after the range is finished and its marks are gone."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    slot = work(100, 200, ordered=[change(t, Kind.INSERT, new=str(i), ts=101, seq=i) for i in range(4)])
    asleep = opened(db).begin(intent())
    successor = opened(db)
    target = successor.begin(intent())
    with pytest.raises(Fenced, match="epoch"):
        asleep.write(0, slot)
    target.write(0, slot)
    assert successor.commit(intent(), [], 1) is None
    with pytest.raises(Fenced, match="marks are gone"):
        asleep.write(0, slot)
    assert db.query("SELECT n FROM d.t ORDER BY n") == [(0,), (1,), (2,), (3,)]


def test_slot_writer_waiting_for_its_mark_writes_nothing_after_takeover(db: MariaDB) -> None:
    """Rule 15, the same a moment earlier: it has read its mark, which was of its epoch still, and waits for the row
    that its successor holds. When it gets it, the mark is the successor's; only the UPDATE itself can see that."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    slot = work(100, 200, ordered=[change(t, Kind.INSERT, new=str(i), ts=101, seq=i) for i in range(4)])
    asleep = opened(db).begin(intent())
    config = server_config(db)
    successor = connect(config, idle_s=60, read_timeout_s=20)
    changefeed = Changefeed.of(config, Identity(7, "main", "drainer-1"), successor)
    store = position.store(successor, changefeed)
    held = store.read()
    assert held is not None
    epoch = store.take_epoch(held.epoch, "drainer-2")
    successor.begin()
    store.open_chunks(epoch=epoch, intent=intent(), stage=Phase.DIRECT)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(asleep.write, 0, slot)
        try:
            wait_until(lambda: waits_for_a_row(db), what="the old attempt waits for its mark")
        finally:
            successor.commit()
        with pytest.raises(Fenced, match=f"its epoch is {epoch}"):
            attempt.result(120)
    successor.close()
    assert db.query("SELECT * FROM d.t") == []
    assert db.query("SELECT DISTINCT epoch, chunks_done FROM tidb_binlog.drainer_mark") == [(epoch, 0)]


def test_chunk_in_flight_is_counted_by_successor(db: MariaDB) -> None:
    """Rule 15: opening the marks waits for a transaction that already holds one, so it is counted, not repeated."""
    import threading

    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    slot = work(100, 200, ordered=[change(t, Kind.INSERT, new="1", ts=101)])
    opened(db).begin(intent())
    in_flight = db.connect(autocommit=False)
    with in_flight, in_flight.cursor() as cursor:
        cursor.execute("UPDATE tidb_binlog.drainer_mark SET chunks_done=1, chunks_total=1 WHERE slot=0")
        cursor.execute("INSERT INTO d.t VALUES (1)")
        successor = opened(db)
        targets: list[MySQLSlotWriter] = []
        thread = threading.Thread(target=lambda: targets.append(successor.begin(intent())))
        thread.start()
        cursor.execute("SELECT SLEEP(0.3)")
        assert not targets
        in_flight.commit()
        thread.join(120)
    assert targets[0].write(0, slot).skipped == 1
    assert db.query("SELECT * FROM d.t") == [(1,)]


def test_open_range_cut_differently_is_refused(db: MariaDB) -> None:
    """Rule 16: another chunk limit, or rows that cut differently, is refused and nothing is applied."""
    db.query("CREATE TABLE d.t (n INT)")
    t = shape("t", "n", key=())
    steps = [change(t, Kind.INSERT, new=str(i), ts=101, seq=i) for i in range(8)]
    opened(db).begin(intent()).write(0, work(100, 200, ordered=steps))
    successor = MySQLSink(server_config(db))
    assert successor.open(Identity(7, "main", "drainer-1"), 1).intent == intent()
    with pytest.raises(PositionMoved, match="must be finished as it was cut"):
        successor.begin(intent(chunk_rows=5))
    with pytest.raises(PositionMoved, match="is open"):
        successor.apply(work(100, 200), 1)
    target = successor.begin(intent())
    with pytest.raises(PositionMoved, match="3 chunks before and into 4"):
        target.write(0, work(100, 200, ordered=[*steps, *(change(t, Kind.INSERT, new="9", ts=102) for _ in range(3))]))
    assert db.query("SELECT COUNT(*) FROM d.t") == [(8,)]


CRASHES = [f"sink.{edge}_chunk_commit:{n}" for edge in ("before", "after") for n in (1, 2, 5, 9, 14)]

WAYS = [pytest.param(StatementLimits(), id="statements"), pytest.param(LOADS, id="load data")]


@pytest.mark.parametrize("limits", WAYS)
@pytest.mark.parametrize("crash", [*CRASHES, "sink.before_commit:1", "sink.after_commit:1", "sink.before_commit:2",
                                   "sink.after_commit:2", "sink.before_commit:4", "sink.after_commit:4"])  # fmt: skip
def test_range_of_drainer_killed_at_any_commit_is_finished_once(
    db: MariaDB, tmp_path: Path, crash: str, limits: StatementLimits
) -> None:
    """SIGKILL around every kind of commit, then a new life: nothing lost, nothing twice, no chunk audited twice."""
    loaded = loads(db)
    db.query("CREATE TABLE d.k (n INT, c VARCHAR(9))")
    db.query("CREATE TABLE d.p (id INT PRIMARY KEY, v INT)")
    db.query("CREATE TABLE d.u (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("INSERT INTO d.u SELECT seq, seq FROM d.seq_1_to_12")
    audit(db)
    keyless = shape("k", "n c", key=(), match=[Match.PLAIN, Match.BINARY_TEXT], table_id=1)
    plain = shape("p", "id v", table_id=2, type_classes="int int")
    unique = shape("u", "id u", unique=["u"], table_id=3, type_classes="int int")
    steps = [change(keyless, Kind.INSERT, new="1|'x'", ts=101, seq=i) for i in range(8)]
    steps += [change(keyless, Kind.UPDATE, old="1|'x'", new="2|'y'", ts=102, seq=i) for i in range(3)]
    slots = {}
    for s in range(3):
        rows = tuple(put(i, b"(%d,1)" % i) for i in range(12) if i % 3 == s)
        ring = tuple(put(i, b"(%d,%d)" % (i, i % 12 + 1), Kind.UPDATE) for i in range(1, 13) if i % 3 == s)
        slots[s] = work(100, 200, Folded(plain, rows), Folded(unique, ring), ordered=steps if s == 1 else ())
    range_ = intent(slots=3)
    assert run_until_done(server_config(db, limits=limits), [("slots", range_, slots)], crash, tmp_path) == -9
    assert (loads(db) > loaded) == (limits is LOADS)
    assert db.query("SELECT n, c, COUNT(*) FROM d.k GROUP BY n, c ORDER BY n") == [(1, "x", 5), (2, "y", 3)]
    assert db.query("SELECT id FROM d.p ORDER BY id") == [(i,) for i in range(12)]
    assert db.query("SELECT id, u FROM d.u ORDER BY id") == [(i, i % 12 + 1) for i in range(1, 13)]
    assert [chunk for chunk, times in audited(db).items() if times > 1] == []
    assert db.query("SELECT commit_ts, intent FROM tidb_binlog.drainer_position") == [(200, None)]


def _random_batch(rng: random.Random, rows: dict[int, int | None], t: TableShape, s: int) -> dict[int, list[object]]:
    """Change `rows` (id → unique value or None) at random and return the net rows of each slot."""
    before = dict(rows)
    touched = rng.sample(range(40), 12)
    for key in touched:
        rows.pop(key, None)
    free = [value for value in range(60) if value not in rows.values()]
    rng.shuffle(free)
    for key in touched:
        if rng.random() < 0.75:
            rows[key] = free.pop() if rng.random() < 0.8 else None
    slots: dict[int, list[object]] = {slot: [] for slot in range(s)}
    for key in touched:
        first = Kind.UPDATE if key in before else Kind.INSERT
        value = rows.get(key)
        text = b"NULL" if value is None else b"%d" % value
        if key in rows:
            slots[key % s].append(put(key, b"(%d,%s)" % (key, text), first))
        elif key in before or rng.random() < 0.5:
            slots[key % s].append(gone(key))
    return slots


@pytest.mark.parametrize("limits", WAYS)
def test_random_distributed_batches_equal_sequential_fold(db: MariaDB, limits: StatementLimits) -> None:
    """Rule 12's model: batches that move unique values about at random, on several connections at once."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    t = shape("t", "id u", unique=["u"], type_classes="int int")
    rng = random.Random(20261121)
    rows: dict[int, int | None] = {}
    destination = opened(db, limits=limits)
    seen: Counter[int] = Counter()
    for batch in range(40):
        nets = _random_batch(rng, rows, t, 4)
        after, until = 100 + batch, 101 + batch
        slots = {s: work(after, until, Folded(t, tuple(net))) for s, net in nets.items()}  # type: ignore[arg-type]
        if batch % 4 == 3:
            together = tuple(row for net in nets.values() for row in net)
            destination.apply(work(after, until, Folded(t, together)), 1)  # type: ignore[arg-type]
        else:
            seen[len(at_once(destination, intent(after, until, chunk_rows=2), slots))] += 1
        assert dict(db.query("SELECT id, u FROM d.t")) == rows, f"batch {batch}"
    assert set(seen) == {1, 3}
