"""Runs actions against a destination in a process of its own, so that a crash point can kill it.

Actions are (method, args) run in order on a freshly opened destination; ("slots", intent, {slot: work}) runs a whole
distributed range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drainer.batch.work import SegmentWork
from drainer.sink.base import Identity, Intent, Position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.rows.slot_writer import MySQLSlotWriter
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.forks import Child, children

IDENTITY = Identity(7, "main", "drainer-1")


class ChildFailed(Exception):
    """A child that no crash point should have killed did not succeed."""


def distributed(destination: MySQLSink, intent: Intent, slots: Mapping[int, SegmentWork]) -> None:
    """A range from begin to finish, one slot after the other."""
    writer: MySQLSlotWriter | None = destination.begin(intent)
    while writer is not None:
        writer = destination.commit(intent, [writer.write(slot, work) for slot, work in slots.items()], 1)


def run(config: ServerConfig, actions: Sequence[tuple[Any, ...]]) -> Position:
    """Open, skip what is behind the position, do the rest."""
    destination = MySQLSink(config)
    found = destination.open(IDENTITY, 100)
    for name, *args in actions:
        step = args[0]
        end = getattr(step, "until_ts", None) or getattr(step, "commit_ts", 0)
        if end <= destination.commit_ts:
            continue
        if name == "slots":
            distributed(destination, args[0], args[1])
        elif name == "ddl":
            if not destination.job_done(step.job.id):
                destination.ddl(step)
        else:
            destination.apply(step, 1)
    destination.close(clean=True)
    return found


def start(config: ServerConfig, actions: Sequence[tuple[Any, ...]], directory: Path, crash: str = "") -> Child:
    """A child that does these actions, and dies at `crash`."""
    return children().start(run, (config, list(actions)), directory, crash)


def run_until_done(config: ServerConfig, actions: Sequence[tuple[Any, ...]], crash: str, directory: Path) -> int:
    """Run in a child that dies at `crash`, then again in one that does not, which must succeed (ChildFailed). Returns
    the first one's exit code."""
    first = start(config, actions, directory, crash).wait()
    second = start(config, actions, directory).wait()
    if second != 0:
        raise ChildFailed(f"exit code {second} without a crash point")
    return first
