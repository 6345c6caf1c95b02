"""The drainer's HTML status page, rendered from the document of /status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from binlog.cluster import tso
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

LAG_WARN_S = 30.0
PENDING_WARN_S = 10.0
BATCH_WARN_S = 60.0
FAILING_BAD_S = 30.0  # a shorter failure is usual, such as a DDL that waits for a lock
TABLES_NAMED = 10


def page(document: Mapping[str, Any], history: History | None = None, now_s: float = 0.0) -> str:
    """Return the page. `document`: that of drainer.service.status.Status. `history`: samples for `charts`."""
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
    """Return the page of a starting drainer. `document`: that of drainer.service.status.StartingPages."""
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
