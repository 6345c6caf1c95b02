"""Status of a drainer: /status as JSON, the HTML page rendered from that document, and metrics under the original's
names; and the pages of a drainer that has not opened its destination yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from binlog.cluster import tso
from binlog.cluster.registry import Event, State, next_state
from binlog.runtime import metrics
from binlog.runtime.http import Action, Page, Request, Response, html_response, json_response, ready_response
from binlog.runtime.page import (
    Alarm,
    Chart,
    Fact,
    History,
    Mood,
    Table,
    bytes_text,
    count_tick,
    render,
    seconds_tick,
    span_text,
)

import drainer.sink.retry  # noqa: F401  its metrics are there from the start
from drainer.apply.progress import LoadProgress
from drainer.pipeline import Pipeline
from drainer.pumps.survey import PumpSet, PumpView
from drainer.service.scheduler import Scheduler, Steering
from drainer.sink.base import AnySink, BuildsIndexes
from drainer.sink.retry import FAILURES, Failures

OK, FAILED = 200, 3  # upstream's codes inside its JSON
CONFLICT = 409
_SYNCED_LAG_S = 60.0
FAILING_MAX_S = 30.0  # a failure that lasts longer makes a drainer not ready
LAG_WARN_S = 30.0
PENDING_WARN_S = 10.0
BATCH_WARN_S = 60.0
FAILING_BAD_S = 30.0  # a shorter failure is usual, such as a DDL that waits for a lock
TABLES_NAMED = 10

_NO_PUMP = PumpView("")

_POSITION = metrics.gauge("drainer_pump_position", "resolved ts of a pump, physical ms", ["nodeID"])
_CHECKPOINT = metrics.gauge("drainer_checkpoint_tso", "position of the destination, physical ms")
_LAG = metrics.gauge("drainer_lag_seconds", "age of what has been applied")
_ROWS = metrics.ShownCounter("drainer_rows_applied", "row changes applied since the start")
_DDL = metrics.ShownCounter("drainer_ddl_jobs_total", "DDLs applied since the start")
_LEFT_OUT = metrics.ShownCounter(
    "drainer_loopback_left_out", "transactions that loopback-control left out since the start"
)
_BATCHES = metrics.ShownCounter("drainer_batches_applied", "batches applied since the start", ["mode"])
_READ = metrics.ShownCounter("drainer_read_bytes", "bytes of binlogs in them")
_HELD = metrics.gauge(
    "drainer_held_back_seconds",
    "how long a pump has held the watermark back, because it does not answer, has a prewrite pending or lacks rows; "
    "nodeID is empty if the cause is not a pump",
    ["nodeID"],
)
_PENDING = metrics.gauge("drainer_pump_pending_oldest_ms", "age of a pump's oldest pending prewrite", ["nodeID"])
_FAILING = metrics.gauge(
    "drainer_failing_seconds", "seconds since the current operation began to fail; 0: nothing fails"
)
_WAITING = metrics.gauge(
    "drainer_waiting_seconds", "how long a batch has waited for something that is missing, such as a DDL job"
)
_STANDBY = metrics.gauge("drainer_standby", "1 while another drainer with this node id runs, and this one waits")
_PAUSED = metrics.gauge("drainer_paused", "1 while the changefeed is paused")
_DELAY = metrics.gauge("drainer_delay_seconds", "how long the drainer stays behind on purpose")
_MISSED = metrics.gauge(
    "drainer_pump_missed_binlogs", "binlogs below the drainer's position that a rejoined pump holds", ["nodeID"]
)
_LATE = metrics.gauge(
    "drainer_pump_late_commits",
    "commits that a pump accepted at or below a resolved ts that it had published",
    ["nodeID"],
)


def page(document: Mapping[str, Any], history: History | None = None, now_s: float = 0.0) -> str:
    """Return the page. `document`: that of Status. `history`: samples for `charts`."""
    lag_s, last = float(document["LagSeconds"]), document["LastBatch"]
    position = str(document["PositionTime"])[:19] if document["Position"] else "the beginning"
    batches = ", ".join(f"{count:,} {mode}" for mode, count in document["Batches"].items())
    size = f"; last: {last['mode']}, {bytes_text(last['bytes'])}" if last["mode"] else ""
    synced = "synced: no row for synced-check-time" if document["Synced"] else "age of the last applied commit_ts"
    is_late = lag_s - document["DelaySeconds"] >= LAG_WARN_S
    mood = Mood.WARN if is_late or document["HeldBack"] or document["Error"] or document["Paused"] else Mood.GOOD
    facts = (
        Fact("lag", span_text(lag_s), synced, mood),
        Fact("position", position, f"commit_ts {document['Position']}"),
        Fact("rows applied", f"{document['RowsApplied']:,}", "since the start"),
        Fact("DDLs applied", f"{document['DDLsApplied']:,}", str(document["LastDDL"] or "")[:80]),
        Fact("batches", f"{sum(document['Batches'].values()):,}", f"{batches}{size}"),
        *_verified(document),
    )
    pumps: Sequence[Mapping[str, Any]] = document["Pumps"]
    standbys = f"standby: {', '.join(document['Standbys'])}" if document["Standbys"] else ""
    return render(
        f"drainer {document['NodeID']}",
        " · ".join(filter(None, (f"into {document['Destination']}", document["Phase"], standbys))),
        facts=facts,
        tables=(*_steering(document), _pumps(pumps), _pending(pumps)),
        charts=charts(history, now_s) if history else (),
        alarms=_alarms(document, pumps),
        links=("/status", "/commit_ts", "/metrics"),
    )


def charts(history: History, now_s: float) -> Sequence[Chart]:
    """Draw the gauges lag_s and disk_bytes and the counters rows and read_bytes."""
    return (
        Chart("lag", history.series("lag_s", now_s), seconds_tick),
        Chart("rows applied a second", history.series("rows", now_s), count_tick),
        Chart("bytes of binlogs read a second", history.series("read_bytes", now_s), bytes_text, 1024),
        Chart("available on the disk of data-dir", history.series("disk_bytes", now_s), bytes_text, 1024),
    )


def starting_page(document: Mapping[str, Any]) -> str:
    """Return the page of a starting drainer. `document`: that of StartingPages."""
    title, subtitle = f"drainer {document['NodeID']}", f"into {document['Destination']} · {document['Phase']}"
    facts = _first_load(document["FirstLoad"]) if "FirstLoad" in document else ()
    return render(title, subtitle, facts=facts, alarms=_failing(document))


def _first_load(found: Mapping[str, Any]) -> Sequence[Fact]:
    left, divided = found["secondsLeft"], f"{found['divided']:,} of {found['tables']:,} tables divided"
    return (
        Fact("ranges loaded", f"{found['loaded']:,} of {found['ranges']:,}", divided),
        Fact("rows loaded", f"{found['rows']:,}", f"{bytes_text(found['bytes'])} since the start"),
        Fact("rows a second", f"{found['rowsPerSecond']:,}"),
        Fact("time left", "unknown" if left is None else span_text(left)),
    )


def _verified(document: Mapping[str, Any]) -> Sequence[Fact]:
    tables: Sequence[Mapping[str, Any]] = document["Verified"]
    if not tables:
        return ()
    through_ts = document["VerifiedThrough"]
    through = tso.format_local(through_ts)[:19] if through_ts else "not all tables yet"
    differing = any(one["differences"] for one in tables)
    what = f"{len(tables):,} tables compared with upstream"
    return (Fact("verified through", through, what, Mood.BAD if differing else Mood.GOOD),)


def _differing(document: Mapping[str, Any]) -> list[Alarm]:
    found = []
    tables = [one["table"] for one in document["Verified"] if one["differences"]]
    if tables:
        more = f" and {len(tables) - TABLES_NAMED:,} more" if len(tables) > TABLES_NAMED else ""
        names = ", ".join(tables[:TABLES_NAMED])
        found.append(Alarm(f"Tables that differ from upstream: {names}{more}; drainer check shows the rows"))
    if document["VerifyError"]:
        found.append(Alarm(f"Not compared with upstream: {document['VerifyError']}", Mood.WARN))
    return found


def _failing(document: Mapping[str, Any]) -> list[Alarm]:
    if not document["Error"]:
        return []
    tries = f"{document['ErrorTries']:,} tries in {span_text(document['ErrorSeconds'])}"
    mood = Mood.BAD if document["ErrorSeconds"] >= FAILING_BAD_S else Mood.WARN
    return [Alarm(f"Failing since {document['ErrorTime']}, {tries}: {document['Error']}", mood)]


def _alarms(document: Mapping[str, Any], pumps: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    found = [*_failing(document), *_differing(document)]
    if document["Paused"]:
        since = span_text(document["PausedSeconds"])
        resume = f"binlogctl resume-changefeed -node-id {document['NodeID']}"
        found.append(Alarm(f"Paused for {since} by {document['PausedBy']}; to resume: {resume}", Mood.WARN))
    large = document["LargeTransaction"]
    if large["step"]:
        done = f"{bytes_text(large['bytes'])} of {bytes_text(large['of'])} in {span_text(document['BatchSeconds'])}"
        found.append(Alarm(f"{large['step']} a large transaction: {done}", Mood.WARN))
    elif document["BatchSeconds"] >= BATCH_WARN_S:
        taken = span_text(document["BatchSeconds"])
        text = f"The current batch has been running for {taken}; see the log and spark.log"
        found.append(Alarm(text, Mood.WARN))
    if document["HeldBack"]:
        since = span_text(document["HeldBackSeconds"])
        found.append(Alarm(f"The watermark has not advanced for {since}: {document['HeldBack']}", Mood.WARN))
    found += [Alarm(f"Building an index beside the stream: {text}", Mood.GOOD) for text in document["Building"]]
    if document["WaitingFor"]:
        found.append(Alarm(f"Waiting for {document['WaitingFor']}", Mood.WARN))
    for pump in pumps:
        if pump["missed"]:
            pairs = ", ".join(f"{pair['startTS']} → {pair['commitTS']}" for pair in pump["missedTS"])
            what = f"{pump['missed']:,} binlogs below the drainer's position"
            found.append(Alarm(f"Pump {pump['node']} rejoined with {what}: {pairs}"))
        if pump["lateCommits"]:
            late = ", ".join(map(str, pump["lateCommitTS"]))
            found.append(Alarm(f"Pump {pump['node']} accepted commits at or below its resolved ts: {late}"))
        oldest_s = max((entry["ageMs"] / 1000 for entry in pump["oldestPending"]), default=0.0)
        if oldest_s >= PENDING_WARN_S:
            text = (
                f"Pump {pump['node']} has a prewrite pending for {span_text(oldest_s)}: settle it with binlogctl settle"
            )
            found.append(Alarm(text, Mood.WARN))
    return found


def _steering(document: Mapping[str, Any]) -> Sequence[Table]:
    """Return what an operator has set, and the command that changes it; nothing if nothing is set."""
    change = f"binlogctl update-changefeed -node-id {document['NodeID']}"
    rows = []
    if document["DelaySeconds"]:
        rows.append(("stays behind by", span_text(document["DelaySeconds"]), f"{change} -delay 0"))
    if document["StopAt"]:
        end = f"{tso.format_local(document['StopAt'])} (commit_ts {document['StopAt']})"
        rows.append(("stops at", end, f"{change} -stop-at 0"))
    return (Table("Steering", ("what", "value", "to remove it"), rows),) if rows else ()


def _pumps(pumps: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            pump["node"],
            pump["host"],
            _state(pump),
            tso.format_local(pump["resolved"]) if pump["resolved"] else "",
            f"{pump['pending']:,}",
            f"down for {span_text(pump['downSeconds'])}: {pump['error']}" if pump["downSeconds"] else pump["error"],
        )
        for pump in pumps
    ]
    columns = ("pump", "address", "state", "resolved", "pending", "problem")
    return Table("Pumps", columns, rows, "none known yet", frozenset({"pending"}), frozenset({"problem"}))


def _state(pump: Mapping[str, Any]) -> str:
    """Return the registered state; a pump that does not answer may not be in it any more."""
    state = pump["state"] + ("" if pump["counts"] else ", not counted")
    return f"down (registered as {state})" if pump["downSeconds"] else state


def _pending(pumps: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            pump["node"],
            str(p["startTS"]),
            tso.format_local(p["startTS"]),
            span_text(p["ageMs"] / 1000),
            str(p["ddlJobID"] or ""),
            p["writer"],
        )
        for pump in pumps
        for p in pump["oldestPending"]
    ]
    columns = ("pump", "start_ts", "started", "age", "DDL job", "writer")
    return Table("Pending prewrites", columns, rows, "none holds the watermark back", frozenset({"age"}))


@dataclass(kw_only=True, eq=False)
class Status:
    """Builds the status document on request; keeps only the time of the last applied row.

    `first_ts`: no binlog is older, 0: not known. `stop`: called when PUT /state asks for it, with PAUSE or CLOSE in
    `asked`. `steer`: answers
    requests that steer the drainer. `available_bytes`: on the disk of data-dir. `standbys`: addresses of drainers that
    wait to take over. `verification`: fields about comparisons with upstream."""

    node_id: str
    destination: AnySink
    pipeline: Pipeline
    scheduler: Scheduler
    pumps: PumpSet
    synced_after_s: float
    steer: Action
    first_ts: int = 0
    stop: Callable[[], None] = lambda: None
    available_bytes: Callable[[], int] = lambda: 0
    standbys: Callable[[], Sequence[str]] = tuple
    verification: Callable[[], Mapping[str, object]]
    phase: str = "starting Spark"
    asked: Event | None = None

    def __post_init__(self) -> None:
        self.first_ts = self.first_ts or tso.compose(int(time.time() * 1000))
        self._history = History()
        self._began_ts = self.scheduler.watermark_state.applied_ts
        self._rows_seen = 0
        self._rows_at = time.monotonic()
        self._waiting_since_s: float | None = None

    def observe(self) -> None:
        """Update metrics and the time of the last row; called about once a second."""
        rows = self.pipeline.progress.rows
        if rows != self._rows_seen:
            self._rows_seen, self._rows_at = rows, time.monotonic()
        _CHECKPOINT.set(tso.physical_ms(self.pipeline.position_ts))
        _LAG.set(self._lag_s())
        _PAUSED.set(self.scheduler.steering.paused)
        _DELAY.set(self.scheduler.steering.delay_ms / 1000)
        _ROWS.show(rows)
        _DDL.show(self.pipeline.progress.ddls)
        _LEFT_OUT.show(self.pipeline.progress.left_out)
        _READ.show(self.pipeline.progress.read_bytes)
        for mode, count in self.pipeline.progress.batches.items():
            _BATCHES.show(count, mode)
        self._sample()
        failure = FAILURES.now
        _FAILING.set(time.time() - failure.since_s if failure else 0)
        if not self.pipeline.progress.waiting_for:
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
        _WAITING.set(time.monotonic() - self._waiting_since_s if self._waiting_since_s else 0)
        _HELD.labels("").set(self._held_s(_NO_PUMP))
        for view in self.pumps.views.values():
            _MISSED.labels(view.node_id).set(view.missed.count)
            _POSITION.labels(view.node_id).set(tso.physical_ms(view.resolved_ts))
            _HELD.labels(view.node_id).set(self._held_s(view))
            if view.inspection is not None:
                _PENDING.labels(view.node_id).set(max((p.age_ms for p in view.inspection.pending), default=0))
                _LATE.labels(view.node_id).set(view.inspection.late_commit_count)

    def _sample(self) -> None:
        """Record the values that the charts show, when the next sample is due."""
        now_s, progress = time.monotonic(), self.pipeline.progress
        if self._history.due(now_s):
            gauges = {"lag_s": self._lag_s(), "disk_bytes": float(self.available_bytes())}
            self._history.add(now_s, gauges, {"rows": progress.rows, "read_bytes": progress.read_bytes})

    def document(self) -> dict[str, object]:
        """Return the document of /status. The first four keys are upstream's (`LastTS`: everything at or below it has
        been applied).

        `Phase`: "" while running, once the first batch is applied. `Error`: what currently fails and is retried, "" for
        nothing; `LastError` stays.
        """
        progress, watermark_state = self.pipeline.progress, self.scheduler.watermark_state
        self.observe()
        views = sorted(self.pumps.views.values(), key=lambda view: view.node_id)
        return {
            "PumpPos": {view.node_id: view.resolved_ts for view in views if view.counts},
            "Synced": self._is_synced(),
            "LastTS": watermark_state.applied_ts,
            "TsMap": "",
            "NodeID": self.node_id,
            "Phase": self.phase or self._first_batch(),
            "Destination": self.destination.name,
            "Building": self.destination.building() if isinstance(self.destination, BuildsIndexes) else [],
            "Standbys": list(self.standbys()),
            "Position": progress.position_ts,
            "PositionTime": tso.format_local(progress.position_ts),
            "Watermark": watermark_state.watermark_ts,
            "LagSeconds": round(self._lag_s(), 3),
            "RowsApplied": progress.rows,
            "DDLsApplied": progress.ddls,
            "LastDDL": progress.last_ddl,
            "Batches": dict(progress.batches),
            "LastBatch": {"mode": progress.last_mode, "bytes": progress.last_bytes},
            "Duplicates": progress.duplicates,
            "LeftOut": progress.left_out,
            "LargeTransaction": {
                "step": progress.step,
                "bytes": progress.step_bytes,
                "of": progress.step_total,
            },
            "BatchSeconds": _seconds_since(progress.batch_since_s),
            "HeldBack": watermark_state.held_back,
            "HeldBackBy": watermark_state.held_by,
            "HeldBackSeconds": _seconds_since(watermark_state.held_since),
            "Slowest": min((v for v in views if v.counts), key=lambda v: v.resolved_ts, default=_NO_PUMP).node_id,
            "WaitingFor": progress.waiting_for,
            **steering_fields(self.scheduler.steering),
            "SkipTransactions": sorted(self.pipeline.decisions.skips),
            **error_fields(FAILURES),
            **self.verification(),
            "Pumps": [_pump(view) for view in views],
        }

    def _held_s(self, view: PumpView) -> float:
        """Return for how many seconds this pump (_NO_PUMP: another cause) has held the watermark back."""
        watermark_state = self.scheduler.watermark_state
        held = (
            watermark_state.held_since
            if watermark_state.held_back and watermark_state.held_by == view.node_id
            else None
        )
        since = min((moment for moment in (held, view.down_since) if moment), default=None)
        return time.time() - since if since else 0.0

    def _lag_s(self) -> float:
        """Return the age of what is applied. While nothing is: of the first binlog, at least the time since the
        start."""
        applied_ts = self.scheduler.watermark_state.applied_ts or self.first_ts
        return max(0.0, time.time() - tso.physical_ms(applied_ts) / 1000)

    def _first_batch(self) -> str:
        """Return what is done with the first batch of this start until it is applied, or until it is known that there
        is nothing to apply; then ""."""
        state = self.scheduler.watermark_state
        if state.applied_ts > self._began_ts or 0 < state.watermark_ts <= state.applied_ts or state.at_ceiling:
            return ""
        return "applying the first batch" if self.pipeline.progress.batch_since_s else "reading the first batch"

    def _is_synced(self) -> bool:
        """Return whether everything is applied, and no row came for `synced_after_s`. A destination that hangs gets no
        rows either, but then the lag grows."""
        is_quiet = time.monotonic() - self._rows_at >= self.synced_after_s
        is_current = self._lag_s() - self.scheduler.steering.delay_ms / 1000 < max(self.synced_after_s, _SYNCED_LAG_S)
        return is_quiet and is_current and not self.scheduler.watermark_state.held_back

    async def status(self) -> Response:
        return json_response(self.document(), indent=1, newline=True)

    async def change_state(self, request: Request) -> Response:
        """Pause or close this drainer; the answer is sent before the stop begins."""
        node_id, action = request.path["node_id"], request.path["action"]
        event = {"pause": Event.PAUSE, "close": Event.CLOSE}.get(action)
        if node_id != self.node_id:
            return result(f"invalid nodeID {node_id}, this drainer's nodeID is {self.node_id}", FAILED)
        if self.asked is not None:
            state = next_state(State.ONLINE, self.asked)
            return result(f"this drainer's state is {state}, apply {action} failed!", FAILED)
        if event is None:
            return result(f"invalid action {action}", FAILED)
        self.asked = event
        self.stop()
        return result(f"apply action {action} success!", OK)

    async def home(self) -> Response:
        return html_response(page(self.document(), self._history, time.monotonic()))

    async def ready(self) -> Response:
        now = FAILURES.now
        has_failed_long = now is not None and time.time() - now.since_s > FAILING_MAX_S
        return ready_response(self.phase or (f"{now.what}: {now.error}" if now and has_failed_long else ""))

    async def commit_ts(self) -> Response:
        return result("get drainer's latest ts success!", OK, {"ts": self.pipeline.position_ts})


def result(message: str, code: int, data: object = None, *, status: int = 200) -> Response:
    """Format upstream's answer to a request: these three keys, indented."""
    return json_response({"message": message, "code": code, "data": data}, indent=2, status=status)


