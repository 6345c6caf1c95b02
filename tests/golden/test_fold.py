"""Every row of a real TiDB, decoded and applied in order and folded, ends in the tables TiDB had at the end."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from binlog import envelope
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp

from drainer.batch.served import ServedBinlog, read_batch
from drainer.batch.work import KeyChange
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.row.decode import Decoder
from drainer.row.layout import replicated
from drainer.row.transaction import scan
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.job_policy import Policy
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Rows
from drainer.schema.view import SchemaView
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.row_case import FORMATS, changes_of

_ESCAPED = re.compile(rb"\\(.)", re.S)
_UNESCAPED = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"Z": b"\x1a"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capture" in metafunc.fixturenames:
        paths: list[Path] = metafunc.config.getoption("--captures") or [GOLDEN]
        sets = [s for path in paths for s in _sets(path)]
        metafunc.parametrize("capture", sets, ids=[s.name for s in sets])


def _sets(path: Path) -> list[CaptureSet]:
    here = CaptureSet(path)
    found = [here] if here.has("binlogs.bin") else [CaptureSet(p) for p in sorted(path.iterdir()) if p.is_dir()]
    return [s for s in found if s.has("binlogs.bin") and s.tables()]


@dataclass
class Model:
    """Tables as bags of rows; a row that is deleted or updated must be there, cell for cell."""

    bags: dict[int, Counter[tuple[object, ...]]] = field(default_factory=dict)
    folded: dict[int, dict[tuple[object, ...], tuple[object, ...]]] = field(default_factory=dict)
    altered: set[int] = field(default_factory=set)

    def ddl(self, step: Ddl) -> None:
        """Tables whose rows or columns a DDL changes are for tests with a real database."""
        for change in step.changes:
            ids = {t.table_id for t in (change.before, change.after) if t is not None}
            same = change.before and change.after and _columns(change.before.info) == _columns(change.after.info)
            partitions = int(step.job.type) in (19, 20, 23, 42, 64, 71, 72)
            if not (change.before is None or change.after is None or (same and not partitions)):
                self.altered |= ids

    def change(self, change: KeyChange) -> None:
        if change.shape.table_id in self.altered:
            return
        bag = self.bags.setdefault(change.shape.table_id, Counter())
        if change.old is not None:
            assert bag[change.old] > 0, f"{change.shape.table}: no row {change.old} at {change.commit_ts}"
            bag[change.old] -= 1
        if change.new is not None:
            bag[change.new] += 1


def _columns(info: TableInfo) -> tuple[list[int], list[str]]:
    """What a model that knows no DDL depends on: the columns, and the keys that rows may fold by."""
    return [c.id for c in info.columns], [i.name for i in info.unique_indexes()]


def replay(capture: CaptureSet, dialect: str) -> tuple[Model, Schema]:
    history = JobHistory(parse_jobs(capture.jobs_text.decode(), capture.name))
    begin_ts = int(capture.meta["scenario_start_ts"])
    binlogs = []
    for payload in capture.binlogs:
        seen = envelope.scan(payload)
        assert scan(payload)[0] == seen.commit_ts
        binlogs.append(ServedBinlog(seen.commit_ts, seen.start_ts, "pump1", payload))
    batch = read_batch(binlogs, after_ts=begin_ts, until_ts=max(b.commit_ts for b in binlogs))
    schema = Schema.open(history, position_ts=begin_ts, policy=Policy())
    model = Model()
    for step in walk(batch, schema):
        if isinstance(step, Ddl):
            model.ddl(step)
        if not isinstance(step, Rows):
            continue
        payloads = [b.payload for b in step.binlogs]
        for change in changes_of(Decoder(step.view), payloads, FORMATS[dialect]):
            model.change(change)
        if dialect == "sqlite":
            _fold(model, step.view, payloads)
    return model, schema


def _fold(model: Model, view: SchemaView, payloads: list[bytes]) -> None:
    builder = SegmentBuilder(SegmentDecoder(view, SQLITE_VALUES))
    builder.add_all(reversed(payloads))
    for table in builder.finish(0, 1).folded:
        rows = model.folded.setdefault(table.shape.table_id, {})
        for net in table.rows:
            for key in net.stale:
                assert isinstance(key, tuple)
                rows.pop(key, None)
            if net.row is not None:
                assert isinstance(net.row, tuple)
                rows[tuple(net.row[n] for n in table.shape.key)] = net.row


def expected_rows(table: dict[str, Any], names: list[str]) -> Counter[tuple[object, ...]]:
    places = [table["columns"].index(name) for name in names]
    return Counter(tuple(_frozen(row[p]) for p in places) for row in table["rows"])


def _frozen(value: object) -> object:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def shown(kind: FieldType, cell: object) -> object:
    """A cell as TiDB's text protocol shows it, floats as numbers."""
    if cell is None:
        return None
    if isinstance(cell, bytes):
        literal = cell
        if literal == b"NULL":
            return None
        if literal.startswith(b"X'"):
            return bytes.fromhex(literal[2:-1].decode())
        if literal.startswith(b"'"):
            text = _ESCAPED.sub(lambda m: _UNESCAPED.get(m[1], m[1]), literal[1:-1])
            return text.decode()
        cell = literal.decode()
    if kind.tp is Tp.YEAR:
        return f"{int(str(cell)):04d}"
    if kind.tp is Tp.BIT:
        return int(str(cell)).to_bytes((kind.flen + 7) // 8, "big")
    if kind.tp is Tp.ENUM:
        index = int(cell)  # type: ignore[call-overload]
        return kind.elems[index - 1] if index else ""
    if kind.tp is Tp.SET:
        mask = int(cell)  # type: ignore[call-overload]
        return ",".join(name for n, name in enumerate(kind.elems) if mask >> n & 1)
    return str(cell)


def as_shown(kinds: list[FieldType], row: tuple[object, ...], dialect: str) -> tuple[object, ...]:
    cells = []
    for kind, cell in zip(kinds, row, strict=True):
        if dialect == "sqlite" and (isinstance(cell, bytes) or kind.tp in (Tp.ENUM, Tp.SET)):
            cells.append(cell)
        else:
            cells.append(shown(kind, cell))
    return tuple(cells)


def _numbers(kinds: list[FieldType], rows: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """TiDB shows FLOAT with fewer digits than it holds: compared by 6."""
    digits = {Tp.FLOAT: ".5e", Tp.DOUBLE: ".16e"}
    return Counter(
        {
            tuple(
                format(float(str(c)), digits[k.tp]) if c is not None and k.tp in digits else c
                for k, c in zip(kinds, row, strict=True)
            ): count
            for row, count in rows.items()
            if count
        }
    )


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_recorded_rows_applied_and_folded_give_upstreams_tables(capture: CaptureSet, dialect: str) -> None:
    """Decoded by W-02 and D-TR-01 to D-TR-06; folding gives the same as one change after another."""
    model, schema = replay(capture, dialect)
    expected = capture.tables()
    compared = 0
    for table_id, bag in model.bags.items():
        found = schema.catalog.tables.get(table_id)
        if found is None or table_id in model.altered:
            continue
        table = expected.get(f"{found.schema}.{found.name}")
        if table is None:
            continue
        columns = replicated(found.current)
        kinds = [c.type for c in columns]
        wanted = _numbers(kinds, expected_rows(table, [c.name for c in columns]))
        rows: Counter[tuple[object, ...]] = Counter()
        for row, count in bag.items():
            rows[as_shown(kinds, row, dialect)] += count
        assert _numbers(kinds, rows) == wanted, f"{found.schema}.{found.name}"
        if table_id in model.folded:
            assert Counter(model.folded[table_id].values()) == +bag, f"{found.name} folded"
        compared += 1
    assert compared >= {"types": 36, "keys": 30}.get(capture.name, 1)
