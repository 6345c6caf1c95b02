"""Types of the values of Kafka's settings, of a sink URI and of a file, and settings of TiCDC that have no effect here,
or whose values are refused: of `[sink]`, and of sink URIs.

A sink URI's parameters are texts. TiCDC parses them with Go's strconv and time.ParseDuration. The types accept what
TiCDC accepts, and refuse what it or the client library refuses later. Each error says which values are allowed. It does
not name the setting: pydantic's error does.

Settings that have an effect are in connection.py and section.py. A setting that TiCDC's file has below `kafka-config`
says so in its `json_schema_extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from binlog.errors import ConfigError
from binlog.runtime.fields import ByteSize, Duration, Section, parse_bytes, parse_go_duration
from pydantic import BaseModel, BeforeValidator, Field

from drainer.original_settings import WITHOUT_EFFECT, only
from drainer.protocol.registry import KAFKA_CONFIG
from drainer.sink.settings import ToSection

INT16_MAX: Final = (1 << 15) - 1
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_FRACTION_OF_A_BYTE: Final = re.compile(r"\s*[0-9,]*\.[0-9.,]*\s*[bB]?\s*")
# As Go's strconv.ParseBool.
_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


def whole_number(least: int, most: int = INT32_MAX) -> BeforeValidator:
    """Return a validator of a whole number from `least` to `most`, as a number or as its decimal digits."""

    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"a whole number was expected, from {least} to {most}, not {value!r}")
        return number

    return BeforeValidator(read)


def duration(least: str, most: str) -> BeforeValidator:
    """Return a validator of a duration in Go's syntax. `least`, `most`: the bounds, in the same syntax."""
    bounds = parse_go_duration(least), parse_go_duration(most)

    def read(value: object) -> object:
        try:
            in_bounds = bounds[0] <= parse_go_duration(value) <= bounds[1]
        except ValueError:
            in_bounds = False
        if not in_bounds:
            raise ValueError(f"a duration was expected, from {least} to {most}, such as 90s or 1m30s, not {value!r}")
        return value

    return BeforeValidator(read)


def _message_bytes(value: object) -> object:
    try:
        whole = not isinstance(value, float) and not (isinstance(value, str) and _FRACTION_OF_A_BYTE.fullmatch(value))
        in_bounds = whole and 1 <= parse_bytes(value) <= INT32_MAX
    except ValueError:
        in_bounds = False
    if not in_bounds:
        raise ValueError(f"a size was expected, from 1 byte to {INT32_MAX} bytes, such as 10 MiB, not {value!r}")
    return value


def _switch(value: object) -> object:
    found = _BOOLEANS.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"true or false was expected, not {value!r}")
    return found


_FOREVER: Final = "876000h"  # 100 years

Switch = Annotated[bool, BeforeValidator(_switch)]
MessageBytes = Annotated[ByteSize, BeforeValidator(_message_bytes)]
# librdkafka's socket.timeout.ms is at most 5 minutes. A timeout below a second counts as one (connection.py).
RequestTimeout = Annotated[Duration, duration("1ms", "5m")]
# librdkafka's socket.connection.setup.timeout.ms is a 32-bit number, and so is a transaction's timeout.
ConnectTimeout = Annotated[Duration, duration("1ms", "596h")]
TransactionTimeout = Annotated[Duration, duration("1s", "596h")]
RetryTime = Annotated[Duration, duration("0", _FOREVER)]
ResolvedInterval = Annotated[Duration, duration("100ms", _FOREVER)]
PollInterval = Annotated[Duration, duration("1s", _FOREVER)]
# Numbers that have no effect, in the range of TiCDC's and the original's type.
UnusedNumber = Annotated[int, whole_number(-INT64_MAX - 1, INT64_MAX)]


# The tables of TiCDC's `[sink]` as they stand in its file: `kafka-config` and what is below it. Pure.
#
# Here all of a destination's settings are in one table, so each of them is the setting of its last name.