def _seconds_since(moment_s: float | None) -> float:
    return round(max(0.0, time.time() - moment_s), 1) if moment_s else 0


def error_fields(failures: Failures) -> dict[str, object]:
    """Return the fields of /status about failures."""
    now, last = failures.now, failures.last
    return {
        "Error": f"{now.what}: {now.error}" if now else "",
        "ErrorTime": _local(now.since_s) if now else "",
        "ErrorSeconds": _seconds_since(now.since_s) if now else 0,
        "ErrorTries": now.tries if now else 0,
        "LastError": f"{last.what}: {last.error}" if last else "",
        "LastErrorTime": _local(last.last_s) if last else "",
    }


def steering_fields(steering: Steering) -> dict[str, object]:
    """Return the fields of /status about what an operator has asked of the running drainer."""
    return {
        "Paused": steering.paused,
        "PausedBy": steering.paused_by,
        "PausedSeconds": _seconds_since(steering.paused_since_s),
        "StopAt": steering.stop_at_ts,
        "DelaySeconds": steering.delay_ms / 1000,
    }


def _local(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s).astimezone().isoformat(sep=" ", timespec="seconds")


def _pump(view: PumpView) -> dict[str, object]:
    found = view.inspection
    return {
        "node": view.node_id,
        "host": view.host,
        "state": view.state.value,
        "counts": view.counts,
        "resolved": view.resolved_ts,
        "error": view.error,
        "downSeconds": round(time.time() - view.down_since, 1) if view.down_since else 0,
        "pending": found.pending_count if found else 0,
        "oldestPending": [
            {"startTS": p.start_ts, "ageMs": p.age_ms, "ddlJobID": p.ddl_job_id, "writer": bytes(p.writer).hex()}
            for p in found.pending
        ]
        if found
        else [],
        "leftAt": view.left_ts or 0,
        "missed": view.missed.count,
        "missedTS": [{"startTS": start_ts, "commitTS": commit_ts} for start_ts, commit_ts in view.missed.shown],
        "lateCommits": found.late_commit_count if found else 0,
        "lateCommitTS": list(found.late_commit_ts) if found else [],
    }


