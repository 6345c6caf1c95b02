"""The recordings as events, dispatched in every way: the rules of consumers hold, and nothing is lost or invented."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from binlog import envelope

from drainer.batch.binlog import ServedBinlog
from drainer.batch.served import read_batch
from drainer.batch.work import Kind
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.dispatch.ddl_messages import ddl_messages, ddl_partitions
from drainer.dispatch.dispatcher import Dispatcher, Routes
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router
from drainer.kafka_check.checker import Checker, Moves, Promises
from drainer.kafka_reading.records import Place
from drainer.protocol.encoder import DdlScope
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.row_changes import RowChanges
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.file import FileSource
from drainer.schema.job_policy import Policy
from drainer.schema.keeper import SchemaKeeper
from drainer.schema.segmenter import walk
from drainer.schema.steps import Ddl, Rows
from tests.support.capture import GOLDEN, CaptureSet, find_sets

pytestmark = pytest.mark.timeout(600)

PARTITIONS: Final = 5
RULES: Final[Mapping[str, tuple[DispatchRule, ...]]] = {
    "default": (),
    "table": (DispatchRule(("*.*",), partition="table", topic="{schema}_{table}"),),
    "index-value": (DispatchRule(("*.*",), partition="index-value"),),
    "index-value by topics": (DispatchRule(("*.*",), partition="index-value", topic="{schema}.{table}"),),
    "ts": (DispatchRule(("*.*",), partition="ts"),),
    "conflict": (DispatchRule(("*.*",), partition="conflict"),),
}
_CHANGES: Final = {Kind.INSERT: Change.INSERT, Kind.UPDATE: Change.UPDATE, Kind.DELETE: Change.DELETE}

Step = ChangeSegment | Ddl | int  # an int: everything up to this commit_ts has come


@cache
def steps_of(capture: CaptureSet, directory: Path) -> tuple[Step, ...]:
    return tuple(_steps(capture, directory))


def _steps(capture: CaptureSet, directory: Path) -> Iterator[Step]:
    position = int(capture.meta["scenario_start_ts"])
    scans = [(envelope.scan(payload), payload) for payload in capture.binlogs]
    binlogs = [ServedBinlog(seen.commit_ts, seen.start_ts, "pump1", payload) for seen, payload in scans]
    batch = read_batch(binlogs, after_ts=position, until_ts=max(one.commit_ts for one in binlogs))
    (directory / "jobs.json").write_bytes(capture.jobs_text)
    keeper = SchemaKeeper([FileSource(directory / "jobs.json")], Policy())
    done: set[int] = set()
    schema = asyncio.run(keeper.open(position_ts=position, job_done=done.__contains__))
    while batch.after_ts < batch.until_ts:
        try:
            for step in walk(batch, schema, job_done=done.__contains__):
                if isinstance(step, Ddl):
                    done.add(step.job.id)
                    position = step.commit_ts
                    yield step
                elif isinstance(step, Rows):
                    builder = StreamDecoder(step.view, stored_generated=True).builder()
                    builder.add_all(bytes(one.payload) for one in step.binlogs)
                    segment = builder.finish(step.after_ts, step.until_ts)
                    position = step.until_ts
                    yield segment
                    yield position
                else:
                    position = step.until_ts
                    yield position
        except UnknownColumn as error:
            assert asyncio.run(keeper.resolve_column(error)), error
        batch = batch.after(position)


@dataclass
class Topics:
    """What each partition was given."""

    router: Router
    raw: bool
    partitions: dict[str, int] = field(default_factory=dict)
    written: dict[Place, list[Event]] = field(default_factory=dict)
    rows: int = 0

    def meet(self, topic: str) -> None:
        if topic not in self.partitions:
            self.partitions[topic] = PARTITIONS
            self.written.update({Place(topic, number): [] for number in range(PARTITIONS)})

    def add_segment(self, segment: ChangeSegment) -> None:
        events = RowEvents(raw=self.raw).of(segment)
        for one in events:
            self.meet(self.router.topic(one.table.schema, one.table.name))
        found = []
        for routes in Dispatcher(self.router, self.partitions, ZoneInfo("UTC"), raw=self.raw).routes(events):
            found += list(zip(routes.changes.order.tolist(), *_placed(routes), strict=True))
        for _, place, event in sorted(found, key=lambda one: one[0]):
            self.written[place].append(event)
        self.rows += len(found)
        assert _images(segment) == _images_of_events(event for _, _, event in found)

    def add_ddl(self, step: Ddl) -> None:
        for message in ddl_messages(step, self.router):
            ddl = message.ddl
            self.meet(message.topic)
            for number in ddl_partitions(DdlScope.ALL_PARTITIONS, PARTITIONS):
                event = DdlEvent(ddl.commit_ts, ddl.schema, ddl.table, ddl.query, ddl.type_code, ddl.start_ts)
                self.written[Place(message.topic, number)].append(event)

    def add_resolved(self, commit_ts: int) -> None:
        for events in self.written.values():
            events.append(ResolvedEvent(commit_ts))


def _placed(routes: Routes) -> tuple[list[Place], list[RowEvent]]:
    changes = routes.changes
    places = [Place(routes.topic, number) for number in routes.partitions.tolist()]
    old, new = (_image_values(changes, columns) for columns in (changes.old, changes.new))
    stamps = zip(changes.commit_ts.tolist(), changes.start_ts.tolist(), old, new, strict=True)
    table, kind = changes.table, _CHANGES[changes.kind]
    return places, [
        RowEvent(kind, commit_ts, table.schema, table.name, before, after, start_ts=start_ts)
        for commit_ts, start_ts, before, after in stamps
    ]


def _image_values(changes: RowChanges, columns: Any) -> list[dict[str, ColumnValue] | None]:
    if columns is None:
        return [None] * len(changes)
    names = [(column.name, int(column.flags)) for column in changes.table.columns]
    rows = zip(*[column.to_pylist() for column in columns], strict=True)
    return [
        {name: ColumnValue(value, flags=flags) for (name, flags), value in zip(names, row, strict=True)} for row in rows
    ]


def _images(segment: ChangeSegment) -> Counter[object]:
    """How many more of each row there are behind a segment than before it."""
    found: Counter[object] = Counter()
    for one in segment.changes:
        for columns, sign in ((one.old, -1), (one.new, 1)):
            for row in zip(*[column.to_pylist() for column in columns], strict=True) if columns is not None else ():
                found[one.shape.schema, one.shape.table, tuple(zip(one.shape.columns, row, strict=True))] += sign
    return Counter({row: count for row, count in found.items() if count})


def _images_of_events(events: Iterator[RowEvent] | Any) -> Counter[object]:
    found: Counter[object] = Counter()
    for event in events:
        for image, sign in ((event.old, -1), (event.new, 1)):
            if image is not None:
                row = tuple((name, column.value) for name, column in image.items())
                found[event.schema, event.table, row] += sign
    return Counter({row: count for row, count in found.items() if count})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dispatch")


@pytest.mark.parametrize("raw", [False, True], ids=["split", "raw"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_rules_of_consumers_hold(capture: CaptureSet, rules: str, raw: bool, directory: Path) -> None:
    topics = Topics(Router(RULES[rules], "all"), raw)
    topics.meet("all")
    steps = steps_of(capture, directory)
    for step in steps:
        if isinstance(step, ChangeSegment):
            topics.add_segment(step)
        elif isinstance(step, Ddl):
            topics.add_ddl(step)
        else:
            topics.add_resolved(step)
    topics.add_resolved(1 << 63)
    moves = {"ts": Moves.ALWAYS, "conflict": Moves.AT_RESOLVED}.get(rules, Moves.NEVER)
    if raw and rules.startswith("index-value"):  # a changed key goes where its new image belongs
        moves = Moves.ALWAYS
    checker = Checker(topics.partitions, Promises(ordered=True, moves=moves))
    for place, events in topics.written.items():
        for offset, event in enumerate(events):
            checker.add(place, offset, [event])
    report = checker.finish()
    assert report.violations == []
    assert report.rows == topics.rows
    assert report.rows > 100
    if "topics" not in rules and rules != "table":
        used = {place for place, events in topics.written.items() if any(isinstance(one, RowEvent) for one in events)}
        assert len(used) > 1
