"""Vectors of TiCDC's codec options: defaults, and what is refused with what words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

import pytest
from binlog.errors import ConfigError

from drainer.protocol.registry import check
from tests.golden.vector_files import Vector, only
from tests.support.protocol_options import protocol_options

_REGISTRY: Final = {"schema-registry": "http://127.0.0.1:8081"}
_ALIASES: Final = {"open_output_old_value": "output_old_value"}
# Of cases in words: the parts between the plus signs.
_PARTS: Final[dict[str, dict[str, str]]] = {
    "avro": {"protocol": "avro", **_REGISTRY},
    "ext": {"enable-tidb-extension": "true"},
    "decimal string": {"avro-decimal-handling-mode": "string"},
    "bigint string": {"avro-bigint-unsigned-handling-mode": "string"},
}


def check_defaults(vector: Vector) -> None:
    only(vector["input"], "")
    options = protocol_options({})
    expected = {name: value for name, value in vector["expected"].items() if name != "enable_row_checksum"}
    for name, value in expected.items():
        assert getattr(options, _ALIASES.get(name, name)) == value


def check_validate(vector: Vector) -> None:
    uri = _given(vector["input"])
    if uri is None:
        return

    def parse() -> None:
        check(protocol_options(uri))

    expected: Vector = vector["expected"]
    if "error_contains" in expected:
        (words,) = only(expected, "error_contains")
        with pytest.raises(ConfigError) as caught:
            parse()
        error = str(caught.value)
        # What the types of settings refuse is refused in the words of a file's settings, with the parameter's name.
        assert words in error or any(error.startswith(f"the address: {name}: ") for name in uri)
        return
    (valid,) = only(expected, "valid")
    assert isinstance(valid, bool)
    if valid:
        parse()
        return
    with pytest.raises(ConfigError):
        parse()


def _given(given: Vector) -> dict[str, str] | None:
    """Return the parameters; None if rows have checksums, which no parameter sets."""
    if "query" in given:
        (query,) = only(given, "query")
        text, _, remark = query.partition(" ")
        assert remark in ("", "(registry set)"), f"no remark this check can read: {remark}"
        return dict(parse_qsl(text, strict_parsing=True)) | (_REGISTRY if remark else {})
    (case,) = only(given, "case")
    parts = [part.removesuffix(" only") for part in case.split(" + ")]
    if "checksum" in parts:
        return None
    uri = dict[str, str]()
    for part in parts:
        assert part in _PARTS, f"no part of a case this check can read: {part}"
        uri |= _PARTS[part]
    return uri


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {"defaults": check_defaults, "validate": check_validate}
