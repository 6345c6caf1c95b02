"""Settings of TiCDC that have no effect here, or whose values are refused: of `[sink]`, and of sink URIs.

Settings that have an effect are in connection.py, security.py and section.py. A setting that TiCDC's file has
below `kafka-config` says so in its `json_schema_extra` (original_tables.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from binlog.runtime.fields import Section
from pydantic import AfterValidator, Field

from drainer.original_settings import WITHOUT_EFFECT
from drainer.protocol.options import KAFKA_CONFIG
from drainer.sink.kafka.settings.option_values import Switch, UnusedNumber
from drainer.sink.kafka.settings.original_tables import in_ticdc_table
from drainer.sink.settings import ToSection

_Table = Mapping[str, object]

_OF_STORAGE: Final = f"{WITHOUT_EFFECT}: for TiCDC's files, which are a destination of its own here: db-type = file"
_OF_SERVERS: Final = (
    f"{WITHOUT_EFFECT}: for TiCDC's databases, which are a destination of its own here: db-type = mysql"
)


def _only_without_transactions(value: str) -> str:
    if value not in ("", "none"):
        raise ValueError(
            f"{value!r} is not supported for Kafka, as in TiCDC; set none. Rows of a transaction on a table share a "
            f'partition by partition = "table" or "conflict"'
        )
    return value


def _only_false(value: bool) -> bool:
    if value:
        raise ValueError("true is not supported: remove it; a table's schema is sent before its first row")
    return value


def _only_none(value: str) -> str:
    if value not in ("", "none"):
        raise ValueError("binlogs have no checksums of rows: set none, or remove it")
    return value


class IntegritySection(Section):
    """`[integrity]` of TiCDC."""

    integrity_check_level: Annotated[str, AfterValidator(_only_none)] = Field(
        "none", description="must be none: binlogs have no checksums of rows"
    )
    corruption_handle_level: str = Field("warn", description=f"{WITHOUT_EFFECT}: there are no checksums")


class TicdcSection(ToSection):
    """Settings of TiCDC that are accepted but have no effect, or that are accepted with one value only. The section of
    a Kafka destination (KafkaConnectionSection) inherits them."""

    kafka_version: str = Field(
        "",
        description=f"{WITHOUT_EFFECT}: the client library asks brokers for theirs",
        json_schema_extra=in_ticdc_table(KAFKA_CONFIG),
    )
    max_retry: UnusedNumber = Field(
        5,
        description=f"{WITHOUT_EFFECT}: a failed request is repeated until retry-for has passed",
    )
    encoder_concurrency: UnusedNumber = Field(
        32, description=f"{WITHOUT_EFFECT}: Spark's tasks encode; spark.master and slots set their number"
    )
    enable_kafka_sink_v2: Switch = Field(False, description=f"{WITHOUT_EFFECT}: there is one client library")
    advance_timeout_in_sec: UnusedNumber = Field(
        150, description=f"{WITHOUT_EFFECT}: a failed batch is repeated immediately, and /status says why"
    )
    transaction_atomicity: Annotated[str, AfterValidator(_only_without_transactions)] = Field(
        "none", description="must be none, as for Kafka in TiCDC"
    )
    send_all_bootstrap_at_start: Annotated[Switch, AfterValidator(_only_false)] = Field(
        False, description="must be false: with simple, a table's schema is sent before its first row"
    )
    integrity: IntegritySection = Field(default_factory=lambda: IntegritySection.model_validate({}))
    safe_mode: Switch = Field(False, description=_OF_SERVERS)
    mysql_config: _Table = Field(default_factory=dict, description=_OF_SERVERS)
    pulsar_config: _Table = Field(
        default_factory=dict, repr=False, description=f"{WITHOUT_EFFECT}: there is no destination Pulsar"
    )
    terminator: str = Field("\r\n", description=_OF_STORAGE, json_schema_extra={"default": r"\r\n"})
    date_separator: str = Field("day", description=_OF_STORAGE)
    enable_partition_separator: Switch = Field(True, description=_OF_STORAGE)
    file_index_digit: UnusedNumber = Field(20, description=_OF_STORAGE)
    csv: _Table = Field(default_factory=dict, description=_OF_STORAGE)
    cloud_storage_config: _Table = Field(default_factory=dict, description=_OF_STORAGE)
