"""TiCDC's messages of the recordings, in several partitions, as the binlogs that a drainer reads in place of TiDB's."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pytest
from binlog import envelope
from binlog.tidb.mutation import parse_prewrite
from binlog.tidb.row import Row, decode_delete, decode_insert, decode_update

from drainer.batch.work import SegmentWork
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.changes.texts import is_read_as_names
from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.column_text import names_of
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, Event, RowEvent, key_of
from drainer.protocol.json_read import Reader
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.ranges.upstream import Upstream
from drainer.row.column_type import ColumnType, DecodedValue
from drainer.schema.filter import Filter
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.steps import Rows
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.ticdc.binlogs import RowEncoder
from drainer.ticdc.columns import plain_reader
from drainer.ticdc.partition import Head, Message, MessageReader, RowHead, SchemaHead, heads_of
from drainer.ticdc.pull import PartitionRange, _Translation, whole_row
from drainer.ticdc.tables import MessageSchemas, NamedTable, job_of, named_tables, packed, unpacked
from tests.golden.test_files import policy
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.message_case import Pairs, messages_of
from tests.support.recorded_steps import steps_of
from tests.support.row_packets import shown as shown_text
from tests.support.ticdc_topic import BinlogsOnly, CountsColumns, Part, spread
from tests.support.upstream_case import FakeSession, snapshot_of

OPTIONS = [
    ProtocolOptions("open-protocol"),
    ProtocolOptions("canal-json", enable_tidb_extension=True),
    ProtocolOptions("open-protocol", only_output_updated_columns=True, time_zone="America/New_York"),
    ProtocolOptions(
        "canal-json",
        enable_tidb_extension=True,
        content_compatible=True,
        time_zone="Asia/Kolkata",
        only_output_updated_columns=True,
    ),
    ProtocolOptions("simple"),
    ProtocolOptions("simple", encoding_format="avro"),
    ProtocolOptions("debezium", enable_tidb_extension=True, time_zone="Asia/Tokyo"),
    ProtocolOptions("debezium", enable_tidb_extension=True, debezium_disable_schema=True),
]
# Tables whose values Debezium does not have: large DECIMALs, NULLs where the default is another value, a day that does
# not exist, ENUMs and SETs with an empty name.
NOT_IN_DEBEZIUM = (
    *("ddl1.t1", "ddl1.t1_like", "ddl1.st", "ddl1.t2", "ddl1.pr", "ddl1.mc", "ddl1.ml1", "ddl1.ml2"),
    *("dh1.ms", "dh1.ms2", "dh1.ct1", "dh1.pkc", "ks.k_gen"),
    *("types.t_dec", "types.t_def", "types.p_dec", "types.t_all", "types.t_enum"),
)


def filtered(options: ProtocolOptions) -> Filter:
    left_out = NOT_IN_DEBEZIUM if options.protocol == "debezium" else ()
    return Filter.create(rules=["*.*", "!ks.k_genpk", *(f"!{one}" for one in left_out)])


def events_of(options: ProtocolOptions, pairs: Pairs) -> list[Event]:
    decoder = make_decoder(options)
    return [event for key, value in pairs for event in decoder.decode(key, value)]


def tables_of(capture: CaptureSet, events: list[Event]) -> bytes:
    return named(JobHistory(parse_jobs(capture.jobs_text.decode(), "jobs")), events)


def named(history: JobHistory, events: list[Event]) -> bytes:
    read_at: dict[tuple[int, str], int] = {}
    for event in events:
        if isinstance(event, DdlEvent):
            job = job_of(event, history, read_at)
            assert job is not None, event
            read_at[event.commit_ts, event.query] = job.id
    return packed(named_tables(history, read_at))


def schemas_of(options: ProtocolOptions, pairs: Pairs) -> MessageSchemas:
    """Each message several times, as from several partitions."""
    heads, schemas, before = heads_of(options), MessageSchemas(), list[Reader]()
    for pair in pairs:
        before += [head.message for head in heads(*pair) if isinstance(head, SchemaHead)]
        for message in before[-3:]:
            schemas.learn(message)
    return schemas


@dataclass(frozen=True)
class Translated(CaptureSet):
    """A recording whose binlogs, and perhaps jobs, were read from messages."""

    served: list[bytes] = field(default_factory=list)
    jobs: bytes = b""

    @cached_property
    def jobs_text(self) -> bytes:
        return self.jobs or self.read("ddl_history.json")

    @cached_property
    def binlogs(self) -> list[bytes]:
        return self.served


def translated(options: ProtocolOptions, pairs: Pairs, tables: bytes) -> list[bytes]:
    """What tasks read of the messages in three partitions."""
    address = KafkaAddress("t", options, {})
    binlogs: set[bytes] = set()
    for number, part in enumerate(spread(options, pairs)):
        at = KafkaPartition("t", number)
        records = [Record(at, offset, *pair) for offset, pair in enumerate(part)]
        wanted = PartitionRange(at, address, 0, len(part), 0, 1 << 62, tables)
        found = list(_Translation(wanted, 0, 1 << 62).binlogs(records))
        assert found == sorted(found)
        binlogs |= {payload for *_, payload in found}
    return list(binlogs)


def shown(events: list[Event]) -> Counter[str]:
    """Without types, as columns may have the type of before a DDL or after it, and without the text of a DDL, which is
    that of the job where rows need the DDL before its binlog."""
    found: Counter[str] = Counter()
    for event in events:
        if isinstance(event, RowEvent):
            images = [{name: one.value for name, one in (image or {}).items()} for image in (event.old, event.new)]
            found[repr((event.commit_ts, event.change, event.schema, event.table, images))] += 1
        elif isinstance(event, DdlEvent):
            found[repr((event.schema, event.table))] += 1
    return found


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda one: f"{one.protocol}-{one.encoding_format}-{one.only_output_updated_columns}"
)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_binlogs_of_messages_make_the_same_messages(
    capture: CaptureSet, options: ProtocolOptions, tmp_path: Path
) -> None:
    rules = replace(policy(capture), filter=filtered(options))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    events = events_of(options, pairs)
    tables = tables_of(capture, events)
    read = translated(options, pairs, tables)
    wanted, unlike = shown(events), "no difference"
    if options.protocol == "debezium":  # another protocol shows all that was read
        options, unlike = OPTIONS[0], "zero', 't'"  # t_time's days that do not exist are null
        whole = messages_of(capture, options, tmp_path / "jobs.json", rules)
        wanted = shown(events_of(options, whole))
    again = messages_of(Translated(capture.directory, read), options, tmp_path / "jobs.json", rules)
    found = shown(events_of(options, again))
    differences = [*(found - wanted), *(wanted - found)]
    assert [one for one in differences if unlike not in one] == []


def folded(
    options: ProtocolOptions, parts: list[Part], tables: bytes, step: Rows, of: type[SegmentCutter]
) -> tuple[SegmentWork, int]:
    """What the drainer makes of a step's messages; the number of rows that became columns."""
    decoder, blobs, count = SegmentDecoder(step.view, SQL_TEXT), [], 0
    for number, part in enumerate(parts):
        at = KafkaPartition("t", number)
        wanted = PartitionRange(at, KafkaAddress("t", options, {}), 0, len(part), 0, 1 << 62, tables)
        cutter = of(decoder)
        records = [Record(at, offset, *pair) for offset, pair in enumerate(part)]
        for _ in _Translation(wanted, step.after_ts, step.until_ts).fold(cutter, cutter.add_in_order, records):
            pass
        count += getattr(cutter, "added", 0)
        blobs += cutter.cut(1).values()
    return merge_slot(blobs, SQL_TEXT), count


