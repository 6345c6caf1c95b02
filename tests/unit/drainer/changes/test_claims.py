"""Claims on unique values noted as columns are those noted row by row, and leave the same questions open, however a
batch is cut and whichever way its parts went (rule 21)."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.claim_slots import merge_claims
from drainer.changes.claims import Claims, concat_claims
from drainer.changes.holders import first_holders, held_meanwhile, net_claims, two_holders
from drainer.changes.segment import SegmentBuilder
from drainer.changes.slots import merge_slot
from drainer.changes.unique_values import coarse_texts
from drainer.order import claims as one_by_one
from drainer.order.errors import BlobError
from drainer.order.probes import merge_claims as merge_noted
from drainer.row.claimed import coarse
from drainer.schema.view import SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, INT, Step, altered, in_parts, table, transaction, view_of
from tests.unit.drainer.changes.cases import BYTES, Values
from tests.unit.drainer.changes.keyed import (
    asked,
    by_columns,
    by_rows,
    histories,
    in_step,
    noted_by_columns,
    noted_by_rows,
    views,
)
from tests.unit.drainer.changes.test_segment import listed


def nothing(table_id: int) -> bool:
    return False


@given(data=st.data(), of=views())
def test_claims_are_noted_as_row_by_row(data: st.DataObject, of: tuple[SchemaView, list[TableInfo]]) -> None:
    view, versions = of
    payloads = data.draw(histories(versions))
    rows = by_rows(view, payloads)
    expected = rows.finish(0, 1)
    columns = by_columns(view, payloads)
    assert listed(columns.finish(0, 1)) == listed(expected)
    if expected.commits > 1:
        assert noted_by_columns(columns) == noted_by_rows(rows)
    assert columns.hides_conflict() == rows.hides_conflict()


@given(
    data=st.data(), of=views(), parts=st.integers(1, 3), slots=st.integers(1, 3), in_order=st.booleans(),
    rows_min=st.lists(st.sampled_from([0, 0, 3, 1 << 40]), min_size=3, max_size=3),
)  # fmt: skip
def test_parts_leave_the_same_questions_open(
    data: st.DataObject,
    of: tuple[SchemaView, list[TableInfo]],
    parts: int,
    slots: int,
    in_order: bool,
    rows_min: list[int],
) -> None:
    """Rules 16 and 19: parts cut anywhere, some transactions in two of them, some parts noted row by row, blobs in any
    order."""
    view, versions = of
    # Which of two transactions of one commit_ts a claim is of is not said where it was noted row by row, and then the
    # row that held a value first may not be known there, which counts as a conflict.
    payloads = data.draw(histories(versions, ties=False))
    dice = random.Random(data.draw(st.integers(0, 999)))
    blobs: list[list[bytes]] = [[] for _ in range(slots)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drainer.changes.segment.FLUSH_BYTES", 1)
        for share, least in zip(in_parts(payloads, parts, dice), rows_min, strict=False):
            builder = by_columns(view, [] if in_order else share, least)
            if in_order:
                builder.add_in_order(share[:2], sum(map(len, share[:2])))
                builder.add_in_order(share[2:], sum(map(len, share[2:])))
            for slot, blob in builder.parts(slots).claims.items():
                blobs[slot].append(blob)
    expected = asked([merge_noted(by_rows(view, payloads).parts(1).claims.values())])
    conflicts, probes = asked(merge_claims(dice.sample(found, len(found)), SQL_TEXT) for found in blobs)
    assert bool(conflicts) == bool(expected[0])
    if not conflicts:
        assert probes == expected[1]


claimed = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(claimed)
def test_who_holds_a_value_is_told_as_one_by_one(drawn: list[tuple[int, int, int, int, bool]]) -> None:
    """drainer.order.claims has the rules: of each value two holders, whether it came and went, its first holder."""
    value, commit_ts, sequence, key, has = (np.array(some) for some in zip(*drawn, strict=True))
    found = net_claims(value, key, commit_ts.astype(np.uint64), has, (has, sequence))
    holders = dict(zip(found.value[found.begins].tolist(), found.at[first_holders(found)].tolist(), strict=True))
    for number in set(value.tolist()):
        claims: list[one_by_one.Claim] = [
            (ts, place, row, had, None) for of, ts, place, row, had in drawn if of == number
        ]
        claims.sort(key=lambda claim: (claim[0], claim[1], claim[3]))
        own = [some[value == number] for some in (value, key, commit_ts, has, sequence)]
        mine = net_claims(*own[:4], own[3:])
        assert two_holders(mine).any() == one_by_one.two_holders(claims)
        assert two_holders(found)[found.value == number].any() == one_by_one.two_holders(claims)
        if not one_by_one.two_holders(claims):
            assert held_meanwhile(mine) == one_by_one.held_meanwhile(claims)
        assert drawn[holders[number]][3] == one_by_one.first_holder(claims)


@given(st.lists(BYTES | st.binary(max_size=5) | st.sampled_from([b"A\x1c", b"a\xc2\xa0", b"\xc3\x89 ", b"Ss\t\x0b"])))
def test_texts_are_compared_as_coarsely_as_one_by_one(texts: list[bytes]) -> None:
    expected = [str(coarse(text)).encode() for text in texts]
    assert coarse_texts(pa.array(texts, pa.binary())).to_pylist() == expected


# (key, whether it has the value) of each claim on one value, transaction by transaction: two holders, came and went,
# the first holder.
CLAIMED = [
    pytest.param([[(1, True)], [(2, True)], [(1, False)]], True, False, 1, id="two at once"),
    pytest.param([[(1, True)], [(2, False)]], True, False, 1, id="lost by another after it was taken"),
    pytest.param([[(1, True)], [(2, True), (1, False)]], False, False, 1, id="given on, the gain first"),
    pytest.param([[(2, False), (1, False)]], False, False, 2, id="lost by two that never had it"),
    pytest.param([[(1, True)], [(2, False), (1, False)]], True, False, 1, id="lost by another before its holder"),
    pytest.param([[(1, True)], [(1, False), (2, False)]], False, True, 1, id="lost by another behind its holder"),
    pytest.param([[(1, True)], [(1, False)]], False, True, 1, id="comes and goes"),
    pytest.param([[(3, True), (3, False)], [(1, True)], [(1, False)]], False, True, 3, id="behind a moment"),
    pytest.param([[(1, True), (1, False)]], False, False, 1, id="a moment"),
    pytest.param([[(1, False)], [(2, True)], [(2, False)]], False, False, 1, id="was there before"),
    pytest.param([[(2, True), (1, False)], [(2, False)]], False, False, 1, id="was there before, the gain first"),
    pytest.param([[(1, True)], [(1, False)], [(2, True)]], False, False, 1, id="stays with another"),
    pytest.param([[(1, False), (2, True), (2, False)]], False, False, 1, id="given on and lost"),
    pytest.param([[(1, True), (2, True), (2, False), (1, False)]], False, False, 2, id="lost for good first"),
    pytest.param([[(1, False), (1, True), (2, True), (2, False)]], False, False, 1, id="lent and taken back"),
]


@pytest.mark.parametrize(("transactions", "two", "meanwhile", "holder"), CLAIMED)
def test_who_holds_a_value(transactions: list[list[tuple[int, bool]]], two: bool, meanwhile: bool, holder: int) -> None:
    claims: list[one_by_one.Claim] = [
        (ts, place, key, has, None) for ts, some in enumerate(transactions) for place, (key, has) in enumerate(some)
    ]
    assert one_by_one.two_holders(claims) == two
    assert one_by_one.held_meanwhile(claims) == meanwhile or two
    assert one_by_one.first_holder(claims) == holder
    commit_ts, sequence, key, has = (np.array(some) for some in list(zip(*claims, strict=True))[:4])
    found = net_claims(np.zeros(len(claims), np.int64), key, commit_ts.astype(np.uint64), has, (has, sequence))
    assert two_holders(found).any() == two
    assert held_meanwhile(found) == meanwhile or two
    assert key[found.at[first_holders(found)]].tolist() == [holder]


SHOP = table([("id", INT), ("u", INT), ("v", INT)], handle="id", unique={"uu": ["u"]})


def shop(transactions: list[list[Step]]) -> list[bytes]:
    return [
        transaction([(SHOP, step) for step in steps], commit_ts=BEGIN_TS + n) for n, steps in enumerate(transactions)
    ]


def put(key: int, value: int | None) -> Step:
    return ("insert", {}, {1: key, 2: value, 3: 0})


def gone(key: int, value: int | None) -> Step:
    return ("delete", {1: key, 2: value, 3: 0}, {})


def test_a_conflict_among_many_rows_that_have_none() -> None:
    calm = [[put(n, n)] for n in range(100, 200)]
    for steps, hides in (
        ([[put(1, 5)], [put(2, 5)], [gone(1, 5)]], True),
        ([[put(1, 5)], [gone(1, 5)]], True),
        ([[gone(1, 5)], [put(2, 5)]], False),
    ):
        transactions = [*calm[:50], *steps[:1], *calm[50:], *steps[1:]]
        builder = by_columns(view_of(SHOP), shop(transactions))
        builder.finish(0, 1)
        assert builder.hides_conflict() == hides


def test_transactions_of_one_commit_ts_are_in_order_of_their_start() -> None:
    """And not of the places in them."""
    first, second = [put(8, 8), put(1, 5)], [gone(1, 5)]
    for starts, hides in (((1, 2), False), ((2, 1), True)):
        payloads = [
            transaction([(SHOP, step) for step in steps], commit_ts=BEGIN_TS, start_ts=BEGIN_TS - 9 + start)
            for steps, start in zip((first, second), starts, strict=True)
        ]
        payloads.append(transaction([(SHOP, put(2, 5))], commit_ts=BEGIN_TS + 1))
        for builder in (by_rows(view_of(SHOP), payloads), by_columns(view_of(SHOP), payloads)):
            builder.finish(0, 1)
            assert builder.hides_conflict() == hides
        noted, found = (
            builder.parts(1).claims.values()
            for builder in (by_rows(view_of(SHOP), payloads), by_columns(view_of(SHOP), payloads))
        )
        assert asked([merge_claims(found, SQL_TEXT)]) == asked(
            [merge_noted(noted)]
        )  # in order of the places, so both conflict


def test_a_value_is_asked_for_in_all_its_spellings() -> None:
    """As rows have them, and not as they are compared here."""
    info = table([("id", INT), ("u", LOOSE)], handle="id", unique={"uu": ["u"]})
    steps: list[Step] = [
        ("insert", {}, {1: 1, 2: "Ré ".encode()}),
        ("update", {1: 1, 2: "Ré ".encode()}, {1: 1, 2: b"RE"}),
        ("insert", {}, {1: 2, 2: b"it's"}),
        ("delete", {1: 3, 2: b"gone"}, {}),
    ]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    blobs = by_columns(view_of(info), payloads).parts(1).claims.values()
    probes = merge_claims(blobs, SQL_TEXT).probes
    assert {(frozenset(probe.values), probe.key) for probe in probes} == {
        (frozenset(["('Ré ')".encode(), b"('RE')"]), b"(1)"),
        (frozenset([b"('it\\'s')"]), b"(2)"),
    }
    noted = by_rows(view_of(info), payloads).parts(1).claims.values()
    assert asked([merge_claims(blobs, SQL_TEXT)]) == asked([merge_noted(noted)])


def test_transactions_of_one_commit_ts_alone_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied by themselves they would be one as well; also where each is in a share of its own."""
    payloads = [transaction([(SHOP, put(key, 5))], commit_ts=BEGIN_TS, start_ts=BEGIN_TS - 9 + key) for key in (1, 2)]
    for share in (1, 64 << 20):
        monkeypatch.setattr("drainer.changes.segment.SHARE_BYTES_MAX", share)
        for builder in (by_rows(view_of(SHOP), payloads), by_columns(view_of(SHOP), payloads)):
            assert builder.finish(0, 1).commits == 1
            assert not builder.hides_conflict()


