"""The writer id of this service: random, registered in etcd under a lease, and named in every prewrite.

While the lease is valid, only this service settles its transactions. The lease expires when the process has ended, was
suspended for longer than its TTL, or could not reach etcd for so long: then the pumps roll back the pending prewrites
of that id and refuse later commits (correctness rule 24).

If no pump answers a commit, the service cannot settle that transaction. Then the id is retired: new transactions use a
new id, and the old lease is revoked after the last transaction that uses it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from binlog.cluster.keepalive import Keep, KeepAlive, KeepAliveTask, boot_clock_s
from binlog.cluster.kv import Compare, Etcd, Lease
from binlog.cluster.writers import register_writer
from binlog.errors import EtcdError, LeaseExpired
from binlog.runtime.log import get_logger

log = get_logger(__name__)

TTL_S = 6
TRIES_MAX = 3
REVOKE_S = 3.0


@dataclass(frozen=True, slots=True)
class Writer:
    """`id` is what a prewrite names. An etcd transaction with `condition` is made only while this writer lives."""

    id: bytes
    condition: Compare


@dataclass(slots=True, eq=False)
class _Held:
    """Current, then retired (`users` may still be under way), then ended."""

    writer: Writer
    lease: Lease
    kept: KeepAlive
    users: int = 0
    retired: bool = False


class Use:
    """One transaction under a writer, from `WriterLease.enter` to `end`."""

    __slots__ = ("_held", "_lease", "writer")

    def __init__(self, lease: WriterLease, held: _Held) -> None:
        self._lease = lease
        self._held: _Held | None = held
        self.writer = held.writer

    def end(self, *, decided: bool) -> None:
        """`decided`: it is committed, or rolled back, or was never sent. Else its prewrite may be pending, and is left
        to the pumps. A second call does nothing."""
        held, self._held = self._held, None
        if held is not None:
            self._lease.leave(held, decided=decided)


class WriterLease:
    """Without an id until first asked for one; then with it, or a new one where it was retired or its lease has ended;
    then closed.

    `keep` is how a lease is renewed, by default in the running event loop: see binlog.cluster.keepalive.
    """

    def __init__(self, etcd: Etcd, *, ttl_s: int = TTL_S, keep: Keep = KeepAliveTask) -> None:
        self.ttl_s = ttl_s
        self._etcd = etcd
        self._keep = keep
        self._held: _Held | None = None
        self._retired: set[_Held] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._renewing = asyncio.Lock()

    @property
    def writer(self) -> Writer | None:
        """The id of now, if there is one; its lease may have ended."""
        return None if self._held is None else self._held.writer

    async def ready(self) -> None:
        """Have an id. EtcdError as of `enter`."""
        await self._current()

    async def enter(self) -> Use:
        """For a transaction whose prewrite is sent now. EtcdError when it is not known whether the lease lives, and no
        new one can be had; nothing has been sent then."""
        held = await self._current()
        held.users += 1
        return Use(self, held)

    async def _current(self) -> _Held:
        held = self._held
        if held is not None and boot_clock_s() < held.kept.until_s:
            return held
        async with self._renewing:
            held = self._held
            if held is not None and boot_clock_s() < held.kept.until_s:
                return held
            if held is not None and await self._lives(held):
                return held
            return await self._register()

    async def _lives(self, held: _Held) -> bool:
        """Our clock says that its time is over. etcd has the last word: it may have renewed it, or been down itself."""
        asked_s = boot_clock_s()
        try:
            await held.lease.keep_alive()
        except LeaseExpired:
            log.warning(
                "this writer's lease expired; the pumps roll back its open transactions",
                writer=held.writer.id.hex(),
                ttl_s=held.lease.ttl_s,
            )
            held.kept.stop()
            if self._held is held:
                self._held = None
            return False
        if held.retired:  # meanwhile, by a transaction under it
            return False
        held.kept.stop()
        held.kept = self._keep(held.lease, asked_s)
        return True

    async def _register(self) -> _Held:
        for _ in range(TRIES_MAX):
            asked_s = boot_clock_s()
            lease = await self._etcd.lease(self.ttl_s)
            made = await register_writer(self._etcd, lease)
            if made is not None:
                self._held = _Held(Writer(*made), lease, self._keep(lease, asked_s))
                return self._held
        raise EtcdError(f"etcd refused {TRIES_MAX} new keys of this writer")

    # --- ending ---------------------------------------------------------------------------------------------

    def leave(self, held: _Held, *, decided: bool) -> None:
        """A transaction under it is over for this service; see `Use.end`."""
        held.users -= 1
        if not decided and held is self._held:
            log.warning(
                "a transaction ended without a known outcome: the pumps settle it once this writer's lease is "
                "revoked, after its other transactions",
                writer=held.writer.id.hex(),
                under_way=held.users,
            )
            self._held = None
            held.retired = True
            self._retired.add(held)
        if held in self._retired and not held.users:
            self._retired.discard(held)
            task = asyncio.get_running_loop().create_task(self._end(held), name="end of a writer's lease")
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)
            held.kept.stop()

    async def _end(self, held: _Held) -> None:
        """The pumps roll back at once what is still pending. Without etcd the lease ends by itself."""
        held.kept.stop()
        try:
            async with asyncio.timeout(REVOKE_S):
                await held.lease.revoke()
        except (EtcdError, TimeoutError) as error:
            log.warning(
                "cannot revoke this writer's lease; it expires by itself",
                writer=held.writer.id.hex(),
                ttl_s=held.lease.ttl_s,
                error=str(error) or "no answer",
            )

    async def close(self) -> None:
        """End every lease, whatever is under way."""
        left = [*self._retired, *([self._held] if self._held is not None else [])]
        self._held = None
        self._retired.clear()
        await asyncio.gather(*(self._end(held) for held in left), *self._endings)
