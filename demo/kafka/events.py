"""Reads the output of `kafka-consumer --print` of a running stream: counts, rates, the resolved position, the newest
row.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RATE_S = 5.0


@dataclass
class TopicSeen:
    """Events of one topic. `ddls`: each counted once, although its copies are in all partitions; `rate`: rows a second,
    over the last RATE_S."""

    partitions: set[int] = field(default_factory=set)
    rows: int = 0
    ddls: set[tuple[int, str]] = field(default_factory=set)
    rate: float = 0.0
    _history: deque[tuple[float, int]] = field(default_factory=deque)

    def poll(self, now: float) -> None:
        self._history.append((now, self.rows))
        while now - self._history[0][0] > RATE_S:
            self._history.popleft()
        begin, rows = self._history[0]
        self.rate = (self.rows - rows) / (now - begin) if now > begin else 0.0


class EventsSeen:
    """The events in the file that a printer writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._resolved: dict[tuple[str, int], int] = {}
        self._partial = b""
        self.topics: dict[str, TopicSeen] = {}
        self.newest = ""

    def poll(self, now: float) -> None:
        """Read the lines written since the last call. `now`: seconds of a monotonic clock."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            self._offset += len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self._add(json.loads(line))
        for topic in self.topics.values():
            topic.poll(now)

    def has_all(self, commit_ts: int) -> bool:
        """Return whether every partition is known to be complete up to `commit_ts`."""
        return bool(self._resolved) and min(self._resolved.values()) >= commit_ts

    def _add(self, event: dict[str, Any]) -> None:
        name, partition, kind = event["topic"], event["partition"], event["event"]
        topic = self.topics.setdefault(name, TopicSeen())
        topic.partitions.add(partition)
        self._resolved.setdefault((name, partition), 0)
        if kind == "resolved":
            self._resolved[name, partition] = max(self._resolved[name, partition], event["commit_ts"])
        elif kind == "ddl":
            topic.ddls.add((event["commit_ts"], event["query"]))
        elif kind in ("insert", "update", "delete", "upsert"):
            topic.rows += 1
            self.newest = told(event)


def told(event: dict[str, Any]) -> str:
    """Format a row's event in one line: its position, and the change of the row."""
    old, new = event.get("old") or {}, event.get("new") or {}
    where = f"{event['topic']}[{event['partition']}] offset {event['offset']}: {event['event']} {event['table']}"
    if not (old and new):
        return f"{where} {_values(new or old)}"
    same = {name: value for name, value in new.items() if old.get(name, value) == value}
    changed = [f"{name} {_value(old[name])} → {_value(new[name])}" for name in new if name not in same]
    return f"{where} {_values(dict(list(same.items())[:1]))} {', '.join(changed)}".replace("  ", " ")


def _values(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: Any) -> str:
    return "NULL" if value is None else str(value)