@pytest.mark.parametrize("options", OPTIONS[:6], ids=lambda one: f"{one.protocol}-{one.encoding_format}")
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_rows_recognised_by_their_bytes_are_those_that_are_parsed(
    capture: CaptureSet, options: ProtocolOptions, tmp_path: Path
) -> None:
    pairs = messages_of(capture, options, tmp_path / "jobs.json", policy(capture))
    records = [Record(KafkaPartition("t", 0), offset, *pair) for offset, pair in enumerate(pairs)]
    heads, reader, parsed = heads_of(options), MessageReader(options), list[int]()
    parse = reader._parsed
    reader._parsed = lambda record: parsed.append(record.offset) or parse(record)  # type: ignore[method-assign, func-returns-value]
    found: list[tuple[int, Head]] = []
    for part in reader.read(records):
        if isinstance(part, Message):
            found += [(part.offset, head) for head in part.heads]
        else:
            found += zip(part.offsets, map(RowHead, part.commit_ts, part.tables), strict=True)
    wanted = [(record.offset, head) for record in records for head in heads(record.key, record.value)]
    assert [repr(one) for one in found if not isinstance(one[1], SchemaHead)] == [
        repr(one) for one in wanted if not isinstance(one[1], SchemaHead)
    ]
    known = {head.of for _, head in wanted if isinstance(head, RowHead)}
    others = [offset for offset, head in wanted if not isinstance(head, RowHead)]
    if options.encoding_format == "json":
        quoted = [offset for offset, head in wanted if isinstance(head, RowHead) and '"' in head.of.table]
        assert len(parsed) <= len(known) + len({*others, *quoted}), "rows of known tables are not parsed"


@pytest.mark.parametrize("options", [one for one in OPTIONS if plain_reader(one)], ids=lambda one: one.protocol)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_rows_that_become_columns_are_those_of_binlogs(
    capture: CaptureSet, options: ProtocolOptions, tmp_path: Path
) -> None:
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!ks.k_genpk"]))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    tables, parts = tables_of(capture, events_of(options, pairs)), spread(options, pairs)
    total = 0
    for step in steps_of(capture)[1]:
        if isinstance(step, Rows):
            columns, count = folded(options, parts, tables, step, CountsColumns)
            binlogs, _ = folded(options, parts, tables, step, BinlogsOnly)
            assert [(one.shape, list(map(tuple, one.rows))) for one in columns.folded] == [
                (one.shape, list(map(tuple, one.rows))) for one in binlogs.folded
            ]
            assert columns.ordered == binlogs.ordered
            total += count
    assert total > 40


