"""Writers with a lease: services that use the SDK and have no TiKV (correctness rule 24: writers hold leases).

/tidb-binlog/v1/writers/<32 hex digits>   a JSON description for operators; removed with the writer's lease

The id is random and never reused. Its key is created before the first prewrite that names the id. So if a prewrite was
read, and a later linearizable read does not find the key, the writer's lease has ended permanently.
"""

from __future__ import annotations

import json
import os
import secrets
import socket

from binlog.cluster.etcd import Compare, Etcd, Lease, Put
from binlog.cluster.registry import ROOT
from binlog.envelope import WRITER_BYTES
from binlog.runtime.log import get_logger

WRITERS_PREFIX = f"{ROOT}/writers/"

_log = get_logger(__name__)


async def register_writer(etcd: Etcd, lease: Lease) -> tuple[bytes, Compare] | None:
    """Register a new writer. Return its id, and a condition that makes an etcd transaction succeed only while its lease
    lasts.

    None if the key exists. With random ids of this length, the key then is from an earlier attempt of this call whose
    answer was lost.
    """
    writer = secrets.token_bytes(WRITER_BYTES)
    key = f"{WRITERS_PREFIX}{writer.hex()}"
    value = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "ttl_s": lease.ttl_s}).encode()
    revision = await etcd.txn([Compare(key, mod_revision=0)], [Put(key, value, lease.id)])
    return None if revision is None else (writer, Compare(key, mod_revision=revision))


async def living_writers(etcd: Etcd) -> frozenset[bytes]:
    """Return the ids of all writers with a valid lease. Keys that do not end in an id are logged and left out."""
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