def test_values_that_are_too_much_for_one_array_may_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked then, and the batch goes one transaction after another."""

    def refuse(_: object) -> bool:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    builder = by_columns(view_of(SHOP), shop([[put(1, 1)], [put(2, 2)]]))
    builder.finish(0, 1)
    assert not builder.hides_conflict()
    monkeypatch.setattr("drainer.changes.segment.hides_conflict", refuse)
    assert builder.hides_conflict()


def test_the_claims_of_several_shares_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares may lie in any order, and each alone has no conflict."""
    monkeypatch.setattr("drainer.changes.segment.SHARE_BYTES_MAX", 1)
    for steps, hides in (
        ([[put(1, 5)], [gone(1, 5)], [put(2, 5)]], False),
        ([[put(1, 5)], [put(2, 5)], [gone(1, 5)]], True),
    ):
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            payloads = shop(steps)
            builder = by_columns(view_of(SHOP), [payloads[at] for at in order])
            builder.finish(0, 1)
            assert builder.hides_conflict() == hides


LOOSE = FieldType(Tp.VARCHAR, 0, 40, 0, "utf8mb4", "utf8mb4_general_ci")
PADDED = FieldType(Tp.VARCHAR, 0, 40, 0, "utf8mb4", "utf8mb4_bin")