def _text(of: ColumnType, value: DecodedValue) -> bytes | None:
    if isinstance(value, int) and is_read_as_names(of):
        return names_of(of)(value).encode()
    return shown_text(of, value)


def answer(table: NamedTable, values: Row) -> list[bytes | None]:
    """A row as TiDB shows it."""
    columns = [one for one in table.info.public_columns if not (one.is_virtual or one.hidden)]
    types = [ColumnType.of(one.type) for one in columns]
    return [_text(of, of.decoded_value(values.get(one.id))) for one, of in zip(columns, types, strict=True)]


@pytest.mark.parametrize(
    "options", [*OPTIONS[:2], *OPTIONS[3:6]], ids=lambda one: f"{one.protocol}-{one.encoding_format}"
)
@pytest.mark.parametrize("name", ["keys", "types"])
def test_rows_read_upstream_by_their_key_become_the_same_binlogs(
    name: str, options: ProtocolOptions, tmp_path: Path
) -> None:
    capture = CaptureSet(GOLDEN / name)
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!ks.k_genpk"]))
    events = events_of(options, messages_of(capture, options, tmp_path / "jobs.json", rules))
    tables, changes = unpacked(tables_of(capture, events)), Counter[Change]()
    for event in events:
        if not isinstance(event, RowEvent) or not (key := key_of(event)):
            continue
        table = tables.at(event.schema, event.table, event.commit_ts)
        assert table is not None
        encoder = RowEncoder(table, options.zone)
        _, wanted = encoder.binlog(event)
        head = envelope.scan(wanted)
        ((_, _, row),) = parse_prewrite(wanted[head.value_at : head.value_end]).rows()
        new = decode_insert(table.info, row)[1] if event.change is Change.INSERT else None
        old = decode_delete(table.info, row) if event.change is Change.DELETE else None
        if event.change is Change.UPDATE:
            old, new = decode_update(row)
        sessions = FakeSession(*([answer(table, one)] for one in (old, new) if one is not None))
        images = [
            image and {name: one for name, one in image.items() if name in key} for image in (event.old, event.new)
        ]
        alone = event._replace(old=images[0], new=images[1], handle_only=True)
        upstream = Upstream(lambda ts, session=sessions: snapshot_of(session, ts))  # type: ignore[misc]
        assert encoder.binlog(whole_row(alone, table.info, upstream, options))[1] == wanted, event
        asked = [said.partition("=")[2] for said in sessions.said if "tidb_snapshot" in said]
        assert asked == [f"'{event.commit_ts - is_old}'" for is_old in (1, 0) if (old, new)[1 - is_old] is not None]
        changes[event.change] += 1
    assert min(changes[one] for one in (Change.INSERT, Change.UPDATE, Change.DELETE)) > 20


@pytest.mark.parametrize("options", OPTIONS[4:6], ids=["json", "avro"])
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_schemas_of_messages_read_the_same_rows_as_the_history(
    capture: CaptureSet, options: ProtocolOptions, tmp_path: Path
) -> None:
    """Without tables that have generated columns, without FLASHBACK DATABASE, whose message has no schemas, and
    without DDLs of views and sequences, whose messages have none here."""
    jobs = parse_jobs(capture.jobs_text.decode(), "jobs")
    generated = {
        f"!{job.schema_name}.{job.table_info.name}"
        for job in jobs
        if job.table_info is not None and any(column.is_generated for column in job.table_info.columns)
    }
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!fdb*.*", *sorted(generated)]))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    events, read = events_of(options, pairs), asyncio.run(schemas_of(options, pairs).refresh())
    binlogs = translated(options, pairs, named(JobHistory(read), events))
    again = Translated(capture.directory, binlogs, b"\n".join(job.dump() for job in read))
    others = events_of(options, messages_of(again, options, tmp_path / "jobs.json", rules))
    found, wanted = (shown([one for one in each if not is_of_no_table(one)]) for each in (others, events))
    assert (found - wanted, wanted - found) == (Counter(), Counter())


def is_of_no_table(event: Event) -> bool:
    return isinstance(event, DdlEvent) and bool(re.search(r"\b(VIEW|SEQUENCE)\b", event.query, re.IGNORECASE))


def test_deletes_with_their_key_alone_are_refused(tmp_path: Path) -> None:
    """A drainer would look for NULLs in the other columns of unique keys, and find the destination diverged."""
    capture = CaptureSet(GOLDEN / "types")
    options = replace(OPTIONS[0], delete_only_output_handle_key_columns=True)
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!types.t_nokey"]))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    with pytest.raises(MessageError, match=r"the delete of .* delete-only-output-handle-key-columns"):
        translated(options, pairs, tables_of(capture, events_of(options, pairs)))
