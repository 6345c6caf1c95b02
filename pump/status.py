"""The pump's HTTP endpoints at status-addr, and its HTML page. The original serves the same paths on its gRPC port."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from binlog.cluster import tso
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tikv import TiKV
from binlog.cluster.timestamp import TimestampSource
from binlog.envelope import scan
from binlog.errors import BinlogError
from binlog.pb import binlog_pb2
from binlog.runtime.http import (
    Action,
    Page,
    Request,
    Response,
    html_response,
    json_response,
    ready_response,
    text_response,
)
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
from binlog.runtime.version import release
from google.protobuf.message import DecodeError as ProtobufError

from pump import metrics
from pump.cluster.node import Node
from pump.log.value_log import Reading
from pump.store.store import Store
from pump.tasks.gc import GarbageCollector
from pump.tasks.publisher import Publisher
from pump.tasks.score import Measures

PENDING_SHOWN = 20
PENDING_WARN_S = 10.0
WAIT_S = 0.5
OK, FAILED = 200, 3  # result codes of the original, in the JSON body
_NO_RECORDS: Sequence[NodeStatus] = ()

T = TypeVar("T")


def page(
    own: Mapping[str, Any],
    *,
    now_ms: int,
    available_bytes: int,
    full: bool,
    drainers: Sequence[NodeStatus],
    charts: Sequence[Chart] = (),
) -> str:
    """Return the HTML page. `own`: the "pump" document of StatusPages."""
    behind_s = behind(own["resolvedTS"], now_ms)
    oldest_s = max((entry["ageSeconds"] for entry in own["pending"]), default=0.0)
    oldest = f"oldest {span_text(oldest_s)}" if oldest_s else ""
    late = own["lateCommitCount"]
    facts = (
        Fact("state", own["state"], mood=Mood.GOOD if own["state"] == "online" and not own["usurped"] else Mood.WARN),
        Fact("resolved ts", span_text(behind_s) + " ago", f"{own['resolvedTS']}", _mood(behind_s)),
        Fact("pending prewrites", f"{own['pendingCount']:,}", oldest, _mood(oldest_s)),
        Fact("value log", bytes_text(own["logBytes"]), "on disk"),
        Fact("disk", bytes_text(available_bytes), "available", Mood.BAD if full else Mood.PLAIN),
        Fact("purged", tso.format_local(own["purgedTS"])[:19], "all binlogs up to that time")
        if own["purgedTS"]
        else Fact("purged", "nothing"),
        *_published(own.get("kafka"), now_ms),
        Fact("late commits", f"{late:,}", "0 is right", Mood.BAD if late else Mood.PLAIN),
    )
    pending = Table(
        "Pending prewrites" + (f", oldest {len(own['pending'])} of {own['pendingCount']:,}" if own["pending"] else ""),
        ("start_ts", "started", "age", "DDL job", "prewrite key"),
        [
            (
                str(entry["startTS"]),
                tso.format_local(entry["startTS"]),
                span_text(entry["ageSeconds"]),
                str(entry["ddlJobID"] or ""),
                entry["prewriteKey"],
            )
            for entry in own["pending"]
        ],
        "none: every prewrite has its commit or rollback",
        frozenset({"age"}),
        frozenset({"prewrite key"}),
    )
    reading = Table(
        "Drainers",
        ("drainer", "address", "state", "position"),
        [(d.node_id, d.host, str(d.state), tso.format_local(d.max_commit_ts)) for d in drainers],
        "none registered: garbage collection depends on age alone",
    )
    return render(
        f"pump {own['nodeId']}",
        f"version {own['version']}",
        facts=facts,
        tables=(pending, reading),
        charts=charts,
        alarms=_alarms(own, oldest_s, full),
        links=("/status", "/drainers", "/metrics"),
    )


def behind(resolved_ts: int, now_ms: int) -> float:
    """Return the seconds by which the resolved ts is behind the clock."""
    return max(0.0, (now_ms - tso.physical_ms(resolved_ts)) / 1000)


def charts(history: History, now_s: float) -> Sequence[Chart]:
    """Return the charts of the gauges behind_s and disk_bytes and of the counters written and read."""
    return (
        Chart("resolved ts behind the clock", history.series("behind_s", now_s), seconds_tick),
        Chart("binlogs written a second", history.series("written", now_s), count_tick),
        Chart("binlogs sent to drainers a second", history.series("read", now_s), count_tick),
        Chart("available on the disk", history.series("disk_bytes", now_s), bytes_text, 1024),
    )


def _alarms(own: Mapping[str, Any], oldest_s: float, full: bool) -> list[Alarm]:
    usurped, broken = own["usurped"], own["logBroken"]
    texts = (
        f"Another process overwrote this pump's record ({usurped}): prewrites are refused. Restart the pump."
        if usurped
        else "",
        f"Writes are refused until the pump is restarted: {broken}. Stored binlogs are still served." if broken else "",
        "No available space: writes are refused. storage.stop-write-at-available-space is the limit." if full else "",
    )
    found = [Alarm(text) for text in texts if text]
    if own["lateCommitCount"]:
        found.append(Alarm(f"Commits arrived at or below the resolved ts: {', '.join(map(str, own['lateCommitTS']))}"))
    found += [Alarm(f"Damage in the value log: {text}") for text in own["damage"]]
    if oldest_s >= PENDING_WARN_S:
        text = (
            f"A prewrite has been pending for {span_text(oldest_s)} and holds every drainer back: settle it with "
            "binlogctl settle"
        )
        found.append(Alarm(text, Mood.WARN))
    if own["belowGCSafePointCount"]:
        text = (
            f"{own['belowGCSafePointCount']:,} pending prewrites began at or below PD's GC safepoint: TiKV can no "
            "longer report whether they were committed. Check upstream for their rows, then settle them with "
            "binlogctl settle"
        )
        found.append(Alarm(text, Mood.BAD))
    return found


def _published(kafka: Mapping[str, Any] | None, now_ms: int) -> list[Fact]:
    if kafka is None:
        return []
    behind_s, known = behind(kafka["publishedTS"], now_ms), bool(kafka["publishedTS"])
    mood = Mood.BAD if kafka["error"] else _mood(behind_s)
    return [
        Fact("in Kafka", f"{span_text(behind_s)} ago" if known else "unknown", kafka["error"] or kafka["topic"], mood)
    ]


def _mood(seconds: float) -> Mood:
    return Mood.WARN if seconds >= PENDING_WARN_S else Mood.PLAIN


def starting_text(reading: Reading | None) -> str:
    """Return the progress in one line."""
    if reading is None:
        return "the pump is starting"
    return f"the pump is starting: {reading.step}, {reading.percent} %"


def starting_document(node_id: str, reading: Reading | None) -> dict[str, Any]:
    """Return the document that replaces the "pump" document of /status during a start. `recovery` is null before the
    log is opened."""
    recovery = None
    if reading is not None:
        recovery = {
            "step": reading.step,
            "percent": reading.percent,
            "records": reading.records,
            "bytes": reading.bytes,
            "ofBytes": reading.of_bytes,
            "fid": reading.fid,
        }
    return {"nodeId": node_id, "state": "starting", "version": release(), "recovery": recovery}


def starting_page(node_id: str, reading: Reading | None) -> str:
    facts = [Fact("state", "starting", mood=Mood.WARN)]
    if reading is not None:
        facts += [
            Fact(reading.step, f"{reading.percent} %", f"file {reading.fid:06d}"),
            Fact("read", bytes_text(reading.bytes), f"of {bytes_text(reading.of_bytes)}"),
            Fact("binlogs", f"{reading.records:,}", "in this step"),
        ]
    text = "The pump reads its value log and takes no calls before that has ended."
    return render(f"pump {node_id}", f"version {release()}", facts=facts, alarms=[Alarm(text, Mood.WARN)])


class LastAnswer(Generic[T]):
    """The last answer of a server that may hang: pages show it, with its age, instead of waiting. Asks in the
    background, one question at a time. `what`: who is asked, for the problem's text."""

    def __init__(self, what: str, ask: Callable[[], Awaitable[T]], nothing: T, wait_s: float = WAIT_S) -> None:
        """`nothing`: the answer while none has come."""
        self._what = what
        self._ask = ask
        self._wait_s = wait_s
        self._answer = nothing
        self._answered_s: float | None = None
        self._asked_s = 0.0
        self._asking: asyncio.Task[str] | None = None

    async def get(self) -> tuple[T, str]:
        """Return the newest answer, and "" or why it is not of now. Waits for at most `wait_s` seconds."""
        if self._asking is None or self._asking.done():
            self._asked_s = time.monotonic()
            self._asking = asyncio.ensure_future(self._answered())
        asking = self._asking
        await asyncio.wait((asking,), timeout=self._wait_s)
        if not asking.done():
            waited_s = time.monotonic() - self._asked_s
            return self._answer, f"{self._what} has not answered for {waited_s:.1f} s{self._age()}"
        why = asking.result()
        return self._answer, f"{why}{self._age()}" if why else ""

    async def _answered(self) -> str:
        """Ask, and return "" or why there is no answer."""
        try:
            self._answer, self._answered_s = await self._ask(), time.monotonic()
        except BinlogError as error:
            return str(error)
        return ""

    def _age(self) -> str:
        return "" if self._answered_s is None else f"; as of {time.monotonic() - self._answered_s:.0f} s ago"


