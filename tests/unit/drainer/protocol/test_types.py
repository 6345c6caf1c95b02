"""What each protocol says of a value of each column type: tests/cases/protocol/types.txt."""

from __future__ import annotations

import pytest

from tests.support.type_case import TypeCase, field_type, null_of, read_cases, written

CASES = list(read_cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_column_value_in_each_protocol_is_as_in_types_txt(case: TypeCase) -> None:
    assert written(case) == case


@pytest.mark.parametrize("name", [case.name for case in CASES if "not null" not in case.name])
def test_null_of_each_type_is_null_in_each_protocol(name: str) -> None:
    assert null_of(field_type(name)) == dict.fromkeys(("open", "canal", "debezium", "simple", "avro"), "null")
