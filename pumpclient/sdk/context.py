"""What the transactions and the DDL statements of a service share: the report on each `commit` and its metrics, permits
to send (backpressure), the calls under way, and how they wait for a commit or a rollback.

Only the pump that has the prewrite can store its commit, so no other pump can be tried instead. When the caller's time
is over, the caller is informed, and the delivery continues in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from binlog.cluster.etcd import Etcd
from binlog.cluster.timestamp import TimestampSource
from binlog.runtime.log import get_logger
from binlog.runtime.metrics import counter, exponential, gauge, histogram
from binlog.runtime.waiting import is_set_within

from pumpclient.client import PumpsClient
from pumpclient.errors import ClientClosed, CommitUndelivered
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.errors import BadDeclaration, Busy
from pumpclient.sdk.lease import WriterLease

log = get_logger(__name__)

TRANSACTIONS = counter("sdk_transactions_total", "Transactions with rows whose commit has ended", ["outcome"])
SECONDS = histogram(
    "sdk_transaction_duration_seconds",
    "Duration of commit, including the time in the queue",
    ["outcome"],
    buckets=exponential(0.0005, 2, 18),
)
ROWS = counter("sdk_rows_total", "Rows of committed transactions")
IN_FLIGHT = gauge("sdk_in_flight", "Transactions being sent")
QUEUED = gauge("sdk_queued", "Transactions that wait in commit, because the maximum number is being sent")


class Outcome(StrEnum):
    """COMMITTED: the rows are visible. FAILED: they never will be. UNKNOWN: query Transaction.outcome."""

    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """The result of the `commit` of one transaction with rows.

    `pump`: the id of the pump that accepted the rows, or None. `seconds`: the duration of `commit`. `queued_s`: the
    part of it before the transaction was sent. `error`: the exception that `commit` raised, or None.
    """

    start_ts: int
    commit_ts: int | None
    outcome: Outcome
    rows: int
    payload_bytes: int
    pump: str | None
    seconds: float
    queued_s: float
    error: BaseException | None


OnTransaction = Callable[[TransactionReport], None]


def report(done: TransactionReport, hook: OnTransaction | None) -> None:
    """Count the transaction and call the hook, whose exceptions are logged and have no other effect."""
    TRANSACTIONS.labels(done.outcome.value).inc()
    SECONDS.labels(done.outcome.value).observe(done.seconds)
    if done.outcome is Outcome.COMMITTED:
        ROWS.inc(done.rows)
    if hook is None:
        return
    try:
        hook(done)
    except Exception as error:  # noqa: BLE001  whatever the service's function raises
        log.error("on_transaction raised", start_ts=done.start_ts, error=repr(error))


IN_FLIGHT_MAX = 1024
QUEUE_MAX = 10_240
QUEUE_WAIT_S = 5.0


class Permits:
    """Permits for `in_flight_max` transactions. Up to `queue_max` more wait in order, each for at most `queue_wait_s`
    seconds.

    A transaction keeps its permit until no more messages are sent for it, even if its caller stopped waiting. It
    releases the permit earlier if it has waited as long as a caller waits for a commit: its pump may be unreachable for
    much longer. When pumps are slow, callers thus get Busy, and the memory of the service does not fill up.
    """

    def __init__(
        self,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        queue_max: int = QUEUE_MAX,
        queue_wait_s: float = QUEUE_WAIT_S,
    ) -> None:
        """Raises BadDeclaration for numbers out of range."""
        for name, value, least in (("in_flight_max", in_flight_max, 1), ("queue_max", queue_max, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadDeclaration(f"{name}={value!r}: it must be a whole number of at least {least}")
        if not isinstance(queue_wait_s, int | float) or isinstance(queue_wait_s, bool) or not queue_wait_s >= 0:
            raise BadDeclaration(f"queue_wait_s={queue_wait_s!r}: it must be 0 seconds or more")
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._free = asyncio.Semaphore(in_flight_max)
        self.in_flight = 0
        self.queued = 0

    async def take(self, what: str) -> float:
        """Wait for a permit and take it. Return the seconds waited. Raises Busy if no permit became free in time."""
        if not self._free.locked():
            await self._free.acquire()  # does not wait
            self._taken()
            return 0.0
        if self.queued >= self._queue_max:
            raise Busy(
                f"{what} was not sent: {self.in_flight} are being sent and {self.queued} wait, both at their limit"
            )
        begun_s = time.monotonic()
        self.queued += 1
        QUEUED.inc()
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(
                f"{what} was not sent: none of the {self.in_flight} being sent ended within {self._queue_wait_s} s"
            ) from None
        finally:
            self.queued -= 1
            QUEUED.dec()
        self._taken()
        return time.monotonic() - begun_s

    def _taken(self) -> None:
        self.in_flight += 1
        IN_FLIGHT.inc()

    def leave(self) -> None:
        """Release a permit for the next waiting transaction."""
        self.in_flight -= 1
        IN_FLIGHT.dec()
        self._free.release()


class UnderWay:
    """Calls that have sent something or are about to, from `entered` until they end. Open, then closed (`shut`).

    A call can be cancelled as long as it has not sent the message that decides its transaction. It then raises
    ClientClosed, and its caller's task continues. The task is cancelled from outside as `asyncio.timeout` does it.
    """

    def __init__(self) -> None:
        self._shut = False
        self._open: set[asyncio.Task[object]] = set()
        self._cancelled: set[asyncio.Task[object]] = set()
        self._deciding = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open) + self._deciding

    def check(self, what: str) -> None:
        """Raise ClientClosed if it is shut."""
        if self._shut:
            raise ClientClosed(f"the service is closed: {what} was not sent")

    @contextlib.contextmanager
    def entered(self, what: str) -> Iterator[None]:
        """Enter a part of a call that may be cancelled. If it ends early, `what` will never be visible."""
        self.check(what)
        task = asyncio.current_task()
        assert task is not None, "only tasks make calls"
        before = task.cancelling()
        self._open.add(task)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if task in self._cancelled and task.uncancel() <= before:
                raise ClientClosed(f"the service was closed while {what} was under way: it is not committed") from None
            raise
        finally:
            self._open.discard(task)
            self._cancelled.discard(task)
            self._rest()

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Enter a part that is never cancelled: the message that decides the transaction has been sent."""
        self._deciding += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._deciding -= 1
            self._rest()

    def _rest(self) -> None:
        if not len(self):
            self._idle.set()

    def shut(self) -> None:
        """Refuse new calls from now on."""
        self._shut = True

    async def ended(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds until all open calls have ended. Return whether they have."""
        await is_set_within(wait_s, self._idle)
        return not len(self)

    def cancel(self) -> int:
        """Cancel the calls that may be cancelled and return their number."""
        tasks = self._open - self._cancelled
        self._cancelled |= tasks
        for task in tasks:
            task.cancel()
        return len(tasks)


def begin(sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a delivery as a task that continues when its caller stops waiting or is cancelled."""
    delivery = asyncio.ensure_future(sending)
    # Its exception counts as retrieved, so that asyncio does not report it: the client has logged it.
    delivery.add_done_callback(lambda task: task.cancelled() or task.exception())
    return delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What one open service uses. `rowids`: hidden row ids of tables without a clustered key."""

    etcd: Etcd
    client: PumpsClient
    timestamps: TimestampSource
    rowids: Iterator[int]
    lease: WriterLease
    permits: Permits
    on_transaction: OnTransaction | None = None
    catalog: Catalog = field(default_factory=Catalog)
    under_way: UnderWay = field(default_factory=UnderWay)

    async def commit_ts(self, start_ts: int) -> int:
        """Get the commit_ts. Without one the transaction never commits, so its prewrite is rolled back."""
        try:
            return await self.timestamps.get()
        except BaseException:
            # The rollback is sent even if this task is cancelled; its delivery continues after this task.
            await self.taken_back(start_ts)
            raise

    async def delivered(self, delivery: asyncio.Task[None], *, start_ts: int, commit_ts: int, pump: str) -> None:
        """Return when the delivery has succeeded. Raises its exception, or CommitUndelivered after `commit_wait_s`."""
        limits = self.client.limits
        done, _ = await asyncio.wait({delivery}, timeout=limits.commit_wait_s)
        if not done:
            last = (
                f"no answer within {limits.commit_wait_s:g} s; it is still being sent, for {limits.commit_budget_s:g} "
                "s in total, and will be stored if the pump answers by then"
            )
            raise CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last=last, under_way=True)
        delivery.result()

    async def taken_back(self, start_ts: int) -> None:
        """Send a rollback and wait up to `commit_wait_s`. Whatever comes of it, the transaction is not committed."""
        await asyncio.wait({begin(self.client.rollback(start_ts))}, timeout=self.client.limits.commit_wait_s)
