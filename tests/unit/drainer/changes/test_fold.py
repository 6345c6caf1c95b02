"""Folding gives the state that one change after another gives, however binlogs are read, cut and merged."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind, NetRow, SegmentWork
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.fold_model import work_of
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, not_null, table, transaction, view_of

# A secondary unique key that may be NULL, beside an integer handle.
SHOP = table([("id", INT), ("u", INT), ("v", TEXT)], handle="id", unique={"u": ["u"]})


@dataclass
class Upstream:
    """A table as upstream keeps it: rows by primary key, NULLable `u` unique. Writes what TiDB would send."""

    dice: random.Random
    rows: dict[int, dict[int, object]] = field(default_factory=dict)
    payloads: list[bytes] = field(default_factory=list)
    commit_ts: int = BEGIN_TS

    def commit(self, steps: list[Step]) -> None:
        self.commit_ts += self.dice.randrange(1, 9)
        self.payloads.append(transaction([(SHOP, step) for step in steps], commit_ts=self.commit_ts))

    def step(self) -> None:
        choice = self.dice.randrange(6)
        if choice <= 1 or len(self.rows) < 2:
            self.insert()
        elif choice == 2:
            row = self.rows.pop(self.dice.choice(list(self.rows)))
            self.commit([("delete", row, {})])
        elif choice == 3:
            self.update()
        elif choice == 4:
            self.move()
        else:
            self.ring()

    def free_u(self) -> int | None:
        used = {row[2] for row in self.rows.values()}
        return self.dice.choice([u for u in (None, None, 1, 2, 3, 4) if u is None or u not in used])

    def insert(self) -> None:
        free = [i for i in range(12) if i not in self.rows]
        if not free:
            return
        row: dict[int, object] = {1: self.dice.choice(free), 2: self.free_u(), 3: self.text()}
        self.rows[row[1]] = row  # type: ignore[index]
        self.commit([("insert", {}, row)])  # type: ignore[list-item]

    def text(self) -> bytes:
        return self.dice.choice([b"", b"x", b"it's", b"a\\b", "é".encode()])

    def update(self) -> None:
        old = self.rows[self.dice.choice(list(self.rows))]
        new = {**old, 2: self.free_u(), 3: self.text()}
        self.rows[old[1]] = new  # type: ignore[index]
        self.commit([("update", old, new)])  # type: ignore[list-item]

    def move(self) -> None:
        """A change of the primary key: delete and insert, in one transaction."""
        old = self.rows.pop(self.dice.choice(list(self.rows)))
        new = {**old, 1: self.dice.choice([i for i in range(14) if i not in self.rows])}
        self.rows[new[1]] = new  # type: ignore[index]
        self.commit([("delete", old, {}), ("insert", {}, new)])  # type: ignore[list-item]

    def ring(self) -> None:
        """Rows pass on their unique values in a ring, as one transaction can by way of NULL."""
        chosen = self.dice.sample(list(self.rows), self.dice.randint(2, min(4, len(self.rows))))
        olds = [self.rows[i] for i in chosen]
        values = [row[2] for row in olds]
        cleared = [{**row, 2: None} for row in olds]
        news = [{**row, 2: u} for row, u in zip(olds, values[1:] + values[:1], strict=True)]
        steps = [("update", o, c) for o, c in zip(olds, cleared, strict=True)]
        steps += [("update", c, n) for c, n in zip(cleared, news, strict=True)]
        for new in news:
            self.rows[new[1]] = new  # type: ignore[index]
        self.commit(steps)  # type: ignore[arg-type]


def values(row: dict[int, object]) -> tuple[object, ...]:
    return row[1], row[2], row[3].decode()  # type: ignore[attr-defined]


def cutter(*tables: TableInfo) -> SegmentCutter:
    """It folds at once what is added in order."""
    return SegmentCutter(SegmentDecoder(view_of(*tables), SQL_TEXT), flush_bytes=1)


def merged(blobs: Iterable[bytes]) -> SegmentWork:
    return merge_slot(blobs, SQL_TEXT)


def net_rows(work: SegmentWork) -> list[NetRow]:
    return list(work.folded[0].rows) if work.folded else []


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_net_rows_applied_in_any_order_end_as_upstream(seed: int, steps: int) -> None:
    """Rule 12: REPLACE of final states, with a secondary unique key, evicts stale rows only."""
    dice = random.Random(seed)
    upstream = Upstream(dice)
    for _ in range(dice.randrange(12)):
        upstream.step()
    downstream = {i: values(row) for i, row in upstream.rows.items()}
    upstream.payloads.clear()
    for _ in range(steps):
        upstream.step()
    dice.shuffle(upstream.payloads)
    todo = net_rows(work_of(view_of(SHOP), upstream.payloads, SQLITE_VALUES))
    dice.shuffle(todo)
    todo += dice.sample(todo, dice.randrange(len(todo) + 1))  # chunks that were finished and are repeated
    for net in todo:
        replace(downstream, net)
    assert downstream == {i: values(row) for i, row in upstream.rows.items()}


def replace(rows: dict[int, tuple[object, ...]], net: NetRow) -> None:
    """What a destination does: delete old images, then REPLACE, which evicts every row that stands in the way."""
    for key in net.stale:
        rows.pop(key[0], None)  # type: ignore[arg-type]
    if net.row is not None:
        in_the_way = [i for i, r in rows.items() if r[1] is not None and r[1] == net.row[1]]
        for i in in_the_way:
            del rows[i]
        rows[net.row[0]] = net.row  # type: ignore[index,assignment]


def test_net_row_has_kind_of_its_first_change() -> None:
    """An insert is known not to exist yet; a moved row is a delete and an insert."""
    rows = {n: {1: n, 2: None, 3: b"v"} for n in range(1, 6)}
    moved = {1: 9, 2: None, 3: b"v"}
    payload = transaction(
        [
            (SHOP, ("insert", {}, rows[1])),
            (SHOP, ("update", rows[1], {**rows[1], 3: b"w"})),
            (SHOP, ("update", rows[2], {**rows[2], 3: b"w"})),
            (SHOP, ("delete", rows[3], {})),
            (SHOP, ("insert", {}, rows[3])),
            (SHOP, ("update", rows[4], moved)),
            (SHOP, ("insert", {}, rows[5])),
            (SHOP, ("delete", rows[5], {})),
        ],
        commit_ts=BEGIN_TS,
    )
    work = work_of(view_of(SHOP), [payload])
    found = [(net.first, net.row, net.stale) for net in net_rows(work)]
    assert found == [
        (Kind.INSERT, b"(1,NULL,'w')", ()),
        (Kind.UPDATE, b"(2,NULL,'w')", ()),
        (Kind.DELETE, b"(3,NULL,'v')", ()),
        (Kind.DELETE, None, (b"(4)",)),
        (Kind.INSERT, None, (b"(5)",)),
        (Kind.INSERT, b"(9,NULL,'v')", ()),
    ]
    assert work.change_count == 8
    assert work.source_bytes == len(payload)


def test_merged_slot_has_the_same_table_shape() -> None:
    """Its collations, how many digits upstream keeps, and of what family its columns are."""
    kinds = [("k", not_null(TEXT)), ("d", FieldType(Tp.NEWDECIMAL, flen=10, decimal=4)), ("j", FieldType(Tp.JSON))]
    info = table(kinds, unique={"PRIMARY": ["k"]}, clustered=True)
    payloads = [transaction([(info, ("insert", {}, {1: b"b"}))], commit_ts=BEGIN_TS)]
    shape = work_of(view_of(info), payloads).folded[0].shape
    assert shape.fractions == (0, 4, 0)
    assert shape.type_classes == ("text", "decimal", "json")
    assert shape.has_text_key
    assert merged(blobs_of(info, [payloads])).folded[0].shape == shape


def test_later_row_of_one_key_wins() -> None:
    """Rule 21: as if a batch had ended between them; in any parts and any order."""
    rows = [{1: 1, 2: None, 3: b"x"}, {1: 1, 2: None, 3: b"y"}]
    payloads = [transaction([(SHOP, ("insert", {}, row))], commit_ts=BEGIN_TS + n) for n, row in enumerate(rows)]
    work = work_of(view_of(SHOP), payloads)
    assert [net.row for net in net_rows(work)] == [b"(1,NULL,'y')"]
    for parts in ([payloads], [payloads[:1], payloads[1:]], [payloads[1:], payloads[:1]]):
        assert merged(blobs_of(SHOP, parts)).folded == work.folded


def blobs_of(info: TableInfo, parts: Iterable[Sequence[bytes]]) -> list[bytes]:
    """Everything in one slot."""
    blobs: list[bytes] = []
    for part in parts:
        builder = cutter(info)
        builder.add_all(part)
        blobs += builder.cut(1).values()
    return blobs


def test_changes_of_keyless_table_stay_in_order() -> None:
    """Rule 11; rule 19 for what stays in order: start_ts tells transactions of one commit_ts apart."""
    bare = table([("a", INT), ("f", FieldType(Tp.FLOAT))])
    row = {1: 1, 2: 0.5}
    one = transaction([(bare, ("insert", {}, row)), (bare, ("delete", row, {}))], commit_ts=BEGIN_TS, start_ts=5 << 55)
    two = transaction([(bare, ("insert", {}, row))], commit_ts=BEGIN_TS, start_ts=6 << 55)
    work = work_of(view_of(bare), [two, one, one])
    kinds = [change.kind for change in work.ordered.changes]
    assert kinds == [Kind.INSERT, Kind.DELETE, Kind.INSERT]
    assert work.ordered.changes[1].old == (b"1", b"0.5")
    assert not work.ordered.changes[0].shape.foldable
    assert merged(blobs_of(bare, [[one], [one, two]])).ordered == work.ordered
    builder = cutter(bare)
    for payload in (two, one, one):  # one commit_ts over several messages
        builder.add_in_order([payload], len(payload))
    assert merged(builder.cut(1).values()).ordered == work.ordered


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_repeated_by_reorganize_partition_count_once(parts: int) -> None:
    """While it runs TiDB writes a row to the old and to the new partition, and tells of each (seen at a real one)."""
    info = table([("id", INT), ("v", INT)], handle="id")

    def row(key: int, value: int) -> dict[int, Datum]:
        return {1: key, 2: value}

    once: list[Step] = [
        ("insert", {}, row(1, 1)),
        ("insert", {}, row(2, 1)),
        ("update", row(1, 1), row(1, 2)),
        ("update", row(1, 2), row(3, 2)),
        ("delete", row(2, 1), {}),
        ("insert", {}, row(2, 9)),
    ]
    twice = [(info, step) for step in once for _ in range(2)]
    payloads = [
        transaction(twice, commit_ts=BEGIN_TS),
        transaction([(info, ("delete", row(3, 2), {}))] * 2, commit_ts=BEGIN_TS + 1),
    ]
    work = work_of(view_of(info), payloads) if parts == 1 else merged(blobs_of(info, [payloads[:1], payloads[1:]]))
    assert not work.ordered.changes
    assert [net.row for net in work.folded[0].rows if net.row is not None] == [b"(2,9)"]


def test_keyless_rows_repeated_with_the_same_rowid_count_once() -> None:
    bare = table([("a", INT)])
    old, new = {1: 1, -1: 7}, {1: 2, -1: 7}
    steps: list[Step] = [("update", old, new), ("update", old, new), ("delete", new, {}), ("delete", new, {})]
    other: list[Step] = [("delete", {1: 2}, {}), ("delete", {1: 2}, {}), ("delete", {1: 2, -1: 8}, {})]
    payload = transaction([(bare, step) for step in (*steps, *other)], commit_ts=BEGIN_TS)
    kinds = [change.kind for change in work_of(view_of(bare), [payload]).ordered.changes]
    assert kinds == [Kind.UPDATE, *[Kind.DELETE] * 4]


@pytest.mark.parametrize("way", ["finish", "slots"])
def test_equal_rows_of_two_keyless_tables_count_in_each(way: str) -> None:
    """Both tables count their rowids from 1, and one transaction empties both."""
    tables = [table([("a", INT)], table_id=number, name=f"t{number}") for number in (1, 2)]
    old, new = {1: 1, -1: 1}, {1: 2, -1: 1}
    steps: tuple[Step, ...] = (("delete", old, {}), ("update", old, new))
    for step in steps:
        payload = transaction([(info, step) for info in tables], commit_ts=BEGIN_TS)
        builder = cutter(*tables)
        builder.add_all([payload])
        work = work_of(view_of(*tables), [payload]) if way == "finish" else merged(builder.cut(1).values())
        assert [change.shape.table_id for change in work.ordered.changes] == [1, 2]
