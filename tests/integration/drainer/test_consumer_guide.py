"""The programs of docs/api-consumer.md and the library they use, on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import sqlite3
import threading
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from drainer.batch.work import Kind
from drainer.kafka_consumer.consumer import Consumer
from drainer.protocol.encoder import Ddl, Message
from drainer.protocol.event import DdlEvent, Event, ResolvedEvent, RowEvent
from tests.integration.drainer.test_kafka_consumer import changed, write
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.kafka import Broker
from tests.support.row_case import TEXT
from tests.support.row_changes import make_changes, make_table
from tests.support.servers import ROOT, wait_until
from tests.unit.drainer.kafka_check.test_command import ENCODER, INT, rows

pytestmark = pytest.mark.timeout(300)


def programs() -> dict[str, Any]:
    text = (ROOT / "docs/api-consumer.md").read_text()
    found: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if "def " in block:
            exec(compile(block, "docs/api-consumer.md", "exec"), found)
    return found


def uri_of(broker: Broker, topic: str) -> str:
    return f"kafka://{broker.address}/{topic}?protocol=open-protocol"


def shown(event: Event) -> tuple[int, object]:
    if isinstance(event, RowEvent):
        return event.commit_ts, (event.new or event.old or {})["id"].value
    assert isinstance(event, DdlEvent | ResolvedEvent)
    return event.commit_ts, event.query if isinstance(event, DdlEvent) else "resolved"


def resolved(commit_ts: int) -> list[Any]:
    return list(ENCODER.resolved(commit_ts))


def test_cache_invalidator_of_page_drops_rows_that_change_from_now_on(kafka: Broker) -> None:
    topic, stop = kafka.topic(2), threading.Event()
    write(kafka, topic, [*rows((1, 10)), *resolved(11)], resolved(11))
    cache: dict[tuple[str, object], object] = {("t", number): "cached" for number in (1, 2, 3)}
    reading = threading.Thread(
        target=programs()["invalidate"], args=(uri_of(kafka, topic), cache), kwargs={"stop": stop}
    )
    reading.start()
    try:
        commit_ts = 20

        def is_dropped() -> bool:
            nonlocal commit_ts
            commit_ts += 10
            write(kafka, topic, [*rows((2, commit_ts)), *resolved(commit_ts)], resolved(commit_ts))
            return ("t", 2) not in cache

        wait_until(is_dropped, what="the changed row is dropped")
    finally:
        stop.set()
        reading.join()
    assert sorted(cache) == [("t", 1), ("t", 3)]


def goods(commit_ts: int, old: str | None, new: str | None, key: int = 1) -> list[Message]:
    table = make_table("db", "goods", [("id", INT), ("name", TEXT)], primary=["id"])
    kind = Kind.INSERT if old is None else Kind.DELETE if new is None else Kind.UPDATE
    images = {"old": old, "new": new}
    rows = {which: [[key, name.encode()]] for which, name in images.items() if name is not None}
    changes = make_changes(table, kind, commit_ts=commit_ts, **rows)
    return list(framed_rows(ENCODER, encoded_rows(ENCODER.table(table), changes)))


def test_search_index_of_page_has_every_row_once(kafka: Broker, tmp_path: Path) -> None:
    topic, file = kafka.topic(2), tmp_path / "index.db"
    index = programs()["index"]

    def found(word: str) -> list[int]:
        index(uri_of(kafka, topic), file, once=True)
        db = sqlite3.connect(file)
        ids = [one for (one,) in db.execute("SELECT rowid FROM goods WHERE goods MATCH ? ORDER BY rowid", (word,))]
        db.close()
        return ids

    write(kafka, topic, [*goods(10, None, "green tea"), *resolved(12)], [*goods(11, None, "tea pot", 2), *resolved(12)])
    assert (found("tea"), found("tea")) == ([1, 2], [1, 2])
    first, second = goods(20, "green tea", "coffee"), goods(31, "tea pot", None, 2)
    write(kafka, topic, [*first, *resolved(30)], [*second, *resolved(30)])
    assert (found("tea"), found("coffee")) == ([2], [1])
    write(kafka, topic, resolved(40), resolved(40))
    assert (found("tea"), found("coffee")) == ([], [1])


def test_audit_log_of_page_has_every_change_once_and_no_torn_line(kafka: Broker, tmp_path: Path) -> None:
    topic, file = kafka.topic(2), tmp_path / "audit.jsonl"
    audit = programs()["audit"]
    ddl = ENCODER.ddl(Ddl(13, 12, "db", "t", "ALTER TABLE t ADD w INT", 5))
    write(kafka, topic, [*rows((1, 10)), *resolved(12)], [*rows((2, 11)), *resolved(12)])
    asyncio.run(audit(uri_of(kafka, topic), file, once=True))
    whole = file.read_bytes()
    write(kafka, topic, [*ddl, *changed(Kind.DELETE, 1, 0, 14), *resolved(20)], [*ddl, *resolved(20)])
    for end in (len(whole), len(whole) - 1, whole.rindex(b'{"position"') - 2, 3, 0):
        file.write_bytes(whole[:end] + b'{"at": 99')
        asyncio.run(audit(uri_of(kafka, topic), file, once=True))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(one["at"], one.get("ddl")) for one in lines if "at" in one] == [
            (10, None), (11, None), (13, "ALTER TABLE t ADD w INT"), (14, None),
        ]  # fmt: skip
        assert lines[-1]["position"]


def test_consumer_goes_on_at_its_position_wherever_it_ended(kafka: Broker) -> None:
    topic = kafka.topic(2)
    ddl = ENCODER.ddl(Ddl(13, 12, "db", "t", "ALTER TABLE t ADD w INT", 5))
    write(
        kafka,
        topic,
        [*rows((1, 10)), *resolved(10), *ddl, *rows((3, 15)), *resolved(15), *resolved(20)],
        [*rows((2, 11)), *ddl, *resolved(20)],
    )
    changes = [(10, 1), (11, 2), (13, "ALTER TABLE t ADD w INT"), (15, 3)]

    def without_resolved(events: list[tuple[int, object]]) -> list[tuple[int, object]]:
        return [event for event in events if event[1] != "resolved"]

    whole = [shown(event) for event in Consumer(uri_of(kafka, topic), once=True)]
    assert (without_resolved(whole), whole[-1]) == (changes, (20, "resolved"))
    for end in range(1, len(whole)):
        consumer = Consumer(uri_of(kafka, topic), once=True)
        given = list(itertools.islice(map(shown, consumer), end))
        stored = given[: max((n for n, one in enumerate(given, 1) if one[1] == "resolved"), default=0)]
        for again in (Consumer(uri_of(kafka, topic), consumer.position, once=True), consumer):
            rest = [shown(event) for event in again]
            assert without_resolved(stored + rest) == changes, f"ended after {end} events"


def test_consumer_in_event_loop_is_canceled_at_once(kafka: Broker) -> None:
    topic = kafka.topic(1)
    write(kafka, topic, [*rows((1, 10)), *resolved(10)])

    async def first_rows() -> list[tuple[int, object]]:
        found = []
        async with aclosing(aiter(Consumer(uri_of(kafka, topic)))) as events:  # type: ignore[type-var]
            async for event in events:
                found.append(shown(event))
                if isinstance(event, ResolvedEvent):
                    break
        waiting = asyncio.ensure_future(anext(aiter(Consumer(uri_of(kafka, topic), from_end=True))))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return found

    assert asyncio.run(first_rows()) == [(10, 1), (10, "resolved")]


def test_topic_and_partition_that_appear_are_read_from_their_beginning(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written there before the others were read that far, too."""
    monkeypatch.setattr("drainer.kafka_reading.records._ASK_S", 0.1)
    prefix = f"shop{uuid.uuid4().hex}"
    topic, stop = kafka.topic(1, name=prefix), threading.Event()
    write(kafka, topic, [*rows((1, 10)), *resolved(30)])
    found: list[tuple[int, object]] = []

    def read() -> None:
        found.extend(map(shown, Consumer(uri_of(kafka, topic), topics=[f"^{prefix}"], stop=stop)))

    def read_up_to(commit_ts: int) -> None:
        wait_until(lambda: (commit_ts, "resolved") in found, what=f"everything up to {commit_ts} is read")

    reading = threading.Thread(target=read)
    reading.start()
    try:
        read_up_to(30)
        kafka.grow(topic, 2)
        write(kafka, topic, resolved(40), [*rows((2, 20)), *resolved(40)])
        wait_until(lambda: (20, 2) in found, what="the new partition is read")
        another = kafka.topic(1, name=prefix)
        ddl = ENCODER.ddl(Ddl(15, 14, "db", "u", "CREATE TABLE u (id INT)", 3))
        write(kafka, another, [*ddl, *rows((3, 25)), *resolved(50)])
        write(kafka, topic, resolved(50), resolved(50))
        wait_until(lambda: (25, 3) in found, what="the new topic is read")
    finally:
        stop.set()
        reading.join()
    changes = [one for one in found if one[1] != "resolved"]
    assert changes == [(10, 1), (20, 2), (15, "CREATE TABLE u (id INT)"), (25, 3)]


def test_rows_that_wait_for_partition_behind_are_bounded(kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic, ahead = kafka.topic(2), 20_000
    many: list[Message] = []
    for begin in range(0, ahead, 100):
        many += [*rows(*((key, 100 + key) for key in range(begin, begin + 100))), *resolved(199 + begin)]
    write(kafka, topic, many, [*resolved(50)])
    consumer = Consumer(uri_of(kafka, topic), once=True, rows_waiting_max=2000)
    with caplog.at_level(logging.INFO):
        assert {shown(event)[0] for event in consumer} == {50}
    (waiting,) = re.findall(r"stopped .*waiting=(\d+)", caplog.text)
    assert 2000 < int(waiting) < 4000
    write(kafka, topic, [], resolved(100 + ahead))
    again = Consumer(uri_of(kafka, topic), consumer.position, once=True, rows_waiting_max=2000)
    keys = [shown(event)[1] for event in again if isinstance(event, RowEvent)]
    assert keys == list(range(ahead))
