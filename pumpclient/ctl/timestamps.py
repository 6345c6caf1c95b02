"""The cluster's timestamps. generate_meta writes the current TSO as a savepoint file from which a drainer can start;
the lines with the time, which make the original's file invalid TOML, are comments here. reset-tso-bound, for clusters
without PD, lowers a timestamp bound that is far ahead of the clock.

The elected pump stores in etcd a bound above every timestamp that it allocated; its successor starts there. A bound far
ahead of the clock comes from a wrong clock, or from a binlog with a ts of another source. Pumps refuse to start from
such a bound (`bound-ahead-max`). Allocating a ts below one in use would lose transactions. So this command finds the
positions in use, reports them, and lowers the bound to just above them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlog.cluster.etcd import KV, Compare, Put
from binlog.cluster.timestamp import BOUND_KEY, LEADER_KEY, SOURCE_KEY, current_ts
from binlog.cluster.tso import compose, format_local, physical_ms

from pumpclient.ctl.errors import CommandError, Misused, Refused
from pumpclient.ctl.session import CommandSession

SAVEPOINT = "savepoint"


def parse_zone(text: str) -> tzinfo:
    """Parse `+08:00`, `Asia/Shanghai`, `UTC`, or `Local` (this machine's zone, Go's name). Raises Misused."""
    if text == "Local":
        local = datetime.now().astimezone().tzinfo
        assert local is not None
        return local
    offset = re.fullmatch(r"([+-])(\d{1,2}):(\d{2})", text)
    if offset:
        delta = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-delta if offset[1] == "-" else delta)
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misused(f"time zone {text!r} is neither an offset like +08:00 nor a known name") from error


def savepoint_text(commit_ts: int, zone: tzinfo | None) -> str:
    """Return the file as TOML: the position, and its time as comments."""
    moment = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, UTC)
    lines = [f"commitTS = {commit_ts}"]
    if zone is not None:
        lines += [f"# {moment:%Y-%m-%d %H:%M:%S %z} UTC", f"# {moment.astimezone(zone):%Y-%m-%d %H:%M:%S %z}"]
    return "\n".join(lines) + "\n"


def write_savepoint(directory: Path, text: str) -> Path:
    """Write the file atomically (K-12): write a new file and rename it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / SAVEPOINT
    new = path.with_suffix(".tmp")
    new.write_text(text)
    new.chmod(0o644)  # as in the original: a drainer of another user may read it
    new.replace(path)
    return path


async def generate_meta(session: CommandSession) -> None:
    zone = parse_zone(session.options.time_zone) if session.options.time_zone else None
    commit_ts = await current_ts(session.etcd, session.section, session.security)
    text = savepoint_text(commit_ts, zone)
    path = await asyncio.to_thread(write_savepoint, Path(session.options.data_dir), text)
    session.out.done("save meta", meta=f"commitTS: {commit_ts}", path=str(path))


# A position up to this far ahead of this machine's clock is believed to have really been reached.
AHEAD_MAX_MS = 86_400_000
# Covers the time since a node's last heartbeat, in which timestamps were allocated, and differences between clocks.
MARGIN_MS = 60_000


@dataclass(frozen=True, slots=True)
class Reset:
    """The decision. `bound_ms`: the new bound, or None to do nothing. `above`: nodes whose positions are above it."""

    bound_ms: int | None
    above: tuple[str, ...]


def decide(*, stored: bytes | None, now_ms: int, positions: Sequence[tuple[str, int]]) -> Reset:
    """Decide. `positions`: each node's name and maxCommitTS. A bound that is no number must be replaced, too."""
    reached_ms = [physical_ms(ts) for _, ts in positions if physical_ms(ts) <= now_ms + AHEAD_MAX_MS]
    wanted_ms = max([now_ms, *reached_ms]) + MARGIN_MS
    above = tuple(f"{name} at {ts}" for name, ts in positions if physical_ms(ts) > now_ms + AHEAD_MAX_MS)
    fine = stored is not None and stored.isdigit() and int(stored) <= now_ms + AHEAD_MAX_MS
    return Reset(None if fine else wanted_ms, above)


