"""TiCDC's messages of the recordings, in several partitions, as the binlogs that a drainer reads in place of TiDB's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pytest

from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.errors import MessageError
from drainer.protocol.event import DdlEvent, Event, RowEvent
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_decoder
from drainer.schema.filter import Filter
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.ticdc.pull import PartitionRange, _Translation
from drainer.ticdc.tables import job_of, named_tables, packed
from tests.golden.test_files import policy
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.message_case import Pairs, messages_of
from tests.support.ticdc_topic import spread

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
]


def events_of(options: ProtocolOptions, pairs: Pairs) -> list[Event]:
    decoder = make_decoder(options)
    return [event for key, value in pairs for event in decoder.decode(key, value)]


def tables_of(capture: CaptureSet, events: list[Event]) -> bytes:
    history = JobHistory(parse_jobs(capture.jobs_text.decode(), "jobs"))
    read_at: dict[tuple[int, str], int] = {}
    for event in events:
        if isinstance(event, DdlEvent):
            job = job_of(event, history, read_at)
            assert job is not None, event
            read_at[event.commit_ts, event.query] = job.id
    return packed(named_tables(history, read_at))


@dataclass(frozen=True)
class Translated(CaptureSet):
    """A recording whose binlogs were read from messages."""

    served: list[bytes] = field(default_factory=list)

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
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!ks.k_genpk"]))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    events = events_of(options, pairs)
    tables = tables_of(capture, events)
    read = translated(options, pairs, tables)
    again = messages_of(Translated(capture.directory, read), options, tmp_path / "jobs.json", rules)
    found, wanted = shown(events_of(options, again)), shown(events)
    assert (found - wanted, wanted - found) == (Counter(), Counter())


def test_deletes_with_their_key_alone_are_refused(tmp_path: Path) -> None:
    """A drainer would look for NULLs in the other columns of unique keys, and find the destination diverged."""
    capture = CaptureSet(GOLDEN / "types")
    options = replace(OPTIONS[0], delete_only_output_handle_key_columns=True)
    rules = replace(policy(capture), filter=Filter.create(rules=["*.*", "!types.t_nokey"]))
    pairs = messages_of(capture, options, tmp_path / "jobs.json", rules)
    with pytest.raises(MessageError, match=r"the delete of .* delete-only-output-handle-key-columns"):
        translated(options, pairs, tables_of(capture, events_of(options, pairs)))
