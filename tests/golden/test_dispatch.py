"""The recordings as events, dispatched in every way: the rules of consumers hold, and nothing is lost or invented."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.dispatch.ddl_messages import ddl_messages, ddl_partitions
from drainer.dispatch.dispatcher import Dispatcher, Routes
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router
from drainer.kafka_check.__main__ import check
from drainer.kafka_check.checker import Checker, Moves, Promises
from drainer.kafka_reading.records import KafkaPartition, PartitionDecoders, Record
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.encoder import DdlScope, Encoder, Message
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import make_encoder
from drainer.protocol.table import RowChanges, Table
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.sources import FileSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.segmenter import walk
from drainer.schema.steps import Ddl, Rows
from drainer.sink.kafka.schema_registry import SchemaRegistry
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.encoded import EncodedRow, encoded_rows, framed_rows
from tests.support.http_registry import Registry, serving
from tests.support.protocol_options import protocol_options
from tests.support.recorded_steps import batch_of

pytestmark = pytest.mark.timeout(600)

PARTITIONS: Final = 5
RULES: Final[Mapping[str, tuple[DispatchRule, ...]]] = {
    "default": (),
    "table": (DispatchRule(matcher=("*.*",), partition="table", topic="{schema}_{table}"),),
    "index-value": (DispatchRule(matcher=("*.*",), partition="index-value"),),
    "index-value by topics": (DispatchRule(matcher=("*.*",), partition="index-value", topic="{schema}.{table}"),),
    "ts": (DispatchRule(matcher=("*.*",), partition="ts"),),
    "conflict": (DispatchRule(matcher=("*.*",), partition="conflict"),),
}
_CHANGES: Final = {Kind.INSERT: Change.INSERT, Kind.UPDATE: Change.UPDATE, Kind.DELETE: Change.DELETE}

Step = ChangeSegment | Ddl | int  # an int: everything up to this commit_ts has come


@cache
def steps_of(capture: CaptureSet, directory: Path) -> tuple[Step, ...]:
    return tuple(_steps(capture, directory))


def _steps(capture: CaptureSet, directory: Path) -> Iterator[Step]:
    position = int(capture.meta["scenario_start_ts"])
    batch = batch_of(capture)
    (directory / "jobs.json").write_bytes(capture.jobs_text)
    provider = SchemaProvider([FileSource(directory / "jobs.json")], Policy())
    done: set[int] = set()
    schema = asyncio.run(provider.open(position_ts=position, job_done=done.__contains__))
    while batch.after_ts < batch.until_ts:
        try:
            for step in walk(batch, schema, job_done=done.__contains__):
                if isinstance(step, Ddl):
                    done.add(step.job.id)
                    position = step.commit_ts
                    yield step
                elif isinstance(step, Rows):
                    payloads = [bytes(one.payload) for one in step.binlogs]
                    decoder = StreamDecoder(step.view, stored_generated=True)
                    segment = decoder.segment(payloads, step.after_ts, step.until_ts)
                    position = step.until_ts
                    yield segment
                    yield position
                else:
                    position = step.until_ts
                    yield position
        except UnknownColumn as error:
            assert asyncio.run(provider.resolve_column(error)), error
        batch = batch.after(position)


@dataclass
class Topics:
    """What each partition was given."""

    router: Router
    raw: bool
    partitions: dict[str, int] = field(default_factory=dict)
    written: dict[KafkaPartition, list[Event]] = field(default_factory=dict)
    rows: int = 0

    def meet(self, topic: str) -> None:
        if topic not in self.partitions:
            self.partitions[topic] = PARTITIONS
            self.written.update({KafkaPartition(topic, number): [] for number in range(PARTITIONS)})

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
                self.written[KafkaPartition(message.topic, number)].append(event)

    def add_resolved(self, commit_ts: int) -> None:
        for events in self.written.values():
            events.append(ResolvedEvent(commit_ts))


def _placed(routes: Routes) -> tuple[list[KafkaPartition], list[RowEvent]]:
    changes = routes.changes
    places = [KafkaPartition(routes.topic, number) for number in routes.partitions.tolist()]
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


class Wire(Topics):
    """The same as messages. `records`: what each partition has."""

    def __init__(self, router: Router, encoder: Encoder, registry: SchemaRegistry | None) -> None:
        super().__init__(router, raw=False)
        self.encoder = encoder
        self.registry = registry
        self.records: list[Record] = []
        self.keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self._told: set[tuple[object, ...]] = set()

    def add_segment(self, segment: ChangeSegment) -> None:
        events = RowEvents().of(segment)
        for one in events:
            self.meet(self.router.topic(one.table.schema, one.table.name))
        rows: dict[KafkaPartition, list[tuple[int, EncodedRow]]] = {}
        for routes in Dispatcher(self.router, self.partitions, ZoneInfo("UTC")).routes(events):
            table, stamps = routes.changes.table, zip(routes.partitions, routes.changes.order, strict=True)
            self.keys[table.schema, table.name] = tuple(table.columns[place].name for place in table.handle)
            self._tell(table, routes.topic)
            encoded = encoded_rows(self._encoder(table, routes.topic).table(table, routes.topic), routes.changes)
            for (partition, order), row in zip(stamps, encoded, strict=True):
                rows.setdefault(KafkaPartition(routes.topic, int(partition)), []).append((int(order), row))
            self.rows += len(routes)
        for place, of in rows.items():
            of.sort(key=lambda one: one[0])
            self._write(place, framed_rows(self.encoder, (row for _, row in of)))

    def _encoder(self, table: Table, topic: str) -> Encoder:
        """Avro's schemas are registered first."""
        if not isinstance(self.encoder, AvroEncoder):
            return self.encoder
        assert self.registry is not None
        ids = self.registry.register_all(self.encoder.required_schemas(topic, table))
        return self.encoder.with_ids(ids)

    def _tell(self, table: Table, topic: str) -> None:
        """Simple's readers must have the table first."""
        if (table.key, topic) not in self._told:
            self._told.add((table.key, topic))
            for number in range(PARTITIONS):
                self._write(KafkaPartition(topic, number), self.encoder.bootstrap(table, 0))

    def add_ddl(self, step: Ddl) -> None:
        for message in ddl_messages(step, self.router):
            self.meet(message.topic)
            for number in ddl_partitions(self.encoder.ddl_scope, PARTITIONS):
                self._write(KafkaPartition(message.topic, number), self.encoder.ddl(message.ddl))

    def add_resolved(self, commit_ts: int) -> None:
        for place in self.written:
            self._write(place, self.encoder.resolved(commit_ts))

    def _write(self, place: KafkaPartition, messages: Iterable[Message]) -> None:
        for message in messages:
            self.written[place].append(ResolvedEvent(0))
            self.records.append(Record(place, len(self.written[place]), message.key, message.value))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dispatch")


