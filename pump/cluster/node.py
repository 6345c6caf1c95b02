"""This pump as a node: its lock, its id, its record in the registry, and its state.

Correctness rules 1 (paused pumps: the label `final`) and 2 (pumps that return: revisions of the record) say what both
must hold.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from binlog.cluster import tso
from binlog.cluster.registry import (
    FINAL_LABEL,
    STATUS_LABEL,
    Event,
    ForeignRecord,
    NodeRecord,
    NodeStatus,
    OwnRecord,
    Registry,
    State,
    check_node_id,
    next_state,
)
from binlog.errors import BinlogError, ConfigError, EtcdError, RegistryConflict
from binlog.runtime.fields import split_host_port
from binlog.runtime.log import Outage, get_logger

_log = get_logger("pump.cluster.node")


class DirectoryLock:
    """An exclusive lock on the data directory, held from the constructor until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        """Create the directory (0700) and lock it. Raises BinlogError if another process holds the lock, ConfigError
        if the directory cannot be created."""
        path = directory / ".lock"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = "a file of that name exists" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(f"data-dir {directory} cannot be used: {why}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise BinlogError(f"{path}: pkg/file: file already locked (another pump uses this data-dir)") from error

    def release(self) -> None:
        os.close(self._fd)


def node_id(directory: Path, configured: str, addr: str) -> str:
    """Return the id stored in `.node`, else the configured id, else `<hostname>:<port>`, which is then stored in
    `.node`.

    Raises ConfigError with the file or the id that cannot be used.
    """
    path = directory / ".node"
    try:
        kept = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        kept = ""
    except (OSError, UnicodeDecodeError) as error:
        if not configured:
            raise ConfigError(f"node id cannot be read from {path}: {error}") from error
        kept = ""
    try:
        if kept:
            if configured and configured.strip() != kept:
                _log.warning(
                    "node-id of the configuration is ignored", configured=configured, kept=kept, file=str(path)
                )
            return check_node_id(kept)
        if configured:
            return check_node_id(configured)
        made = check_node_id(f"{socket.gethostname()}:{split_host_port(addr)[1]}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    temporary = path.with_suffix(".tmp")
    temporary.write_text(made, encoding="utf-8")
    temporary.chmod(0o600)
    temporary.rename(path)
    return made


def check_same_node(recorded: str, name: str, configured: str, directory: Path) -> None:
    """Raise ConfigError if the index says that another pump wrote this data-dir and the new name is not configured.
    With the new name, drainers would wait for the old one for ever. `recorded`: the id in the index; "" if unknown."""
    if recorded not in ("", name) and configured.strip() != name:
        raise ConfigError(
            f"{directory / '.node'} makes this pump {name!r}, but its data-dir was written by pump {recorded!r}. If "
            f"the file was damaged or removed, write that id into it; to give the pump another name, set node-id to it"
        )


@dataclass(eq=False)
class Node:
    """The node state machine: absent, registered, usurped (another process wrote the record), or left.

    `state`: the state of this process, which the next write puts into the record. `usurped`: the state in the record
    that another process wrote, "" if there is none. `labels`: written to the record, for writers that choose pumps by
    them.
    """

    registry: Registry
    node_id: str
    _: KW_ONLY
    resolved_ts: Callable[[], int]
    labels: Mapping[str, str] = field(default_factory=dict)
    score: int = 0  # written to the record; 0: nothing is measured
    state: State = State.OFFLINE
    previous: State | None = None
    usurped: str = ""
    _host: str = ""
    _status_addr: str = ""
    _final_ts: int | None = None
    _started: tuple[int, float] = (0, 0.0)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._record = OwnRecord(self.registry, "pumps", self.node_id)

    @property
    def refuses_prewrites(self) -> str:
        """The state that a refusal of a prewrite names; "" while prewrites are accepted."""
        if self.usurped:
            return self.usurped
        return "" if self.state is State.ONLINE and self._record.revision else str(self.state)

    async def register(self, host: str, now_ts: int, *, status_addr: str = "") -> None:
        """Become online. RegistryConflict if another process writes the record at the same time.

        `host`: advertised host:port. `status_addr`: host:port where binlogctl finds /state, written to a label; "" for
        none.
        """
        self._host, self._status_addr = host, status_addr
        self._started = (now_ts, asyncio.get_running_loop().time())
        record = await self._record.read()
        self.previous = record.status.state if record is not None else None
        self.state = next_state(self.previous or State.OFFLINE, Event.START)
        await self._record.take(self._status(now_ts), record)
        _log.info("registered", node_id=self.node_id, host=host, previous=self.previous)

    def _status(self, update_ts: int | None = None) -> NodeStatus:
        start_ts, start_s = self._started
        now_ts = tso.approximate(start_ts, asyncio.get_running_loop().time() - start_s)
        final_ts = self._final_ts if self.state is State.PAUSED else None
        labels = dict(self.labels)
        if self._status_addr:
            labels[STATUS_LABEL] = self._status_addr
        if final_ts is not None:
            labels[FINAL_LABEL] = "true"
        return NodeStatus(
            self.node_id,
            self._host,
            self.state,
            score=self.score,
            label=labels or None,
            max_commit_ts=self.resolved_ts() if final_ts is None else final_ts,
            update_ts=now_ts if update_ts is None else update_ts,
        )

    async def move(self, event: Event, *, final_ts: int | None = None) -> None:
        """Change the state and write it to the registry. `final_ts`: no binlog above it is or will be stored."""
        self.state = next_state(self.state, event)
        self._final_ts = final_ts
        await self.write()

    async def write(self) -> None:
        """Write the record with the current state. RegistryConflict: another process wrote it; EtcdError: retry."""
        async with self._writing:
            if self.usurped:
                raise RegistryConflict(
                    f"the record of {self.node_id} was overwritten by another process: {self.usurped}"
                )
            try:
                await self._record.write(self._status)
            except ForeignRecord as error:
                self._usurp(error.state, error.found)
                raise

    def _usurp(self, state: str, found: object) -> None:
        self.usurped = state
        _log.error(
            "another process overwrote this pump's record: prewrites are refused; restart the pump to register it "
            "again",
            node_id=self.node_id,
            record=found,
        )

    async def heartbeat(self, interval_s: float, measure: Callable[[], Awaitable[int]]) -> None:
        """Write the record every `interval_s` seconds, with the score that `measure` returns, until usurped. Failures
        of etcd are logged and retried (P-LC-06)."""
        outage = Outage(_log, "heartbeat failed", "heartbeat succeeds again")
        while not self.usurped:
            await asyncio.sleep(interval_s)
            try:
                self.score = await measure()
                await self.write()
                outage.over()
            except RegistryConflict:
                return
            except BinlogError as error:
                outage.failed(error=error)

    async def watch(self) -> None:
        """Detect a write of another process when it happens, not only at the next heartbeat."""
        outage = Outage(_log, "watch of the registry failed", "watch of the registry works again")
        while not self.usurped:
            try:
                if outage.lasts_s:
                    await self._record.read()  # an established watch sends no message
                    outage.over()
                async for changes in self.registry.watch("pumps", self._record.revision):
                    for node_id, record in changes:
                        if node_id == self.node_id:
                            await self._handle_change(record)
                    if self.usurped:
                        return
            except EtcdError as error:
                outage.failed(error=error)
                await asyncio.sleep(1)

    async def _handle_change(self, record: NodeRecord | None) -> None:
        """Handle a change of this pump's key: it is this pump's own write, possibly one whose answer has not arrived
        yet, or a write of another process."""
        async with self._writing:
            if self._record.is_ours(record):
                return
            with suppress(EtcdError):
                found = await self._record.read()
                if not self._record.is_ours(found):
                    self._usurp(str(found.status.state) if found is not None else "removed", found)

    async def go_offline(self) -> None:
        """Write the record as offline, after a failed start."""
        self.state = State.OFFLINE
        await self._record.write(lambda: replace(self._status(), update_ts=0))
