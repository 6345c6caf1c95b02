"""An etcd in memory that loses answers, as a real one does when its leader changes."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.cluster.etcd import Compare, Put
from binlog.errors import EtcdError

from tests.support.memory_etcd import MemoryEtcd


class LossyEtcd(MemoryEtcd):
    """Each transaction meets the next of `results`: "ok", "taken" (and the answer is lost), "dropped", or "late" (it is
    taken when the next transaction comes). With none left all is well."""

    def __init__(self, *results: str) -> None:
        super().__init__()
        self.results = list(results)
        self._late: list[tuple[Sequence[Compare], Sequence[Put]]] = []

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        late, self._late = self._late, []
        for older in late:
            await super().txn(*older)
        result = self.results.pop(0) if self.results else "ok"
        if result == "late":
            self._late.append((compares, puts))
        elif result != "dropped":
            revision = await super().txn(compares, puts, deletes)
            if result == "ok":
                return revision
        raise EtcdError(f"the answer was lost: {result}")
