"""Writes binlogs to pumps with the original's rules of retry and failover (C-10 to C-14), without the registry.

`Writer` owns the connections, the tracker and the cleaner; `client`, the public interface, updates its pool. `Cleaner`
rolls back copies of settled transactions on pumps that may hold one, until each has answered (correctness rule 5:
clean-up rollbacks). Binlogs have the fields that TiDB sets in each kind (X-01, X-02, X-03).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from binlog.cluster.registry import State
from binlog.envelope import BinlogType, encode_binlog
from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.metrics import counter, exponential, gauge, histogram
from binlog.runtime.security import Security

from pumpclient.answer import Answer, Outcome, not_sent
from pumpclient.connection import Connection
from pumpclient.errors import CommitUndelivered, TransactionRolledBack
from pumpclient.pool import Pool, Selector
from pumpclient.prewrite import Prewriting
from pumpclient.tracker import CleanUp, OpenTransaction, Tracker

log = get_logger(__name__)

PATIENCE_BYTES_S = 8 << 20  # bytes that a pump is expected to store per second, of all that this client sends it
PATIENCE_COUNT_S = 10_000
OWED_MAX = 100_000  # per pump
RETRY_S = 1.0

UNDELIVERED = counter(
    "pump_client_undelivered_total", "Commits and rollbacks that no pump acknowledged in time: pending prewrites"
)
EXPIRED = counter("pump_client_expired_total", "Prewrites that were open for too long without a commit or rollback")
TRIES_FAILED = counter("pump_client_tries_failed_total", "Writes to one pump that were not acknowledged", ["outcome"])
SLOW = counter("pump_client_slow_total", "Times a pump was suspended because it did not answer a prewrite in time")
OUTSIDE = counter("pump_client_outside_label_total", "Prewrites of strategy label taken by a pump without the labels")
ROLLBACKS_OWED = gauge("pump_client_rollbacks_owed", "Clean-up rollbacks that their pump has not answered yet")
RPC_SECONDS = histogram(
    "pump_client_rpc_duration_seconds",
    "Duration of one try to write a binlog to a pump, until its answer or the timeout",
    ["outcome"],
    buckets=exponential(0.00005, 2, 18),
)
ACKED_SECONDS = RPC_SECONDS.labels("acked")  # made once: `labels` builds strings and takes a lock at each call
WRITTEN = counter("pump_client_written_binlogs_total", "Binlogs that a pump acknowledged")
WRITTEN_BYTES = counter("pump_client_written_bytes_total", "Bytes of binlogs that a pump acknowledged")


@dataclass(frozen=True, slots=True)
class DdlFields:
    """The DDL fields of a prewrite and of its commit. `schema_state` (X-06): 0 for drops, 5 otherwise."""

    job_id: int
    query: bytes | None
    schema_state: int


NO_DDL = DdlFields(0, None, 0)


def prewrite_payload(
    start_ts: int, prewrite_key: bytes, prewrite_value: bytes | None, writer: bytes = b"", ddl: DdlFields = NO_DDL
) -> bytes:
    """Encode a prewrite. `prewrite_value`: a serialized PrewriteValue, None for a DDL. `writer`: see write_prewrite."""
    return encode_binlog(
        tp=BinlogType.PREWRITE,
        start_ts=start_ts,
        prewrite_key=prewrite_key,
        prewrite_value=prewrite_value,
        ddl_query=ddl.query,
        ddl_job_id=ddl.job_id,
        ddl_schema_state=ddl.schema_state,
        writer=writer,
    )


def commit_payload(start_ts: int, commit_ts: int, prewrite_key: bytes, ddl: DdlFields = NO_DDL) -> bytes:
    """Encode a commit. It repeats the prewrite's key and all DDL fields, but not the rows (X-01)."""
    return encode_binlog(
        tp=BinlogType.COMMIT,
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=prewrite_key or None,
        ddl_query=ddl.query,
        ddl_job_id=ddl.job_id,
        ddl_schema_state=ddl.schema_state,
    )


def rollback_payload(start_ts: int, prewrite_key: bytes) -> bytes:
    """Encode a rollback: commit_ts 0 and the prewrite's key (X-02)."""
    return encode_binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts, commit_ts=0, prewrite_key=prewrite_key or None)


Write = Callable[[str, bytes], Awaitable[Answer]]
Exists = Callable[[str], bool]


