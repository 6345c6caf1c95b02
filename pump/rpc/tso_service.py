"""The part of PD's service that pumps offer without PD: GetMembers and Tso. Bytes in, bytes out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from binlog.cluster.pd import COUNT_MAX
from binlog.cluster.tso import logical, physical_ms
from binlog.errors import ClusterMismatch
from binlog.pb import parsed
from binlog.pb import pdpb_pb2 as pb
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received

from pump.cluster.election import Election
from pump.errors import InvalidBinlog, NotLeader
from pump.metrics import call_metrics
from pump.rpc.methods import Service


class TsoService:
    """Handlers of `pdpb.PD`, on pumps whose cluster has no PD."""

    def __init__(self, election: Election, cluster_id: int) -> None:
        self._election = election
        self._cluster_id = cluster_id

    def service(self) -> Service:
        return Service("pdpb.PD", {"GetMembers": Method(unary=self.get_members), "Tso": Method(bidi=self.tso)})

    async def get_members(self, _data: Buffer) -> bytes:
        """Return the leader as the only member. Raises NotLeader while no pump is elected."""
        leader = self._election.leader
        if not leader:
            raise NotLeader("no pump is elected to allocate timestamps")
        member = pb.Member(name=leader, member_id=1, client_urls=[leader])
        response = pb.GetMembersResponse(header=self._header(), members=[member], leader=member)
        encoded: bytes = response.SerializeToString()
        return encoded

    async def tso(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        """Answer each request, in order. NotLeader ends the stream; the client then looks for the new leader."""
        async for received in requests:
            request: Any = parsed(pb.TsoRequest, bytes(received.data))
            if request.header.cluster_id not in (0, self._cluster_id):
                raise ClusterMismatch.of(request.header.cluster_id, self._cluster_id)
            if not 0 < request.count <= COUNT_MAX:
                raise InvalidBinlog(
                    f"between 1 and {COUNT_MAX} timestamps can be requested at once, not {request.count}"
                )
            with call_metrics.timed("Tso"):
                last_ts = await self._election.timestamps(request.count)
            timestamp = pb.Timestamp(physical=physical_ms(last_ts), logical=logical(last_ts))
            response = pb.TsoResponse(header=self._header(), count=request.count, timestamp=timestamp)
            encoded: bytes = response.SerializeToString()
            yield encoded

    def _header(self) -> Any:
        return pb.ResponseHeader(cluster_id=self._cluster_id)
