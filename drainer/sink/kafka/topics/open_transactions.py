"""The text for an operator about transactions that stay open, so that read-committed consumers cannot read past them.
Pure.

A broker acknowledges a commit or an abort before it writes the markers. Brokers up to 4.4 take a partition that has no
leader at that moment for a deleted one, and never write its marker (KAFKA-20734): the transaction stays open there.
This happens if a broker is killed whose partitions have no other replica. No client can learn what was decided, so the
drainer ends no such transaction itself: it looks for them when it starts, and waits.
"""

from __future__ import annotations

from collections.abc import Mapping


def open_transactions_text(open_at: Mapping[tuple[str, int], int], address: str) -> str:
    """Return where the first open transaction begins, the command that names its producer, and the one that ends it.
    `open_at`: topic and partition → the offset at which the transaction begins; `address`: the brokers."""
    (topic, partition), offset = min(open_at.items())
    more = f", and others in {len(open_at) - 1} more partitions" if len(open_at) > 1 else ""
    tool = f"kafka-transactions.sh --bootstrap-server {address}"
    place = f"--topic {topic} --partition {partition}"
    return (
        f"a transaction is open at offset {offset} of {topic}-{partition}{more}. "
        f"`{tool} describe-producers {place}` shows its producer id. If that producer is not running, "
        f"`{tool} abort {place} --start-offset {offset}` ends the transaction, and its messages are lost"
    )
