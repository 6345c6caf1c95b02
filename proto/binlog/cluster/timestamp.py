"""The timestamps of a cluster: their source, PD or the cluster's own pumps, and requests for many callers at once.

A later request gets a larger timestamp, over all processes: a pump that got T promises that no commit at or below T
will arrive. So timestamps are never kept in reserve (correctness rule 6: no timestamp for later callers).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from binlog.cluster.etcd import Etcd
from binlog.cluster.pd import COUNT_MAX, Allocator, NotPD, PDClient, TsoClient, ask_first
from binlog.cluster.registry import ROOT
from binlog.errors import BinlogError, ClusterMismatch, ConfigError, TimestampSourceMismatch, TimestampUnavailable
from binlog.runtime.fields import UpstreamSection
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security

CLUSTER_ID_KEY = f"{ROOT}/cluster_id"
SOURCE_KEY = f"{ROOT}/tso/source"
LEADER_KEY = f"{ROOT}/tso/leader"  # host:port of the elected pump, under its lease
BOUND_KEY = f"{ROOT}/tso/bound"  # decimal text: no timestamp of this millisecond or later has been allocated

WAIT_S = 10.0
RETRY_PAUSE_S = 0.05
WORTH_A_LINE_S = 1.0
CLOCK_S = 1.0  # see ClusterClock

Source = Literal["pd", "own"]

_log = get_logger("timestamp")
_choice_log = get_logger("upstream")


def pd_addresses(cfg: UpstreamSection) -> Sequence[str]:
    """Return the addresses where PD's gRPC service is expected."""
    return (cfg.pd_addr,) if cfg.pd_addr else cfg.pd_urls


