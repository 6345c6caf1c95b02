"""The pump process: start order (P-LC-03) and stop order.

Start: directory lock → etcd → cluster id → status page, if it has its own address → recovery → listen (all requests
refused) → election, if pumps allocate the timestamps → first timestamp → registration → notify drainers → serve →
background tasks.
If the value log breaks, the state becomes `pausing` until a restart; stored binlogs are still served.
Stop: `pausing` (prewrites refused) → pending prewrites get their commits → the store is sealed → online drainers read
the rest → `paused`, with `final` if nothing can follow → background tasks → listener → files → etcd → lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from binlog.cluster.etcd import Etcd, connect_etcd
from binlog.cluster.registry import Event, Registry, State, parse_labels
from binlog.cluster.tikv import TiKV
from binlog.cluster.timestamp import choose_source, cluster_id, connect_timestamps, pd_addresses
from binlog.cluster.writers import PublishedJobs
from binlog.errors import BinlogError, ConfigError, TimestampUnavailable
from binlog.runtime import metrics
from binlog.runtime.fields import reachable, split_host_port
from binlog.runtime.http import StatusServer
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.waiting import cancel
from binlog.topic.message import topic_name

from pump.cluster.election import Election
from pump.cluster.membership import Leaving, notify_drainers
from pump.cluster.node import DirectoryLock, Node, check_same_node, node_id
from pump.config import PumpConfig
from pump.errors import NotifyFailed
from pump.metrics import IN_FLIGHT_BYTES
from pump.rpc.admission import InFlight
from pump.rpc.extension_service import ExtService
from pump.rpc.methods import MessageLimits, PumpListener, Service
from pump.rpc.original_service import Gate, PumpService, TsoService
from pump.status import StatusPages
from pump.store.group_commit import StoreOptions
from pump.store.limits import lacks_room
from pump.store.store import Store, expose, withdraw
from pump.tasks.gc import GarbageCollector, Topic, watch_drainers
from pump.tasks.orphans import Orphans, Upstream, watch_writers
from pump.tasks.publisher import Publisher
from pump.tasks.score import Measuring

GRACE_S = 1.0  # for open calls; long-lived streams are closed after it
SPACE_INTERVAL_S = 3.0

_log = get_logger("pump")


class Pump:
    """One pump process: constructed, started and stopped once each."""

    def __init__(self, config: PumpConfig, *, etcd: Etcd | None = None) -> None:
        """`etcd`: an already connected client, for tests."""
        self._config = config
        self._given_etcd = etcd
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._requested: asyncio.Queue[str] = asyncio.Queue()
        self.status_addr = ""
        self.election: Election | None = None  # only if the pumps allocate the timestamps
        self._upstream: Upstream | None = None  # only if PD allocates them
        self.publisher: Publisher | None = None  # only with [kafka]

    async def start(self) -> None:
        """Start serving; on failure release everything and raise."""
        try:
            await self._start()
        except BaseException:
            await cancel(*self._tasks)
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config, stack = self._config, self._stack
        directory = Path(config.directory)
        lock = DirectoryLock(directory)
        stack.callback(lock.release)
        name = node_id(directory, config.node_id, config.addr)
        security = config.security.security()
        etcd = self._given_etcd or connect_etcd(config.pd_urls, security)
        if self._given_etcd is None:
            stack.push_async_callback(etcd.close)
        self.registry = Registry(etcd)
        self.cluster_id = await cluster_id(etcd, config, security)
        source = await choose_source(etcd, config, security)
        self.timestamps = timestamps = await connect_timestamps(etcd, config, security)
        stack.push_async_callback(timestamps.close)
        options = StoreOptions(
            stop_bytes=config.storage.stop_write_at_available_space,
            transaction_bytes_max=config.transaction_bytes_max,
            sync=config.storage.sync_log,
            index=config.storage.kv.options(),
            ts_ahead_max_s=config.ts_ahead_max,
        )
        self.store = Store(directory, timestamps, options)
        self.node = Node(
            self.registry, name, resolved_ts=lambda: self.store.resolved_ts, labels=parse_labels(config.labels)
        )
        if source == "pd":
            self._upstream = Upstream(TiKV(pd_addresses(config), security), timestamps, PublishedJobs(etcd).used)
        self.publisher = self._make_publisher(topic_name(config.kafka.topic_prefix, self.cluster_id, name))
        self.collector = GarbageCollector(self.store, self.registry, config.gc, topic=self._topic)
        # Steps that can fail precede the registration, whose record would remain after a failed start.
        server = await self._serve_status()
        await self._open_store(directory)
        stack.push_async_callback(server.close)  # before the store, on a stop
        check_same_node(self.store.index.node(), name, config.node_id, directory)
        self.measuring = Measuring(self.store, self.registry, stop_bytes=config.storage.stop_write_at_available_space)
        self.gate = Gate(self.cluster_id, lambda: self.node.refuses_prewrites)
        await self._listen(etcd, own_timestamps=source == "own")
        self.listener.serve_http1(server.protocol)
        stack.callback(self.listener.serve_http1, None)
        now_ts = await self._first_ts()
        await self.store.serve()
        self.node.score = await self.measuring.take()
        await self.node.register(self._advertised, now_ts, status_addr=reachable(self.status_addr, self._advertised))
        await self._notify(now_ts)
        self.store.index.save_node(name)
        self.gate.closed = ""
        self._begin(etcd)
        _log.info("pump is serving", addr=self.addr, node_id=name, cluster_id=self.cluster_id)

    async def _first_ts(self) -> int:
        """Return the first timestamp. Raises TimestampUnavailable, with the reason why this pump does not lead if that
        is the cause."""
        try:
            return await self.timestamps.get()
        except TimestampUnavailable as error:
            if self.election is not None and self.election.refusal:
                raise TimestampUnavailable(f"{error}. {self.election.refusal}") from error
            raise

    def _make_publisher(self, topic: str) -> Publisher | None:
        kafka = self._config.kafka
        if not kafka.addresses:
            return None
        try:
            from binlog.topic.kafka import KafkaWriter
        except ImportError as error:
            raise ConfigError("[kafka]: confluent-kafka is not installed here: pip install '.[topics]'") from error
        writer = KafkaWriter(kafka.client_settings(), topic, kafka.message_bytes_max)
        return Publisher(self.store, writer, topic, message_bytes_max=kafka.message_bytes_max)

    @property
    def _topic(self) -> Topic | None:
        return self.publisher.as_drainer if self.publisher is not None else None

    async def _open_store(self, directory: Path) -> None:
        try:
            await self.store.open()
        except OSError as error:
            place = error.filename or directory
            if lacks_room(str(error)):
                raise BinlogError(f"data-dir {directory}: no room to start: {place}: {error.strerror}") from error
            raise ConfigError(f"data-dir {directory} cannot be used: {place}: {error.strerror or error}") from error
        self._stack.push_async_callback(self.store.close)
        self._stack.callback(withdraw)

    async def _listen(self, etcd: Etcd, *, own_timestamps: bool) -> None:
        config = self._config
        in_flight = InFlight(config.in_flight_bytes_max)
        IN_FLIGHT_BYTES.set_function(lambda: in_flight.bytes)
        self.pump_service = PumpService(self.store, self.gate, in_flight, slow_write_s=config.slow_write_s)
        ext = ExtService(
            self.store, self.gate, in_flight, node_id=self.node.node_id, state=lambda: str(self.node.state)
        )
        services: list[Service] = [self.pump_service.service(), ext.service()]
        if own_timestamps:
            self.election = Election(etcd, log_ts_until=self.store.largest_ts_until, ahead_max_s=config.bound_ahead_max)
            services.append(TsoService(self.election, self.cluster_id).service())
        self.listener = PumpListener(
            services,
            config.security.security(),
            in_flight,
            MessageLimits(config.transaction_bytes_max, config.max_message_size),
        )
        await self.listener.start(config.addr, config.socket)
        self._stack.push_async_callback(self.listener.stop, GRACE_S)
        if self.election is not None:
            self._stack.push_async_callback(cancel, asyncio.create_task(self.election.run(self._advertised)))

    @property
    def addr(self) -> str:
        """The gRPC listen address with the actual port."""
        host, _ = split_host_port(self._config.addr)
        return f"{host}:{self.listener.port}"

    @property
    def _advertised(self) -> str:
        return self._config.advertise_addr or self.addr

    async def _notify(self, now_ts: int) -> None:
        """Notify drainers, unless the record says that this pump was not offline before."""
        if self.node.previous not in (None, State.OFFLINE):
            return
        try:
            await notify_drainers(self.registry, self._config.security.security(), now_ts=now_ts)
        except NotifyFailed:
            await self.node.go_offline()
            raise

    def _begin(self, etcd: Etcd) -> None:
        config = self._config
        security = config.security.security()
        expose(self.store)
        orphans = Orphans(
            self.store,
            self.registry,
            security,
            node_id=self.node.node_id,
            cluster_id=self.cluster_id,
            age_s=config.pending_query_after,
            upstream=self._upstream,
        )
        self._spawn(self.node.heartbeat(config.heartbeat_interval or 2, self.measuring.take), "heartbeat")
        self._spawn(self.node.watch(), "registry watch")
        self._spawn(self.collector.run(), "garbage collection")
        self._spawn(orphans.run(), "old prewrites")
        self._spawn(watch_writers(self.store, etcd), "expired writers")
        self._spawn(self._watch_space(), "free space")
        self._spawn(self._watch_log(), "value log")
        self._spawn(watch_drainers(self.store, self.registry, config.gc, self._topic), "drainers' positions")
        if self.publisher is not None:
            self._spawn(self.publisher.run(), "publishing to Kafka")
        if config.metrics_addr and config.metrics_interval:
            pushing = metrics.push(config.metrics_addr, self.node.node_id, interval_s=config.metrics_interval)
            self._spawn(pushing, "metrics")
        if config.gen_binlog_interval:
            self._spawn(self.store.writes.write_fakes(config.gen_binlog_interval), "fake binlogs")

    async def _serve_status(self) -> StatusServer:
        """Serve HTTP at `status-addr` if configured. HTTP/1 connections to the gRPC address are passed to this
        server."""
        pages = StatusPages(
            self.store,
            self.node,
            self.registry,
            self.timestamps,
            self.collector,
            self._requested.put_nowait,
            measures=lambda: self.measuring.measures,
            tikv=self._upstream.tikv if self._upstream is not None else None,
            publisher=self.publisher,
        )
        server = StatusServer(
            self._config.status_listen,
            pages.routes(),
            actions=pages.actions(),
            security=self._config.security.security(),
        )
        self._stack.push_async_callback(server.close)
        if self._config.status_listen:
            await server.start()
            self.status_addr = server.addr
            _log.info("status server is listening", addr=self.status_addr)
        else:
            await server.prepare()
        self._spawn(pages.sample(), "samples for charts")
        return server

    async def _watch_space(self) -> None:
        space = self.store.space
        unknown = Outage(
            _log, "the free space of data-dir is unknown", "the free space of data-dir is known again", level="error"
        )
        full = Outage(_log, "no available space: writes are refused", "space is available again: writes are accepted")
        while True:
            await asyncio.sleep(SPACE_INTERVAL_S)
            with unknown.catching(OSError):
                await asyncio.to_thread(space.refresh)
            if space.full:
                full.failed(why=space.shortage)
            else:
                full.over(available=space.available_bytes)

    async def _watch_log(self) -> None:
        """When the value log breaks, leave `online`, so that writers choose another pump (correctness rule 23). If the
        cause was a full disk, restart as soon as the disk has room again."""
        reason = await self.store.broken()
        full = lacks_room(reason)
        until = "the disk has room again" if full else "the pump is restarted; if this recurs, check the disk"
        _log.error("writes are refused", until=until, reason=reason)
        if self.node.state is not State.ONLINE or self.node.usurped:
            return
        try:
            await self.node.move(Event.PAUSE)
        except BinlogError as error:
            _log.warning("cannot register that this pump is pausing; the heartbeat will retry", error=error)
        if full:
            await self.store.space.wait_for_room(SPACE_INTERVAL_S)
            _log.warning("the disk has room again: restarting", available=self.store.space.available_bytes)
            self._requested.put_nowait("restart")

    async def requested(self) -> str:
        """Wait until a stop is requested over HTTP or by the pump itself. Return "pause", "close" or "restart"."""
        return await self._requested.get()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(tell_failure)
        self._tasks.append(task)

    async def stop(self, action: str = "pause") -> None:
        """Stop in the order of the module's docstring. A pump with pending prewrites stays `pausing` (correctness rule
        1).

        `close`: go offline for good, once every drainer has applied the binlogs stored here.
        """
        try:
            leaving = Leaving(
                self.node,
                self.store,
                self.registry,
                self.timestamps,
                drain_wait_s=self._config.drain_wait,
                topic=self._topic,
            )
            await leaving.leave(Event.CLOSE if action == "close" else Event.PAUSE)
        except BinlogError as error:
            _log.warning("cannot register that this pump has stopped", error=error)
        self.gate.closed = "the pump is stopping"
        await cancel(*self._tasks)
        await self.timestamps.close()
        await self._stack.aclose()
        _log.info("pump has stopped", node_id=self.node.node_id, state=self.node.state)


def tell_failure(task: asyncio.Task[None]) -> None:
    """Log an error that ended a task: each of them expects some errors and goes on, and nobody waits for one."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error(
            "a background task has failed and stays stopped until this pump is restarted",
            task=task.get_name(),
            exc_info=error,
        )
