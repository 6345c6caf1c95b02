"""Who holds a unique value: looked for while rows are folded, and again when parts are brought together by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.tidb.datum import Datum
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.order.claims import Claim, ClaimedFold, first_holder, two_holders
from drainer.order.errors import BlobError
from drainer.order.fold import FoldBuilder, Parts
from drainer.order.probes import Questions, merge_claims
from drainer.row.claimed import other_keys, value_function, value_row
from drainer.row.transaction import rows, scan
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import FORMATS, INT, TEXT, Step, codec_of, decoder_of, table, transaction

LOOSE_TEXT = FieldType(Tp.VARCHAR, 0, 40, 0, "utf8mb4", "utf8mb4_general_ci")
PRICE = FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)
SHOP = table([("id", INT), ("u", INT), ("v", INT)], handle="id", unique={"uu": ["u"]})
MANY = table(
    [("id", INT), ("a", INT), ("b", TEXT), ("c", LOOSE_TEXT), ("d", PRICE)],
    handle="id",
    unique={"ab": ["a", "b"], "uc": ["c"], "dd": ["d"]},
)


def put(key: int, value: int | None) -> Step:
    return ("insert", {}, {1: key, 2: value, 3: 0})


def gone(key: int, value: int | None) -> Step:
    return ("delete", {1: key, 2: value, 3: 0}, {})


def change(key: int, old: int | None, new: int | None, to: int = 0) -> Step:
    return ("update", {1: key, 2: old, 3: 0}, {1: to or key, 2: new, 3: 1})


def payloads(transactions: Sequence[Sequence[Step]]) -> list[bytes]:
    return [transaction([(SHOP, step) for step in steps], commit_ts=100 + n) for n, steps in enumerate(transactions)]


def inline(binlogs: Sequence[bytes]) -> bool:
    builder = FoldBuilder(decoder_of(SHOP), SQL_TEXT)
    builder.add_all(binlogs)
    builder.finish(0, 1)
    return builder.hides_conflict()


def claims_of(binlogs: Sequence[bytes]) -> list[list[Claim]]:
    """Of each value."""
    builder = FoldBuilder(decoder_of(SHOP), SQL_TEXT)
    builder.add_all(binlogs)
    builder.finish(0, 1)
    folds = [fold for fold in builder._folds.values() if isinstance(fold, ClaimedFold)]
    return [claims for fold in folds for table in fold.claims for claims in table.values()]


def parts_of(binlogs: Sequence[bytes], parts: int, slots: int) -> list[Parts]:
    found = []
    for n in range(parts):
        builder = FoldBuilder(decoder_of(SHOP), SQL_TEXT)
        builder.add_all(binlogs[n::parts])
        found.append(builder.parts(slots))
    return found


def asked(binlogs: Sequence[bytes], parts: int, slots: int) -> list[Questions]:
    made = parts_of(binlogs, parts, slots)
    return [merge_claims([part.claims[slot] for part in made if slot in part.claims]) for slot in range(slots)]


HIDDEN = [
    pytest.param([[put(1, 5)], [put(2, 5)], [gone(1, 5)]], id="two at once"),
    pytest.param([[put(1, 5)], [change(2, 6, 5)], [gone(1, 5)]], id="taken by an update"),
    pytest.param([[change(1, 4, 5)], [gone(2, 5)]], id="lost after it was taken"),
    pytest.param([[change(1, 4, 5)], [change(2, 5, 7)]], id="changed after it was taken"),
    pytest.param([[change(3, 5, 5)], [put(1, 5)], [gone(3, 5)]], id="kept, then taken"),
    pytest.param([[put(1, 5)], [change(2, 5, 5)], [gone(1, 5)]], id="taken, then kept by another"),
]
KEPT = [
    pytest.param([[gone(1, 5)], [put(2, 5)], [change(2, 5, 6)], [put(1, 5)]], id="given on"),
    pytest.param([[change(1, 5, 5, to=2)], [change(2, 5, 5)], [gone(2, 5)], [put(3, 5)]], id="its row moves"),
    pytest.param([[change(1, 5, None), change(2, 6, 5), change(1, None, 6)], [put(3, 7)]], id="a ring over NULL"),
    pytest.param([[put(3, 5), gone(3, 5)], [put(4, 5)]], id="there for a moment"),
    pytest.param([[put(1, None)], [put(2, None)]], id="NULL is nobody's"),
]


@pytest.mark.parametrize("transactions", HIDDEN)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_what_folding_would_hide(transactions: list[list[Step]], parts: int) -> None:
    binlogs = payloads(transactions)
    assert inline(binlogs)
    assert [found.conflict for found in asked(binlogs, parts, 1)] == ["two rows of db.t hold one value of (u)"]
    assert any(found.conflict for found in asked(binlogs, parts, 4))


@pytest.mark.parametrize("transactions", KEPT)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_stream_that_keeps_its_keys(transactions: list[list[Step]], parts: int) -> None:
    binlogs = payloads(transactions)
    assert not inline(binlogs)
    assert not any(found.conflict for found in asked(binlogs, parts, 3))


@pytest.mark.parametrize(
    ("transactions", "hides"),
    [
        pytest.param([[put(1, 5)], [gone(1, 5)]], True, id="comes and goes"),
        pytest.param([[put(1, 5)], [change(1, 5, 6)]], True, id="comes and is changed"),
        pytest.param([[put(1, 5)], [gone(1, 5)], [put(2, 5)], [gone(2, 5)]], True, id="twice"),
        pytest.param([[put(3, 5), gone(3, 5)], [put(1, 5)], [gone(1, 5)]], True, id="behind a moment"),
        pytest.param([[put(1, 5)], [change(1, 5, 5)], [gone(1, 5)]], True, id="comes, is kept and goes"),
        pytest.param([[put(1, 5)], [gone(1, 5)], [put(2, 5)]], False, id="stays with another, which is asked"),
        pytest.param([[gone(1, 5)], [put(2, 5)], [gone(2, 5)]], False, id="was there before"),
        pytest.param([[change(1, 5, 6)], [change(1, 6, 5)], [gone(1, 5)]], True, id="another value in between"),
        pytest.param([[put(1, 5), gone(1, 5)], [put(2, 6)]], False, id="within one transaction"),
        pytest.param([[put(1, None)], [gone(1, None)]], False, id="NULL"),
    ],
)
def test_a_value_that_comes_and_goes_is_asked_for_by_nobody(transactions: list[list[Step]], hides: bool) -> None:
    """So inline the transactions are applied one by one; spread, each value that is taken is asked for."""
    binlogs = payloads(transactions)
    assert inline(binlogs) == hides
    assert not any(found.conflict for found in asked(binlogs, 2, 1))


def test_what_is_asked_of_the_destination() -> None:
    """One question for each value that is taken: whether a row holds it that is not the one that may."""
    steps = [[gone(1, 5)], [put(2, 5)], [put(3, 6)], [change(4, 7, 7)], [gone(9, 8)], [change(6, 1, None)]]
    (found,) = asked(payloads(steps), 2, 1)
    assert sorted((probe.values, probe.key) for probe in found.probes) == [
        ((b"(5)",), b"(1)"), ((b"(6)",), b"(3)"), ((b"(7)",), b"(4)"),
    ]  # fmt: skip
    assert {(probe.places, probe.shape.table) for probe in found.probes} == {((1,), "t")}


FIRST = [
    pytest.param([[put(2, 5), gone(1, 5)]], 1, id="lost behind the gain, in one transaction"),
    pytest.param([[gone(1, 5), put(2, 5)]], 1, id="lost before the gain"),
    pytest.param([[gone(1, 5), put(2, 5), gone(2, 5)]], 1, id="given on and lost"),
    pytest.param([[change(1, 5, 6), change(2, 7, 5), change(2, 5, 7), change(1, 6, 5)]], 1, id="lent and taken back"),
    pytest.param([[put(2, 5), gone(2, 5), put(3, 5)]], 2, id="there for a moment"),
    pytest.param([[put(2, 5), change(1, 5, 5), gone(1, 5)]], 1, id="kept, then lost, behind the gain"),
    pytest.param([[change(1, 5, 5)], [gone(1, 5)], [put(2, 5)]], 1, id="kept"),
    pytest.param([[change(1, 5, 5, to=2)]], 1, id="its row moves"),
]


@pytest.mark.parametrize(("transactions", "holder"), FIRST)
@pytest.mark.parametrize("parts", [1, 2])
def test_whose_a_value_may_be_before_the_batch(transactions: list[list[Step]], holder: int, parts: int) -> None:
    """Where it is asked for, that row is no conflict, whatever the transaction does with its value."""
    (found,) = asked(payloads(transactions), parts, 1)
    assert not found.conflict
    assert [probe.key for probe in found.probes if probe.values == (b"(5)",)] == [b"(%d)" % holder]


few = st.integers(1, 3)
values = st.one_of(st.none(), few)
steps = st.one_of(
    st.builds(put, few, values), st.builds(gone, few, values), st.builds(change, few, values, values, st.integers(0, 3))
)


@given(st.lists(st.lists(steps, min_size=1, max_size=3), min_size=2, max_size=6), st.integers(1, 3), st.integers(1, 4))
def test_parts_and_slots_do_not_matter(transactions: list[list[Step]], parts: int, slots: int) -> None:
    binlogs = payloads(transactions)
    found = asked(binlogs, parts, slots)
    conflict = any(one.conflict for one in found)
    assert conflict == any(two_holders(claims) for claims in claims_of(binlogs))
    assert inline(binlogs) or not conflict
    again = asked([*binlogs, *binlogs], parts, slots)  # rule 19: also where two pumps have the same
    assert [one.conflict for one in again] == [one.conflict for one in found]


@given(st.lists(st.tuples(st.integers(1, 4), few, st.booleans()), min_size=1, max_size=8))
def test_two_holders_are_those_that_a_table_of_holders_shows(drawn: list[tuple[int, int, bool]]) -> None:
    """Against the plain way: after each commit, who holds it."""
    claims: list[Claim] = [(ts, seq, key, has, None) for seq, (ts, key, has) in enumerate(sorted(drawn))]
    holders: set[object] = set()
    broken = False
    for ts in sorted({claim[0] for claim in claims}):
        last = {key: has for at, _, key, has, _ in claims if at == ts}
        lost = {key for key, has in last.items() if not has}
        for key in last:
            if key in lost:
                broken = broken or bool(holders - {key})
                holders.discard(key)
        holders |= last.keys() - lost
        broken = broken or len(holders) > 1
    assert two_holders(claims) == broken
    assert first_holder(claims) in {key for at, _, key, _, _ in claims if at == claims[0][0]}


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_values_as_they_are_compared(dialect: str) -> None:
    keys = other_keys(MANY).followed
    codec = codec_of(MANY)
    row: dict[int, Datum] = {1: 1, 2: 4, 3: b"x  ", 4: "Ré".encode(), 5: None}
    payload = transaction([(MANY, ("insert", {}, row))], commit_ts=10)
    (_, _, kind, raw) = next(iter(rows(scan(payload))))
    assert kind is Kind.INSERT
    expected = ((4, b"x"), ("re", "Ré".encode()), None)
    assert value_function(keys, codec.forms)(codec.insert(raw, 0, len(raw), 10)) == expected
    shown = value_row(FORMATS[dialect], codec.forms, keys[1], "Ré".encode())
    assert shown == ("('Ré')".encode() if dialect == "mysql" else ("Ré",))


def test_a_value_is_asked_for_as_it_is() -> None:
    """Not as it is compared here, where that is coarser than any collation."""
    row: dict[int, Datum] = {1: 1, 2: 4, 3: b"x  ", 4: "Ré".encode(), 5: None}
    builder = FoldBuilder(decoder_of(MANY), SQL_TEXT)
    builder.add_all([transaction([(MANY, ("insert", {}, row))], commit_ts=10)])
    (blob,) = builder.parts(1).claims.values()
    assert {probe.places: probe.values for probe in merge_claims([blob]).probes} == {
        (1, 2): (b"(4,'x')",),
        (3,): ("('Ré')".encode(),),
    }


def test_keys_that_are_not_followed() -> None:
    assert other_keys(SHOP).all_followed and len(other_keys(SHOP).followed) == 1
    prefix = replace(SHOP.indexes[0], columns=tuple(replace(part, length=3) for part in SHOP.indexes[0].columns))
    assert not other_keys(replace(SHOP, indexes=(prefix,))).all_followed
    assert other_keys(replace(SHOP, upserts=True)).followed == ()


def test_damaged_claims() -> None:
    (part,) = parts_of(payloads([[put(1, 5)], [put(2, 6)]]), 1, 1)
    blob = part.claims[0]
    for cut in range(len(blob)):
        with pytest.raises(BlobError):
            merge_claims([blob[:cut]])
