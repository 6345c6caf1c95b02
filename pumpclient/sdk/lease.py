"""The writer id of this service: random, registered in etcd under a lease, and named in every prewrite.

While the lease is valid, only this service settles its transactions. The lease expires when the process has ended, was
suspended for longer than its TTL, or could not reach etcd for so long: then the pumps roll back the pending prewrites
of that id and refuse later commits (correctness rule 24: writers hold leases).

If no pump answers a commit, the service cannot settle that transaction. Then the id is retired: new transactions use a
new id, and the old lease is revoked after the last transaction that uses it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from binlog.cluster.etcd import Compare, Etcd, Keep, KeepAliveThread, Lease
from binlog.cluster.tso import boot_clock_s
from binlog.cluster.writers import register_writer
from binlog.errors import EtcdError, LeaseExpired
from binlog.runtime.log import get_logger

log = get_logger(__name__)

TTL_S = 6
TRIES_MAX = 3
REVOKE_S = 3.0


@dataclass(slots=True, eq=False)
class Held:
    """A writer's lease: current, then retired (transactions of `users` may still be under way), then ended. `id`: named
    in the writer's prewrites. `condition`: true in etcd only while the lease is valid.
    """

    owner: WriterLease
    id: bytes
    condition: Compare
    lease: Lease
    kept: KeepAliveThread
    users: int = 0

    def end(self, *, decided: bool) -> None:
        """End the use by a transaction. `decided`: it is committed, rolled back or unsent; else the pumps settle it."""
        self.users -= 1
        self.owner.left(self, decided=decided)


class WriterLease:
    """The writer id of a service and its lease, registered at first use. A new one replaces it when it is retired or
    its lease has ended. `keep` renews a lease.
    """

    def __init__(self, etcd: Etcd, *, ttl_s: int = TTL_S, keep: Keep) -> None:
        self.ttl_s = ttl_s
        self._etcd = etcd
        self.keep = keep
        self._held: Held | None = None
        self._retired: set[Held] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._renewing = asyncio.Lock()

    async def enter(self) -> Held:
        """Return the lease for a transaction that is about to be sent; it must `end` its use of it.

        Raises EtcdError if it is unknown whether the lease is valid, and no new one can be registered. Nothing was sent
        then.
        """
        held = await self.ready()
        held.users += 1
        return held

    async def ready(self) -> Held:
        """Return the current lease. Register an id if there is none. Raises EtcdError as `enter` does."""
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

    async def _lives(self, held: Held) -> bool:
        """Ask etcd, which decides, about a lease that seems to have expired: it may have been down itself."""
        asked_s = boot_clock_s()
        try:
            await held.lease.keep_alive()
        except LeaseExpired:
            log.warning(
                "this writer's lease expired; the pumps roll back its open transactions",
                writer=held.id.hex(),
                ttl_s=held.lease.ttl_s,
            )
            held.kept.stop()
            if self._held is held:
                self._held = None
            return False
        if self._held is not held:  # a transaction that uses it retired it meanwhile
            return False
        held.kept.stop()
        held.kept = self.keep(held.lease, asked_s)
        return True

    async def _register(self) -> Held:
        for _ in range(TRIES_MAX):
            asked_s = boot_clock_s()
            lease = await self._etcd.lease(self.ttl_s)
            made = await register_writer(self._etcd, lease)
            if made is not None:
                self._held = Held(self, *made, lease, self.keep(lease, asked_s))
                return self._held
        raise EtcdError(f"etcd refused {TRIES_MAX} new keys of this writer")

    def left(self, held: Held, *, decided: bool) -> None:
        """Note that a transaction that uses the writer is over for this service. See `Held.end`."""
        if not decided and held is self._held:
            log.warning(
                "a transaction ended without a known outcome: the pumps settle it once this writer's lease is "
                "revoked, after its other transactions",
                writer=held.id.hex(),
                under_way=held.users,
            )
            self._held = None
            self._retired.add(held)
        if held in self._retired and not held.users:
            self._retired.discard(held)
            task = asyncio.get_running_loop().create_task(self._end(held), name="end of a writer's lease")
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)
            held.kept.stop()

    async def _end(self, held: Held) -> None:
        """Revoke the lease, so that pumps roll back pending prewrites now. Without etcd it expires by itself."""
        held.kept.stop()
        try:
            async with asyncio.timeout(REVOKE_S):
                await held.lease.revoke()
        except (EtcdError, TimeoutError) as error:
            log.warning(
                "cannot revoke this writer's lease; it expires by itself",
                writer=held.id.hex(),
                ttl_s=held.lease.ttl_s,
                error=str(error) or "no answer",
            )

    async def close(self) -> None:
        """End every lease, even if transactions are under way."""
        left = [*self._retired, *([self._held] if self._held is not None else [])]
        self._held = None
        self._retired.clear()
        await asyncio.gather(*(self._end(held) for held in left), *self._endings)