@pytest.mark.parametrize(
    ("kind", "old", "new", "count"),
    [
        pytest.param(LOOSE, b"Re", b"re ", 3, id="another spelling of what is compared more coarsely"),
        pytest.param(LOOSE, b"re", b"re", 2, id="the same text"),
        pytest.param(PADDED, b"re", b"re  ", 2, id="another spelling of what is the same upstream"),
        pytest.param(INT, 5, None, 2, id="NULL comes"),
        pytest.param(INT, None, 5, 1, id="NULL goes"),
        pytest.param(INT, None, None, 0, id="NULL stays"),
    ],
)
def test_what_an_update_loses(kind: FieldType, old: Datum, new: Datum, count: int) -> None:
    info = table([("id", INT), ("u", kind), ("v", INT)], handle="id", unique={"uu": ["u"]})
    steps: list[Step] = [
        ("insert", {}, {1: 1, 2: old, 3: 0}),
        ("update", {1: 1, 2: old, 3: 0}, {1: 1, 2: new, 3: 1}),
    ]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    rows, columns = by_rows(view_of(info), payloads), by_columns(view_of(info), payloads)
    assert listed(columns.finish(0, 1)) == listed(rows.finish(0, 1))
    noted = noted_by_columns(columns)
    assert noted == noted_by_rows(rows)
    assert sum(map(len, noted.values())) == count
    assert columns.hides_conflict() == rows.hides_conflict()


