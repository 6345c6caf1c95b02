"""Every case of tests/cases/schema."""

import pytest

from tests.support.schema_case import Case, Runner, cases


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_schema_case_of_text_file_gives_expected_steps(case: Case) -> None:
    Runner().run(case)
