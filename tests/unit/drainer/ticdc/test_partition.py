"""What is planned of a partition and what its tasks read: every row and DDL exactly once, whatever TiCDC repeats."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from binlog import envelope
from binlog.cluster import tso
from binlog.errors import BinlogError, PumpUnavailable, PurgedPosition
from binlog.tidb.job import ActionType, Job
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, ReadError, Record, TopicReader
from drainer.protocol.registry import ProtocolOptions
from drainer.pumps.watermark import BatchLimits, PumpMark
from drainer.ranges.upstream import Snapshot, UpstreamDown
from drainer.schema.history.base import JobSource
from drainer.ticdc.partition import MessageReader, PartitionPump, Partitions, Rows
from drainer.ticdc.pull import PartitionRange, _Translation
from drainer.ticdc.tables import TopicHistory, unpacked
from tests.support.examples import FEW
from tests.support.memory_records import RecordsReader, message
from tests.support.schema_case import job, table

Event = tuple[Any, Any]
Binlog = tuple[int, int, bytes]
ADDRESS = KafkaAddress("t", ProtocolOptions("open-protocol"), {})
AT = KafkaPartition("t", 0)
ALL = BatchLimits(1 << 40)
TABLES = ("keyed", "keyless", "far")


def row(commit_ts: int, name: str, value: int) -> Event:
    column = {"t": 8, "f": 0 if name == "keyless" else 2, "v": value}
    return {"ts": commit_ts, "scm": "d", "tbl": name, "t": 1}, {"u": {"id": column}}


def ddl(commit_ts: int, name: str = "keyed") -> Event:
    return {"ts": commit_ts, "scm": "d", "tbl": name, "t": 2}, {"q": f"alter {commit_ts}", "t": 7}


def resolved(ts: int) -> Event:
    return {"ts": ts, "t": 3}, None


class Jobs(JobSource):
    """CREATE of each table before everything, and an ADD INDEX for each DDL."""

    def __init__(self, ddls: Sequence[int]) -> None:
        self.jobs: list[Job] = [job(1, ActionType.CREATE_SCHEMA, 1, finished_ts=1, schema=(1, "d"))]
        steps = [(at, ActionType.CREATE_TABLE, 1, name) for at, name in enumerate(TABLES, 2)]
        for at, kind, ts, name in [*steps, *((at, ActionType.ADD_INDEX, ts, "keyed") for at, ts in enumerate(ddls, 9))]:
            info = table(10 + TABLES.index(name), name)
            of: dict[str, Any] = {"schema_id": 1, "schema_name": "d", "table_id": info.id, "table_name": name}
            self.jobs.append(job(at, kind, at, finished_ts=ts, start_ts=0, table_info=info, **of))

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        return self.jobs


def sent(chance: random.Random, streams: dict[str, list[Event]], partitions: int) -> list[list[list[Event]]]:
    """The messages of each partition. TiCDC sends each table's rows in the order of their commit_ts, a DDL after all
    rows below it, and begins again now and then."""
    parts: list[list[list[Event]]] = [[] for _ in range(partitions)]
    done, checkpoint_ts = dict.fromkeys(streams, 0), 2

    def put(event: Event, at: int | None = None) -> None:
        for part in parts if at is None else [parts[at]]:
            part[-1:] = [*part[-1:], [event]] if not part or chance.random() < 0.7 else [[*part[-1], event]]

    while left := {name: some[done[name]] for name, some in streams.items() if done[name] < len(some)}:
        least = min(key["ts"] for key, _ in left.values())
        step, name = chance.randrange(8), chance.choice(list(left))
        key, value = left[name]
        if step < 2:  # one may go back
            put(resolved(ts := least if step else chance.randint(2, least)))
            checkpoint_ts = max(checkpoint_ts, ts)
        elif step == 2:
            ts = chance.randint(2, checkpoint_ts)
            for of, some in streams.items():
                begin = sum(key["ts"] < ts for key, _ in some)
                # Without a key, rows are not recognised if they begin again with the ts that was sent last.
                if of != "keyless" or (begin < done[of] and some[begin][0]["ts"] < some[done[of] - 1][0]["ts"]):
                    done[of] = min(begin, done[of])
        elif name == "ddl" and key["ts"] == least:
            put((key, value))
            done[name] += 1
        elif name != "ddl" and (name != "keyed" or key["ts"] <= left.get("ddl", resolved(99))[0]["ts"]):
            put((key, value), 0 if name == "keyless" else value["u"]["id"]["v"] % partitions)
            done[name] += 1
    put(resolved(99))
    return parts


def records_of(messages: Sequence[Sequence[Event]]) -> list[Record]:
    return [Record(AT, offset, *message(events)) for offset, events in enumerate(messages)]


def test_rows_of_one_message_have_each_its_own_ts() -> None:
    """Also when their table is known by the message before."""
    (rows,) = MessageReader(ADDRESS.options).read(records_of([[row(5, "keyed", 1), row(6, "keyed", 2)]] * 2))
    assert isinstance(rows, Rows)
    assert rows.commit_ts == [5, 6, 5, 6]


def pump_of(reader: RecordsReader, *ddls: int) -> PartitionPump:
    history = TopicHistory([Jobs(ddls)])
    return PartitionPump(AT, ADDRESS, history, open_reader=lambda *_: reader)  # type: ignore[arg-type, return-value]


async def followed(pump: PartitionPump, reader: RecordsReader, after_ts: int = 0) -> PartitionPump:
    """A pump that has read all records, and was interrupted before `reader.end`."""
    pump._resolved_ts = after_ts
    pump._task = asyncio.create_task(asyncio.sleep(0))
    for end in (reader.end, 1 << 40):
        reader.end = end
        with suppress(ReadError):
            await pump._read()
    pump._error = None
    times = pump._binlogs.all()["commit_ts"].tolist()
    assert times == sorted(times)
    assert min(times, default=after_ts + 1) > after_ts
    return pump


def read(mark: PumpMark, records: Sequence[Record], after_ts: int, until_ts: int) -> Iterator[Binlog]:
    """What a task reads of a range."""
    place = mark.topic
    assert isinstance(place, PartitionRange)
    assert until_ts <= place.final_ts
    return _Translation(place, after_ts, until_ts).binlogs(records[place.begin : place.end])


def shown(binlogs: Sequence[Binlog]) -> Counter[Binlog]:
    """By commit_ts, job and values: binlogs of one (commit_ts, start_ts) count once."""
    found: Counter[Binlog] = Counter()
    for payload in {(commit_ts, start_ts): payload for commit_ts, start_ts, payload in binlogs}.values():
        one = envelope.scan(payload)
        found[one.commit_ts, one.ddl_job_id, payload[-8:] if not one.ddl_job_id else b""] += 1
    return found


async def taken(chance: random.Random, parts: Sequence[list[Record]], ddls: Sequence[int]) -> list[Binlog]:
    """What the tasks of consecutive ranges read, planned by pumps that are interrupted, or begin again."""
    after_ts, found, pumps = 0, list[Binlog](), list[PartitionPump]()
    while after_ts < 98:
        if not pumps or chance.random() < 0.3:
            readers = [RecordsReader(records, end=chance.randint(0, len(records))) for records in parts]
            pumps = [await followed(pump_of(reader, *ddls), reader, after_ts) for reader in readers]
        limits = BatchLimits(chance.choice([1, 200, 1 << 40]), chance.choice([0, 2]), chance.random() < 0.5)
        marks = [await pump.mark(after_ts=after_ts, limits=limits) for pump in pumps]
        assert min(mark.resolved_ts for mark in marks) == 98
        until_ts = chance.choice([min(mark.end_ts for mark in marks), chance.randint(after_ts, 98)])
        for mark, records in zip(marks, parts, strict=True):
            some = [*read(mark, records, after_ts, until_ts)]
            assert some == sorted(some)
            assert mark.counted(mark.end_ts) is None
            assert mark.batch_count or not any(commit_ts <= mark.end_ts for commit_ts, *_ in some)
            found += some
        after_ts = max(until_ts, after_ts)
    return found


@given(st.integers(0, 1 << 30))
@FEW
def test_every_row_and_ddl_is_read_exactly_once(seed: int) -> None:
    chance, numbers = random.Random(seed), iter(range(100, 1000))
    ddls = sorted(chance.sample(range(3, 90), chance.randint(0, 3)))
    times = {name: sorted(chance.choices(range(3, 90), k=6)) for name in TABLES}
    streams = {
        name: [row(ts, name, ts % 2 if name == "keyless" else next(numbers)) for ts in some]
        for name, some in times.items()
    }
    whole = Counter[Binlog]((ts, at, b"") for at, ts in enumerate(ddls, 9))
    for event in [event for some in streams.values() for event in some]:
        whole += shown(asyncio.run(planned([[event], [resolved(99)]], 0, 98)))
    parts = sent(chance, {**streams, "ddl": [ddl(ts) for ts in ddls]}, chance.randint(1, 3))
    assert shown(asyncio.run(taken(chance, [*map(records_of, parts)], ddls))) == whole


async def planned(messages: Sequence[Sequence[Event]], after_ts: int, until_ts: int) -> list[Binlog]:
    reader = RecordsReader(records_of(messages))
    mark = await (await followed(pump_of(reader, 50), reader, after_ts)).mark(after_ts=after_ts, limits=ALL)
    return [*read(mark, reader.records, after_ts, until_ts)]


@pytest.mark.parametrize(
    ("low", "sent_s", "begin"),
    [
        (0, (0,), 0),
        (1, (0, -59), None),
        (1, (-62, -61, 0), 2),
        (1, (-70, -62), 2),
        (2, (-70, -62), None),  # nothing is left
        (2, (-70, -62, -58, 0), None),
    ],
)
def test_a_position_below_what_retention_left_is_refused(low: int, sent_s: tuple[int, ...], begin: int | None) -> None:
    """A resolved event below the position does not show that all is there: rows are sent long before theirs."""
    now_ms = 1_700_000_000_000
    after_ts = tso.compose(now_ms)
    reader = RecordsReader(records_of([[resolved(5)]] * len(sent_s)), [now_ms + 1000 * one for one in sent_s], low)
    pump = pump_of(reader)
    pump._opened(0)
    if begin is None:
        with pytest.raises(PurgedPosition, match=rf"^t\[0\] offset {low}: messages above ts {after_ts} may be missing"):
            pump._opened(after_ts)
    else:
        pump._opened(after_ts)
        assert reader._next == begin


def test_a_range_ends_with_the_event_that_completes_it() -> None:
    """What is behind is not decoded: here, a row of a table that is not in the history."""
    messages = [[row(5, "keyed", 1)], [resolved(7)], [row(9, "unknown", 2)], [resolved(20)]]
    assert len(asyncio.run(planned(messages, 0, 6))) == 1
    with pytest.raises(BinlogError, match=r"^t\[0\] offset 2: `d`\.`unknown` at commit_ts 9 is not in the DDL history"):
        asyncio.run(planned(messages, 0, 19))


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"ohk": True}, r"\(id = 1\) alone, .*: \[upstream\] host names no TiDB .* claim-check"),
        ({"ccl": "s3://b/c"}, "at s3://b/c: claim-check-stor"),
    ],
)
def test_a_row_whose_values_are_elsewhere_is_refused(of: dict[str, Any], words: str) -> None:
    key, value = row(5, "keyed", 1)
    with pytest.raises(BinlogError, match=rf"t\[0\] offset 0: .*`d`\.`keyed` at commit_ts 5 was too large .* {words}"):
        asyncio.run(planned([[({**key, **of}, value)], [resolved(7)]], 0, 6))


def test_a_batch_waits_for_an_upstream_that_does_not_answer() -> None:
    def connect(ts: int) -> Snapshot:
        raise UpstreamDown(f"{ts}: away")

    key, value = row(5, "keyed", 1)
    pump = pump_of(reader := RecordsReader(records_of([[({**key, "ohk": True}, value)], [resolved(7)]])))
    pump._connect = connect

    async def mark() -> PumpMark:
        return await (await followed(pump, reader)).mark(after_ts=0, limits=ALL)

    with pytest.raises(PumpUnavailable, match=r"^5: away"):
        list(read(asyncio.run(mark()), reader.records, 0, 6))


def test_a_range_above_what_was_read_is_refused() -> None:
    place = PartitionRange(AT, ADDRESS, 0, 0, 0, 20, b"")
    assert not list(place.pull(0, 20))
    with pytest.raises(ReadError, match=r"^t\[0\] was read up to 20, below the end 21"):
        list(place.pull(0, 21))


def test_a_partition_that_is_silent_or_corrupt_holds_back() -> None:
    async def state() -> None:
        reader = RecordsReader(records_of([[resolved(5)]]))
        pump = await followed(pump_of(reader), reader)
        pump._silence_max_s = 0
        assert (await pump.mark(after_ts=3, limits=ALL)).resolved_ts == 4
        with pytest.raises(PumpUnavailable, match=r"^t\[0\] is read up to ts 4, and no resolved event came for 0 s"):
            await pump.mark(after_ts=4, limits=ALL)
        rows = RecordsReader(records_of([[row(5, "keyed", 1)]]))
        pump = await followed(pump_of(rows), rows)
        pump._silence_max_s = 0
        with pytest.raises(PumpUnavailable, match=r"^t\[0\] is .* no resolved event came for 0 s: .* or writes none"):
            await pump.mark(after_ts=0, limits=ALL)
        broken = pump_of(RecordsReader([Record(AT, 7, b"", b"")]))
        with pytest.raises(BinlogError, match=r"^t\[0\] offset 7: open-protocol: the key begins with nothing"):
            await broken._read()

    asyncio.run(state())


def test_equal_rows_of_a_message_come_before_the_ddl_of_their_ts() -> None:
    events = [ddl(50), row(50, "keyless", 1), row(50, "keyless", 1)]
    found = asyncio.run(planned([events, [resolved(60)]], 0, 59))
    assert [envelope.scan(payload).ddl_job_id for *_, payload in found] == [0, 0, 9]
    assert len({one[1] for one in found}) == 3


def test_own_ddls_and_empty_ones_are_left_out() -> None:
    key = {"ts": 40, "scm": "tidb_binlog", "tbl": "keyed", "t": 2}
    events = [(key, {"q": "drop", "t": 4}), ({**key, "scm": "d"}, {"q": "", "t": 4}), row(41, "keyed", 1)]
    own = ({"ts": 41, "scm": "Tidb_Binlog", "tbl": "checkpoint", "t": 1}, {"u": {"id": {"t": 8, "v": 1}}})
    messages = [[*events, own], [resolved(50)]]
    assert [one[0] for one in asyncio.run(planned(messages, 0, 49))] == [41]
    pump = pump_of(reader := RecordsReader(records_of(messages)), 50)
    assert asyncio.run(followed(pump, reader))._binlogs.all()["ddl"].tolist() == [False, False]


def test_a_job_that_is_listed_late_is_waited_for() -> None:
    """Another one, which runs at the same time and finishes later, is listed already."""

    class Late(Jobs):
        late = 9

        async def refresh(self, wanted: int | None = None) -> list[Job]:
            late, self.late = self.late, 0
            return [one for one in self.jobs if one.id != late]

    reader = RecordsReader(records_of([[ddl(50)], [ddl(50)], [resolved(60)]]))
    pump = pump_of(reader)
    pump._history = TopicHistory([Late([50, 60])])
    asyncio.run(followed(pump, reader))
    assert pump._binlogs.all()["commit_ts"].tolist() == [50, 50]
    assert unpacked(pump._history.packed()).ddls == {(50, "alter 50"): (9, "alter 50")}


def test_partitions_are_listed_again_when_known_ones_are_resolved_further() -> None:
    """A row below what the known ones are resolved to may be in one that was added in between."""

    asked: list[KafkaPartition] = []
    ask = lambda: asked.append(KafkaPartition("t", len(asked)))  # noqa: E731
    found = Partitions(ADDRESS, (), TopicHistory([]))
    found._reader = cast("TopicReader", SimpleNamespace(ask=ask, topic_partitions=asked.copy))

    def names() -> list[str]:
        return [node.status.node_id for node in asyncio.run(found.list("pumps")).nodes]

    assert names() == ["t[0]"]
    pump = found.dial("t[0]", "", True)
    assert isinstance(pump, PartitionPump)
    assert names() == ["t[0]"]
    pump._resolved_ts = 5
    assert names() == names() == ["t[0]", "t[1]"]


def test_partition_that_is_written_without_a_pause_counts_when_its_end_at_the_start_was_read() -> None:
    class Busy(RecordsReader):
        def ends(self, _: KafkaPartition) -> tuple[int, int]:
            return 0, 2

        def at_end(self) -> bool:
            return False

    for count, is_read in ((1, False), (2, True), (3, True)):
        pump = pump_of(Busy(records_of([[resolved(5 + number)] for number in range(count)])))
        with pytest.raises(ReadError):
            asyncio.run(pump._read())
        assert (pump._error is None) == is_read
