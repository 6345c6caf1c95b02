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
    EpochClaim,
    Owner,
    check_claims,
    claim_key,
    claim_value,
    claims,
    made_anew,
)
from drainer.sink.retry import RetryDeadline


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
        self._polled = 0  # claims before this offset are known

    def take(self, deadline: RetryDeadline) -> int:
        """Append this driver's claim and return its offset, the epoch. Raises DestinationRefused if the control topic
        is another changefeed's."""
        self._withdraw_later(self._claims(deadline), deadline)
        self._epoch = self._polled = self._append(deadline)
        self._check_first(deadline)
        return self._epoch

    def check(self, records: Sequence[Record]) -> None:
        """Raise Fenced if these records of the position's partition have a newer claim of this changefeed."""
        check_claims(records, self._epoch, self._label, self.owner, self.id)

    def poll(self, deadline: RetryDeadline) -> None:
        """Look for claims written since the last look. Raises Fenced if another driver has claimed."""
        if self._reader.end(POSITION_PARTITION, deadline) < self._polled:
            raise made_anew(self._label)
        records = self._reader.everything(POSITION_PARTITION, deadline, begin=self._polled)
        self.check([*self._reader.first(POSITION_PARTITION, self._epoch, deadline), *records])
        if records:
            self._polled = records[-1].offset + 1

    @property
    def owner(self) -> Owner:
        return self._identity.cluster_id, self._identity.changefeed

    def _check_owner(self, found: Iterable[EpochClaim]) -> None:
        for claim in found:
            if claim.owner != self.owner:
                raise DestinationRefused(
                    f"{self._config.control_topic} is the control topic of changefeed {claim.changefeed!r} of cluster "
                    f"{claim.cluster_id}: each changefeed needs its own (control-topic)"
                )

    def _check_first(self, deadline: RetryDeadline) -> None:
        """Two changefeeds may both find an unclaimed topic and claim it. The first claim wins; the other changefeed
        withdraws its own and stops."""
        found = self._claims(deadline)
        try:
            self._check_owner(claim for claim in found if claim.epoch < self._epoch)
        except DestinationRefused:
            self._send(self.owner, None, deadline)
            raise

    def _withdraw_later(self, found: Sequence[EpochClaim], deadline: RetryDeadline) -> None:
        """Withdraw claims of other changefeeds that were written after ours. Such a changefeed may have died before it
        withdrew its claim itself, and the claim must not stop the owner of the topic. Raises DestinationRefused if
        another changefeed's claim is the oldest one."""
        ours = max((claim.epoch for claim in found if claim.owner == self.owner), default=None)
        self._check_owner(claim for claim in found if ours is None or claim.epoch < ours)
        for claim in found:
            if claim.owner != self.owner:
                self._send(claim.owner, None, deadline)

    def _append(self, deadline: RetryDeadline) -> int:
        """Append this driver's claim and return its offset."""
        return self._send(self.owner, claim_value(self._identity, self.id), deadline)

    def _send(self, owner: Owner, value: bytes | None, deadline: RetryDeadline) -> int:
        """Send a claim and return its offset; `value` None withdraws the claim. The producer is idempotent, so that the
        library's retries store the claim once, and waits for acknowledgements whatever `required-acks` is: without one
        there is no offset."""
        acknowledged = {"acks": "-1", "enable.idempotence": "true"}
        while True:
            producer = Producer({**self._config.client, **self._config.producer, **acknowledged}, tells_offsets=True)
            claim = Message(claim_key(owner), value, 0, 0)
            try:
                return producer.send_plainly(self._config.control_topic, POSITION_PARTITION, claim, deadline)
            except ProducerLost as error:
                deadline.failed(error)
            finally:
                producer.drop()

    def _claims(self, deadline: RetryDeadline) -> list[EpochClaim]:
        return claims(self._reader.everything(POSITION_PARTITION, deadline), self._label)
