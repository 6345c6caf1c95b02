"""What the Kafka demo makes of the lines that a printer writes, also of those that are not there whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo.kafka.events import EventsSeen, told


def row(kind: str = "insert", *, topic: str = "shop", partition: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": 7,
        "event": kind,
        "table": "shop.t",
        "commit_ts": 5,
        **more,
    }


def resolved(commit_ts: int, *, topic: str = "shop", partition: int = 0) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": 8, "event": "resolved", "commit_ts": commit_ts}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)


def test_events_seen_of_missing_file_is_empty(path: Path) -> None:
    seen = EventsSeen(path)
    seen.poll(0)
    assert (seen.topics, seen.newest, seen.has_all(0)) == ({}, "", False)


def test_events_seen_counts_rows_and_ddls_by_topic(path: Path) -> None:
    seen = EventsSeen(path)
    write(
        path, row(new={"id": 1}), row("ddl", query="ALTER …"), row("update", partition=2, old={"id": 1}, new={"id": 2})
    )
    write(path, row("ddl", partition=2, query="ALTER …"))  # the same, in another partition
    write(path, row("delete", topic="other", old={"id": 3}), row("bootstrap"), resolved(4))
    seen.poll(1)
    counts = {name: (sorted(topic.partitions), topic.rows, len(topic.ddls)) for name, topic in seen.topics.items()}
    assert counts == {"shop": ([0, 2], 2, 1), "other": ([0], 1, 0)}
    assert seen.newest == "other[0] offset 7: delete shop.t id=3"


def test_events_seen_waits_for_end_of_incomplete_line(path: Path) -> None:
    seen = EventsSeen(path)
    text = json.dumps(row(new={"name": "Käse"}), ensure_ascii=False).encode()
    for cut in (10, text.index(b"\xa4"), len(text)):
        path.write_bytes(text[:cut])
        seen.poll(cut)
        assert seen.topics == {}
    path.write_bytes(text + b"\n")
    seen.poll(1000)
    assert seen.newest.endswith("name=Käse")
    assert seen.topics["shop"].rows == 1


def test_events_seen_has_all_once_every_partition_is_resolved(path: Path) -> None:
    seen = EventsSeen(path)
    write(path, resolved(10), resolved(12, partition=1))
    seen.poll(0)
    assert [seen.has_all(ts) for ts in (10, 11)] == [True, False]
    write(path, row(partition=2, new={"id": 1}))
    seen.poll(1)
    assert not seen.has_all(10), "a partition of which nothing is known"
    write(path, resolved(12), resolved(12, partition=2), resolved(11, partition=2))
    seen.poll(2)
    assert [seen.has_all(ts) for ts in (12, 13)] == [True, False]


def test_events_seen_rate_is_over_last_seconds(path: Path) -> None:
    seen = EventsSeen(path)
    write(path, row(new={"id": 1}))
    seen.poll(100)
    assert seen.topics["shop"].rate == 0
    write(path, *[row(new={"id": 1})] * 30)
    seen.poll(103)
    assert seen.topics["shop"].rate == 10
    for now in (106, 109):
        seen.poll(now)
    assert seen.topics["shop"].rate == 0


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (row(new={"id": 1, "note": None}), "insert shop.t id=1 note=NULL"),
        (row("delete", old={"id": 1}), "delete shop.t id=1"),
        (row("update", old={"id": 1, "n": 2, "m": 3}, new={"id": 1, "n": 5, "m": 3}), "update shop.t id=1 n 2 → 5"),
        (row("update", old={"n": 2}, new={"id": 1, "n": None}), "update shop.t id=1 n 2 → NULL"),
        (row("update", old={"id": 1}, new={"id": 2}), "update shop.t id 1 → 2"),
        (row("upsert", new={"id": 2}), "upsert shop.t id=2"),
    ],
)
def test_event_is_told_in_one_line(event: dict[str, Any], shown: str) -> None:
    assert told(event) == f"shop[0] offset 7: {shown}"
