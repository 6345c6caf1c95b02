"""The source of a cluster's timestamps and id, PD or its own pumps. It is chosen once, and the choice recorded in etcd.

If two programs of a cluster took timestamps from different allocators, the resolved ts would be wrong (correctness rule
7). So the first program records its choice, and every other program must agree.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

from binlog.cluster.etcd import Etcd
from binlog.cluster.pd import NotPD, ask_first
from binlog.cluster.registry import ROOT
from binlog.errors import ConfigError, TimestampSourceMismatch, TimestampUnavailable
from binlog.runtime.fields import UpstreamSection
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security

CLUSTER_ID_KEY = f"{ROOT}/cluster_id"
SOURCE_KEY = f"{ROOT}/tso/source"
LEADER_KEY = f"{ROOT}/tso/leader"  # host:port of the elected pump, under its lease
BOUND_KEY = f"{ROOT}/tso/bound"  # decimal text: no timestamp of this millisecond or later has been allocated

Source = Literal["pd", "own"]

_log = get_logger("upstream")


def pd_addresses(cfg: UpstreamSection) -> Sequence[str]:
    """Return the addresses where PD's gRPC service is expected."""
    return (cfg.pd_addr,) if cfg.pd_addr else cfg.pd_urls


async def choose_source(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> Source:
    """Return the cluster's source. The first program that calls this records it.

    Raises TimestampSourceMismatch if the configuration, or the server at pd-urls, contradicts the record. Raises
    TimestampUnavailable if tso-source is `auto`, no server answers, and no choice is recorded.
    """
    recorded = await _recorded(etcd)
    wanted = await _wanted(cfg, security, recorded)
    if recorded is None:
        await etcd.put_if(SOURCE_KEY, wanted.encode(), mod_revision=0)
        recorded = await _recorded(etcd)
        _log.info("the source of timestamps is recorded", key=SOURCE_KEY, source=recorded, wanted=wanted)
    if recorded != wanted:
        seen = f'tso-source is "{cfg.tso_source}"'
        if cfg.tso_source == "auto":
            where = ", ".join(pd_addresses(cfg))
            seen = f"a PD answers at {where}" if wanted == "pd" else f"the server at {where} is not a PD"
        raise TimestampSourceMismatch(
            f'this cluster takes its timestamps from "{recorded}" (etcd key {SOURCE_KEY}), but {seen}. Two sources in '
            f"one cluster lose transactions: configure the same source in every pump, drainer and writer; to switch "
            f"the cluster, stop all of them, make sure the new source's clock is ahead, and delete the key"
        )
    return wanted


async def _recorded(etcd: Etcd) -> Source | None:
    kv = await etcd.get(SOURCE_KEY)
    if kv is None:
        return None
    if kv.value == b"pd":
        return "pd"
    if kv.value == b"own":
        return "own"
    raise TimestampSourceMismatch(f'etcd key {SOURCE_KEY} holds {kv.value!r}; it must be "pd" or "own"')


async def _wanted(cfg: UpstreamSection, security: Security | None, recorded: Source | None) -> Source:
    if cfg.tso_source != "auto":
        return cfg.tso_source
    try:
        await ask_first(pd_addresses(cfg), security)
        return "pd"
    except NotPD:  # one of them certainly is another server: a plain etcd
        return "own"
    except TimestampUnavailable as error:
        if recorded is not None:
            return recorded
        raise TimestampUnavailable(
            f"tso-source is auto, and no server at {', '.join(pd_addresses(cfg))} answered whether it is a PD: {error}"
        ) from error


async def cluster_id(etcd: Etcd, cfg: UpstreamSection, security: Security | None = None) -> int:
    """Return the id that every RPC carries. Raises as choose_source does, and TimestampUnavailable if PD does not
    answer.
    """
    if await choose_source(etcd, cfg, security) == "pd":
        return (await ask_first(pd_addresses(cfg), security)).cluster_id
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