def test_what_an_update_loses_of_two_columns_of_which_one_is_compared_more_coarsely() -> None:
    """Its value counts as another one as soon as either is spelt otherwise."""
    info = table([("id", INT), ("u", LOOSE), ("w", PADDED)], handle="id", unique={"uw": ["u", "w"]})
    rows: list[Values] = [{1: 1, 2: b"Re", 3: text} for text in (b"x", b"x ", b"x ")]
    steps: list[Step] = [("update", old, new) for old, new in itertools.pairwise(rows)]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    by_row, columns = by_rows(view_of(info), payloads), by_columns(view_of(info), payloads)
    by_row.finish(0, 1)
    columns.finish(0, 1)
    noted = noted_by_columns(columns)
    assert noted == noted_by_rows(by_row)
    assert len(noted[1, 2]) == 3


MOMENT = FieldType(Tp.DATETIME, 128, 19, 0)
NEVER = Uint((1 << 64) - 1)  # a time that there is not
TIMES = table([("id", INT), ("at", MOMENT)], handle="id", unique={"ua": ["at"]})


def test_nothing_is_noted_of_one_transaction() -> None:
    """Old values of other keys are then not even read: here one that cannot be written."""
    step: Step = ("update", {1: 1, 2: NEVER}, {1: 1, 2: Uint(0)})
    payloads = [transaction([(TIMES, step)] * 3, commit_ts=BEGIN_TS)]
    builder = by_columns(view_of(TIMES), payloads)
    assert listed(builder.finish(0, 1)) == listed(by_rows(view_of(TIMES), payloads).finish(0, 1))
    assert builder._tables and not noted_by_columns(builder)
    assert not builder.hides_conflict()


def test_nothing_is_noted_where_nobody_asks() -> None:
    step: Step = ("update", {1: 1, 2: NEVER}, {1: 1, 2: Uint(0)})
    payloads = [transaction([(TIMES, step)], commit_ts=BEGIN_TS + n) for n in range(3)]
    builder = SegmentBuilder(in_step(view_of(TIMES)), follows_values=False)
    builder.add_all(payloads)
    parts = builder.parts(2)
    assert not parts.claims and builder._tables
    assert [
        row for blob in parts.slots.values() for one in merge_slot([blob], SQL_TEXT).folded for row in one.rows
    ] == [row for one in by_rows(view_of(TIMES), payloads[2:]).finish(0, 1).folded for row in one.rows]