@pytest.mark.parametrize("raw", [False, True], ids=["split", "raw"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_recorded_events_follow_consumer_rules_for_every_dispatcher(
    capture: CaptureSet, rules: str, raw: bool, directory: Path
) -> None:
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


PROTOCOLS: Final[Mapping[str, Mapping[str, str]]] = {
    "open-protocol": {},
    "avro": {"enable-tidb-extension": "true", "avro-enable-watermark": "true", "avro-output-old-row": "true"},
    "canal-json": {"enable-tidb-extension": "true"},
    "debezium": {"enable-tidb-extension": "true"},
    "simple": {},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_recorded_events_follow_consumer_rules_in_every_protocol(
    capture: CaptureSet, protocol: str, directory: Path
) -> None:
    """By topics, so that Avro's subjects are tables; what is read back is what was written."""
    with serving(Registry()) as registry:
        uri = {"protocol": protocol, "schema-registry": registry.url, **PROTOCOLS[protocol]}
        options = protocol_options(uri)
        rules = [DispatchRule(matcher=("*.*",), partition="index-value", topic="{schema}.{table}")]
        wire = Wire(Router(rules, "all"), make_encoder(options), SchemaRegistry(registry.url))
        wire.meet("all")
        for step in steps_of(capture, directory):
            if isinstance(step, ChangeSegment):
                wire.add_segment(step)
            elif isinstance(step, Ddl):
                wire.add_ddl(step)
            else:
                wire.add_resolved(step)
        wire.add_resolved(1 << 62)
        promises = Promises(ordered=True, ddl_everywhere=wire.encoder.ddl_scope is DdlScope.ALL_PARTITIONS)
        keys = {name: key for name, key in wire.keys.items() if key}
        report = check(wire.records, Checker(wire.partitions, promises, keys), PartitionDecoders(options))
    assert report.violations == []
    assert report.rows == wire.rows > 100
    assert report.resolved > 0
    assert report.unidentified_rows < report.rows
