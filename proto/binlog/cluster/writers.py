"""Writers that hold a lease: services of the SDK, which have no TiKV behind them (correctness rule 24).

/tidb-binlog/v1/writers/<32 hex digits>   who it is, as JSON for people; the key vanishes with the writer's lease

The id is random and never used again, and its key is created before the first prewrite that names it. So a prewrite
that was read while the key was there, or before, and whose key is absent in a later linearizable read, has lost its
writer for good.
"""

from __future__ import annotations

import json
import os
import secrets
import socket

from binlog.cluster.kv import Compare, Etcd, Lease, Put
from binlog.cluster.registry import ROOT
from binlog.envelope import WRITER_BYTES
from binlog.runtime.log import get_logger

WRITERS_PREFIX = f"{ROOT}/writers/"

_log = get_logger(__name__)


def key_of_writer(writer: bytes) -> str:
    return f"{WRITERS_PREFIX}{writer.hex()}"


async def register_writer(etcd: Etcd, lease: Lease) -> tuple[bytes, Compare] | None:
    """A new writer's id, and the condition of a transaction that only this living writer may make.

    None if the key is there: with ids of this length, an attempt of this very call whose answer was lost.
    """
    writer = secrets.token_bytes(WRITER_BYTES)
    key = key_of_writer(writer)
    value = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "ttl_s": lease.ttl_s}).encode()
    revision = await etcd.txn([Compare(key, mod_revision=0)], [Put(key, value, lease.id)])
    return None if revision is None else (writer, Compare(key, mod_revision=revision))


async def living_writers(etcd: Etcd) -> frozenset[bytes]:
    """The ids of all writers whose lease has not ended. Keys that are none of ours are left out."""
    kvs, _ = await etcd.range(WRITERS_PREFIX)
    found: list[bytes] = []
    for kv in kvs:
        try:
            found.append(bytes.fromhex(kv.key.removeprefix(WRITERS_PREFIX)))
        except ValueError:
            _log.warning(
                "ignoring an etcd key under the prefix of writer leases: it does not end in a writer id", key=kv.key
            )
    return frozenset(found)
