"""What TiCDC's tests, fixtures and captures say of messages, dispatch and consumers: vector by vector, both directions.

The checks of a protocol are in `ticdc_<protocol>.py`: a table CHECKS from kind to a function of the vector. A vector of
a protocol or a kind without a check fails. `pytest tests/golden --vectors FILE` runs another file of the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.golden.vector_files import VECTORS, Vector, vectors_with

DEFAULT = sorted(VECTORS.glob("ticdc_*_vectors.json.gz"))
EDGES = VECTORS / "edge_ticdc_vectors.json.gz"
COMMON = {"id", "protocol", "kind", "priority", "provenance", "source", "note", "input", "expected"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ticdc_vector" in metafunc.fixturenames:
        vectors = vectors_with("kind", metafunc.config.getoption("--vectors"), [*DEFAULT, EDGES])
        cases = [pytest.param(v, id=f"{v['protocol']}-{v['kind']}-{n}-{v['id'][:40]}") for n, v in enumerate(vectors)]
        metafunc.parametrize("ticdc_vector", cases)


def test_every_protocol_has_vectors() -> None:
    names = [path.name.removeprefix("ticdc_").removesuffix("_vectors.json.gz") for path in DEFAULT]
    assert names == ["avro", "config", "consumer", "dispatch", "open", "split"]


def checks_of(protocol: str) -> Mapping[str, Callable[[Vector], None]]:
    name = f"tests.golden.ticdc_{protocol}"
    assert protocol.isidentifier() and find_spec(name), f"no check reads vectors of {protocol!r}"
    found: Mapping[str, Callable[[Vector], None]] = import_module(name).CHECKS
    return found


def test_ticdc_vector(ticdc_vector: Vector) -> None:
    checks, kind = checks_of(ticdc_vector["protocol"]), ticdc_vector["kind"]
    assert kind in checks, f"no check reads the kind {kind!r} of {ticdc_vector['protocol']}"
    unread = set(ticdc_vector) - COMMON
    assert not unread, f"no check reads {sorted(unread)}"
    checks[kind](ticdc_vector)


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "maxwell", "kind": "encode", "input": {}, "expected": {}},
        {"protocol": "../open", "kind": "encode", "input": {}, "expected": {}},
        {"protocol": "open", "kind": "encode_news", "input": {}, "expected": {}},
        {"protocol": "open", "kind": "json_number", "input": {}, "expected": {}, "flavour": 1},
        {"protocol": "open", "kind": "json_number", "input": {"kind": "float64", "value": "1"}, "expected": {}},
        {
            "protocol": "open",
            "kind": "json_number",
            "input": {"kind": "float64", "value": "1", "base": 10},
            "expected": {"json_text": "1"},
        },
        {
            "protocol": "open",
            "kind": "json_number",
            "input": {"kind": "float64", "value": "1"},
            "expected": {"json_text": "2"},
        },
        {"protocol": "config", "kind": "validate", "input": {"case": "avro + magic"}, "expected": {"valid": False}},
    ],
)
def test_ticdc_vector_without_check_fails(wrong: Vector) -> None:
    with pytest.raises(AssertionError):
        test_ticdc_vector(wrong)
