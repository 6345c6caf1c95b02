"""What `--vectors FILE` reads beyond the forms that the vectors of this repository have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.test_vectors import test_vector as run
from tests.golden.vector_files import Vector, vectors_with


@pytest.mark.parametrize(
    ("given", "digits"),
    [
        ({"hash": "DDLJobHistory", "field": 105}, "0000000000000069"),
        ({"hash": "DDLJobHistory", "job_id": 105}, "0000000000000069"),
        ({"hash": "DDLJobHistory", "field_hex": "0000000000000069"}, "0000000000000069"),
    ],
)
def test_vector_of_job_history_key_is_read(given: Vector, digits: str) -> None:
    """The bytes are those of TiDB's own form: prefix, name in groups of eight, kind, field likewise."""
    name = "44444c4a6f624869ff73746f7279000000fc0000000000000068"
    vector = {"section": "meta_key", "name": "?", "input": given}
    run({**vector, "hex": f"6d{name}{digits}ff0000000000000000f7"})
    with pytest.raises(AssertionError):
        run({**vector, "hex": f"6d{name}{digits[:-1]}8ff0000000000000000f7"})


@pytest.mark.parametrize(
    ("code", "text", "digits"),
    [
        (17, '"10:11:12.130000"', "802448655a21000002000000"),
        (17, '"-00:00:01.000000"', "003665c4ffffffff00000000"),
        (10, "5", "0500000000000000"),
        (15, '"2022-03-31 03:20:20.000000"', "0000001435fe981f"),
    ],
)
def test_vector_of_every_json_type_code_is_read(code: int, text: str, digits: str) -> None:
    vector = {"section": "json_binary", "name": "?", "hex": digits, "datum_hex": f"0a{code:02x}{digits}"}
    run({**vector, "input": {"type_code": code, "text": text}})
    with pytest.raises(AssertionError):
        run({**vector, "input": {"type_code": code, "text": text.replace("0", "1").replace("5", "6")}})


def test_vector_of_unknown_form_is_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    for vectors, error in (([], "no vectors"), ([{"name": "?"}], "neither a section nor a protocol")):
        file.write_text(json.dumps({"vectors": vectors}))
        with pytest.raises(pytest.UsageError, match=error):
            vectors_with("section", [file], [])


def test_vector_files_of_both_forms_go_to_their_checks(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    codec, message = {"section": "varint", "name": "?"}, {"protocol": "open", "kind": "flag", "input": {}}
    file.write_text(json.dumps({"vectors": [codec, message]}))
    assert vectors_with("section", [file], []) == [codec]
    assert vectors_with("kind", [file], []) == [message]
    alone = tmp_path / "codec.json"
    alone.write_text(json.dumps({"vectors": [codec]}))
    assert vectors_with("kind", [alone], [file]) == [message]
