"""Tables with secondary unique keys, their histories, and the claims on their values as two ways of noting them give
them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.changes.claims import Claims
from drainer.changes.decode import ColumnDecoder
from drainer.changes.key import joined_keys
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.order.claims import ClaimedFold
from drainer.order.fold import FoldBuilder
from drainer.order.probes import Questions
from drainer.row.decode import Decoder
from drainer.row.key import comparison, identity
from drainer.schema.view import SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, Step, altered, not_null, table, transaction, view_of
from tests.unit.drainer.changes.cases import KINDS, Values, datums

KEYED = [kind for kind in KINDS if kind.tp is not Tp.JSON]
FOLDING = [kind for kind in KEYED if comparison(kind) is not None]
# Shorter than what a transaction has of it; a claim is the same whatever way it was noted.
Noted = tuple[bytes, tuple[bytes, ...], int, int, bytes, bool]


def without(info: TableInfo, name: str) -> TableInfo:
    """The table before a column came or after it went, and with it the keys that it is in."""
    columns = tuple(replace(c, offset=n) for n, c in enumerate(c for c in info.columns if c.name != name))
    place = {c.name: c.offset for c in columns}
    indexes = tuple(
        replace(index, columns=tuple(replace(part, offset=place[part.name]) for part in index.columns))
        for index in info.indexes
        if all(part.name != name for part in index.columns)
    )
    return replace(info, columns=columns, indexes=indexes)


@st.composite
def keyed_tables(draw: st.DrawFn) -> TableInfo:
    """A table with a key to fold by, clustered or not, and one to three unique keys over any columns, NULL or not."""
    kinds = draw(st.lists(st.sampled_from(KEYED), min_size=2, max_size=5))
    names = [(f"c{n}", not_null(kind) if draw(st.booleans()) else kind) for n, kind in enumerate(kinds)]
    parts = st.lists(st.sampled_from([name for name, _ in names]), min_size=1, max_size=3, unique=True)
    unique = {f"u{n}": draw(parts) for n in range(draw(st.integers(1, 3)))}
    shape = draw(st.sampled_from(["handle", "unsigned handle", "clustered", "unclustered", "composite"]))
    if shape.endswith("handle"):
        key = FieldType(Tp.LONGLONG, Flag.UNSIGNED if shape.startswith("un") else 0, 20, 0)
        return table([*names, ("id", key)], handle="id", unique=unique)
    primary = [(f"k{n}", not_null(draw(st.sampled_from(FOLDING)))) for n in range(1 + (shape == "composite"))]
    unique = {"PRIMARY": [name for name, _ in primary], **unique}
    return table([*primary, *names], unique=unique, clustered=shape == "clustered")


@st.composite
def views(draw: st.DrawFn) -> tuple[SchemaView, list[TableInfo]]:
    """A table; or two of one id, of schema versions 1 and 2, of which one lacks a column and the keys it is in."""
    info = draw(keyed_tables())
    dropped = draw(st.none() | st.sampled_from([c.name for c in info.columns if c.name.startswith("c")]))
    if dropped is None:
        return view_of(info), [info]
    versions = [without(info, dropped), info]
    if draw(st.booleans()):
        versions.reverse()
    return altered(*versions), versions


def _values(info: TableInfo) -> st.SearchStrategy[Values]:
    few = {c.id: datums(c.type) for c in info.columns}
    return st.fixed_dictionaries(
        {c.id: few[c.id] if c.is_not_null or c.name.startswith("k") else st.none() | few[c.id] for c in info.columns}
    )


@st.composite
def histories(draw: st.DrawFn, versions: Sequence[TableInfo], *, ties: bool = True) -> list[bytes]:
    """Transactions on few keys and values, in a few spellings, so that they meet; `ties`: some have one commit_ts."""
    most = max(versions, key=lambda info: len(info.columns))
    pool = draw(st.lists(_values(most), min_size=2, max_size=3))
    dice = random.Random(draw(st.integers(0, 1 << 30)))
    payloads, commit_ts = [], BEGIN_TS
    count = draw(st.integers(2, 9))
    for number in range(count):
        info = versions[-1] if len(versions) == 1 or number >= count // 2 else versions[0]
        steps: list[tuple[TableInfo, Step]] = []
        for _ in range(dice.randint(1, 3)):
            old, new = _row(dice, pool, info), _row(dice, pool, info)
            if dice.random() < 0.5:
                key = [c.id for c in info.columns if c.name == "id" or c.name.startswith("k")]
                new = {n: (old if n in key or dice.random() < 0.5 else new)[n] for n in new}
            steps.append((info, (dice.choice(["insert", "insert", "update", "update", "delete"]), old, new)))
        commit_ts += not ties or dice.random() < 0.85
        payloads.append(
            transaction(
                steps,
                commit_ts=commit_ts,
                start_ts=BEGIN_TS - 100 + number,
                version=1 if info is versions[0] else 2,
            )
        )
    return payloads


def _row(dice: random.Random, pool: Sequence[Values], info: TableInfo) -> Values:
    """Each column's value of one of the pool, spelt in some way."""
    return {c.id: _spelt(dice, dice.choice(pool)[c.id], c.type) for c in info.columns}


