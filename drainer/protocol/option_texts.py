"""Parses protocol options from the parameters of a sink URI and the keys of a file, under TiCDC's names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_type_hints

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.option_rules import check
from drainer.protocol.options import ProtocolOptions, option_table

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INT: Final = re.compile(r"[+-]?[0-9]{1,19}")

Read = Callable[[str, str], Any]


def _text(name: str, given: str) -> str:
    return given


def _switch(name: str, given: str) -> bool:
    if given not in _TRUE | _FALSE:
        raise ProtocolConfigError(f'{name}: invalid syntax: {given!r} is neither "true" nor "false"')
    return given in _TRUE


def _whole(name: str, given: str) -> int:
    if not _INT.fullmatch(given):
        raise ProtocolConfigError(f"{name}: invalid syntax: {given!r} is not an integer")
    return int(given)


def _level(name: str, given: str) -> bool:
    if given not in ("none", "correctness"):
        raise ProtocolConfigError(f'{name} must be "none" or "correctness", not {given!r}')
    return given == "correctness"


class _Name(NamedTuple):
    """A name under which an option is given: of a URI's parameter and of a key in the file, or of the latter alone."""

    field: str
    name: str
    read: Read
    in_uri: bool = True


def _names() -> Iterator[_Name]:
    """Yield every name, for each option in the order in which they count."""
    hints = get_type_hints(ProtocolOptions)
    yield _Name("protocol", "protocol", _text)
    for field, (_, option) in option_table().items():
        read = {bool: _switch, int: _whole}.get(hints[field], _text)
        name = field.replace("_", "-")
        yield _Name(field, name, read)
        if option.table:
            yield _Name(field, f"{option.table}.{name}", read, in_uri=False)
    for name in ("integrity-check-level", "integrity.integrity-check-level"):
        yield _Name("enable_row_checksum", name, _level, in_uri=False)


_NAMES: Final = tuple(_names())
# Debezium and Open Protocol each have an option of this name, with the same default.
_OLD_VALUE: Final = {"open": "open.output-old-value", "debezium": "debezium.output-old-value"}

URI_NAMES: Final = frozenset(name.name for name in _NAMES if name.in_uri)


def protocol_options(uri: Mapping[str, str], file: Mapping[str, str] | None = None) -> ProtocolOptions:
    """Parse the options. `uri`: parameters of the sink URI, which take precedence. `file`: keys of a changefeed's file
    below `sink`, with points (`open.output-old-value`, `kafka-config.large-message-handle.claim-check-storage-uri`);
    options that a URI may set are also accepted under their plain name. Other names
    are ignored: other code reads them. The default of `protocol` is open-protocol.

    Raises ProtocolConfigError naming the option, its value and the allowed values.
    """
    keys = file or {}
    found: dict[str, Any] = {}
    for given in (uri, keys):
        for field, name, read, in_uri in _NAMES:
            if name in given and field not in found and (in_uri or given is keys):
                found[field] = read(name, given[name])
    found.setdefault("protocol", "open-protocol")
    found["protocol"] = found["protocol"].lower()
    old_value = _OLD_VALUE["debezium" if found["protocol"] == "debezium" else "open"]
    if old_value in keys:
        found["output_old_value"] = _switch(old_value, keys[old_value])
    options = ProtocolOptions(**found)
    check(options)
    return options
