"""Views whose text leans on the writer's current database (LIKE is in tests/cases/schema/names.txt)."""

from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType, Job

from drainer.schema.catalog import Catalog
from drainer.schema.session import independent
from tests.schema_case import job, table


def view(select: object = "SELECT `a` AS `a` FROM `d`.`t`") -> Job:
    info = replace(table(10, "v"), rest={"view": {"view_select": select}})
    return job(5, ActionType.CREATE_VIEW, 5, schema_id=2, table_info=info)


@pytest.mark.parametrize(
    ("text", "independent_text"),
    [
        ("CREATE VIEW `v` AS SELECT `a` FROM `t`;", "CREATE VIEW `v` AS SELECT `a` FROM `t`;"),
        ("CREATE VIEW `e`.`v` AS SELECT `a` FROM `t`;", "CREATE VIEW `e`.`v` AS SELECT `a` AS `a` FROM `d`.`t`"),
        (
            "CREATE OR REPLACE DEFINER = CURRENT_USER VIEW e.v (`x`) AS (select 1)",
            "CREATE OR REPLACE DEFINER = CURRENT_USER VIEW e.v (`x`) AS SELECT `a` AS `a` FROM `d`.`t`",
        ),
        ("/* VIEW a.b AS */ nonsense", "/* VIEW a.b AS */ nonsense"),
    ],
)
def test_a_view_elsewhere_takes_the_stored_select(text: str, independent_text: str) -> None:
    assert independent(view(), text, Catalog()) == independent_text


def test_without_a_stored_select_the_text_stays() -> None:
    text = "CREATE VIEW `e`.`v` AS SELECT 1"
    assert independent(view(None), text, Catalog()) == text
    assert independent(replace(view(), table_info=None), text, Catalog()) == text