_TABLE: Final = "ticdc-table"
_GLUE: Final = "glue-schema-registry-config"


def in_ticdc_table(name: str) -> dict[str, Any]:
    """Return what a setting's `json_schema_extra` says of TiCDC's table that has it; "": none below `[sink]`."""
    return {_TABLE: name}


def ticdc_tables(section: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return TiCDC's tables with the names of those settings of the section that they have."""
    found: dict[str, list[str]] = {}
    for name, info in section.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, Mapping) and extra.get(_TABLE):
            found.setdefault(str(extra[_TABLE]), []).append(info.alias or name)
    return {table: tuple(names) for table, names in found.items()}


def with_ticdc_tables(
    value: Mapping[str, Any], tables: Mapping[str, Sequence[str]], security: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a section's mapping, each under the last part of its name. `tables`: those of
    `ticdc_tables`; `security`: the settings of the section `security`, which stand in kafka-config. Raises ConfigError
    that names unknown, refused and repeated settings."""
    _refuse_glue(value, "")
    found = {name: given for name, given in value.items() if name != KAFKA_CONFIG}
    known = {**tables, KAFKA_CONFIG: (*tables.get(KAFKA_CONFIG, ()), *security)}
    for path, given in _settings(value, KAFKA_CONFIG, known):
        name = path.rpartition(".")[2]
        if name in security:
            found["security"] = _added(found.get("security") or {}, name, given, path)
        else:
            found = _added(found, name, given, path)
    return found


def _settings(table: Mapping[str, Any], path: str, tables: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the table at `path` and of the tables below it, with their paths."""
    name = path.rpartition(".")[2]
    below = table.get(name)
    if below is None:
        return
    if not isinstance(below, Mapping):
        raise ConfigError(f"syncer.to.{path}: it is a table, as in TiCDC's file")
    _refuse_glue(below, f"{path}.")
    for key, given in below.items():
        path_below = f"{path}.{key}"
        if path_below in tables:
            yield from _settings(below, path_below, tables)
        elif key in tables[path]:
            yield path_below, given
        elif key != _GLUE:
            raise ConfigError(f"syncer.to.{path_below}: TiCDC has no such setting; there are {', '.join(tables[path])}")


def _added(found: Mapping[str, Any], name: str, given: object, path: str) -> dict[str, Any]:
    if name in found and found[name] != given:
        raise ConfigError(f"syncer.to: {path} and {name} are one setting, and differ: give one of them")
    return {**found, name: given}


def _refuse_glue(table: Mapping[str, Any], above: str) -> None:
    if table.get(_GLUE):  # its values are secrets
        raise ConfigError(
            f"syncer.to.{above}{_GLUE}: AWS Glue is not supported: run a registry with Confluent's API (Confluent's, "
            "Karapace, Apicurio), and set schema-registry to its address"
        )


_Table = Mapping[str, object]

_OF_STORAGE: Final = f"{WITHOUT_EFFECT}: for TiCDC's files, which are a destination of its own here: db-type = file"
_OF_SERVERS: Final = (
    f"{WITHOUT_EFFECT}: for TiCDC's databases, which are a destination of its own here: db-type = mysql"
)


_NO_ATOMICITY: Final = (
    "{} is not supported for Kafka, as in TiCDC; set none. Rows of a transaction on a table share a partition by "
    'partition = "table" or "conflict"'
)
_NOT_AT_START: Final = "true is not supported: remove it; a table's schema is sent before its first row"
_NO_CHECKSUMS: Final = "binlogs have no checksums of rows: set none, or remove it"


class IntegritySection(Section):
    """`[integrity]` of TiCDC."""

    integrity_check_level: Annotated[str, only("", "none", why=_NO_CHECKSUMS)] = Field(
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
    transaction_atomicity: Annotated[str, only("", "none", why=_NO_ATOMICITY)] = Field(
        "none", description="must be none, as for Kafka in TiCDC"
    )
    send_all_bootstrap_at_start: Annotated[Switch, only(False, why=_NOT_AT_START)] = Field(
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
