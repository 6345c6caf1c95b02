"""Vectors of TiCDC's codec options: defaults, and what is refused with what words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

import pytest

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.option_rules import URI_NAMES, protocol_options
from tests.golden.vector_files import Vector, only

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
    for name, value in vector["expected"].items():
        assert getattr(options, _ALIASES.get(name, name)) == value


def check_validate(vector: Vector) -> None:
    uri, file = _given(vector["input"])
    expected: Vector = vector["expected"]
    if "error_contains" in expected:
        (words,) = only(expected, "error_contains")
        with pytest.raises(ProtocolConfigError) as caught:
            protocol_options(uri, file)
        assert words in str(caught.value)
        return
    (valid,) = only(expected, "valid")
    assert isinstance(valid, bool)
    if valid:
        protocol_options(uri, file)
        return
    with pytest.raises(ProtocolConfigError):
        protocol_options(uri, file)


def _given(given: Vector) -> tuple[dict[str, str], dict[str, str]]:
    if "query" in given:
        (query,) = only(given, "query")
        text, _, remark = query.partition(" ")
        assert remark in ("", "(registry set)"), f"no remark this check can read: {remark}"
        uri = dict(parse_qsl(text, strict_parsing=True)) | (_REGISTRY if remark else {})
        assert set(uri) <= URI_NAMES
        return uri, {}
    (case,) = only(given, "case")
    uri, file = dict[str, str](), dict[str, str]()
    for part in case.split(" + "):
        part = part.removesuffix(" only")
        if part == "checksum":
            file["integrity.integrity-check-level"] = "correctness"
        else:
            assert part in _PARTS, f"no part of a case this check can read: {part}"
            uri |= _PARTS[part]
    return uri, file


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {"defaults": check_defaults, "validate": check_validate}
