"""A pump's HTML status page: the "pump" document of /status, and the registered drainers. While the pump starts, both
show how much of its value log it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from binlog.cluster import tso
from binlog.cluster.registry import NodeStatus
from binlog.runtime.chart import Chart, History, bytes_text, count_tick, seconds_tick
from binlog.runtime.page import Alarm, Fact, Mood, Table, render, span_text
from binlog.runtime.version import release

from pump.log.value_log import Reading

PENDING_WARN_S = 10.0


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
    found = []
    if own["usurped"]:
        found.append(
            Alarm(
                f"Another process overwrote this pump's record ({own['usurped']}): prewrites are refused. Restart the "
                "pump."
            )
        )
    if own["logBroken"]:
        found.append(
            Alarm(
                f"Writes are refused until the pump is restarted: {own['logBroken']}. Stored binlogs are still served."
            )
        )
    if full:
        limit = "storage.stop-write-at-available-space"
        found.append(Alarm(f"No available space: writes are refused. {limit} is the limit."))
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