class Cleaner:
    """Sends the clean-up rollbacks that `tracker` decides, with one task per pump that has not answered all. If one
    overtakes the delayed prewrite, the pump stores it and refuses the prewrite when it arrives. `write` sends a payload
    to a pump; `exists` says whether the pump is registered and not offline.
    """

    def __init__(self, write: Write, exists: Exists) -> None:
        self._write = write
        self._exists = exists
        self._retry_s = RETRY_S
        self._owed: dict[str, deque[tuple[int, bytes]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def owed(self) -> int:
        """The number of rollbacks that are not answered yet."""
        return sum(len(queue) for queue in self._owed.values())

    def add(self, work: CleanUp) -> None:
        for pump in work.pumps:
            queue = self._owed.setdefault(pump, deque())
            if len(queue) >= OWED_MAX:
                self._abandon(pump, queue.popleft()[0], "too many rollbacks are queued for this pump")
            queue.append((work.start_ts, work.prewrite_key))
            ROLLBACKS_OWED.inc()
            if pump not in self._tasks:
                task = asyncio.create_task(self._serve(pump), name=f"pumpclient-cleanup-{pump}")
                self._tasks[pump] = task

    async def _serve(self, pump: str) -> None:
        queue = self._owed[pump]
        while queue:
            if not self._exists(pump):
                while queue:
                    self._abandon(pump, queue.popleft()[0], "the pump is offline or no longer registered")
                break
            start_ts, key = queue[0]
            try:
                answer = await self._write(pump, rollback_payload(start_ts, key))
            except BinlogError as error:  # unusable settings, such as a TLS file: retry as for an unreachable pump
                answer = not_sent(str(error))
            if not answer.heard or answer.passes:  # an abandoned copy would hold back every drainer
                await asyncio.sleep(self._retry_s)
                continue
            if queue and queue[0][0] == start_ts:
                queue.popleft()
            ROLLBACKS_OWED.dec()
            if answer.outcome is Outcome.CONFLICT:
                # This pump has a commit of the transaction, too. The two differ; drainers drop the second (rule 19: one
                # transaction on several pumps).
                log.error("a copy of a prewrite was committed instead of rolled back", pump=pump, start_ts=start_ts)
            elif not answer.acked:
                log.warning("a pump refused a clean-up rollback", pump=pump, start_ts=start_ts, detail=answer.detail)
        del self._owed[pump], self._tasks[pump]

    def _abandon(self, pump: str, start_ts: int, why: str) -> None:
        ROLLBACKS_OWED.dec()
        log.error(
            "clean-up rollback abandoned; settle the prewrite with binlogctl settle",
            pump=pump,
            start_ts=start_ts,
            why=why,
        )

    async def drained(self) -> None:
        """Wait until every rollback is answered."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Stop. Unanswered rollbacks are logged with their start_ts."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for pump, queue in self._owed.items():
            for start_ts, _ in queue:
                self._abandon(pump, start_ts, "the client was closed before the pump answered")
        self._owed.clear()
        self._tasks.clear()


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of the pump client in seconds (C-10, C-11).

    - `write_timeout_s`: a pump must answer a write within this time.
    - `patience_s`: if a pump has not answered a prewrite within this time (longer for large prewrites), another pump is
      tried in parallel, and the slow pump is suspended until a probe succeeds.
    - `prewrite_retry_s`: the pause after every available pump has failed.
    - `commit_retry_first_s`, `commit_retry_s`: the first and the longest pause between tries to send a commit.
    - `commit_budget_s`: a commit is retried for this long.
    - `commit_wait_s`: a Service's caller waits for a commit for this long, then gets CommitUndelivered.
    - `open_ttl_s`: a transaction open for longer is reported to `on_expired`.
    - `detect_first_s`, `detect_s`: the first and the longest pause before a suspended pump is probed.
    - `detect_soonest_s`: the shortest time between two rounds of probes.
    - `probe_timeout_s`: a pump must answer a probe within this time.
    """

    write_timeout_s: float = 15.0
    patience_s: float = 0.7
    prewrite_retry_s: float = 0.1
    commit_retry_first_s: float = 0.05
    commit_retry_s: float = 1.0
    commit_budget_s: float = 600.0
    commit_wait_s: float = 30.0
    open_ttl_s: float = 3600.0
    detect_first_s: float = 1.0
    detect_s: float = 30.0
    detect_soonest_s: float = 0.2
    probe_timeout_s: float = 2.0


class Ended(Protocol):
    """Called when no more messages are sent for a transaction. `decided`: false if its prewrite may be pending."""

    def __call__(self, *, decided: bool) -> None: ...


@dataclass(eq=False)
class Writer:
    """Sends prewrites to selected pumps, and each commit or rollback to the pump that acknowledged. One event loop."""

    cluster_id: int
    pool: Pool
    selector: Selector
    limits: Limits
    security: Security | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    on_undelivered: Callable[[CommitUndelivered], None] | None = None
    on_expired: Callable[[OpenTransaction], None] | None = None
    tracker: Tracker = field(default_factory=Tracker)
    cleaner: Cleaner = field(init=False)
    suspended: asyncio.Event = field(default_factory=asyncio.Event)  # set when a pump is suspended or none is available
    _outside: Outage = field(
        default_factory=lambda: Outage(
            log,
            "no pump with this writer's labels accepted a prewrite",
            "pumps with this writer's labels accept prewrites",
        )
    )
    _connections: dict[str, Connection] = field(default_factory=dict)
    _outages: dict[str, Outage] = field(default_factory=dict)
    _endings: dict[asyncio.Task[None], int] = field(default_factory=dict)  # deliveries under way, with their start_ts

    def __post_init__(self) -> None:
        self.cleaner = Cleaner(self.attempt, self._may_hold)

    async def prewrite(self, start_ts: int, prewrite_key: bytes, payload: bytes) -> str:
        """Make the prewrite durable on one pump and return its id.

        Raises PrewriteFailed, PayloadTooLarge or NoPump. The transaction has then failed, and every pump that may hold
        a copy is sent a rollback.
        """
        self.report_expired()
        self.tracker.begin(start_ts, prewrite_key, now_s=time.monotonic())
        try:
            pump = await Prewriting(start_ts, payload, self).run()
        except BaseException:  # also when the caller was cancelled: pumps may hold copies
            self.cleaner.add(self.tracker.failed(start_ts))
            raise
        if self.selector.name == "label":
            if self.pool.labelled(pump, self.labels):
                self._outside.over()
            else:
                OUTSIDE.inc()
                self._outside.failed(labels=dict(self.labels), pump=pump)
        return pump

    async def commit(self, start_ts: int, commit_ts: int, ddl: DdlFields = NO_DDL) -> None:
        """See PumpsClient.commit. Raises CommitUndelivered also when the client is closed."""
        assert commit_ts > start_ts, f"commit_ts {commit_ts} is not after start_ts {start_ts}"
        pump = self.tracker.ending(start_ts, commit_ts)
        key = self.tracker.prewrite_key(start_ts)
        await self._end(start_ts, commit_ts, pump, commit_payload(start_ts, commit_ts, key, ddl))

    async def rollback(self, start_ts: int) -> None:
        """Roll the prewrite back. Delivery and errors as for `commit`."""
        pump = self.tracker.ending(start_ts, 0)
        key = self.tracker.prewrite_key(start_ts)
        await self._end(start_ts, 0, pump, rollback_payload(start_ts, key))

    async def _end(self, start_ts: int, commit_ts: int, pump: str, payload: bytes) -> None:
        task = asyncio.create_task(self._deliver(start_ts, commit_ts, pump, payload))
        self._endings[task] = start_ts
        task.add_done_callback(self._ended)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last="the client was closed") from None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.pop(task, None)
        if not task.cancelled():
            task.exception()  # retrieve it: the caller raises it, or was cancelled and _deliver has logged it

    def when_ended(self, start_ts: int, call: Ended) -> None:
        """Call `call` now, or when the delivery under way has ended. A cancelled caller does not end the delivery."""
        if not self.tracker.is_open(start_ts):
            call(decided=True)
            return
        for task, of in self._endings.items():
            if of == start_ts and not task.done():
                task.add_done_callback(lambda _: self.when_ended(start_ts, call))
                return
        call(decided=False)

    async def _deliver(self, start_ts: int, commit_ts: int, pump: str, payload: bytes) -> None:
        try:
            await self._deliver_within_budget(start_ts, commit_ts, pump, payload)
        except asyncio.CancelledError:  # by `close`; its caller may have stopped waiting long ago
            self._undelivered(CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last="the client was closed"))

    async def _deliver_within_budget(self, start_ts: int, commit_ts: int, pump: str, payload: bytes) -> None:
        end_s = time.monotonic() + self.limits.commit_budget_s
        pause_s = self.limits.commit_retry_first_s
        tries = 0
        while True:
            answer = await self.attempt(pump, payload)
            tries += 1
            if answer.acked:
                self.cleaner.add(self.tracker.settled(start_ts))
                return
            if answer.outcome is Outcome.ROLLED_BACK and commit_ts:
                self.cleaner.add(self.tracker.settled(start_ts))
                log.warning("transaction was rolled back by its pump", start_ts=start_ts, pump=pump)
                raise TransactionRolledBack(start_ts, commit_ts, pump=pump)
            if time.monotonic() >= end_s or answer.outcome is Outcome.CONFLICT:
                break  # a conflict is permanent: the transaction was settled in another way
            self.found_failing(pump, start_ts, answer)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.limits.commit_retry_s)
        self._undelivered(CommitUndelivered(start_ts, commit_ts, pump=pump, tries=tries, last=answer.detail))

    def _undelivered(self, error: CommitUndelivered) -> None:
        self.tracker.undelivered(error.start_ts)
        UNDELIVERED.inc()
        log.error(
            "a transaction's outcome could not be sent to its pump: its prewrite stays pending",
            start_ts=error.start_ts,
            commit_ts=error.commit_ts,
            pump=error.pump,
            last=error.last,
        )
        if self.on_undelivered is not None:
            self.on_undelivered(error)
        raise error

    async def attempt(self, pump: str, payload: bytes) -> Answer:
        """Try one pump once, and update its error count and availability (C-07, C-14)."""
        connection = self._connection(pump)
        if connection is None:
            return not_sent(f"pump {pump} is not registered")
        begun_s = time.monotonic()
        answer = await connection.write(payload)
        took_s = time.monotonic() - begun_s
        if answer.acked:
            ACKED_SECONDS.observe(took_s)
            if pump in self._outages:
                self._outages.pop(pump).over(pump=pump)
            WRITTEN.inc()
            WRITTEN_BYTES.inc(len(payload))
            if self.pool.succeeded(pump):
                log.info("pump is available again", pump=pump)
            return answer
        RPC_SECONDS.labels(answer.outcome.value).observe(took_s)
        if not answer.final:
            TRIES_FAILED.labels(answer.outcome.value).inc()
            if self.pool.failed(pump, answer):
                log.warning("pump is unavailable", pump=pump, detail=answer.detail)
                self.suspended.set()
        return answer

    def patience_s(self, pump: str, payload_bytes: int) -> float:
        """Return how long a prewrite may wait for this pump: longer for large ones, and behind other open writes."""
        connection = self._connections.get(pump)
        ahead = (connection.open_bytes, connection.open_count) if connection is not None else (0, 0)
        return self.limits.patience_s + (ahead[0] + payload_bytes) / PATIENCE_BYTES_S + ahead[1] / PATIENCE_COUNT_S

    def found_slow(self, pump: str) -> None:
        """Note that the pump did not answer a prewrite within `patience_s`."""
        if self.pool.found_slow(pump):
            SLOW.inc()
            log.warning("pump is unavailable: it is slow, or does not answer", pump=pump)
            self.suspended.set()

    def found_failing(self, pump: str, start_ts: int, answer: Answer) -> None:
        """Log that a pump refuses a write. All writes to the pump share its outage."""
        outage = self._outages.setdefault(pump, Outage(log, "writes to a pump fail", "writes to a pump succeed again"))
        outage.failed(pump=pump, start_ts=start_ts, detail=answer.detail)

    def falls_back(self) -> None:
        """Note that no pump is available, or none accepted a prewrite in time: all online pumps are tried now."""
        self.suspended.set()

    def renew(self, pump: str, before_s: float) -> None:
        """Reset the pump's connection if it was made before `before_s` (monotonic clock)."""
        if pump in self._connections:
            self._connections[pump].renew(before_s)

    async def probe(self, pump: str) -> Answer:
        """Probe whether the pump accepts prewrites. Any refusal counts as no, whatever its gRPC status (C-05)."""
        connection = self._connection(pump)
        if connection is None:
            return not_sent(f"pump {pump} is not registered")
        answer = await connection.probe(timeout_s=min(self.limits.probe_timeout_s, self.limits.write_timeout_s))
        if not answer.acked:
            self.pool.probe_failed(pump)
        elif self.pool.succeeded(pump, probe=True):
            log.info("pump is available again", pump=pump)
        return answer

    def forget(self, pump: str) -> None:
        """Reset the connection of a pump that moved or was removed."""
        connection = self._connections.pop(pump, None)
        if connection is not None:
            connection.reset()

    def _connection(self, pump: str) -> Connection | None:
        connection = self._connections.get(pump)
        if connection is None:
            member = self.pool.get(pump)
            if member is None:
                return None
            connection = self._connections[pump] = Connection(
                member.host,
                cluster_id=self.cluster_id,
                timeout_s=self.limits.write_timeout_s,
                security=self.security,
            )
        return connection

    def _may_hold(self, pump: str) -> bool:
        member = self.pool.get(pump)
        return member is not None and member.state is not State.OFFLINE

    def report_expired(self) -> None:
        """Report transactions that are open for too long (C-09)."""
        for transaction in self.tracker.expired(now_s=time.monotonic(), ttl_s=self.limits.open_ttl_s):
            EXPIRED.inc()
            log.error(
                "a transaction has been open for too long without commit or rollback",
                start_ts=transaction.start_ts,
                pump=transaction.pump,
            )
            if self.on_expired is not None:
                self.on_expired(transaction)

    async def close(self, *, drain_s: float) -> None:
        """Wait up to `drain_s` seconds for deliveries and clean-ups under way, then stop and log the others."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while self._endings:
                    await asyncio.wait(set(self._endings))
                await self.cleaner.drained()
        await self.cleaner.close()
        endings = set(self._endings)
        for task in endings:
            task.cancel()
        if endings:
            await asyncio.wait(endings)
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
