"""The pump client, with which TiDB or a service that embeds the SDK writes binlogs.

    async with await PumpsClient.connect("http://127.0.0.1:2379") as client:
        await client.write_prewrite(start_ts, prewrite_key, prewrite_value)
        await client.commit(start_ts, commit_ts)

A client is connecting (listing the pumps), then open, then closed. It runs in one event loop. `sync` has a blocking
form for programs with threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Self, Unpack

from binlog.cluster.etcd import Etcd, connect_etcd
from binlog.cluster.registry import Registry
from binlog.cluster.timestamp import cluster_id
from binlog.errors import BinlogError
from binlog.runtime.fields import UpstreamSection
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.waiting import is_set_within

from pumpclient.errors import ClientClosed, NoPump, PumpClientError
from pumpclient.options import ConnectOptions, PdUrls, check_labels, limits_of, upstream_of
from pumpclient.pool import NO_LABELS, STRATEGIES, Pool, Selector, make_selector
from pumpclient.writer import NO_DDL, DdlFields, Ended, Writer, prewrite_payload

log = get_logger(__name__)

DRAIN_S = 5.0
RELIST_S = 1.0


class PumpsClient:
    """Sends each prewrite to a pump that it selects, and the commit to the pump that acknowledged the prewrite."""

    def __init__(
        self,
        registry: Registry,
        *,
        cluster_id: int,
        strategy: str = "range",
        **options: Unpack[ConnectOptions],
    ) -> None:
        """Make a client without starting it; call `open` next."""
        self._labels = dict(options.get("labels", NO_LABELS))
        labels_only = options.get("labels_only", False)
        check_labels(strategy, self._labels, only=labels_only)
        self.cluster_id = cluster_id
        self.limits = limits_of(options)
        self._pool = Pool(
            pause_first_s=self.limits.detect_first_s,
            pause_max_s=self.limits.detect_s,
            only=self._labels if labels_only else NO_LABELS,
        )
        self._writer = Writer(
            cluster_id=cluster_id,
            pool=self._pool,
            selector=self._selector(strategy),
            limits=self.limits,
            security=options.get("security"),
            labels=self._labels,
            on_undelivered=options.get("on_undelivered"),
            on_expired=options.get("on_expired"),
        )
        self._registry = registry
        self._revision = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._etcd: Etcd | None = None
        self._closed = False

    @classmethod
    async def connect(cls, pd_urls: PdUrls, strategy: str = "range", **options: Unpack[ConnectOptions]) -> PumpsClient:
        """Connect to etcd, list the pumps and return the open client. For `options` see options.ConnectOptions.

        Raises NoPump if no pump is registered (C-01), EtcdError, ConfigError, TypeError or TimestampUnavailable.
        """
        section = upstream_of(pd_urls, options)
        etcd = connect_etcd(section.pd_urls, options.get("security"))
        try:
            client = await cls.over(etcd, section, strategy, options)
        except BaseException:
            await etcd.close()
            raise
        client._etcd = etcd
        return client

    @classmethod
    async def over(cls, etcd: Etcd, section: UpstreamSection, strategy: str, options: ConnectOptions) -> PumpsClient:
        """Connect as `connect` does, with an etcd client that the caller keeps and closes."""
        cluster = await cluster_id(etcd, section, options.get("security"))
        client = cls(Registry(etcd), cluster_id=cluster, strategy=strategy, **options)
        await client.open()
        return client

    async def open(self) -> None:
        """List the pumps and start to follow their changes. Raises NoPump if none is registered."""
        if not await self._list():
            raise NoPump("no pump found in pd")
        self._tasks = [
            asyncio.create_task(self._follow(), name="pumpclient-watch"),
            asyncio.create_task(self._detect(), name="pumpclient-detect"),
        ]

    async def write_prewrite(
        self,
        start_ts: int,
        prewrite_key: bytes,
        prewrite_value: bytes | None,
        *,
        writer: bytes = b"",
        ddl: DdlFields = NO_DDL,
    ) -> str:
        """Write the rows of a transaction (a serialized PrewriteValue), or a DDL (None), to a pump and return its id.

        `writer`: an id registered by cluster/writers.py. The pumps roll the transaction back when the lease of that id
        ends. Without it, the prewrite stays pending and holds back every drainer until this client or an operator ends
        it. Raises PrewriteFailed, PayloadTooLarge, NoPump, DuplicateTransaction or TooManyTransactions.
        """
        self._check_open()
        payload = prewrite_payload(start_ts, prewrite_key, prewrite_value, writer, ddl)
        return await self._writer.prewrite(start_ts, prewrite_key, payload)

    async def commit(self, start_ts: int, commit_ts: int, ddl: DdlFields = NO_DDL) -> None:
        """Send the commit to the pump that has the prewrite. The commit is durable when this returns.

        Cancelling the caller does not cancel the delivery. Raises UnknownTransaction, CommitTsChanged,
        TransactionRolledBack (the pump has rolled it back permanently), or CommitUndelivered when the time for retries
        is over. After CommitUndelivered, the call may be repeated with the same commit_ts.
        """
        self._check_open()
        await self._writer.commit(start_ts, commit_ts, ddl)

    async def rollback(self, start_ts: int) -> None:
        """Roll back an acknowledged prewrite. Errors as for `commit`."""
        self._check_open()
        await self._writer.rollback(start_ts)

    def when_ended(self, start_ts: int, call: Ended) -> None:
        """Call `call` when no more messages are sent for this transaction (see writer.Ended); now if none are."""
        self._writer.when_ended(start_ts, call)

    @property
    def open_transactions(self) -> int:
        """The number of transactions that are neither committed nor rolled back."""
        return len(self._writer.tracker)

    @property
    def rollbacks_owed(self) -> int:
        """The number of clean-up rollbacks that are not answered yet."""
        return self._writer.cleaner.owed

    @property
    def available_pumps(self) -> tuple[str, ...]:
        return self._pool.available()

    def set_strategy(self, strategy: str) -> None:
        """Change how pumps are selected. Commits and rollbacks still go to the pump that has the prewrite (C-08)."""
        if strategy not in STRATEGIES:
            raise PumpClientError(f"strategy {strategy} is not support")  # the original's text
        if strategy == "label" and not self._labels:
            raise PumpClientError("strategy label needs labels: pass them to connect")
        self._writer.selector = self._selector(strategy)

    def _selector(self, strategy: str) -> Selector:
        selector, known = make_selector(
            strategy,
            weights=self._pool.weights,
            has_labels=lambda pump: self._pool.labelled(pump, self._labels),
        )
        if not known:
            log.warning("unknown strategy; using range", strategy=strategy)
        return selector

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Close the client. Deliveries under way get `drain_s` seconds; the start_ts of unfinished ones are logged."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close(drain_s=drain_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._etcd is not None:
            await self._etcd.close()

    # The pool is kept equal to the registry, and suspended pumps are probed (C-04, C-05).
    async def _list(self) -> int:
        """Replace the pool by a listing and return the number of pumps. Raises EtcdError."""
        listing = await self._registry.list("pumps")
        self._revision = listing.revision
        for node_id in self._pool.replace_all(record.status for record in listing.nodes):
            self._writer.forget(node_id)
        return len(listing.nodes)

    async def _follow(self) -> None:
        """Apply changes until cancelled. After a broken watch, list the pumps again, so that no change is missed."""
        outage = Outage(log, "watch of pumps failed", "watch of pumps works again")
        while True:
            try:
                async for changes in self._registry.watch("pumps", self._revision):
                    for node_id, record in changes:
                        if record is None:
                            self._pool.remove(node_id)
                            self._writer.forget(node_id)
                        elif self._pool.put(record.status):
                            self._writer.forget(node_id)
            except BinlogError as error:
                outage.failed(error=str(error))
            await asyncio.sleep(RELIST_S)
            with contextlib.suppress(BinlogError):  # etcd is unreachable: keep the pool as it is and retry
                await self._list()
                outage.over()

    async def _detect(self) -> None:
        """Probe suspended pumps when they are due. While no pump is available, probe all of them repeatedly."""
        last_s = -self.limits.detect_soonest_s
        while True:
            await is_set_within(min(self.limits.detect_s, self._pool.next_probe_s()), self._writer.suspended)
            self._writer.suspended.clear()
            self._writer.report_expired()
            await asyncio.sleep(max(0.0, last_s + self.limits.detect_soonest_s - time.monotonic()))
            due = self._pool.due()
            if not due:
                continue
            last_s = time.monotonic()
            answers = await asyncio.gather(*(self._writer.probe(pump) for pump in due))
            for pump, answer in zip(due, answers, strict=True):
                if not answer.acked:
                    log.info("pump is still unavailable", pump=pump, detail=answer.detail)
            if not self._pool.available():
                self._writer.suspended.set()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the pump client is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