def test_an_old_value_that_cannot_be_read_is_named_alike() -> None:
    steps: list[Step] = [("insert", {}, {1: n, 2: Uint(0)}) for n in range(20)]
    steps[7] = ("update", {1: 1, 2: NEVER}, {1: 1, 2: Uint(0)})
    steps[9] = ("delete", {1: 1, 2: NEVER}, {})
    payloads = [transaction([(TIMES, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    refused_alike(TIMES, payloads, BEGIN_TS + 7)
    refused_alike(TIMES, payloads[8:], BEGIN_TS + 9)


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_an_old_value_that_cannot_be_read_beside_a_null(kind: str) -> None:
    """It is nobody's, and yet read."""
    info = table([("id", INT), ("at", MOMENT), ("n", INT)], handle="id", unique={"ua": ["n", "at"]})
    step: Step = (kind, {1: 1, 2: NEVER, 3: None}, {1: 1, 2: Uint(0), 3: None} if kind == "update" else {})
    good = [transaction([(info, ("insert", {}, {1: n, 2: Uint(0), 3: n}))], commit_ts=BEGIN_TS + n) for n in range(5)]
    refused_alike(info, [*good, transaction([(info, step)], commit_ts=BEGIN_TS + 9)], BEGIN_TS + 9)


def test_the_error_of_a_value_comes_before_that_of_a_later_row() -> None:
    """Which cannot be written, either, and is met by another look at the rows."""
    info = table([("id", INT), ("at", MOMENT), ("n", INT)], handle="id", unique={"un": ["n", "at"]})
    steps: list[Step] = [("insert", {}, {1: n, 2: Uint(0), 3: n}) for n in range(9)]
    steps[3] = ("delete", {1: 50, 2: NEVER, 3: 50}, {})
    steps[6] = ("insert", {}, {1: 60, 2: NEVER, 3: 60})
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    refused_alike(info, payloads, BEGIN_TS + 3)


def refused_alike(info: TableInfo, payloads: list[bytes], commit_ts: int) -> None:
    texts = set()
    for builder in (by_rows(view_of(info), payloads), by_columns(view_of(info), payloads)):
        with pytest.raises(DecodeError, match=f"commit_ts {commit_ts}\\)") as error:
            builder.finish(0, 1)
        texts.add(str(error.value))
    with pytest.raises(DecodeError) as error:
        by_columns(view_of(info), payloads).parts(2)
    assert {str(error.value)} == texts


def test_a_number_that_becomes_unsigned_is_the_same_value() -> None:
    """Its carriers have another type then; and where parts noted it either way, numbers below 0 and beyond the signed
    ones are in one table."""
    kinds = FieldType(Tp.LONGLONG, 0, 20, 0), FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0)
    old, new = (table([("id", INT), ("u", kind)], handle="id", unique={"uu": ["u"]}) for kind in kinds)
    steps: list[tuple[TableInfo, Step]] = [
        (old, ("insert", {}, {1: 1, 2: 5})),
        (old, ("insert", {}, {1: 2, 2: -5})),
        (new, ("insert", {}, {1: 3, 2: Uint(1 << 63)})),
        (new, ("delete", {1: 1, 2: Uint(5)}, {})),
        (new, ("insert", {}, {1: 4, 2: Uint(5)})),
    ]
    payloads = [
        transaction([(info, step)], commit_ts=BEGIN_TS + n, version=1 if info is old else 2)
        for n, (info, step) in enumerate(steps)
    ]
    view = altered(old, new)
    expected = asked([merge_noted(by_rows(view, payloads).parts(1).claims.values())])
    assert not expected[0] and len(expected[1]) == 3
    for least in ((0, 0), (0, 1 << 40), (1 << 40, 0)):
        blobs = [
            by_columns(view, some, one).parts(1).claims[0]
            for some, one in zip((payloads[:3], payloads[3:]), least, strict=True)
        ]
        assert asked([merge_claims(blobs, SQL_TEXT)]) == expected
    clash = [*payloads[:3], transaction([(new, ("insert", {}, {1: 9, 2: Uint(5)}))], commit_ts=BEGIN_TS + 9, version=2)]
    builder = by_columns(view, clash)
    builder.finish(0, 1)
    assert builder.hides_conflict()


@pytest.mark.parametrize("flush", [1, 4 << 20])
def test_rows_that_fit_no_columns_are_noted_one_by_one(flush: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where they come on; what was noted before stays."""
    monkeypatch.setattr("drainer.changes.segment.FLUSH_BYTES", flush)
    count = FieldType(Tp.LONG, Flag.UNSIGNED, 10, 0)
    info = table([("id", INT), ("u", INT), ("n", count)], handle="id", unique={"uu": ["u"]})
    steps: list[Step] = [("insert", {}, {1: n, 2: n, 3: Uint(n)}) for n in range(40)]
    steps[20] = ("insert", {}, {1: 20, 2: 20, 3: -5})  # a negative number in an unsigned column
    steps[30] = ("update", {1: 3, 2: 3, 3: Uint(3)}, {1: 3, 2: None, 3: Uint(3)})
    steps[31] = ("update", {1: 25, 2: 25, 3: Uint(3)}, {1: 25, 2: 3, 3: Uint(3)})
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    view = view_of(info)
    expected = asked([merge_noted(by_rows(view, payloads).parts(1).claims.values())])
    assert not expected[0]
    builder = by_columns(view, [])
    for at in range(0, len(payloads), 3):
        builder.add_in_order(payloads[at : at + 3], sum(map(len, payloads[at : at + 3])))
    assert asked([merge_claims(builder.parts(1).claims.values(), SQL_TEXT)]) == expected
    for some in (payloads, [*payloads[:20], *payloads[21:]]):
        for more in ([], [transaction([(info, steps[8])], commit_ts=BEGIN_TS + 99)]):
            rows, columns = by_rows(view, [*some, *more]), by_columns(view, [*some, *more])
            assert listed(columns.finish(0, 1)) == listed(rows.finish(0, 1))
            assert columns.hides_conflict() == rows.hides_conflict()


def test_keys_that_cannot_be_followed_are_not() -> None:
    """The prefix of a column; the other key of the table is."""
    text = FieldType(Tp.VARCHAR, 0, 40, 0, "utf8mb4", "utf8mb4_bin")
    whole = table([("id", INT), ("u", INT), ("t", text)], handle="id", unique={"uu": ["u"], "ut": ["t"]})
    part = replace(whole.indexes[1], columns=(replace(whole.indexes[1].columns[0], length=2),))
    info = replace(whole, indexes=(whole.indexes[0], part))
    steps: list[Step] = [("insert", {}, {1: n, 2: n, 3: b"same"}) for n in range(9)]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    rows, columns = by_rows(view_of(info), payloads), by_columns(view_of(info), payloads)
    assert listed(columns.finish(0, 1)) == listed(rows.finish(0, 1))
    assert noted_by_columns(columns) == noted_by_rows(rows)
    assert set(noted_by_columns(columns)) == {(1,)}
    assert not columns.hides_conflict()


def test_claims_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array has no more than 2 GiB."""
    payloads = shop([[put(n, n)] for n in range(9)] + [[gone(3, 3)], [put(8, 9), gone(4, 4)], [put(4, 3)]])
    expected = asked([merge_noted(by_rows(view_of(SHOP), payloads).parts(1).claims.values())])
    assert len(expected[1]) == 10
    whole = by_columns(view_of(SHOP), payloads)
    whole.finish(0, 1)
    ((_, blocks),) = (one for table_ in whole._tables.values() for one in table_.claimed())
    assert [len(one) for one in concat_claims(blocks)] == [sum(map(len, blocks))]
    monkeypatch.setattr("drainer.changes.claims.BLOCK_BYTES_MAX", 8)
    assert len(concat_claims(blocks)) == len(blocks) > 1
    found = by_columns(view_of(SHOP), payloads[:6]), by_columns(view_of(SHOP), payloads[6:])
    assert asked([merge_claims([one.parts(1).claims[0] for one in found], SQL_TEXT)]) == expected


def test_blocks_of_another_type_between_do_not_let_an_array_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(kind: pa.DataType, rows: int) -> Claims:
        column, meta = pa.array(range(rows), kind), np.arange(rows)
        return Claims((column,), None, (column,), meta.astype(np.uint64), meta.astype(np.uint64), meta, meta > 0)

    signed, unsigned = block(pa.int64(), 6), block(pa.uint64(), 1)
    monkeypatch.setattr("drainer.changes.claims.BLOCK_BYTES_MAX", 120)
    assert signed.nbytes == 96
    assert [len(one) for one in concat_claims([signed, unsigned, signed, unsigned])] == [6, 6, 2]


def test_damaged_claims() -> None:
    payloads = shop([[put(n, n)] for n in range(9)])
    blob = by_columns(view_of(SHOP), payloads).parts(1).claims[0]
    assert len(merge_claims([blob], SQL_TEXT).probes) == 9
    for size in range(len(blob)):
        with pytest.raises(BlobError):
            merge_claims([blob[:size]], SQL_TEXT)
    with pytest.raises(BlobError, match="version 63"):
        merge_claims([b"\x63" + blob[1:]], SQL_TEXT)
    with pytest.raises(BlobError):
        merge_claims([blob + b"\0"], SQL_TEXT)
    rest = by_columns(view_of(SHOP), payloads, 1 << 40).parts(1).claims[0]
    assert len(merge_claims([rest], SQL_TEXT).probes) == 9
    for size in range(len(rest)):
        with pytest.raises(BlobError):
            merge_claims([rest[:size]], SQL_TEXT)
