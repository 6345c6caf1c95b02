"""An etcd in memory that loses answers, as a real one does when its leader changes."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.cluster.kv import Compare, Put
from binlog.errors import EtcdError

from tests.support.memory_etcd import MemoryEtcd


class LossyEtcd(MemoryEtcd):
    """Each transaction meets the next of `fates`: "ok", "taken" (and the answer is lost), "dropped", or "late" (it is
    taken when the next transaction comes). With none left all is well."""

    def __init__(self, *fates: str) -> None:
        super().__init__()
        self.fates = list(fates)
        self._late: list[tuple[Sequence[Compare], Sequence[Put]]] = []

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        late, self._late = self._late, []
        for older in late:
            await super().txn(*older)
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate == "late":
            self._late.append((compares, puts))
        elif fate != "dropped":
            revision = await super().txn(compares, puts, deletes)
            if fate == "ok":
                return revision
        raise EtcdError(f"the answer was lost: {fate}")
