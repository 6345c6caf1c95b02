"""Settings of the original drainer's `[syncer.to]` with `db-type = "kafka"`.

Its `kafka-addrs` and `topic-name` are `addresses` and `topic`. If one of them is given, the file is the original's:
settings that are missing then have the values of what the original writes, `protocol = "secondary-binlog"` and one
partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import Field

from drainer.original_settings import WITHOUT_EFFECT, CheckpointSection
from drainer.sink.kafka.settings.option_values import UnusedNumber, only

# The original's name → ours.
_NAMES: Final = {"kafka-addrs": "addresses", "topic-name": "topic"}
_AS_IT_WRITES: Final[Mapping[str, object]] = {"protocol": "secondary-binlog", "partition-num": 1}
# Settings of other destinations, which have no effect for Kafka in the original.
_OTHERS: Final = ("oracle-service-name", "oracle-connect-string")
_TLS: Final = ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")
_HERE: Final = (
    "the position is in the control topic: remove it, and begin with initial-commit-ts of the checkpoint that exists"
)
_NO_ZOOKEEPER: Final = "brokers are not looked up in ZooKeeper: set kafka-addrs to host:port of some of them"


class KafkaCheckpointSection(CheckpointSection):
    """`[syncer.to.checkpoint]` of the original, which keeps its position for Kafka in a file unless a server is
    configured."""

    type: Annotated[str, only("", "file", why=_HERE)] = Field("", description=f"{WITHOUT_EFFECT}: file, or empty")
    schema_: str = Field("", alias="schema", description=f"{WITHOUT_EFFECT}: the position is in the control topic")
    host: Annotated[str, only("", why=_HERE)] = Field("", description="must be empty")


class OriginalKafkaSection(Section):
    """The original's keys that are not also names of other settings."""

    zookeeper_addrs: Annotated[str, only("", why=_NO_ZOOKEEPER)] = Field(
        "", description="must be empty: brokers are named by kafka-addrs"
    )
    kafka_max_messages: UnusedNumber = Field(
        1024, description=f"{WITHOUT_EFFECT}: the client library forms batches by bytes"
    )
    kafka_max_message_size: UnusedNumber = Field(
        1 << 30, description=f"{WITHOUT_EFFECT}: a topic's own max.message.bytes is the limit"
    )
    checkpoint: KafkaCheckpointSection = Field(default_factory=lambda: KafkaCheckpointSection.model_validate({}))


def with_original_names(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section's mapping under our names. Raises ConfigError if a setting is given under both
    names."""
    found = {name: given for name, given in value.items() if name not in (*_NAMES, *_OTHERS)}
    if any(value.get(name) for name in _OTHERS):
        names = ", ".join(name for name in _OTHERS if value.get(name))
        raise ConfigError(f"syncer.to: {names}: settings of other destinations, without effect for Kafka: remove them")
    if isinstance(value.get("security"), Mapping):
        found["security"] = _without_tls(value["security"])
    given = {name: value[name] for name in _NAMES if value.get(name)}
    for name, text in given.items():
        if found.get(_NAMES[name]):
            raise ConfigError(f"syncer.to: {name} and {_NAMES[name]} are one setting: give one of them")
        if value.get("sink-uri"):
            raise ConfigError(f"syncer.to: {name}, and sink-uri, which says it, too: give one of them")
        is_list = name == "kafka-addrs" and isinstance(text, str)
        found[_NAMES[name]] = [one.strip() for one in text.split(",")] if is_list else text
    return {**_AS_IT_WRITES, **found} if given else found


def _without_tls(security: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in _TLS if security.get(name)]
    if names:
        raise ConfigError(
            f"syncer.to.security: {', '.join(names)}: the original has TLS for databases alone; that of Kafka is set "
            "by ca, cert and key: rename or remove them"
        )
    return {name: given for name, given in security.items() if name not in _TLS}
