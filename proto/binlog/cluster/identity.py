"""The cluster id: PD's, or for clusters without PD an id stored in etcd."""

from __future__ import annotations

import secrets

from binlog.cluster.etcd import Etcd
from binlog.cluster.pd import PDClient
from binlog.cluster.registry import ROOT
from binlog.cluster.upstream import choose_source, pd_addresses
from binlog.errors import ConfigError
from binlog.runtime.fields import UpstreamSection
from binlog.runtime.security import Security

CLUSTER_ID_KEY = f"{ROOT}/cluster_id"


async def cluster_id(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> int:
    """Return the id that every RPC carries. Raises as choose_source does, and TimestampUnavailable if PD does not
    answer.
    """
    if await choose_source(etcd, cfg, security) == "pd":
        client = PDClient(pd_addresses(cfg), security)
        try:
            return await client.cluster_id()
        finally:
            await client.close()
    return await own_cluster_id(etcd)


async def own_cluster_id(etcd: Etcd) -> int:
    """Return the id of a cluster without PD: 63 random bits, created by the first program that needs it, and
    permanent.
    """
    kv = await etcd.get(CLUSTER_ID_KEY)
    if kv is None:
        made = secrets.randbits(62) | 1 << 62
        await etcd.put_if(CLUSTER_ID_KEY, str(made).encode(), mod_revision=0)
        kv = await etcd.get(CLUSTER_ID_KEY)
    text = kv.value if kv is not None else b""
    if not text.isdigit() or not 0 < int(text) < 1 << 64:
        raise ConfigError(f"etcd key {CLUSTER_ID_KEY} holds {text!r}, which is not a cluster id")
    return int(text)
