"""The claims of drivers on a changefeed's control topic: the newest claim of a changefeed is its driver's.

A claim is a record of the position's partition. Its offset is the driver's epoch. Each changefeed needs a control topic
of its own, so the oldest claim of another changefeed makes a driver stop.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from drainer.protocol.encoder import Message
from drainer.sink.base import Identity
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.producer import Producer, ProducerLost
from drainer.sink.kafka.reader import Reader, Record
from drainer.sink.kafka.transactions.control_records import (
    POSITION_PARTITION,
    Claim,
    Owner,
    check_claims,
    claim_key,
    claim_value,
    claims,
    made_anew,
)
from drainer.sink.retry import Patience


class Claims:
    """Writes the claim of one driver and checks it against the claims of others. Call `take` before other methods."""

    def __init__(self, config: KafkaConfig, identity: Identity, reader: Reader, label: str) -> None:
        """`reader`: of the control topic; `label`: begins the text of errors."""
        self._config = config
        self._identity = identity
        self._reader = reader
        self._label = label
        self.id = uuid.uuid4().hex
        self._epoch = -1
        self._looked = 0  # claims before this offset are known

    def take(self, patience: Patience) -> int:
        """Append this driver's claim and return its offset, the epoch. Raises DestinationRefused if the control topic
        is another changefeed's."""
        self._withdraw_later(self._claims(patience), patience)
        self._epoch = self._looked = self._append(patience)
        self._check_first(patience)
        return self._epoch

    def check(self, records: Sequence[Record]) -> None:
        """Raise Fenced if these records of the position's partition have a newer claim of this changefeed."""
        check_claims(records, self._epoch, self._label, self.owner, self.id)

    def look(self, patience: Patience) -> None:
        """Look for claims written since the last look. Raises Fenced if another driver has claimed."""
        if self._reader.end(POSITION_PARTITION, patience) < self._looked:
            raise made_anew(self._label)
        records = self._reader.everything(POSITION_PARTITION, patience, begin=self._looked)
        self.check([*self._reader.first(POSITION_PARTITION, self._epoch, patience), *records])
        if records:
            self._looked = records[-1].offset + 1

    @property
    def owner(self) -> Owner:
        return self._identity.cluster_id, self._identity.changefeed

    def _check_owner(self, found: Iterable[Claim]) -> None:
        for claim in found:
            if claim.owner != self.owner:
                raise DestinationRefused(
                    f"{self._config.control_topic} is the control topic of changefeed {claim.changefeed!r} of cluster "
                    f"{claim.cluster_id}: each changefeed needs its own (control-topic)"
                )

    def _check_first(self, patience: Patience) -> None:
        """Two changefeeds may both find an unclaimed topic and claim it. The first claim wins; the other changefeed
        withdraws its own and stops."""
        found = self._claims(patience)
        try:
            self._check_owner(claim for claim in found if claim.epoch < self._epoch)
        except DestinationRefused:
            self._send(self.owner, None, patience)
            raise

    def _withdraw_later(self, found: Sequence[Claim], patience: Patience) -> None:
        """Withdraw claims of other changefeeds that were written after ours. Such a changefeed may have died before it
        withdrew its claim itself, and the claim must not stop the owner of the topic. Raises DestinationRefused if
        another changefeed's claim is the oldest one."""
        ours = max((claim.epoch for claim in found if claim.owner == self.owner), default=None)
        self._check_owner(claim for claim in found if ours is None or claim.epoch < ours)
        for claim in found:
            if claim.owner != self.owner:
                self._send(claim.owner, None, patience)

    def _append(self, patience: Patience) -> int:
        """Append this driver's claim and return its offset."""
        return self._send(self.owner, claim_value(self._identity, self.id), patience)

    def _send(self, owner: Owner, value: bytes | None, patience: Patience) -> int:
        """Send a claim and return its offset; `value` None withdraws the claim. The producer is idempotent, so that the
        library's retries store the claim once, and waits for acknowledgements whatever `required-acks` is: without one
        there is no offset."""
        acknowledged = {"acks": "-1", "enable.idempotence": "true"}
        while True:
            producer = Producer({**self._config.client, **self._config.producer, **acknowledged}, tells_offsets=True)
            claim = Message(claim_key(owner), value, 0, 0)
            try:
                return producer.send_plainly(self._config.control_topic, POSITION_PARTITION, claim, patience)
            except ProducerLost as error:
                patience.failed(error)
            finally:
                producer.drop()

    def _claims(self, patience: Patience) -> list[Claim]:
        return claims(self._reader.everything(POSITION_PARTITION, patience), self._label)
