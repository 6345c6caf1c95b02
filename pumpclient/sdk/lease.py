"""Who this service is to the pumps: a random id, held in etcd under a lease, named in every prewrite.

While the lease lives, its transactions are this service's to end. It ends when the process is gone, stood still for
longer than it lives, or could not reach etcd for so long: then the pumps roll back what is pending under that id, and
refuse commits that come later (correctness rule 24).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from binlog.errors import EtcdError, LeaseExpired
from binlog.keepalive import Keep, KeepAlive, KeepAliveTask, boot_clock_s
from binlog.kv import Compare, Etcd, Lease
from binlog.log import get_logger
from binlog.writers import register_writer

log = get_logger(__name__)

TTL_S = 6
TRIES_MAX = 3
REVOKE_S = 3.0


@dataclass(frozen=True, slots=True)
class Writer:
    """`id` is what a prewrite names. An etcd transaction with `condition` is made only while this writer lives."""

    id: bytes
    condition: Compare


@dataclass(frozen=True, slots=True)
class _Held:
    writer: Writer
    lease: Lease
    kept: KeepAlive


class WriterLease:
    """Without an id until first asked for one; then with it, or a new one where its lease has ended; then closed.

    `keep` is how a lease is renewed, by default in the running event loop: see binlog.keepalive.
    """

    def __init__(self, etcd: Etcd, *, ttl_s: int = TTL_S, keep: Keep = KeepAliveTask) -> None:
        self.ttl_s = ttl_s
        self._etcd = etcd
        self._keep = keep
        self._held: _Held | None = None
        self._renewing = asyncio.Lock()

    @property
    def writer(self) -> Writer | None:
        """The id of now, if there is one; its lease may have ended."""
        return None if self._held is None else self._held.writer

    async def current(self) -> Writer:
        """For a prewrite that is sent now. EtcdError when it is not known whether the lease lives, and no new one can
        be had; nothing has been sent then."""
        held = self._held
        if held is not None and boot_clock_s() < held.kept.until_s:
            return held.writer
        async with self._renewing:
            held = self._held
            if held is not None and boot_clock_s() < held.kept.until_s:
                return held.writer
            if held is not None and await self._lives(held):
                return held.writer
            return await self._register()

    async def _lives(self, held: _Held) -> bool:
        """Our clock says that its time is over. etcd has the last word: it may have renewed it, or been down itself."""
        asked_s = boot_clock_s()
        try:
            await held.lease.keep_alive()
        except LeaseExpired:
            log.warning(
                "this writer's lease had ended: transactions that were under way are rolled back by the pumps",
                writer=held.writer.id.hex(),
                ttl_s=held.lease.ttl_s,
            )
            held.kept.stop()
            self._held = None
            return False
        held.kept.stop()
        self._held = _Held(held.writer, held.lease, self._keep(held.lease, asked_s))
        return True

    async def _register(self) -> Writer:
        for _ in range(TRIES_MAX):
            asked_s = boot_clock_s()
            lease = await self._etcd.lease(self.ttl_s)
            made = await register_writer(self._etcd, lease)
            if made is not None:
                writer = Writer(*made)
                self._held = _Held(writer, lease, self._keep(lease, asked_s))
                return writer
        raise EtcdError(f"etcd refused {TRIES_MAX} new keys of this writer")

    async def close(self) -> None:
        """End the lease: the pumps roll back at once what is still pending. Without etcd it ends by itself."""
        held, self._held = self._held, None
        if held is None:
            return
        held.kept.stop()
        try:
            async with asyncio.timeout(REVOKE_S):
                await held.lease.revoke()
        except (EtcdError, TimeoutError) as error:
            log.warning(
                "this writer's lease could not be ended and ends by itself",
                writer=held.writer.id.hex(),
                ttl_s=held.lease.ttl_s,
                error=str(error) or "no answer",
            )