async def choose_source(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> Source:
    """Return the cluster's source. The first program that calls this records it in etcd, and every other one must
    agree: with two allocators in one cluster, the resolved ts would be wrong (correctness rule 7).

    Raises TimestampSourceMismatch if the configuration, or the server at pd-urls, contradicts the record. Raises
    TimestampUnavailable if tso-source is `auto`, no server answers, and no choice is recorded.
    """
    recorded = await _recorded(etcd)
    wanted = await _wanted(cfg, security, recorded)
    if recorded is None:
        await etcd.put_if(SOURCE_KEY, wanted.encode(), mod_revision=0)
        recorded = await _recorded(etcd)
        _choice_log.info("the source of timestamps is recorded", key=SOURCE_KEY, source=recorded, wanted=wanted)
    if recorded != wanted:
        seen = f'tso-source is "{cfg.tso_source}"'
        if cfg.tso_source == "auto":
            where = ", ".join(pd_addresses(cfg))
            seen = f"a PD answers at {where}" if wanted == "pd" else f"the server at {where} is not a PD"
        raise TimestampSourceMismatch(
            f'this cluster takes its timestamps from "{recorded}" (etcd key {SOURCE_KEY}), but {seen}. Two sources in '
            f"one cluster lose transactions: configure the same source in every pump, drainer and writer; to switch "
            f"the cluster, stop all of them, make sure the new source's clock is ahead, and delete the key"
        )
    return wanted


async def _recorded(etcd: Etcd) -> Source | None:
    kv = await etcd.get(SOURCE_KEY)
    if kv is None:
        return None
    if kv.value == b"pd":
        return "pd"
    if kv.value == b"own":
        return "own"
    raise TimestampSourceMismatch(f'etcd key {SOURCE_KEY} holds {kv.value!r}; it must be "pd" or "own"')


async def _wanted(cfg: UpstreamSection, security: Security | None, recorded: Source | None) -> Source:
    if cfg.tso_source != "auto":
        return cfg.tso_source
    try:
        await ask_first(pd_addresses(cfg), security)
        return "pd"
    except NotPD:  # one of them certainly is another server: a plain etcd
        return "own"
    except TimestampUnavailable as error:
        if recorded is not None:
            return recorded
        raise TimestampUnavailable(
            f"tso-source is auto, and no server at {', '.join(pd_addresses(cfg))} answered whether it is a PD: {error}"
        ) from error


async def cluster_id(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> int:
    """Return the id in every RPC. Raises as choose_source does, and TimestampUnavailable if PD does not answer."""
    if await choose_source(etcd, cfg, security) == "pd":
        return (await ask_first(pd_addresses(cfg), security)).cluster_id
    return await own_cluster_id(etcd)


async def own_cluster_id(etcd: Etcd) -> int:
    """Return the id of a cluster without PD: 63 random bits, made by the first program that needs it, and permanent."""
    kv = await etcd.get(CLUSTER_ID_KEY)
    if kv is None:
        made = secrets.randbits(62) | 1 << 62
        await etcd.put_if(CLUSTER_ID_KEY, str(made).encode(), mod_revision=0)
        kv = await etcd.get(CLUSTER_ID_KEY)
    text = kv.value if kv is not None else b""
    if not text.isdigit() or not 0 < int(text) < 1 << 64:
        raise ConfigError(f"etcd key {CLUSTER_ID_KEY} holds {text!r}, which is not a cluster id")
    return int(text)


@dataclass(slots=True, eq=False)
class _Caller:
    deadline: float
    answer: asyncio.Future[int]


class TimestampSource:
    """A source of increasing timestamps: a call that begins after another one has returned gets a larger timestamp. It
    joins callers that wait at the same moment into one request.

    Open until `close`. A task runs only while callers wait. A failed request is repeated for the callers that wait at
    that time, until each caller's deadline.
    """

    def __init__(self, origin: TsoClient, *, wait_s: float = WAIT_S) -> None:
        self._origin = origin
        self._wait_s = wait_s
        self._waiting: deque[_Caller] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._reason = ""  # the reason of the last failure, until a request succeeds
        # An election takes a moment and is not logged.
        self._outage = Outage(_log, "cannot get timestamps", "timestamps are available again", quiet_s=WORTH_A_LINE_S)

    async def get(self) -> int:
        """Return one timestamp. Raises TimestampUnavailable if there is none in time."""
        if self._closed:
            raise TimestampUnavailable("the source of timestamps is closed")
        loop = asyncio.get_running_loop()
        caller = _Caller(loop.time() + self._wait_s, loop.create_future())
        self._waiting.append(caller)
        if self._task is None:
            self._task = loop.create_task(self._serve())
        return await caller.answer

    async def close(self) -> None:
        """Close the source. Callers that still wait get TimestampUnavailable."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        _fail(self._waiting, TimestampUnavailable("the source of timestamps was closed"))
        self._waiting.clear()
        await self._origin.close()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                served = self._take()
                if served:
                    await self._ask(served)
        finally:
            self._task = None

    def _take(self) -> list[_Caller]:
        """Return the callers that wait now, as many as one request may serve. Later callers must not be added to it."""
        taken: list[_Caller] = []
        while self._waiting and len(taken) < COUNT_MAX:
            caller = self._waiting.popleft()
            if not caller.answer.done():  # not cancelled meanwhile
                taken.append(caller)
        return taken

    async def _ask(self, served: list[_Caller]) -> None:
        loop = asyncio.get_running_loop()
        try:
            first_deadline = min(caller.deadline for caller in served)
            async with asyncio.timeout_at(first_deadline):
                given = await self._origin.timestamps(len(served))
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(served))
            raise
        except ClusterMismatch as error:
            _fail(served, error)
            return
        except (BinlogError, TimeoutError) as error:
            self._retry(served, loop.time(), error)
            await asyncio.sleep(RETRY_PAUSE_S)
            return
        except Exception as error:  # noqa: BLE001  a mistake in the origin must reach the callers, not leave them waiting
            _fail(served, error)
            return
        self._outage.over()
        self._reason = ""
        for caller, ts in zip(served, given, strict=True):
            if not caller.answer.done():
                caller.answer.set_result(ts)

    def _retry(self, served: list[_Caller], now: float, error: Exception) -> None:
        """Queue callers again that have time left. The others fail with the reason of the outage."""
        reason = str(error) or self._reason or "no answer"
        self._reason = reason
        self._outage.failed(error=reason, waiting=len(served))
        for caller in reversed(served):
            if caller.answer.done():
                continue
            if now < caller.deadline:
                self._waiting.appendleft(caller)
            else:
                caller.answer.set_exception(TimestampUnavailable(f"no timestamp within {self._wait_s:g} s: {reason}"))


def _fail(callers: Iterable[_Caller], error: Exception) -> None:
    for caller in callers:
        if not caller.answer.done():
            caller.answer.set_exception(error)


async def connect_timestamps(
    etcd: Etcd, cfg: UpstreamSection, security: Security | None = None, *, wait_s: float = WAIT_S
) -> TimestampSource:
    """Return the cluster's timestamps: PD's or the elected pump's. Decides and raises as choose_source does."""
    if await choose_source(etcd, cfg, security) == "pd":
        return TimestampSource(PDClient(pd_addresses(cfg), security), wait_s=wait_s)
    return TimestampSource(OwnTimestamps(etcd, security), wait_s=wait_s)


async def current_ts(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> int:
    """Return one timestamp of the cluster. Decides and raises as `connect_timestamps` does."""
    timestamps = await connect_timestamps(etcd, cfg, security)
    try:
        return await timestamps.get()
    finally:
        await timestamps.close()


class OwnTimestamps(TsoClient):
    """Timestamps from the elected pump. Its address is read from etcd again after every failure."""

    def __init__(self, etcd: Etcd, security: Security | None = None) -> None:
        super().__init__(security)
        self._etcd = etcd
        self._cluster_id = 0

    async def locate(self) -> Allocator:
        """Return the elected pump. Raises TimestampUnavailable if there is none."""
        if self._cluster_id == 0:
            self._cluster_id = await own_cluster_id(self._etcd)
        leader = await self._etcd.get(LEADER_KEY)
        if leader is None:
            raise TimestampUnavailable(
                f"no pump is elected to allocate timestamps (etcd key {LEADER_KEY} is absent): is one running?"
            )
        return Allocator(leader.value.decode(errors="replace"), self._cluster_id)


class ClusterClock:
    """The time of the cluster's timestamp source, requested at most every `every_s` seconds. Connects at the first
    request."""

    def __init__(self, connect: Callable[[], Awaitable[TimestampSource]], *, every_s: float = CLOCK_S) -> None:
        self._connect = connect
        self._source: TimestampSource | None = None
        self._last_ts = 0
        self._outage = Outage(_log, "the cluster's time is not known", "the cluster's time is known again")
        self._every_s = every_s
        self._asked_at = -every_s

    async def now_ts(self) -> int:
        """Return a TSO that is not later than now: the last one while the source does not answer, 0 before the
        first."""
        if time.monotonic() - self._asked_at >= self._every_s:
            with self._outage.catching(BinlogError):
                if self._source is None:
                    self._source = await self._connect()
                self._last_ts = max(self._last_ts, await self._source.get())
            self._asked_at = time.monotonic()
        return self._last_ts

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()