def _spelt(dice: random.Random, value: object, kind: FieldType) -> object:  # type: ignore[return]
    if not isinstance(value, bytes) or kind.tp is not Tp.VARCHAR or dice.random() < 0.6:
        return value
    return dice.choice([value + b" ", value + b"  ", value.upper(), value.lower()])


def in_step(view: SchemaView, rows_min: int = 0) -> SegmentDecoder:
    """Columns however few rows there are, and never the general decoder without need."""
    decoder = SegmentDecoder(view, SQL_TEXT, columns_bytes_min=0, columns_rows_min=rows_min)
    decoder.columns = ColumnDecoder(view, vector_rows_min=1, decoder=decoder.rows)
    return decoder


def by_columns(view: SchemaView, payloads: Iterable[bytes], rows_min: int = 0) -> SegmentBuilder:
    builder = SegmentBuilder(in_step(view, rows_min))
    builder.add_all(payloads)
    return builder


def by_rows(view: SchemaView, payloads: Iterable[bytes]) -> FoldBuilder:
    builder = FoldBuilder(Decoder(view), SQL_TEXT)
    builder.add_all(payloads)
    return builder


def noted_by_columns(builder: SegmentBuilder) -> dict[tuple[int, ...], list[Noted]]:
    """Of each unique key its claims, sorted."""
    found: dict[tuple[int, ...], list[Noted]] = {}
    for table_ in builder._tables.values():
        for of, blocks in table_.claimed():
            found[of.places] = sorted(one for block in blocks for one in _noted(block))
    return found


def _noted(block: Claims) -> list[Noted]:
    shown = block.shown if block.shown is not None else ()
    texts = list(zip(*([as_bytes(cell) for cell in column.to_pylist()] for column in shown), strict=True))
    return list(
        zip(
            joined_keys(block.value).identity.to_pylist(),
            texts or [()] * len(block),
            block.commit_ts.tolist(),
            block.sequence.tolist(),
            joined_keys(block.key).identity.to_pylist(),
            block.has.tolist(),
            strict=True,
        )
    )


def as_bytes(cell: object) -> bytes:
    return cell if isinstance(cell, bytes) else str(cell).encode()


def noted_by_rows(builder: FoldBuilder) -> dict[tuple[int, ...], list[Noted]]:
    found: dict[tuple[int, ...], list[Noted]] = {}
    for fold in builder._folds.values():
        if not isinstance(fold, ClaimedFold):
            continue  # a DDL has taken all other keys
        for key, values in zip(fold.keys, fold.claims, strict=True):
            some = [
                (identity(value), _shown(key.is_coarse, as_is), ts, sequence, identity(row), has)
                for value, claims in values.items()
                for ts, sequence, row, has, as_is in claims
            ]
            if some:
                found[key.places] = sorted(some)
    return found


def _shown(is_coarse: bool, as_is: object) -> tuple[bytes, ...]:
    if not is_coarse:
        return ()
    return tuple(as_bytes(cell) for cell in (as_is if isinstance(as_is, tuple) else (as_is,)))


def asked(questions: Iterable[Questions]) -> tuple[set[str], set[tuple[object, ...]]]:
    """(conflicts, probes) of all slots, in no order."""
    questions = list(questions)
    conflicts = {one.conflict for one in questions if one.conflict}
    probes = [
        (probe.shape, probe.places, frozenset(probe.values), probe.key) for one in questions for probe in one.probes
    ]
    assert len(probes) == len(set(probes))
    return conflicts, set(probes)