# Status pages of a drainer that has not opened its destination yet.
#
# Waiting for a destination that is down may take long, and the page shows why.

STATE = "PUT /state/{node_id}/{action}"
CHANGEFEED = "PUT /changefeed/{node_id}/{command}"


class StartingPages:
    """The pages before the destination is open: node id, destination and the current error; `load`: the first load that
    runs."""

    def __init__(self, node_id: str, destination: str) -> None:
        self._node_id = node_id
        self._destination = destination
        self._running_at = ""
        self.load: LoadProgress | None = None

    def wait_for(self, address: str) -> None:
        """Show that this drainer waits for the one at `address` to end; "": no longer."""
        self._running_at = address
        _STANDBY.set(bool(address))

    def _phase(self) -> str:
        if self._running_at:
            return f"standby of {self._running_at}"
        return (self.load and self.load.phase()) or "opening the destination"

    def document(self) -> dict[str, object]:
        return {
            "PumpPos": None,
            "Synced": False,
            "LastTS": 0,
            "TsMap": "",
            "NodeID": self._node_id,
            "Phase": self._phase(),
            "Destination": self._destination,
            **({"FirstLoad": self.load.document()} if self.load and self.load.tables else {}),
            **error_fields(FAILURES),
        }

    async def status(self) -> Response:
        return json_response(self.document(), indent=1, newline=True)

    async def home(self) -> Response:
        return html_response(starting_page(self.document()))

    async def ready(self) -> Response:
        return ready_response("" if self._running_at else self._phase())

    async def commit_ts(self) -> Response:
        return result("this drainer has not opened its destination yet", FAILED)

    async def change_state(self, request: Request) -> Response:
        what = self._phase() if self._running_at else "starting"
        return result(f"this drainer is {what}, apply {request.path['action']} failed!", FAILED)

    async def steer(self, request: Request) -> Response:
        text = f"this drainer is starting, {request.path['command']} is not possible yet"
        return result(text, CONFLICT, status=CONFLICT)


class PageSwitch:
    """Handlers of the status server that delegate to `shown`, which is replaced once the destination is open."""

    def __init__(self, shown: Status | StartingPages) -> None:
        self.shown = shown

    def routes(self) -> Mapping[str, Page]:
        return {
            "/": lambda: self.shown.home(),
            "/status": lambda: self.shown.status(),
            "/ready": lambda: self.shown.ready(),
            "/commit_ts": lambda: self.shown.commit_ts(),
        }

    def actions(self) -> Mapping[str, Action]:
        return {
            STATE: lambda request: self.shown.change_state(request),
            CHANGEFEED: lambda request: self.shown.steer(request),
        }
