"""Counters since the start, what a batch waits for, waiting, and the decisions of an operator; and the progress of a
first load: counted range by range, logged periodically, shown by a bar and the status page."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger

from drainer.sink.base import TableLoad

WAIT_FIRST_S = 0.05
WAIT_MAX_S = 5.0
DECISION_POLL_S = 0.2

_log = get_logger(__name__)


class Stopped(BinlogError):
    """The process is to stop: a batch that waits for something is read again at the next start, and a comparison with
    upstream has no result."""


@dataclass(slots=True)
class Progress:
    """Counters since the start, and what a batch waits for now. Read by the status page. `batch_since_s`: unix time at
    which the current batch began; 0: there is none. `step`: the current step of a large transaction, `step_bytes` of
    `step_total` of it; "" where none is under way. `left_out`: transactions that loopback-control left out.
    """

    position_ts: int = 0
    last_ddl: str = ""
    rows: int = 0
    ddls: int = 0
    left_out: int = 0
    batches: dict[str, int] = field(default_factory=lambda: {"driver": 0, "distributed": 0, "large": 0})
    duplicates: int = 0
    waiting_for: str = ""
    last_mode: str = ""
    last_bytes: int = 0
    read_bytes: int = 0
    batch_since_s: float = 0.0
    step: str = ""
    step_bytes: int = 0
    step_total: int = 0


class Wait:
    """Waits between attempts, longer each time, and shows the reason in the log and the status. Raises Stopped when the
    daemon stops."""

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._pause_s = WAIT_FIRST_S
        self._outage = Outage(_log, "a batch waits", "the batch goes on")

    def unless(self, go_on: bool, why: BinlogError) -> None:
        if go_on:
            return
        self._outage.failed(why=str(why))
        self._progress.waiting_for = str(why)
        if self._stop.wait(self._pause_s):
            raise Stopped(f"stopped while waiting: {why}")
        self._pause_s = min(self._pause_s * 2, WAIT_MAX_S)

    def over(self) -> None:
        self._outage.over()
        self._progress.waiting_for = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """What the destination has refused: the DDL of `job_id`, or, if that is 0, a transaction."""

    job_id: int
    commit_ts: int
    error: str

    def __str__(self) -> str:
        return f"DDL job {self.job_id}" if self.job_id else f"the transaction of commit_ts {self.commit_ts}"

    @property
    def how(self) -> str:
        if self.job_id:
            return f"binlogctl decide-ddl -job-id {self.job_id} with -run-again, -skip or -sql"
        return f"binlogctl decide-transaction -commit-ts {self.commit_ts} with -run-again or -skip"


class Decisions:
    """What an operator decides about a DDL or a transaction that the destination refuses, and which transactions are
    skipped. Thread-safe: the applying thread waits and records, requests arrive on the event loop.

    `waits`: whether the drainer waits for a decision; otherwise the refusal ends it. Skipped transactions are recorded
    in the file `record`, a line before one is left out and a line after the position has passed it: if the second is
    missing, a crash came between, and the next start applies the transaction if its position is below it.
    """

    def __init__(self, *, waits: bool = False, record: Path | None = None) -> None:
        self.waits = waits
        self.refused: Refused | None = None
        self._decided: list[tuple[str, ...] | None] = []
        self._record = record
        self._lock = threading.Lock()
        self._skips: dict[int, str] = {}
        self._recorded: dict[int, Mapping[str, object]] = {}

    def decide(self, sql: tuple[str, ...] | None) -> None:
        """Decide about what is `refused`: statements that run instead, () to skip it, None to run it again."""
        self._decided = [sql]

    def wait(self, refused: Refused, stop: threading.Event, progress: Progress) -> tuple[str, ...] | None:
        """Return the decision about a refusal, as given to `decide`. Raises Stopped."""
        self._decided = []
        self.refused = refused
        progress.waiting_for = f"a decision about {refused} ({refused.how}): {refused.error}"
        _log.error("waiting for an operator's decision", about=str(refused), command=refused.how, error=refused.error)
        try:
            while not self._decided:
                if stop.wait(DECISION_POLL_S):
                    raise Stopped(f"stopped while waiting for a decision about {refused}")
            return self._decided[0]
        finally:
            self.refused, progress.waiting_for = None, ""

    @property
    def skips(self) -> frozenset[int]:
        """The commit_ts of the transactions that are to be skipped."""
        with self._lock:
            return frozenset(self._skips)

    def skip(self, commit_ts: int, who: str) -> None:
        with self._lock:
            self._skips[commit_ts] = who

    def leaves_out(self, commit_ts: int, facts: Mapping[str, object]) -> None:
        """Record what is not applied, before the batch without it is. A batch may be tried several times. Raises
        BinlogError if that fails."""
        with self._lock:
            if commit_ts in self._recorded:
                return
            self._recorded[commit_ts] = {"commit_ts": commit_ts, "who": self._skips[commit_ts], **facts}
        self._write("skipping", self._recorded[commit_ts])

    def passed(self, position_ts: int) -> None:
        """Note the position: what is at or below it is over."""
        with self._lock:
            over = {ts: who for ts, who in self._skips.items() if ts <= position_ts}
            found = {ts: self._recorded.pop(ts, None) for ts in over}
            self._skips = {ts: who for ts, who in self._skips.items() if ts not in over}
        for commit_ts, facts in found.items():
            if facts is not None:
                self._write("skipped", facts)
            else:
                why = "it was applied before the request took effect, it is a DDL, or no transaction has this commit_ts"
                _log.warning("a transaction was not skipped", commit_ts=commit_ts, who=over[commit_ts], why=why)

    def _write(self, state: str, facts: Mapping[str, object]) -> None:
        _log.warning(f"{state} a transaction" if state == "skipping" else "a transaction is skipped", **facts)
        if self._record is not None:
            line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "state": state, **facts})
            try:
                with self._record.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise BinlogError(f"{self._record}: a skipped transaction cannot be recorded: {error}") from error


LOG_EVERY_S: Final = 5.0


class LoadProgress:
    """Progress of a first load. Written by the thread that loads, read by any thread. Rows, bytes and rows per second
    count what this process has loaded. The time left assumes that each remaining range takes as long as a loaded one,
    because ranges have about the same size."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.watch: Callable[[], None] = lambda: None  # called after each change
        self.tables = self.divided = self.ranges = self.loaded = self.rows = self.bytes = 0
        self._finished = 0, 0  # rows and bytes of the ranges that are loaded
        self._divided_into = self._loaded_before = 0  # ranges
        self._clock = clock
        self._begun_s = self._logged_s = clock()

    def begin(self, loads: Sequence[TableLoad]) -> None:
        """`loads`: those of the tables, as they are recorded."""
        divided = [load for load in loads if load.borders is not None]
        self.tables, self.divided = (len({load.table_id for load in some}) for some in (loads, divided))
        self.ranges = self._divided_into = sum(len(load.borders or ()) + 1 for load in divided)
        self.loaded = self._loaded_before = sum(load.loaded for load in divided)
        self._begun_s = self._clock()

    def find(self, ranges: int) -> None:
        """So many ranges of the table that is being divided were found."""
        self.ranges = self._divided_into + ranges
        self._changed()

    def divide(self) -> None:
        """The table was divided. The time of the speed begins with the last one."""
        self.divided += 1
        self._divided_into = self.ranges
        self._begun_s = self._clock()
        self._changed()

    def read(self, rows: int, read_bytes: int) -> None:
        """So much of the range at hand was read; 0: nothing yet, or it is read again."""
        self.rows, self.bytes = self._finished[0] + rows, self._finished[1] + read_bytes
        self._changed()

    def load(self) -> None:
        """The range at hand was loaded."""
        self.loaded += 1
        self._finished = self.rows, self.bytes
        self._changed()

    def distribute(self, loaded: int, rows: int, read_bytes: int) -> None:
        """Set the number of ranges that executors have loaded, and what was read by those of their tasks that have
        ended."""
        self.loaded, self._finished = loaded, (rows, read_bytes)
        self.read(0, 0)

    def phase(self) -> str:
        """In short; "": the load has not begun, or nothing is left."""
        if self.divided < self.tables:
            return f"first load: {self.divided:,} of {self.tables:,} tables divided, {self.ranges:,} ranges"
        return f"first load: {self.loaded:,} of {self.ranges:,} ranges" if self.loaded < self.ranges else ""

    def document(self) -> dict[str, int | None]:
        """As /status has it. `secondsLeft` None: not known yet."""
        seconds = max(self._clock() - self._begun_s, 1e-3)
        done = self.loaded - self._loaded_before if self.divided == self.tables else 0
        return {
            **{name: getattr(self, name) for name in ("tables", "divided", "ranges", "loaded", "rows", "bytes")},
            "rowsPerSecond": round(self.rows / seconds),
            "secondsLeft": round((self.ranges - self.loaded) * seconds / done) if done else None,
        }

    def _changed(self) -> None:
        self.watch()
        if self._clock() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._clock()
            _log.info("progress of the first load", **self.document())