@dataclass(eq=False)
class StatusPages:
    """Handlers for binlog.runtime.http. `stop` is called with "pause" or "close". `tikv`: None if the cluster has no
    TiKV."""

    _store: Store
    _node: Node
    _registry: Registry
    _timestamps: TimestampSource
    _collector: GarbageCollector
    _stop: Callable[[str], None]
    _: KW_ONLY
    measures: Callable[[], Measures]
    tikv: TiKV | None = None
    publisher: Publisher | None = None
    _history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._pumps = LastAnswer("etcd", lambda: _records(self._registry, "pumps"), _NO_RECORDS)
        self._drainers = LastAnswer("etcd", lambda: _records(self._registry, "drainers"), _NO_RECORDS)
        self._now = LastAnswer("the timestamp source", lambda: self._timestamps.get(), 0)

    def routes(self) -> dict[str, Page]:
        return {"/": self.home, "/status": self.status, "/ready": self.ready, "/drainers": self.drainers}

    def actions(self) -> dict[str, Action]:
        return {
            "PUT /state/{node_id}/{action}": self.change_state,
            "GET /debug/binlog/{ts}": self.show_binlog,
            "POST /debug/gc/trigger": self.trigger_gc,
        }

    async def status(self) -> Response:
        """Return the original's document of all pumps, and the details of this pump under "pump". While the pump reads
        its value log, no timestamp is fetched: there may be no source yet."""
        found, problem = await self._pumps.get()
        pumps = {status.node_id: _document(status) for status in found}
        now_ts, unknown = (await self._now.get()) if self._store.opened else (0, self._starting)
        problem = problem or unknown
        document = {"status": pumps or None, "CommitTS": now_ts, "Checkpoint": {}, "ErrMsg": problem}
        return json_response({**document, "pump": self._own()}, newline=True)

    async def ready(self) -> Response:
        """Answer probes: 200 if this pump accepts prewrites."""
        return ready_response(self.refuses())

    @property
    def _starting(self) -> str:
        return starting_text(self._store.reading.now)

    def refuses(self) -> str:
        """Return why this pump accepts no prewrites; empty if it does."""
        if not self._store.opened:
            return self._starting
        if self._node.usurped:
            return f"another process overwrote this pump's record ({self._node.usurped})"
        if self._node.state is not State.ONLINE:
            return f"this pump is {self._node.state}"
        if self._store.log.broken:
            return f"the value log is broken: {self._store.log.broken}"
        return "no available space: writes are refused" if self._store.space.full else ""

    async def sample(self) -> None:
        """Take the samples of the charts, until cancelled."""
        while True:
            gauges = {"disk_bytes": float(self._store.space.available_bytes)}
            if self._store.resolved_ts:
                gauges["behind_s"] = behind(self._store.resolved_ts, int(time.time() * 1000))
            self._history.add(time.monotonic(), gauges, metrics.totals())
            await asyncio.sleep(self._history.interval_s)

    async def home(self) -> Response:
        """Return the HTML page. It is served also while etcd is unavailable."""
        if not self._store.opened:
            return html_response(starting_page(self._node.node_id, self._store.reading.now))
        drainers, _ = await self._drainers.get()
        space = self._store.space
        text = page(
            self._own(),
            now_ms=int(time.time() * 1000),
            available_bytes=space.available_bytes,
            full=space.full,
            drainers=drainers,
            charts=charts(self._history, time.monotonic()),
        )
        return html_response(text)

    def _own(self) -> dict[str, Any]:
        if not self._store.opened:
            return starting_document(self._node.node_id, self._store.reading.now)
        store, now_s, measures = self._store, time.monotonic(), self.measures()
        kafka = self.publisher
        return {
            "nodeId": self._node.node_id,
            "state": str(self._node.state),
            "usurped": self._node.usurped,
            "version": release(),
            "resolvedTS": store.resolved_ts,
            "purgedTS": store.reads.purged_ts,
            "score": measures.score,
            "writeSeconds": round(measures.write_s, 6),
            "diskRoom": round(measures.room, 4),
            "backlogBytes": measures.backlog_bytes,
            "logBytes": store.log.size,
            "logBroken": store.log.broken,
            "damage": [str(error) for error in store.damage[:PENDING_SHOWN]],
            "pendingCount": len(store.pending),
            "pending": [
                {
                    "startTS": entry.start_ts,
                    "ageSeconds": round(now_s - entry.since_s, 1),
                    "ddlJobID": entry.ddl_job_id,
                    "prewriteKey": entry.prewrite_key.hex(),
                    "writer": entry.writer.hex(),
                    "belowGCSafePoint": entry.safepoint_ts,
                }
                for entry in store.pending.first(PENDING_SHOWN)
            ],
            "belowGCSafePointCount": len(store.pending.below_safepoint()),
            "lateCommitCount": store.writes.late_commits,
            "lateCommitTS": list(store.writes.late_ts),
            "kafka": kafka and {"topic": kafka.topic, "publishedTS": kafka.published_ts, "error": kafka.error},
        }

    async def drainers(self) -> Response:
        found, problem = await self._drainers.get()
        if problem:
            return json_response("can't provide service")
        return json_response([_document(status) for status in found] or None)

    async def change_state(self, request: Request) -> Response:
        """Pause or close this pump, only while it is online (P-LC-10). The answer is sent before the stop begins."""
        node_id, action = request.path["node_id"], request.path["action"]
        if node_id != self._node.node_id:
            return _result(f"invalide nodeID {node_id}, this pump's nodeID is {self._node.node_id}", FAILED)
        if self._node.state is not State.ONLINE:
            return _result(f"this pump's state is {self._node.state}, apply {action} failed!", FAILED)
        if action not in ("pause", "close"):
            return _result(f"invalide action {action}", FAILED)
        self._stop(action)
        return _result(f"apply action {action} success!", OK)

    async def show_binlog(self, request: Request) -> Response:
        """Return the binlog stored under a ts as text, with TiKV's record of its primary key."""
        if not self._store.opened:
            return text_response(self._starting)
        text = request.path["ts"]
        if not text.isdigit() or int(text) >= 1 << 63:
            return text_response(f"invalid parameter ts: {text}")
        try:
            payload = self._store.reads.read_at(int(text))
        except BinlogError as error:
            return text_response(str(error))
        if payload is None:
            return text_response(f"no binlog is stored under {text}")
        shown = binlog_pb2.Binlog.FromString(payload)
        parts = [str(shown)]
        if scan(payload).value_end:
            parts.append(f"\n\n PrewriteValue: {_prewrite_value(shown.prewrite_value)}")
        if shown.prewrite_key:
            parts.append(await self._mvcc(shown.prewrite_key))
        return text_response("".join(parts))

    async def _mvcc(self, key: bytes) -> str:
        if self.tikv is None:
            return "\n\n GetMvccByEncodedKey failed: this cluster has no TiKV"
        try:
            return f"\n\n GetMvccByEncodedKey: \n{await self.tikv.mvcc(key)}"
        except BinlogError as error:
            return f"\n\n GetMvccByEncodedKey failed: {error}"

    async def trigger_gc(self, _request: Request) -> Response:
        if not self._store.opened:
            return text_response(f"{self._starting}\n")
        if self._collector.working:
            return text_response("gc is working\n")
        await self._collector.collect()
        return text_response("trigger gc success\n")


def _prewrite_value(data: bytes) -> str:
    try:
        return f"\n{binlog_pb2.PrewriteValue.FromString(data)}"
    except ProtobufError:
        return "<Unmarshallable>\n"


def _document(status: NodeStatus) -> Any:
    return json.loads(status.to_json())


async def _records(registry: Registry, kind: Literal["pumps", "drainers"]) -> Sequence[NodeStatus]:
    return [record.status for record in (await registry.list(kind)).nodes]


def _result(message: str, code: int) -> Response:
    return json_response({"message": message, "code": code, "data": None}, indent=2)
