"""The settings of a Kafka destination for the driver and the executors. Plain values; picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from drainer.sink.kafka.settings.registry_http import RegistryAccess

PartitionChange = Literal["stop", "take-up"]
ReplicationCheck = Literal["warn", "stop"]
# Brokers that have just started write markers some seconds late.
GRACE_S: Final = 10.0
BEHIND_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`client`: settings of every client; `producer`: of producers beside them; `address`: the brokers, for errors.
    `control_topic`: its name, which is the beginning of the transactional ids, too. `slots`: how many there are when
    the control topic is made; later it says so itself. `partition_num`: of the default topic and those that are made,
    0: what the default topic has, or 3; `resolved_s`: how often resolved events go out while nothing happens.
    `grace_s`: how long a transaction may stay open after its end was ordered, before it is reported; `behind_s`: how
    long a broker may lag behind another one."""

    client: Mapping[str, str] = field(repr=False)
    address: str
    control_topic: str
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    slots: int = 16
    exactly_once: bool = True
    transaction_timeout_s: float = 300.0
    retry_for_s: float = 600.0
    resolved_s: float = 1.0
    auto_create_topic: bool = True
    partition_num: int = 0
    replication_factor: int = 1
    replication_check: ReplicationCheck = "warn"
    partition_change: PartitionChange = "stop"
    poll_s: float = 10.0
    registry: RegistryAccess | None = None
    grace_s: float = GRACE_S
    behind_s: float = BEHIND_S

    @property
    def acks_all(self) -> bool:
        """Return whether all in-sync replicas must acknowledge a message."""
        return self.producer.get("acks", "all") in ("all", "-1")

    @property
    def driver_id(self) -> str:
        """The driver's transactional id."""
        return f"{self.control_topic}-driver"

    def slot_id(self, slot: int) -> str:
        return f"{self.control_topic}-{slot}"
