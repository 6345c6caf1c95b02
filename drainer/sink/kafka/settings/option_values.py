"""Types of the values of Kafka's settings: numbers, sizes, durations and booleans, of a sink URI and of a file. Pure.

A sink URI's parameters are texts. TiCDC parses them with Go's strconv and time.ParseDuration. These types accept what
TiCDC accepts, and refuse what it or the client library refuses later. Each error says which values are allowed. It does
not name the setting: pydantic's error does.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from binlog.runtime.fields import ByteSize, Duration, parse_bytes, parse_go_duration
from pydantic import BeforeValidator

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