async def reset(session: CommandSession) -> None:
    """Report the bound and the positions, and lower the bound unless -dry-run is given."""
    source = await session.etcd.get(SOURCE_KEY)
    if source is None or source.value != b"own":
        recorded = "nothing" if source is None else source.value.decode(errors="replace")
        raise CommandError(
            f"etcd key {SOURCE_KEY} contains {recorded}: no pump allocates timestamps, so there is no bound to lower"
        )
    leader, stored = await session.etcd.get(LEADER_KEY), await session.etcd.get(BOUND_KEY)
    now_ms = time.time_ns() // 1_000_000
    found = decide(stored=stored.value if stored else None, now_ms=now_ms, positions=await _positions(session))
    _show(session, stored, now_ms, found)
    if found.bound_ms is None:
        session.out.done("the bound is correct: nothing to do")
        return
    _check(session, leader, found)
    if session.options.dry_run:
        session.out.done("dry run: nothing was written")
        return
    await session.confirm(
        refusal="lowering the bound cannot be undone: confirm with -yes, or preview with -dry-run",
        about="Every transaction above it must be gone. ",
        word=str(found.bound_ms),
    )
    compares = [
        Compare(LEADER_KEY, mod_revision=0),
        Compare(BOUND_KEY, mod_revision=stored.mod_revision if stored else 0),
    ]
    if await session.etcd.txn(compares, [Put(BOUND_KEY, str(found.bound_ms).encode())]) is None:
        raise Refused("a pump was elected, or the bound changed meanwhile: nothing was written; run the command again")
    session.out.done(
        "the bound was lowered; waiting pumps continue by themselves", key=BOUND_KEY, bound_ms=found.bound_ms
    )


async def _positions(session: CommandSession) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for kind in ("pumps", "drainers"):
        listing = await session.registry.list(kind)
        if listing.unreadable:
            raise CommandError(
                f"cannot determine the nodes' positions; unreadable records: {', '.join(listing.unreadable)}"
            )
        for status in (record.status for record in listing.nodes):
            found.append((f"{kind.removesuffix('s')} {status.node_id} ({status.state})", status.max_commit_ts))
    return found


def _show(session: CommandSession, stored: KV | None, now_ms: int, reset: Reset) -> None:
    text = stored.value[:40].decode(errors="replace") if stored else "absent"
    bound_ms = int(text) if text.isdigit() else None
    session.out.done(
        "bound of timestamps",
        key=BOUND_KEY,
        stored=text,
        time="" if bound_ms is None else format_local(compose(bound_ms)),
        ahead_of_this_clock_s="" if bound_ms is None else (bound_ms - now_ms) // 1000,
        this_clock=format_local(compose(now_ms)),
        positions_far_ahead=list(reset.above),
    )
    if reset.bound_ms is not None:
        session.out.done(
            "the bound would become just above this clock and every position that is not far ahead",
            bound_ms=reset.bound_ms,
            time=format_local(compose(reset.bound_ms)),
        )


def _check(session: CommandSession, leader: KV | None, reset: Reset) -> None:
    """Raise Refused if an obstacle exists. A dry run only reports it."""
    obstacles: list[str] = []
    if leader is not None:
        address = leader.value.decode(errors="replace")
        obstacles.append(f"pump {address} allocates timestamps now: stop all pumps first (this removes the pump's key)")
    if reset.above and not session.options.force:
        obstacles.append(
            f"timestamps above the new bound are in use: {', '.join(reset.above)}. Commits below them would never "
            f"be applied by a drainer at such a position, nor served in order by a pump. If the positions are wrong "
            f"too, or the nodes will be set up again, use -force"
        )
    for obstacle in obstacles:
        if not session.options.dry_run:
            raise Refused(f"{obstacle}. Nothing was written")
        session.out.problem("the command would be refused", why=obstacle)
